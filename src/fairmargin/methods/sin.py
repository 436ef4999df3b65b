"""SIN, shape instead of texture (Geirhos et al., ICLR 2019): train on stylised images too.

The loss is cross-entropy on original and stylised images together. Stylised images are made
elsewhere, by AdaIN style transfer from paintings, and joined to the training set by the dataset
(`data.stylized`); the union makes an epoch longer. Without them there is `sin-proxy`, a method of
our own: with probability p an image takes a part of another's style,

    amplitude:   |F(x)| at frequencies up to `band` becomes |F(x')|; the phases stay
    statistics:  (x − μ(x))/σ(x)·σ(x') + μ(x'), per channel

x' being a random image of the batch. Compare it with `ce`, not with published numbers of SIN.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.checks import check_choice
from fairmargin.methods.base import MakeEncoder, Method, Unsuited
from fairmargin.methods.card import SHARE, Between, MethodCard, OneOf, OptionCard, Range
from fairmargin.methods.objective import Objective
from fairmargin.methods.row_builders import build_row
from fairmargin.runtime.distributed import from_first_rank, gather_with_place

# Deviation below which a channel has no texture: dividing by it would turn rounding into one.
FLAT = 1e-4


Kind = Literal["amplitude", "statistics"]

CARD = MethodCard(
    "SIN",
    "Geirhos et al., ImageNet-Trained CNNs Are Biased towards Texture",
    "ICLR 2019",
    "stylised images",
    file="sin.py",
)
PROXY_CARD = MethodCard(
    "SIN proxy",
    "ours, after Geirhos et al.",
    "–",
    file="sin.py",
    options={
        "kind": OptionCard(
            "what an image takes of another: low-frequency amplitudes, or channel statistics",
            search=OneOf(get_args(Kind)),
        ),
        "probability": OptionCard(
            "p, that an image is restyled", SHARE, Between(0.2, 0.9, log=False)
        ),
        "band": OptionCard(
            "highest frequency of the amplitudes, in cycles per pixel; 0.5 is all", Range(0, 0.5)
        ),
    },
)


def build_sin(make_encoder: MakeEncoder, info: DataInfo) -> Objective:
    """Build cross-entropy; refuse a dataset that does not say it holds stylised images."""
    if "stylized" not in info.notes:
        raise Unsuited(
            f"sin trains on original and stylised images and {info.name} was built without "
            "stylised ones; give an ImageNet dataset their folder (--set data.stylized=…). "
            "sin-proxy needs none, but is another method"
        )
    return build_row("ce", False, make_encoder, info)


class SINProxy(Method):
    """Cross-entropy on images whose style is exchanged within the batch.

    Args:
        kind: what is exchanged.
        probability: p.
        band: of "amplitude", the highest frequency along either axis, in cycles per pixel; 0.5 is
            all of them.
    """

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        kind: Kind = "amplitude",
        probability: float = 0.5,
        band: float = 0.1,
    ) -> None:
        super().__init__()
        check_choice(kind, "kind of sin-proxy", get_args(Kind))
        if not 0 <= probability <= 1:
            raise ValueError(f"probability must lie in [0, 1]; got {probability}. 0.5 is usual")
        if not 0 <= band <= 0.5:
            raise ValueError(
                f"band must lie in [0, 0.5] cycles per pixel; got {band}. "
                "A tenth keeps shapes visible"
            )
        self.kind, self.probability, self.band = kind, probability, band
        self.network = build_row("ce", False, make_encoder, info)

    def players(self) -> dict[str, list[nn.Parameter]]:
        return self.network.players()

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield cross-entropy on the restyled images."""
        # Every view by itself.
        images = self.restyle(batch.images.flatten(0, -4)).view_as(batch.images)
        for player, loss in self.network.updates(replace(batch, images=images), step):
            self.terms = self.network.terms
            yield player, loss

    @torch.no_grad()
    def restyle(self, images: Tensor) -> Tensor:
        """Return images [n, C, H, W], some with the style of others in the whole batch.

        The others may be on other ranks.
        """
        # A transform needs an image, and a rank may have none.
        some = images if len(images) else images.new_zeros(1, *images.shape[1:])
        style = amplitude(some, self.band) if self.kind == "amplitude" else statistics(some)
        # Styles are much smaller than the images themselves.
        styles, mine = gather_with_place(style[: len(images)])
        donor, u = from_first_rank((torch.randperm(len(styles)), torch.rand(len(styles))))
        if not len(images):
            return images
        donated = styles[donor.to(styles.device)][mine]
        if self.kind == "amplitude":
            new = with_amplitude(images, donated, self.band)
        else:
            new = with_statistics(images, donated)
        chosen = (u < self.probability)[mine].to(images.device)
        return torch.where(chosen[:, None, None, None], new, images)

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return self.network.inspect(images)


def amplitude(images: Tensor, band: float) -> Tensor:
    """Return the style [n, C, 1 + frequencies]: the mean, and |F| at the frequencies up to `band`.

    The mean stands for |F(0)|. Pixels are not negative, so their F(0) has phase 0 and is the mean
    up to a factor. Normalized images may have a negative mean: taken with its sign, the exchange is
    the same as on the pixels.
    """
    mean = images.mean((2, 3))
    spectrum = torch.fft.rfft2(images)[..., _low(images, band)]
    return torch.cat([mean[..., None], spectrum.abs()], 2)


def with_amplitude(images: Tensor, style: Tensor, band: float) -> Tensor:
    """Return the images with the amplitudes of `style` and their own phases.

    Note: values may leave the range of pixels; they are not cut.
    """
    height, width = images.shape[2:]
    spectrum = torch.fft.rfft2(images)
    low = _low(images, band)
    spectrum[..., low] = torch.polar(style[..., 1:], spectrum[..., low].angle())
    spectrum[..., 0, 0] = style[..., 0] * (height * width)
    return torch.fft.irfft2(spectrum, s=(height, width))


def _low(images: Tensor, band: float) -> Tensor:
    """Return which coefficients of rfft2 [H, W//2 + 1] have both frequencies up to `band`."""
    height, width = images.shape[2:]
    down = torch.fft.fftfreq(height, device=images.device).abs()[:, None]
    along = torch.fft.rfftfreq(width, device=images.device)
    return (down <= band) & (along <= band)


def statistics(images: Tensor) -> Tensor:
    """Return the style [n, C, 2]: mean and standard deviation over the positions."""
    return torch.stack([images.mean((2, 3)), images.std((2, 3), correction=0)], 2)


def with_statistics(images: Tensor, style: Tensor) -> Tensor:
    """Return the images with the means and deviations of `style`."""
    mean, std = statistics(images)[..., None, None].unbind(2)  # [n, C, 1, 1] each
    new_mean, new_std = style[..., None, None].unbind(2)
    return (images - mean) / std.clamp_min(FLAT) * new_std + new_mean
