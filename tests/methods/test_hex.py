import pytest
import torch
import torch.nn.functional as F

from fairmargin.batch import Batch
from fairmargin.methods.hex import NGLCM, TEXTURE, project_out
from tests.methods import tiny


class TestProjection:
    def test_by_hand(self):
        F_A, F_G = torch.tensor([[1.0], [0.0], [2.0]]), torch.tensor([[1.0], [1.0], [0.0]])
        assert project_out(F_A, F_G).flatten().tolist() == pytest.approx([0.5, -0.5, 2.0], abs=1e-5)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_properties(self, dtype):
        g = torch.Generator().manual_seed(0)
        F_A, F_G = (torch.randn(12, 4, generator=g, dtype=dtype) for _ in range(2))
        F_L = project_out(F_A, F_G)
        assert (F_G.T @ F_L).abs().max() < 1e-4  # orthogonal to what texture predicts
        assert torch.allclose(project_out(F_L, F_G), F_L, atol=1e-5)  # twice is once
        assert project_out(F_G, F_G).abs().max() < 1e-4
        exact = F_A - F_G @ torch.linalg.solve(F_G.T @ F_G, F_G.T @ F_A)
        assert torch.allclose(F_L, exact, atol=1e-4)

    @pytest.mark.parametrize("kind", ["rank one", "nearly rank one", "zero"])
    def test_a_singular_matrix_gives_finite_gradients(self, kind):
        column = torch.randn(8, 1, generator=torch.Generator().manual_seed(0))
        F_G = column.expand(8, 3) * {"rank one": 1.0, "nearly rank one": 1.0, "zero": 0.0}[kind]
        F_G = (
            (F_G + 1e-5 * torch.randn(8, 3) * (kind == "nearly rank one")).clone().requires_grad_()
        )
        F_A = torch.randn(8, 3, requires_grad=True)
        F_L = project_out(F_A, F_G)
        F.cross_entropy(F_L, torch.arange(8) % 3).backward()
        assert all(torch.isfinite(x).all() for x in (F_L, F_A.grad, F_G.grad))
        if kind != "zero":
            assert (column.T @ F_L).abs().max() < 1e-3

    def test_gradcheck(self):
        F_A, F_G = (torch.randn(5, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
        # The ridge follows F_G without gradient: a share of 1e-6.
        assert torch.autograd.gradcheck(project_out, (F_A, F_G), rtol=1e-3, atol=1e-4)


def nglcm_by_pixels(module, images):
    """The definition, pixel by pixel."""
    n = len(module.lambda_)
    matrices = []
    for image in images.mean(1):
        x = image - image.min()
        r = (x / x.max() * (n - 1)).floor()
        total = torch.zeros(n, n, dtype=images.dtype)
        for i in range(r.shape[0]):
            for j in range(r.shape[1]):
                d = (r[i, j - 1] if j else 0) - r[i, j]
                total = total + torch.outer(
                    (d - module.lambda_).clamp(0, 1), (r[i, j] - module.theta).clamp(0, 1)
                )
        matrices.append(total.flatten())
    return torch.stack(matrices)


class TestNGLCM:
    def test_equals_the_sum_over_pixels_with_its_gradients(self):
        torch.manual_seed(0)
        module, images = NGLCM(4).double(), torch.randn(3, 3, 5, 6, dtype=torch.float64)
        with torch.no_grad():
            module.lambda_.copy_(torch.tensor([-2.3, -0.4, 0.2, 1.6]))
            module.theta.copy_(torch.tensor([0.1, 0.9, 1.5, 2.2]))
        found, expected = module(images), nglcm_by_pixels(module, images)
        assert expected.abs().max() > 1
        assert torch.allclose(found, expected)
        upstream = torch.randn(found.shape, dtype=torch.float64)
        for p in module.parameters():
            (a,), (b,) = (
                torch.autograd.grad(y, p, upstream, retain_graph=True) for y in (found, expected)
            )
            assert b.abs().max() > 0
            assert torch.allclose(a, b)

    def test_by_hand(self):
        """Levels 3 1 | 0 2 of n = 4: (d, r) = (−3, 3), (2, 1) and (0, 0), (−2, 2)."""
        module = NGLCM(4)
        with torch.no_grad():
            module.lambda_.copy_(torch.tensor([0.5, 1.5, -2.5, 9.0]))
            module.theta.copy_(torch.tensor([0.0, 0.75, 9.0, 2.5]))
        images = torch.tensor([[3.0, 1.0], [0.0, 2.0]])[None, None]
        # clip(d − λ) of the four pixels: (0,0,0,0), (1,0.5,1,0), (0,0,1,0), (0,0,0.5,0);
        # clip(r − θ): (1,1,0,0.5), (1,0.25,0,0), (0,0,0,0), (1,1,0,0)
        expected = [[1, 0.25, 0, 0], [0.5, 0.125, 0, 0], [1.5, 0.75, 0, 0], [0, 0, 0, 0]]
        assert torch.allclose(module(images).view(4, 4), torch.tensor(expected))

    def test_ignores_brightness_and_contrast(self):
        module, images = NGLCM(8), torch.rand(2, 3, 6, 6)
        images = (images * 255).round()
        assert torch.equal(module(images), module(images * 2 + 64))

    def test_flat_and_missing_images(self):
        assert torch.isfinite(NGLCM(4)(torch.ones(2, 3, 5, 5))).all()
        assert NGLCM(4)(torch.ones(0, 3, 5, 5)).shape == (0, 16)

    def test_starts_in_the_range_of_the_levels(self):
        module = NGLCM(16)
        for p in module.parameters():
            assert p.min() >= 0
            assert 8 < p.max() <= 16


def columns(x):
    return x / x.norm(dim=0)


def test_the_loss_is_the_formula():
    batch = tiny.batch()
    method = tiny.method("hex", dropout=0.0).train()
    ((name, loss),) = method.updates(batch, 0)
    assert name == "main"
    h, a = columns(method.encoder(batch.images)), F.normalize(method.texture(batch.images), dim=0)
    W, b = method.common.weight, method.common.bias
    F_G = a @ W[:, -TEXTURE:].T + b
    F_A = F_G + h @ W[:, :-TEXTURE].T
    F_L = F_A - F_G @ torch.linalg.pinv(F_G) @ F_A
    assert loss.item() == pytest.approx(F.cross_entropy(F_L, batch.labels).item(), rel=1e-4)
    assert loss.item() != pytest.approx(F.cross_entropy(F_A, batch.labels).item(), rel=1e-4)
    assert method.terms["kept"] < 1


def test_everything_learns_the_texture_branch_too():
    method = tiny.method("hex").train()
    ((_, loss),) = method.updates(tiny.batch(), 0)
    gradients = torch.autograd.grad(loss, method.players()["main"])
    # Biases before a batch norm have none.
    assert sum(g.abs().max() > 0 for g in gradients) >= len(gradients) - 2
    nglcm = method.texture[0]
    assert any(p is nglcm.lambda_ for p in method.players()["main"])


def test_prediction_does_not_depend_on_the_batch_and_not_on_texture():
    method, batch = tiny.method("hex").train(), tiny.batch()
    for step in range(3):
        list(method.updates(batch, step))
    method.eval()
    whole = method.predict(batch.images)
    assert torch.allclose(method.predict(batch.images[:1]), whole[:1], atol=1e-6)
    with torch.no_grad():
        method.texture[1].weight.add_(1.0)
    assert torch.equal(method.predict(batch.images), whole)


def test_the_running_norms_lead_to_the_prediction_of_the_training_batch():
    """After many steps on one batch F_P with running norms is F_P with that batch's."""
    method, batch = tiny.method("hex", make_encoder=tiny.without_batch_norm()).train(), tiny.batch()
    for step in range(150):
        list(method.updates(batch, step))
    h = method.encoder(batch.images)
    h = h / h.norm(dim=0).where(h.norm(dim=0) > 0, torch.ones(()))
    expected = method.common(F.pad(h, (0, TEXTURE)))
    assert torch.allclose(method.predict(batch.images), expected, atol=1e-4)


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    method, h = tiny.method("hex", dropout=0.25), torch.ones(200, 50)
    torch.manual_seed(0)
    dropped = method._drop(h)
    assert (dropped == 0).float().mean().item() == pytest.approx(0.25, abs=0.02)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(method._drop(h), dropped)
    torch.manual_seed(0)
    assert torch.equal(method._drop(h), dropped)
    assert torch.equal(tiny.method("hex", dropout=0.0)._drop(h), h)
    with pytest.raises(ValueError, match="dropout must lie"):
        tiny.method("hex", dropout=1.0)


def test_pretraining_leaves_the_projection_out():
    method = tiny.method("hex", pretrain_epochs=1, dropout=0.0).train()
    method.start_epoch(0, tiny.sweep)
    list(method.updates(tiny.batch(), 0))
    assert method.terms["kept"] == 1
    method.start_epoch(1, tiny.sweep)
    list(method.updates(tiny.batch(), 0))
    assert method.terms["kept"] < 1


def test_a_batch_of_no_more_samples_than_classes_is_refused():
    method, batch = tiny.method("hex").train(), tiny.batch()
    assert method.least_batch == tiny.CLASSES + 1
    list(method.updates(tiny.part(batch, 0, 4), 0))
    with pytest.raises(ValueError, match=r"train\.drop_last"):
        list(method.updates(tiny.part(batch, 0, 3), 0))


def test_a_dead_feature_harms_nobody():
    method, batch = tiny.method("hex", make_encoder=tiny.without_batch_norm()).train(), tiny.batch()
    with torch.no_grad():
        method.encoder.layers[-2].bias[0] = -1e4  # never above 0
    ((_, loss),) = method.updates(Batch(batch.images, batch.labels, None, batch.index), 0)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in method.parameters() if p.grad is not None)
    assert method.norms[0] == 1  # and not ever smaller, for an image that brings it to life


def test_mixed_precision_gives_finite_losses_in_full_precision():
    method, batch = tiny.method("hex").train(), tiny.batch()
    with torch.autocast("cpu", torch.bfloat16):
        ((_, loss),) = method.updates(batch, 0)
    assert loss.dtype == torch.float32
    assert torch.isfinite(loss)
