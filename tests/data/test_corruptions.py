"""Each corruption against a small formulation of its own, and what all share.

The formulation is for one image or one pixel, or from another library.
"""

import colorsys
import math
from io import BytesIO
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from fairmargin.data.corruptions import (
    CORRUPTIONS,
    blur,
    corrupt,
    digital,
    elastic,
    frost_source,
    spatter,
    weather,
)
from fairmargin.data.corruptions.plasma import plasma

SIZE = 32
RANDOM = (
    "gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise", "glass-blur", "motion-blur",
    "snow", "frost", "fog", "elastic", "spatter",
)  # fmt: skip


def streams(n, seed=0):
    return [np.random.default_rng([seed, i]) for i in range(n)]


@pytest.fixture(scope="module")
def images():
    """Smooth colours with some edges and texture, as photographs have."""
    random = np.random.default_rng(0)
    x = ndimage.gaussian_filter(random.normal(size=(24, SIZE, SIZE, 3)), (0, 3, 3, 0.5))
    x = 0.5 + 0.18 * x / x.std() + 0.03 * random.normal(size=x.shape)
    x[:, 8:20, 10:24] += random.uniform(-0.3, 0.3, (24, 1, 1, 3))
    return (x.clip(0, 1) * 255).astype(np.uint8)


def change(before, after):
    return np.abs(before.astype(float) - after).mean()


# What all share


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("level", [1, 2, 3, 4, 5])
def test_gives_new_bytes_of_the_same_shape(name, level, images):
    before = images.copy()
    out = corrupt(images[:6], name, level)
    assert out.dtype == np.uint8
    assert out.shape == images[:6].shape
    assert not np.shares_memory(out, images)
    assert np.array_equal(images, before)  # the input is left alone
    assert np.array_equal(out, images[:6]) == (name == "original")


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_sample_does_not_depend_on_its_batch(name, images, monkeypatch):
    level = 3 if name == "spatter" else 5  # water has the longer way
    index = np.arange(100, 124)
    whole = corrupt(images, name, level, seed=3, index=index)
    order = np.random.default_rng(1).permutation(24)
    assert np.array_equal(
        corrupt(images[order], name, level, seed=3, index=index[order]), whole[order]
    )
    assert np.array_equal(corrupt(images[7:8], name, level, seed=3, index=index[7:8]), whole[7:8])
    monkeypatch.setattr("fairmargin.data.corruptions.CHUNK", 5 * SIZE * SIZE)
    assert np.array_equal(corrupt(images, name, level, seed=3, index=index), whole)


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_seed_and_index_change_random_corruptions_only(name, images):
    level = 3 if name == "spatter" else 5
    same = np.repeat(images[:1], 8, 0)
    out = corrupt(same, name, level)
    assert np.array_equal(out, corrupt(same, name, level, index=np.arange(8)))
    assert (len(np.unique(out.reshape(8, -1), axis=0)) == 8) == (name in RANDOM)
    assert np.array_equal(out, corrupt(same, name, level, seed=1)) == (name not in RANDOM)


GROWING = set(CORRUPTIONS) - {
    "original",
    "saturate",
    "spatter",
    "elastic",
    "frost",
    "glass-blur",
    "motion-blur",
}


@pytest.mark.parametrize("name", sorted(GROWING))
def test_levels_grow_stronger(name, images):
    strength = [change(images, corrupt(images, name, level)) for level in range(1, 6)]
    assert all(a < b for a, b in pairwise(strength)), strength


def test_published_parameters_that_do_not_always_grow(images):
    def strength(name):
        return [change(images, corrupt(images, name, level)) for level in range(1, 6)]

    glass, motion, elastic_ = strength("glass-blur"), strength("motion-blur"), strength("elastic")
    assert max(glass[:3]) < min(glass[3:])  # one sweep, two sweeps
    assert (
        motion[0] < motion[1] < motion[2] == pytest.approx(motion[3], rel=0.01)
    )  # 8 adds only far taps to 6
    assert motion[3] < motion[4]
    assert (
        elastic_[0] > elastic_[4]
    )  # the affine map, which moves whole borders, gives way to local displacements


