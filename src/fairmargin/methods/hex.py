"""HEX (Wang et al., ICLR 2019): predictions projected away from those that texture alone allows.

    a = ReLU(linear(NGLCM(x)));   F_A = ξ([h; a]),   F_G = ξ([0; a]),   F_P = ξ([h; 0])   [B, K], one linear layer ξ
    L = CE(F_L, y),   F_L = (I − F_G(F_GᵀF_G)⁻¹F_Gᵀ)·F_A

h and a have columns of length 1: they are normalized along the batch. F_P is what is predicted with. No bias labels.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import FinalStage, MakeEncoder, Method, RunLength, Sweep, first_view
from fairmargin.methods.card import FROM_ZERO, MethodCard, OneOf, OptionCard, Range
from fairmargin.runtime.distributed import from_first_rank, gather
from fairmargin.vectors import full_precision, unit

TEXTURE = 32  # numbers that describe an image's texture, a
RIDGE = 1e-6  # of the mean eigenvalue of F_GᵀF_G, which is nearly singular
MOMENTUM = 0.1  # of the running norms, as in batch norms


CARD = MethodCard(
    "HEX",
    "Wang et al., Learning Robust Representations by Projecting Superficial Statistics Out",
    "ICLR 2019",
    networks="one, and a texture branch",
    file="hex.py",
    options={
        "dropout": OptionCard(
            "share of h that is left out in training", Range(0, 1, below=True), OneOf((0.5, 0.0))
        ),
        "levels": OptionCard("grey levels n of the co-occurrence matrix", Range(2), OneOf((16, 8))),
        "pretrain_epochs": OptionCard("first epochs, without the projection", FROM_ZERO),
    },
)


class NGLCM(nn.Module):
    """The neural grey-level co-occurrence matrix: images [N, C, H, W] to G [N, n·n], with learned λ, θ ∈ Rⁿ.

    G = Σ_pixels clip(d − λ, 0, 1)·clip(r − θ, 0, 1)ᵀ,   r the grey level 0 … n−1, d that of the pixel to the left minus r

    (d, r) takes (2n−1)·n values, so pixels are counted first and G = clip(D − λ)·counts·clip(R − θ)ᵀ, whatever H and W.
    """

    def __init__(self, levels: int) -> None:
        super().__init__()
        self.lambda_ = nn.Parameter(torch.rand(levels) * levels)
        self.theta = nn.Parameter(torch.rand(levels) * levels)

    def forward(self, images: Tensor) -> Tensor:
        n = len(self.lambda_)
        with torch.no_grad():
            # Note: the paper divides by the largest grey value. Images arrive normalized, where black is no longer 0.
            x = images.mean(1)
            low, high = x.amin((1, 2), keepdim=True), x.amax((1, 2), keepdim=True)
            r = (
                ((x - low) / torch.where(high > low, high - low, 1) * (n - 1)).floor().long()
            )  # [N, H, W]
            d = F.pad(r[..., :-1], (1, 0)) - r  # −r in the first column
            cell = ((d + n - 1) * n + r).flatten(1) + torch.arange(len(r), device=r.device)[
                :, None
            ] * (2 * n - 1) * n
            counts = torch.bincount(cell.flatten(), minlength=len(r) * (2 * n - 1) * n).view(
                -1, 2 * n - 1, n
            )
        D, R = torch.arange(1 - n, n, device=images.device), torch.arange(n, device=images.device)
        left, right = (D - self.lambda_[:, None]).clamp(0, 1), (R - self.theta[:, None]).clamp(0, 1)
        return (left @ counts.to(left.dtype) @ right.T).flatten(1)


class HEX(Method):
    """The run's network and a texture branch, one optimizer for all."""

    norms: Tensor
    pretraining: Tensor

    def __init__(
        self,
        make_encoder: MakeEncoder,
        info: DataInfo,
        *,
        levels: int = 16,
        dropout: float = 0.5,
        pretrain_epochs: int = 0,
    ) -> None:
        """`dropout` is of h. For the first `pretrain_epochs` epochs F_A learns without the projection."""
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(
                f"dropout must lie in [0, 1); got {dropout}. It is the share of h that is left out"
            )
        self.classes, self.dropout, self.pretrain_epochs = (
            info.num_classes,
            dropout,
            pretrain_epochs,
        )
        self.least_batch = info.num_classes + 1
        self.encoder = make_encoder()
        self.texture = nn.Sequential(NGLCM(levels), nn.Linear(levels**2, TEXTURE), nn.ReLU())
        self.common = nn.Linear(self.encoder.dim + TEXTURE, info.num_classes)  # ξ
        self.register_buffer("norms", torch.ones(self.encoder.dim))
        self.register_buffer("pretraining", torch.tensor(pretrain_epochs > 0))

    def players(self) -> dict[str, list[nn.Parameter]]:
        return {"main": list(self.parameters())}

    def plan(self, run: RunLength) -> FinalStage:
        return FinalStage(
            epochs=self.pretrain_epochs, option=f"pretrain_epochs={self.pretrain_epochs}"
        )

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        self.pretraining.fill_(epoch < self.pretrain_epochs)

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        x = first_view(batch.images)
        h = self.encoder(x)
        with torch.autocast(
            x.device.type, enabled=False
        ):  # sums over pixels and a nearly singular matrix
            h, a, y = gather(full_precision(h), self.texture(full_precision(x)), batch.labels)
            if len(y) <= self.classes:
                raise ValueError(
                    f"HEX projects away up to {self.classes} directions, one for each class, and a batch of {len(y)} has no "
                    "other; raise train.batch_size, or leave out an epoch's last part with train.drop_last=true"
                )
            self._follow(h.detach())
            h, a = self._drop(unit(h.T).T), unit(a.T).T  # columns of length 1
            F_A, F_G = (
                self.common(torch.cat([h, a], 1)),
                self.common(torch.cat([torch.zeros_like(h), a], 1)),
            )
            F_L = F_A if self.pretraining else project_out(F_A, F_G)
            loss = F.cross_entropy(F_L, y)
        self.terms = {"main": loss.detach(), "kept": F_L.detach().norm() / F_A.detach().norm()}
        yield "main", loss

    def _follow(self, h: Tensor) -> None:
        """Norms of the columns of a training batch, for prediction.

        Note: the public code also predicts with the norms of the batch at hand, so that an image's class depends on its
        neighbours, and its logits on their number.
        """
        norms = torch.linalg.vector_norm(h, dim=0)
        self.norms.lerp_(torch.where(norms > 0, norms, 1).to(self.norms), MOMENTUM)

    def _drop(self, h: Tensor) -> Tensor:
        """Dropout with the same mask on all ranks, which all hold the whole batch."""
        if not self.dropout:
            return h
        seed = from_first_rank(int(torch.randint(2**62, ())))
        kept = torch.rand(h.shape, generator=torch.Generator().manual_seed(seed)) >= self.dropout
        return h * kept.to(h.device) / (1 - self.dropout)

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        h = self.encoder(images)
        return h, self.common(F.pad(h / self.norms, (0, TEXTURE)))  # F_P


def project_out(logits: Tensor, texture: Tensor) -> Tensor:
    """(I − F_G(F_GᵀF_G + ρI)⁻¹F_Gᵀ)·F_A, of `logits` F_A and `texture` F_G, both [B, K]; ρ = 1e-6·tr(F_GᵀF_G)/K.

    With the orthonormal QR of [F_G; √ρ·I] the inverse needs no Gram matrix, whose condition would be the square.
    """
    F_A, F_G = logits, texture
    K = F_G.shape[1]
    root = (RIDGE * F_G.detach().square().sum() / K).sqrt().clamp_min(torch.finfo(F_G.dtype).tiny)
    Q = torch.linalg.qr(
        torch.cat([F_G, root * torch.eye(K, dtype=F_G.dtype, device=F_G.device)])
    ).Q[: len(F_G)]
    return F_A - Q @ (Q.T @ F_A)
