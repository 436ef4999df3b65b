"""A method that is one network and one sum of losses: encoder, head and linear classifier.

    L = α·(the row's loss) + λ·FairKL + β·cross-entropy

A row that learns an embedding leaves the classifier to a second player, "probe", which sees
features without gradient, unless β is above 0. `row_builders` builds one from a row of ROWS.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fairmargin import losses
from fairmargin.batch import Batch, DataInfo
from fairmargin.methods.base import FinalStage, Method, RunLength, SecondStream, Sweep, Unsuited
from fairmargin.methods.objectives import ROWS, LossInputs, Row
from fairmargin.networks import Encoder, HeadKind, projection_head
from fairmargin.runtime.distributed import gather
from fairmargin.vectors import unit


class Objective(Method):
    """One row of ROWS, with FairKL if given.

    Args:
        name: of the row, for the log and for messages.
        loss: the row's loss with its options filled in.
        head: kind of the projection head, as in `networks.projection_head`.
        alpha: weight α of the row's loss.
        beta: weight β of the row's classification loss.
        fairkl_weight: λ.
        fairkl: the regulariser, or None.
        second: the stream of batches the row's pairs come from, or None for the ordinary one.
        bounds: gives the bounds of the information from (z, labels or None), for the log.
        prepare: changes a batch before the encoder sees it; by default it stays as it is.
    """

    # As in the authors' code: the probe does not follow the encoder's schedule.
    optimizers = {  # noqa: RUF012
        "probe": {
            "name": "adam",
            "lr": 1e-3,
            "weight_decay": 0.0,
            "schedule": "constant",
            "warmup_epochs": 0.0,
        }
    }
    prior: Tensor | None
    bias_parts: Tensor  # [biases, columns], or empty

    def __init__(
        self,
        name: str,
        row: Row,
        encoder: Encoder,
        info: DataInfo,
        loss: Callable[[LossInputs], Tensor],
        *,
        head: HeadKind = "identity",
        alpha: float = 1.0,
        beta: float = 0.0,
        fairkl_weight: float = 0.0,
        fairkl: losses.FairKL | None = None,
        second: SecondStream | None = None,
        bounds: Callable[..., losses.InformationBounds] | None = None,
        prepare: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:
        super().__init__()
        self.name, self.row, self.loss = name, row, loss
        self.second, self.bounds, self.prepare = second, bounds, prepare
        self.views, self.needs, self.sampler = row.views, row.needs, row.sampler
        self.alpha, self.beta, self.fairkl_weight = alpha, beta, fairkl_weight
        compares = row.learns != "classifier" or row.regularised or fairkl is not None
        self.least_batch = 2 if compares else 1
        self.encoder = encoder
        self.head = projection_head(head, encoder.dim)
        self.fairkl = fairkl
        self.probed = row.learns != "classifier" and beta == 0
        # The classifier reads what the losses shape: unit vectors, unless there is a head or no
        # term compares features.
        self.on_unit_features = head == "identity" and compares and row.learns != "both"
        self.classifier = nn.Linear(encoder.dim, info.num_classes, bias=row.intercept)
        prior = None if row.prior is None else row.prior(info.counts.float())
        self.register_buffer("prior", prior)
        parts = torch.tensor(info.bias_parts, dtype=torch.long)
        self.register_buffer("bias_parts", parts, persistent=False)
        self.steps: int | None = None  # of the run
        # Samples of unknown bias are not in the counts, but they have a class.
        all_counted = int(info.counts.sum()) >= max(info.train_size, 1)
        self.must_count = row.prior is not None and not row.needs and not all_counted

    def players(self) -> dict[str, list[nn.Parameter]]:
        """Return "main", and "probe" if the classifier learns on its own."""
        main = [*self.encoder.parameters(), *self.head.parameters()]
        classifier = list(self.classifier.parameters())
        if self.probed:
            return {"main": main, "probe": classifier}
        return {"main": main + classifier}

    def plan(self, run: RunLength) -> FinalStage:
        """Note the length of the run, which schedules of losses need."""
        self.steps = run.steps
        return FinalStage()

    def start_epoch(self, epoch: int, sweep: Sweep) -> None:
        """Count the classes once, if the dataset's counts leave samples out."""
        if epoch > 0 or not self.must_count:
            return
        assert self.row.prior is not None
        assert self.prior is not None
        labels = torch.cat([batch.labels for batch in sweep("train")])
        counts = torch.bincount(labels, minlength=self.classifier.out_features)[:, None]
        self.prior = self.row.prior(counts.to(self.prior))

    def updates(self, batch: Batch, step: int) -> Iterator[tuple[str, Tensor]]:
        """Yield the sum of losses, then the loss of the probe, if there is one."""
        batch = self.prepare(batch)
        x = self._see(batch, step)
        paired = x if self.second is None else self._see(self._second_of(batch), step)
        loss = self.loss(paired)
        self.terms = {self.name: loss.detach()}
        total = self.alpha * loss
        if self.fairkl is not None:
            fairkl = self.fairkl(x.h, x.labels, self._bias(x), bias_features=x.bias_features)
            self.terms["fairkl"] = fairkl.detach()
            self.counts = {"pairs": self.fairkl.pairs}  # in A⁺, C⁺ [, A⁻, C⁻]
            total = total + self.fairkl_weight * fairkl
        if self.beta:
            classification = self.row.classification(x)
            self.terms["cross-entropy"] = classification.detach()
            total = total + self.beta * classification
        if self.on_unit_features:
            # Near 1, all images have the same embedding: the collapse that FairKL alone invites.
            self.terms["mean similarity"] = x.inputs.detach().flatten(0, -2).mean(0).square().sum()
        if self.bounds is not None:
            labels = x.labels if self.row.positives == "labels" else None
            found = self.bounds(x.z.detach(), labels)
            self.terms |= {"InfoNCE bound": found.lower, "InfoL1O bound": found.upper}
        yield "main", total
        if self.probed:
            # The features from before main moved: a second pass through the encoder is saved.
            logits = self.classifier(x.inputs.detach().flatten(0, -2))
            probe = F.cross_entropy(logits, x.label_of_each_row)
            self.terms["probe"] = probe.detach()
            yield "probe", probe

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return h, and the logits of the classifier on what it reads."""
        h = self.encoder(images)
        return h, self.classifier(self._classified(h))

    def _see(self, batch: Batch, step: int) -> LossInputs:
        """Return what the loss may look at, gathered from all processes."""
        several = batch.images.ndim == 5
        if not several and self.views > 1:
            raise Unsuited(
                f"{self.name} compares views of one image and this dataset gives one view of each; "
                "choose two views: --set data.augment=supcon for your own images, --set "
                "data.views=supcon where a dataset offers it; or a method that uses labels"
            )
        images = batch.images.flatten(0, 1) if several else batch.images
        h = self.encoder(images)
        z = self.head(h)
        if several:
            h = h.unflatten(0, batch.images.shape[:2])  # [N, V, D]
            z = z.unflatten(0, batch.images.shape[:2])
        given = (batch.bias, batch.bias_features, batch.bias_values)
        h, z, labels, *rest = gather(h, z, batch.labels, *(t for t in given if t is not None))
        bias, bias_features, bias_values = (None if t is None else rest.pop(0) for t in given)
        return LossInputs(
            h=h,
            z=z,
            inputs=self._classified(h),
            labels=labels,
            bias=bias,
            bias_features=bias_features,
            bias_values=bias_values,
            classifier=self.classifier,
            prior=h.new_empty(0) if self.prior is None else self.prior,
            step=step,
            steps=self.steps,
        )

    def _bias(self, x: LossInputs) -> Tensor | None:
        """Return the bias as FairKL takes it: values, a column for each attribute, or labels."""
        if x.bias_features is not None:
            return None
        if x.bias_values is not None:
            return x.bias_values
        assert self.fairkl is not None
        together = self.fairkl.settings["biases"] == "joint"
        if x.bias is None or together or not len(self.bias_parts):
            return x.bias
        columns = self.bias_parts[x.bias.clamp_min(0)]  # [N, k]
        return torch.where(x.bias[:, None] >= 0, columns, -1)

    def _second_of(self, batch: Batch) -> Batch:
        if batch.second is None:
            raise ValueError(
                f"{self.name} takes its pairs from a second stream of batches and this batch "
                "brings none; give the training a second loader, or set the method's "
                'second="none"'
            )
        return batch.second

    def _classified(self, h: Tensor) -> Tensor:
        """Return what the classifier reads: h, or h at length 1."""
        if not self.on_unit_features:
            return h
        if h.dtype in (torch.float16, torch.bfloat16):
            h = h.float()
        return unit(h)


__all__ = ["ROWS", "LossInputs", "Objective", "Row"]