def test_frost_hides_more_of_the_image_at_each_level(images):
    """Not in mean change: the image is dimmed as the frost is brightened."""
    agreement = [
        np.corrcoef(images.ravel(), corrupt(images, "frost", level).ravel())[0, 1]
        for level in range(1, 6)
    ]
    assert all(a > b for a, b in pairwise(agreement)), agreement


def test_levels_of_saturate_change_sides(images):
    """1 and 2 take colour away, 3 to 5 add it: strength grows within each."""
    spread = [
        np.ptp(corrupt(images, "saturate", level).astype(int), axis=-1).mean()
        for level in range(1, 6)
    ]
    assert (
        spread[1]
        < spread[0]
        < np.ptp(images.astype(int), axis=-1).mean()
        < spread[2]
        < spread[3]
        < spread[4]
    )


def test_spatter_turns_from_water_to_mud(images):
    black, white = (
        np.zeros((24, SIZE, SIZE, 3), np.uint8),
        np.full((24, SIZE, SIZE, 3), 255, np.uint8),
    )
    for level in (1, 2, 3):
        assert np.array_equal(corrupt(white, "spatter", level), white)  # water only adds light
        assert corrupt(black, "spatter", level).any()
    assert change(images, corrupt(images, "spatter", 4)) < change(
        images, corrupt(images, "spatter", 5)
    )


@pytest.mark.parametrize(
    "name",
    [
        "gaussian-blur",
        "glass-blur",
        "defocus-blur",
        "motion-blur",
        "zoom-blur",
        "jpeg",
        "pixelate",
        "elastic",
        "contrast",
    ],
)
def test_a_constant_image_stays(name):
    constant = np.broadcast_to(np.array([200, 100, 50], np.uint8), (3, SIZE, SIZE, 3)).copy()
    for level in range(1, 6):
        assert np.abs(corrupt(constant, name, level).astype(int) - constant).max() <= 2


def test_all_take_other_sizes(images):
    oblong = images[:2, :20, :]
    large = np.repeat(np.repeat(images[:1], 3, 1), 3, 2)  # 96: parameters of ImageNet-C
    for name in CORRUPTIONS:
        for x in (oblong, large, images[:0]):
            assert corrupt(x, name, 2).shape == x.shape


def test_large_images_take_the_parameters_of_imagenet_c():
    grey = np.full((1, 224, 224, 3), 128, np.uint8)
    noise = corrupt(grey, "gaussian-noise", 1).astype(float) / 255 - 128 / 255
    assert noise.std() == pytest.approx(0.08, rel=0.02)
    assert (
        corrupt(grey, "gaussian-noise", 1)[:, :32, :32].std()
        > corrupt(grey[:, :32, :32], "gaussian-noise", 1).std()
    )


def test_errors_say_what_to_do(images, tmp_path):
    with pytest.raises(ValueError, match="did you mean 'gaussian-blur'"):
        corrupt(images, "gausian-blur", 1)
    for level in (0, 6, 2.5):
        with pytest.raises(ValueError, match=rf"1, 2, 3, 4 or 5.*got {level}"):
            corrupt(images, "fog", level)
        with pytest.raises(ValueError, match="1, 2, 3, 4 or 5"):
            digital.jpeg(images, level, [])
    with pytest.raises(ValueError, match=r"uint8 \[N, H, W, 3\]; got float64"):
        corrupt(images / 255, "fog", 1)
    with pytest.raises(ValueError, match=r"got uint8 \[24, 3, 32, 32\]"):
        corrupt(images.transpose(0, 3, 1, 2), "fog", 1)
    for index in (np.arange(3), np.full(24, -1), np.zeros(24)):
        with pytest.raises(ValueError, match="each of the 24 images"):
            corrupt(images, "fog", 1, index=index)
    with pytest.raises(FileNotFoundError, match=r"has no frost1\.png.*leave frost_dir out"):
        corrupt(images, "frost", 1, frost_dir=tmp_path)


# Noise: statistics on a constant image


