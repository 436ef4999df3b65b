"""HEX (Wang et al., ICLR 2019): predictions projected away from those that texture alone allows.

    a = ReLU(linear(NGLCM(x)))
    F_A = ξ([h; a]),   F_G = ξ([0; a]),   F_P = ξ([h; 0])       [B, K], one linear layer ξ
    L = CE(F_L, y),   F_L = (I − F_G(F_GᵀF_G)⁻¹F_Gᵀ)·F_A

h and a have columns of length 1: they are normalized along the batch. Predictions are F_P. No bias
labels are needed.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import FinalStage, MakeEncoder, Method, RunLength, Sweep, first_view
from fairmargin.methods.card import FROM_ZERO, MethodCard, OneOf, OptionCard, Range
from fairmargin.methods.nglcm import NGLCM
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
        "levels": OptionCard(
            "grey levels n of the co-occurrence matrix", Range(2, 256), OneOf((16, 8))
        ),
        "pretrain_epochs": OptionCard("first epochs, without the projection", FROM_ZERO),
    },
)


class HEX(Method):
    """The run's network and a texture branch, one optimizer for all.

    Args:
        levels: grey levels n of the co-occurrence matrix.
        dropout: share of h that is left out in training.
        pretrain_epochs: first epochs, in which F_A learns without the projection.
    """

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
        super().__init__()
        if not 0 <= dropout < 1:
            raise ValueError(
                f"dropout must lie in [0, 1); got {dropout}. It is the share of h that is left out"
            )
        self.classes = info.num_classes
        self.dropout, self.pretrain_epochs = dropout, pretrain_epochs
        self.least_batch = info.num_classes + 1
        self.encoder = make_encoder()
        self.texture = nn.Sequential(NGLCM(levels), nn.Linear(levels**2, TEXTURE), nn.ReLU())
        self.common = nn.Linear(self.encoder.dim + TEXTURE, info.num_classes)  # ξ
        self.register_buffer("norms", torch.ones(self.encoder.dim))
        self.register_buffer("pretraining", torch.tensor(pretrain_epochs > 0))

    def players(self) -> dict[str, list[nn.Parameter]]:
        return {"main": list(self.parameters())}

    def plan(self, run: RunLength) -> FinalStage:
        """Begin the final stage after the epochs without the projection."""
        return FinalStage(
            epochs=self.pretrain_epochs, option=f"pretrain_epochs={self.pretrain_epochs}"
        )

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        self.pretraining.fill_(epoch < self.pretrain_epochs)

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the loss of the projected predictions."""
        x = first_view(batch.images)
        h = self.encoder(x)
        # In full precision: there are sums over pixels and a nearly singular matrix.
        with torch.autocast(x.device.type, enabled=False):
            h, a, y = gather(full_precision(h), self.texture(full_precision(x)), batch.labels)
            if len(y) <= self.classes:
                raise ValueError(
                    f"HEX projects away up to {self.classes} directions, one for each class, and a "
                    f"batch of {len(y)} has no other; raise train.batch_size, or leave out an "
                    "epoch's last part with train.drop_last=true"
                )
            self._follow(h.detach())
            # Columns of length 1.
            h = self._drop(unit(h.T).T)
            a = unit(a.T).T
            F_A = self.common(torch.cat([h, a], 1))
            F_G = self.common(torch.cat([torch.zeros_like(h), a], 1))
            F_L = F_A if self.pretraining else project_out(F_A, F_G)
            loss = F.cross_entropy(F_L, y)
        self.terms = {"main": loss.detach(), "kept": F_L.detach().norm() / F_A.detach().norm()}
        yield "main", loss

    def _follow(self, h: Tensor) -> None:
        """Average the norms of the columns of training batches, for prediction.

        Note: the public code also predicts with the norms of the batch at hand, so that an image's
        class depends on its neighbours, and its logits on their number.
        """
        norms = torch.linalg.vector_norm(h, dim=0)
        self.norms.lerp_(torch.where(norms > 0, norms, 1).to(self.norms), MOMENTUM)

    def _drop(self, h: Tensor) -> Tensor:
        """Apply dropout with the same mask on all ranks, which all hold the whole batch."""
        if not self.dropout:
            return h
        seed = from_first_rank(int(torch.randint(2**62, ())))
        kept = torch.rand(h.shape, generator=torch.Generator().manual_seed(seed)) >= self.dropout
        return h * kept.to(h.device) / (1 - self.dropout)

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and F_P."""
        h = self.encoder(images)
        return h, self.common(F.pad(h / self.norms, (0, TEXTURE)))  # F_P


def project_out(logits: Tensor, texture: Tensor) -> Tensor:
    """Return (I − F_G(F_GᵀF_G + ρI)⁻¹F_Gᵀ)·F_A with ρ = 1e-6·tr(F_GᵀF_G)/K.

    With the orthonormal QR of [F_G; √ρ·I] the inverse needs no Gram matrix, whose condition would
    be the square.

    Args:
        logits: F_A [B, K].
        texture: F_G [B, K].
    """
    F_A, F_G = logits, texture
    K = F_G.shape[1]
    root = (RIDGE * F_G.detach().square().sum() / K).sqrt().clamp_min(torch.finfo(F_G.dtype).tiny)
    ridge = root * torch.eye(K, dtype=F_G.dtype, device=F_G.device)
    Q = torch.linalg.qr(torch.cat([F_G, ridge])).Q[: len(F_G)]
    return F_A - Q @ (Q.T @ F_A)
