"""A trained model, ready for use: its weights, its preprocessing and its class names."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fairmargin.batch import DataInfo
from fairmargin.bias.visible import recorded_info
from fairmargin.checks import check_choice
from fairmargin.config import Config, load_resolved
from fairmargin.config.code import named_again
from fairmargin.data.preprocessing import Picture, Preprocessing, preprocessing_of
from fairmargin.evaluate.head import WithHead, head_from
from fairmargin.methods import Method
from fairmargin.runs import build
from fairmargin.runs.folder import CONFIG, RunError, RunRecord
from fairmargin.runs.integrity import check_file
from fairmargin.runs.network import recorded_network
from fairmargin.runs.record import HEAD
from fairmargin.runtime.files import load_weights

BATCH = 64
Weights = Literal["last", "best"]
FILES = {"last": "weights.safetensors", "best": "best.safetensors"}


def which_weights(name: str) -> Weights:
    """The choice that a word stands for; raises ValueError with the nearest for another word."""
    check_choice(name, "weights", FILES)
    return "best" if name == "best" else "last"


@dataclass(frozen=True)
class Predictions:
    """What a model says of some pictures, in their order."""

    labels: list[str]
    probabilities: Tensor  # [N, classes]
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def confidence(self) -> Tensor:
        """[N] the probability of each label."""
        return self.probabilities.max(1).values


class Model(nn.Module):
    """A run's network and classifier, with everything that is needed to use them on new pictures.

        model = fm.load("runs/mine")
        found = model.predict(["a.jpg", image, array])
        found.labels, found.probabilities
        model.embed(["a.jpg"])                      # [1, D]
        model(pixels)                               # logits of uint8 [N, 3, H, W]

    Args:
        method: trained, with the classifier that its run reports.
        preprocessing: from pictures of any size to what the network was trained on.
        class_names: in the order of the logits.
    """

    def __init__(
        self, method: Method, preprocessing: Preprocessing, class_names: Sequence[str]
    ) -> None:
        super().__init__()
        self.method = method
        self.preprocessing = preprocessing
        self.class_names = tuple(class_names)
        self.eval()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def forward(self, images: Tensor) -> Tensor:
        """Logits [N, classes].

        Args:
            images: [N, 3, H, W] in the network's size: uint8 pixels, which are normalized here, or
                floats that are normalized already. Of embeddings: float32 [N, D] as in their file,
                which are standardized here.
        """
        return self.inspect(images)[1]

    def inspect(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(features [N, D], logits [N, classes]) of images as `forward` takes them."""
        if images.dtype == torch.uint8 or self.preprocessing.takes_vectors:
            images = self.preprocessing.normalize(images)
        return self.method.inspect(images)

    def predict(self, pictures: Iterable[Picture], *, batch_size: int = BATCH) -> Predictions:
        """Labels and probabilities of files, Pillow images or arrays; of embeddings [N, D].

        Args:
            pictures: see `Preprocessing.pixels`; an array [N, D] where the model takes vectors.
            batch_size: pictures in memory at a time.
        """
        logits = [logits for _, logits in self._batches(pictures, batch_size)]
        if not logits:
            return Predictions([], torch.zeros(0, len(self.class_names)), self.class_names)
        probabilities = torch.cat(logits).softmax(1)
        labels = [self.class_names[k] for k in probabilities.argmax(1).tolist()]
        return Predictions(labels, probabilities, self.class_names)

    def embed(self, pictures: Iterable[Picture], *, batch_size: int = BATCH) -> Tensor:
        """Features [N, D] of files, Pillow images or arrays: what the encoder gives."""
        features = [features for features, _ in self._batches(pictures, batch_size)]
        return torch.cat(features) if features else torch.zeros(0, self.method.encoder.dim)

    def _batches(
        self, pictures: Iterable[Picture], batch_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        if isinstance(pictures, str | Path):
            raise TypeError(f"give a list of pictures: [{str(pictures)!r}]")
        waiting = iter(pictures)
        training = self.training
        self.eval()
        try:
            while chunk := [self.preprocessing.pixels(p) for p in islice(waiting, batch_size)]:
                with torch.inference_mode():
                    features, logits = self.inspect(torch.stack(chunk).to(self.device))
                yield features.float().cpu(), logits.float().cpu()
        finally:
            self.train(training)


def load(
    run: str | Path,
    *,
    weights: Weights = "last",
    device: torch.device | str = "cpu",
    encoder: Any = None,
    trust_code: bool = False,
) -> Model:
    """Load a trained model from its run folder. Needs no data, and runs no code of the folder.

    A run with an encoder of your own needs it again: the folder has its weights and its name.

    Args:
        run: folder of a finished run.
        weights: of the last epoch, or of the best on validation.
        device: where to put them; a run made on a GPU can be used on a CPU.
        encoder: your own encoder: a module, which is copied, a class or function that makes one, or
            the import path that the folder names, which is imported then.
        trust_code: import whatever code the folder names.
    """
    folder = Path(run)
    record = RunRecord.read(folder)
    file = folder / FILES[weights]
    if not file.is_file():
        hint = f"continue it with: fairmargin train --resume {folder}"
        if record.finished:
            hint = "copy the whole folder" if weights == "last" else 'use weights="last"'
        raise RunError(f"{folder} has no {file.name}; {hint}")
    config = named_again(load_resolved(folder / CONFIG), network=encoder, trust_code=trust_code)
    info = info_of(record)
    network = recorded_network(config, folder)
    method = build.method_for(config, recorded_info(config, info, record.data), network)
    check_file(file, record.result)
    tensors, _ = load_weights(file)
    try:
        method.load_state_dict(tensors)
    except RuntimeError as error:
        first = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
        whose = f"the network that {folder} describes" if encoder is None else "this encoder"
        raise RunError(f"{file} does not fit {whose}: {first}") from None
    method = _with_reported_head(method, record, weights)
    return Model(method, preprocessing(record, config), info.class_names).to(device)


def _with_reported_head(method: Method, record: RunRecord, weights: Weights) -> Method:
    """The method with the classifier that the run reports, if that was fitted to these weights."""
    file = record.path / HEAD
    reported = "last" if (record.result or {}).get("reported") == "last" else "best"
    if not file.is_file() or reported != weights:
        return method
    check_file(file, record.result)
    return WithHead(method, head_from(load_weights(file)[0]))


def info_of(record: RunRecord) -> DataInfo:
    """The facts about its data that a run wrote down."""
    facts = record.data
    if not facts:
        raise RunError(
            f"{record.path} has no data.json; it ended before it wrote what it trained on"
        )
    return DataInfo(
        name=facts["name"],
        class_names=tuple(facts["class_names"]),
        bias_names=tuple(facts["bias_names"]),
        image_shape=tuple(facts["image_shape"]),
        counts=torch.tensor(facts["counts"], dtype=torch.long),
        notes=dict(facts.get("notes") or {}),
    )


def preprocessing(record: RunRecord, config: Config) -> Preprocessing:
    """As the run wrote it down; of older runs, as their dataset says."""
    written: dict[str, Any] | None = record.data.get("preprocessing")
    if written is not None:
        return Preprocessing.from_dict(written)
    return preprocessing_of(build.data(config))