@pytest.mark.parametrize(
    ("name", "grey", "deviation"),
    [
        ("gaussian-noise", 128, 0.10),
        ("shot-noise", 128, math.sqrt(128 / 255 / 50)),
        ("speckle-noise", 128, 0.20 * 128 / 255),
        ("speckle-noise", 64, 0.20 * 64 / 255),
    ],
)
def test_noise_has_the_stated_deviation(name, grey, deviation):
    out = corrupt(np.full((40, SIZE, SIZE, 3), grey, np.uint8), name, 5) / 255
    assert out.std() == pytest.approx(deviation, rel=0.02)
    assert out.mean() == pytest.approx((grey - 0.5) / 255, abs=0.002)  # − ½: truncation
    one = out[:, :, :-1].ravel(), out[:, :, 1:].ravel()
    assert abs(np.corrcoef(*one)[0, 1]) < 0.02
    assert abs(np.corrcoef(out[..., 0].ravel(), out[..., 1].ravel())[0, 1]) < 0.02


def test_impulse_noise_hits_the_stated_share():
    for level, share in enumerate((0.01, 0.02, 0.03, 0.05, 0.07), 1):
        out = corrupt(np.full((40, SIZE, SIZE, 3), 100, np.uint8), "impulse-noise", level)
        assert set(np.unique(out)) == {0, 100, 255}
        assert (out == 0).mean() == pytest.approx(share / 2, rel=0.1)
        assert (out == 255).mean() == pytest.approx(share / 2, rel=0.1)


# Blurs


def test_gaussian_blur_filters_each_channel(images):
    for level, sigma in enumerate((0.4, 0.6, 0.7, 0.8, 1.0), 1):
        out = corrupt(images[:2], "gaussian-blur", level)
        for n in range(2):
            for c in range(3):
                expected = (
                    ndimage.gaussian_filter(images[n, :, :, c] / 255, sigma, mode="nearest") * 255
                )
                assert np.array_equal(out[n, :, :, c], expected.astype(np.uint8))


def test_glass_blur_copies_pixel_by_pixel(images):
    """Level 1's filter has one tap; the copies are left, here as nested loops over one image."""
    random = streams(2)
    out = blur.glass_blur(images[:2], 1, random)
    for n, r in enumerate(streams(2)):
        move = r.integers(-1, 1, (1, SIZE, SIZE, 2))
        x = images[n].copy()
        for h in range(31, 1, -1):
            for w in range(31, 1, -1):
                dy, dx = move[0, h, w]
                x[h, w] = x[h + dy, w + dx]
        assert np.array_equal(out[n], x)


@pytest.mark.parametrize("size", [32, 224])
def test_disk_is_a_symmetric_kernel_of_sum_one(size):
    for radius, sigma in blur.DEFOCUS[size]:
        kernel = blur.disk(radius, sigma)
        assert kernel.sum() == pytest.approx(1, abs=1e-12)
        assert np.allclose(kernel, kernel.T)
        assert np.allclose(kernel, kernel[::-1, ::-1])
    assert np.count_nonzero(blur.disk(1.0, 1e-3) > 1e-9) == 5
    assert np.count_nonzero(blur.disk(1.5, 1e-3) > 1e-9) == 9


def test_defocus_blur_is_a_weighted_mean_of_neighbours(images):
    radius, sigma = 1.5, 0.1
    kernel = blur.disk(radius, sigma)
    half = len(kernel) // 2
    padded = np.pad(images[0] / 255, ((half, half), (half, half), (0, 0)), mode="reflect")
    expected = np.zeros((SIZE, SIZE, 3))
    for i in range(len(kernel)):
        for j in range(len(kernel)):
            expected += kernel[i, j] * padded[i : i + SIZE, j : j + SIZE]
    assert (
        np.abs(
            corrupt(images[:1], "defocus-blur", 5)[0].astype(int) - (expected * 255).astype(int)
        ).max()
        <= 1
    )


@pytest.mark.parametrize(
    ("degrees", "step"),
    [(0, (0, 1)), (90, (1, 0)), (-90, (-1, 0)), (45, None), (-30, None), (-135, None)],
)
def test_line_blur_puts_its_taps_along_the_angle(degrees, step):
    dot = np.zeros((1, 41, 41))
    dot[0, 20, 20] = 1
    radius, sigma = 4, 2.0
    out = blur.line_blur(dot, np.array([degrees]), radius, sigma)[0]
    weight = [math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)]
    expected = np.zeros((41, 41))
    for i, w in enumerate(weight):
        down = math.ceil(i * math.sin(math.radians(degrees)) - 0.5)
        right = math.ceil(i * math.cos(math.radians(degrees)) - 0.5)
        if step is not None:
            assert (down, right) == (i * step[0], i * step[1])
        expected[20 - down, 20 - right] += w / sum(weight)
    assert np.allclose(out, expected)


def test_line_blur_repeats_the_edge(images):
    x = images[:1] / 255
    out = blur.line_blur(x, np.array([0.0]), 3, 2.0)
    assert np.allclose(out[:, :, -1], x[:, :, -1])


def test_zoom_blur_averages_zoomed_copies(images):
    x = images[0] / 255
    total, factors = x.copy(), [1 + 0.01 * i for i in range(16)]
    for z in factors:
        crop = math.ceil(SIZE / z)
        start = (SIZE - crop) // 2
        zoomed = ndimage.zoom(x[start : start + crop, start : start + crop], (z, z, 1), order=1)
        trim = (len(zoomed) - SIZE) // 2
        total += zoomed[trim : trim + SIZE, trim : trim + SIZE]
    expected = total / (len(factors) + 1) * 255
    assert np.abs(corrupt(images[:1], "zoom-blur", 3)[0] - expected).max() <= 1


# Weather


@pytest.mark.parametrize("decay", [1.5, 3.0])
def test_plasma_fills_the_unit_interval_on_a_torus(decay):
    p = plasma(32, 32, decay, streams(200))
    assert np.allclose(p.min((1, 2)), 0)
    assert np.allclose(p.max((1, 2)), 1)
    assert p.shape == (200, 32, 32)
    inside = np.abs(np.diff(p, axis=1)).mean()
    across = np.abs(p[:, 0] - p[:, -1]).mean()
    apart = np.abs(p[:, 0] - p[:, 16]).mean()
    assert across < 1.3 * inside  # the last row is a neighbour of the first …
    assert across < 0.7 * apart  # … which far rows are not


def test_plasma_is_rougher_for_a_smaller_decay():
    rough, soft = (
        np.abs(np.diff(plasma(32, 32, decay, streams(20)), axis=2)).mean() for decay in (1.5, 3.0)
    )
    assert rough > 2 * soft


def test_plasma_is_diamond_square():
    """The 4×4 case written out: corner 0, then midpoints from four neighbours on the torus.

    w² = 100² and 50².
    """
    u = np.random.default_rng([0, 0]).uniform(-1, 1, (4, 4))
    a = np.zeros((4, 4))
    a[2, 2] = 100**2 * u[2, 2]
    a[0, 2] = a[2, 2] / 2 + 100**2 * u[0, 2]
    a[2, 0] = a[2, 2] / 2 + 100**2 * u[2, 0]
    for i, j in ((1, 1), (1, 3), (3, 1), (3, 3)):
        a[i, j] = (
            sum(a[(i + s) % 4, (j + t) % 4] for s in (-1, 1) for t in (-1, 1)) / 4 + 50**2 * u[i, j]
        )
    for i, j in ((0, 1), (0, 3), (2, 1), (2, 3), (1, 0), (3, 0), (1, 2), (3, 2)):
        near = a[i - 1, j] + a[(i + 1) % 4, j] + a[i, j - 1] + a[i, (j + 1) % 4]
        a[i, j] = near / 4 + 50**2 * u[i, j]
    a -= a.min()
    assert np.allclose(plasma(4, 4, 2.0, streams(1))[0], a / a.max())


def test_fog_keeps_the_brightest_value_in_reach(images):
    x = images[:4] / 255
    p = plasma(SIZE, SIZE, 1.75, streams(4))
    for n, out in enumerate(weather.fog(images[:4], 5, streams(4))):
        expected = (x[n] + 1.5 * p[n][..., None]) * x[n].max() / (x[n].max() + 1.5)
        assert np.abs(out - expected * 255).max() <= 1
        assert out.max() <= images[n].max()


def test_snow_only_whitens(images):
    for level in (1, 3, 5):
        out = corrupt(images, "snow", level).astype(int)
        assert (out >= images.astype(int) - 1).all()
        assert out.mean() > images.mean() + 3


def test_frost_without_photographs_is_procedural_and_bluish(images):
    assert frost_source(None) == "procedural"
    layer = weather.ice(32, 32, streams(50))
    assert layer.min() >= 0
    assert layer.max() <= 255
    assert (layer[..., 2] > layer[..., 0]).all()
    out = corrupt(images, "frost", 5)
    expected = 0.75 * images + 0.45 * weather.ice(
        32, 32, [np.random.default_rng(_stream(0, i)) for i in range(24)]
    )
    assert np.array_equal(out, expected.clip(0, 255).astype(np.uint8))


def _stream(seed, i):
    return np.random.SeedSequence(seed, spawn_key=(i,))


def test_frost_cuts_from_the_five_photographs(tmp_path):
    for i, name in enumerate(
        ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg")
    ):
        Image.new("RGB", (200 + 10 * i, 170), (40 * i + 20,) * 3).save(tmp_path / name)
    assert frost_source(tmp_path) == "photographs"
    black = np.zeros((200, SIZE, SIZE, 3), np.uint8)
    out = corrupt(black, "frost", 5, frost_dir=tmp_path)
    assert set(np.unique(out)) == {
        int(0.45 * (40 * i + 20)) for i in range(5)
    }  # all five are drawn
    with pytest.raises(ValueError, match=r"34×\d+ pixels .* too small"):
        corrupt(np.zeros((1, 60, 60, 3), np.uint8), "frost", 5, frost_dir=tmp_path)
    (tmp_path / "frost4.jpg").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no frost4\.jpg"):
        frost_source(tmp_path)


# Spatter's parts


def test_canny_finds_the_border_of_a_square():
    x = np.zeros((2, 20, 20), np.uint8)
    x[0, 5:15, 5:15] = 200
    edges = spatter.canny(x, 50, 150)
    assert not edges[1].any()
    distance = np.minimum.reduce([np.abs(np.arange(20) - b) for b in (4.5, 14.5)])
    near = np.minimum(distance[:, None], distance[None])
    assert (near[edges[0]] <= 0.5).all()
    assert edges[0, 10].sum() == edges[0, :, 10].sum() == 2  # thin, on both sides
    x[0, 5:15, 5:15] = 20  # gradient 120 at most: under the high threshold, so no edge starts
    assert not spatter.canny(x, 50, 150).any()


def test_canny_links_weak_edges_to_strong_ones():
    x = np.zeros((2, 20, 20), np.uint8)
    x[:, :, 10:] = 30
    x[0, :8, 10:] = 200  # image 0: the weak edge continues a strong one
    edges = spatter.canny(x, 50, 150)
    assert edges[0, 12:].any(1).all()
    assert not edges[1].any()


def test_equalize_follows_the_cumulative_histogram():
    x = np.array([[[2, 2, 5, 5], [5, 9, 9, 9]], [[4, 4, 4, 4], [4, 4, 4, 4]]])
    out = spatter.equalize(x)
    assert np.array_equal(out[1], x[1])
    assert out[0].tolist() == [[0, 0, 128, 128], [128, 255, 255, 255]]  # (3/6)·255 = 127.5 → 128


def test_water_shines_where_drops_are():
    liquid = np.zeros((2, SIZE, SIZE), np.uint8)
    liquid[0, 10:20, 10:20] = 200
    shine = spatter.water(liquid)
    assert shine[0].max() == 1
    assert not shine[0][liquid[0] == 0].any()
    assert not shine[1].any()


# Digital


def hsv_reference(images, edit):
    out = np.empty_like(images)
    for i in np.ndindex(images.shape[:-1]):
        out[i] = (
            np.array(colorsys.hsv_to_rgb(*edit(*colorsys.rgb_to_hsv(*(images[i] / 255))))) * 255
        )
    return out


@pytest.fixture(scope="module")
def colours():
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (1, 8, 8, 3)).astype(np.uint8)
    x[0, 0, :3] = [[0, 0, 0], [255, 255, 255], [90, 90, 90]]
    return x


def test_brightness_raises_value_only(colours):
    for level, c in enumerate((0.05, 0.1, 0.15, 0.2, 0.3), 1):
        expected = hsv_reference(colours, lambda h, s, v, c=c: (h, s, min(v + c, 1)))
        assert np.abs(corrupt(colours, "brightness", level).astype(int) - expected).max() <= 1


def test_saturate_scales_saturation_only(colours):
    for level, (a, b) in enumerate(((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)), 1):
        expected = hsv_reference(colours, lambda h, s, v, a=a, b=b: (h, min(a * s + b, 1), v))
        assert np.abs(corrupt(colours, "saturate", level).astype(int) - expected).max() <= 1
    assert corrupt(colours, "saturate", 5)[0, 0, 2].tolist() == [
        90,
        72,
        72,
    ]  # grey has hue 0: it turns red


def test_contrast_pulls_towards_the_mean_of_each_channel(images):
    out = corrupt(images, "contrast", 5)
    for n in range(3):
        for c in range(3):
            x = images[n, :, :, c] / 255
            assert np.abs(out[n, :, :, c] - ((x - x.mean()) * 0.15 + x.mean()) * 255).max() <= 1


def test_jpeg_is_what_pillow_decodes(images):
    for level, quality in enumerate((80, 65, 58, 50, 40), 1):
        file = BytesIO()
        Image.fromarray(images[0]).save(file, "JPEG", quality=quality)
        assert np.array_equal(corrupt(images[:1], "jpeg", level)[0], np.asarray(Image.open(file)))


def test_pixelate_shows_fewer_pixels(images):
    for level, side in enumerate((30, 28, 27, 24, 20), 1):
        small = Image.fromarray(images[0]).resize((side, side), Image.Resampling.BOX)
        out = corrupt(images[:1], "pixelate", level)[0]
        assert np.array_equal(out, np.asarray(small.resize((SIZE, SIZE), Image.Resampling.BOX)))


# Elastic's parts


@pytest.mark.parametrize("border", ["mirror", "reflect"])
def test_bilinear_agrees_with_scipy(border, images):
    x = images[:3] / 255
    y, z = np.random.default_rng(0).uniform(-40, 75, (2, 3, SIZE, SIZE))
    out = elastic.bilinear(x, y, z, border)
    for n in range(3):
        for c in range(3):
            expected = ndimage.map_coordinates(x[n, :, :, c], [y[n], z[n]], order=1, mode=border)
            assert np.allclose(out[n, :, :, c], expected)


def test_affine_grid_moves_the_control_points():
    move = np.random.default_rng(0).integers(-2, 3, (4, 3, 2))
    y, x = elastic.affine_grid(SIZE, SIZE, move)
    for n in range(4):
        for point, step in zip(((26, 26), (26, 6), (6, 6)), move[n], strict=True):
            to_x, to_y = point + step
            assert (x[n, to_y, to_x], y[n, to_y, to_x]) == pytest.approx(point)
    y, x = elastic.affine_grid(SIZE, SIZE, np.zeros((1, 3, 2)))
    assert np.allclose([y[0], x[0]], np.mgrid[:SIZE, :SIZE])


def test_elastic_moves_pixels_but_not_far():
    """On a ramp along x, the change of grey is the displacement."""
    ramp = np.broadcast_to((7 * np.arange(SIZE))[None, None, :, None], (20, SIZE, SIZE, 3)).astype(
        np.uint8
    )
    for level, (alpha, beta) in enumerate(
        ((0, 2.56), (1.6, 2.24), (2.56, 1.92), (3.2, 1.6), (3.2, 0.96)), 1
    ):
        moved = (
            corrupt(ramp, "elastic", level)[:, 10:22, 10:22].astype(float) - ramp[:, 10:22, 10:22]
        ) / 7
        assert 0.2 < np.abs(moved).mean() < 2
        assert np.abs(moved).max() < alpha + 3 * beta
