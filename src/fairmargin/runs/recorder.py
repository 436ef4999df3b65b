"""What a run writes down while it trains: metrics, checkpoints, the best epochs; and its result at the end."""

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from fairmargin import evaluate
from fairmargin.batch import Batch
from fairmargin.config import Config, dump
from fairmargin.data import Data, Split
from fairmargin.data.preprocessing import preprocessing_of
from fairmargin.evaluate.accuracy import aligned_cells
from fairmargin.loop import Training
from fairmargin.runs import build, checkpoint
from fairmargin.runs.environment import environment
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.progress import Display, Now
from fairmargin.runtime import distributed
from fairmargin.runtime.files import CheckpointError, load_weights, save_weights
from fairmargin.runtime.signals import Interrupted, Request

COLLAPSED = 0.98  # mean similarity of a batch above which embeddings no longer tell samples apart
EXAMPLES = 12  # of each kind kept as pictures


class Journal:
    """Rank 0 writes and evaluates; the others only ask whether to stop."""

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        data: Data,
        training: Training,
        display: Display,
        stop: Request,
    ) -> None:
        self.folder, self.config, self.data = folder, config, data
        self.training, self.display, self.stop = training, display, stop
        self.writes = distributed.rank() == 0
        self.records: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.seconds_before = 0.0  # spent before this process
        self.started = self.saved = self.logged = time.monotonic()
        self.images_since = 0
        self.now = Now()
        self.board: _Board | None = None

    def begin(self, command: Sequence[str]) -> None:
        """Write down what is about to run, and go on where the newest good checkpoint stands."""
        found = None
        if self.writes:
            hashes = self.data.hashes | build.source(self.config)
            found = checkpoint.newest(self.folder.checkpoints)
            if found:
                self._refuse_other_data(hashes)
            self._describe(command, hashes)
            for path, why in found.damaged if found else []:
                self.display.say(
                    f"{path.name} cannot be used ({why}); going back to the one before it"
                )
        state = distributed.from_first_rank(found.state if found else None)
        if state is not None:
            self.training.load_state_dict(state["training"])
            self.records, self.warnings = state["records"], state["warnings"]
            self.seconds_before = state["seconds"]
        self.display.begin(self.training.step)
        if self.writes:  # what was written after the checkpoint is dropped, and done again
            self.folder.metrics.truncate(state["metrics"] if state else 0)
            if self.config.train.tensorboard:
                self.board = _board(self.folder, self.training.step)

    def _refuse_other_data(self, hashes: dict[str, str]) -> None:
        before = self.folder.data_hashes()
        if other := [
            name
            for name in ("train", "valid", "test")
            if before.get(name, hashes[name]) != hashes[name]
        ]:
            raise ValueError(
                f"{self.folder.path} holds a run that was begun on other data: its {' and '.join(other)} samples were others. "
                "Choose another folder with --out, or remove that one"
            )

    def _describe(self, command: Sequence[str], hashes: dict[str, str]) -> None:
        info, data = self.data.info, self.data
        self.folder.write_config(dump(self.config))
        self.folder.write_environment(
            environment(
                self.training.device,
                torch.get_num_threads(),
                distributed.world_size(),
                command,
                hashes,
            )
        )
        self.folder.write_data(
            {
                "name": info.name,
                "class_names": info.class_names,
                "bias_names": info.bias_names,
                "image_shape": info.image_shape,
                "counts": info.counts,
                "sizes": {
                    "train": len(data.train),
                    "valid": len(data.valid),
                    "test": len(data.test),
                },
                "notes": info.notes,
                "preprocessing": preprocessing_of(data).as_dict(),
            }
        )

    def after_step(self, batch: Batch) -> None:
        t, settings = self.training, self.config.train
        self.images_since += len(batch) * distributed.world_size()
        if self.writes:
            log = t.step % settings.log_steps == 0
            if log or self.display.due():
                self._look(log)
            if time.monotonic() - self.saved >= settings.checkpoint_seconds:
                self.save(must=False)
        if distributed.any_rank(bool(self.stop), t.device):
            if self.writes:
                self.save()
            raise Interrupted(
                f"stopped at step {t.step} and saved; continue with: fairmargin train --resume {self.folder.path}",
                self.stop.number,
            )

    def after_epoch(self) -> None:
        every, epoch = self.config.evaluate.every, self.training.loader.epoch
        last = epoch >= self.config.train.epochs or self.training.step == self.config.train.steps
        if not self.writes or not (last or (every and epoch % every == 0)):
            return
        started = time.monotonic()
        event: dict[str, Any] = {"event": "evaluation", "epoch": epoch, "step": self.training.step}
        event["final_stage"] = self.training.in_final_stage
        for name, split in (("valid", self.data.valid), ("test", self.data.test)):
            outputs = self._collect(split)
            event[name] = evaluate.quick_of(outputs, self.data.info)
            if name == "test" and self.config.evaluate.similarities:
                event["similarity"] = evaluate.similarity_of(outputs)
        self._remember(event)
        self.folder.metrics.append(event | {"seconds": round(time.monotonic() - started, 3)})
        self._warn_of_collapse()
        chosen = {
            where: self._headline(event[where]) for where in ("valid", "test") if event[where]
        }
        self.now.accuracy = ", ".join(
            f"{where} {name} {event[where][name]:.1%}" for where, name in chosen.items()
        )
        self._look(log=False)
        if self.display.live is None:
            self.display.detail(f"{self.display.line()}  {self.now.accuracy}")
        if self.board is not None:
            for where in ("valid", "test"):
                for name, value in event[where].items():
                    self.board.add_scalar(f"{where}/{name}", value, self.training.step)

    def save(self, *, must: bool = True) -> None:
        """A checkpoint. One on the way may fail, the run goes on with the one before; one at the end may not."""
        state = {
            "training": self.training.state_dict(),
            "records": self.records,
            "warnings": self.warnings,
            "metrics": self.folder.metrics.position(),
            "seconds": self.seconds(),
        }
        try:
            checkpoint.save(
                self.folder.checkpoints, self.training.step, state, keep=self.config.train.keep
            )
        except CheckpointError as error:
            if must:
                raise
            self.display.say(f"warning: {error}")
        self.saved = time.monotonic()

    def seconds(self) -> float:
        return self.seconds_before + time.monotonic() - self.started

    def conclude(self) -> None:
        """Save the last state, judge the reported weights on the test sets, and write the result."""
        t, config = self.training, self.config
        if not self.writes:
            return
        self.save()
        self._save_weights(self.folder.weights)
        reported = config.evaluate.report
        if reported == "best-on-validation" and reported in self.records:
            t.method.load_state_dict(load_weights(self.folder.best)[0])
        else:
            reported = "last"
        self.display.detail("evaluating")
        judged = evaluate.evaluate(
            t.method,
            self.data,
            classifiers=config.evaluate.classifiers,
            device=t.device,
            batch_size=config.evaluate.batch_size,
            workers=config.train.workers,
            resamples=config.evaluate.resamples,
            linear=build.linear(config),
            progress=self._stage,
        )
        self._arrays(judged.outputs)
        own = next(iter(judged.test.values()))["accuracy"]
        self.folder.write_result(
            {
                "method": config.method.name,
                "dataset": config.data.name,
                "seed": config.seed,
                "epochs": t.loader.epoch,
                "steps": t.step,
                "seconds": round(self.seconds(), 1),
                "reported": reported,
                "headline": {
                    "classifier": next(iter(judged.test)),
                    "accuracy": self._headline(own),
                },
                "records": self.records,
                "test": judged.test,
                "extra_tests": judged.extra_tests,
                "similarity": judged.similarity,
                "ordering": judged.ordering,
                "warnings": [*self._reservations(), *self.warnings, *judged.warnings],
            }
        )
        if self.board is not None:
            self.board.close()

    def _stage(self, what: str, done: int, of: int) -> None:
        """After a batch of an evaluation that takes long. The training was saved before it began."""
        self.display.stage(what, done, of)
        if self.stop:
            raise Interrupted(
                f"stopped in {what}; the training is done and saved. Evaluate with: "
                f"fairmargin train --resume {self.folder.path}",
                self.stop.number,
            )

    def _reservations(self) -> list[str]:
        """What the data themselves say against the numbers."""
        return [note for name, note in self.data.info.notes.items() if name == "stand-in"]

    def _look(self, log: bool) -> None:
        """Read the step's numbers from the device, for the display and, now and then, for the file."""
        t, now = self.training, self.now
        now.epoch, now.step = t.loader.epoch, t.step
        now.terms = {name: float(value) for name, value in t.method.terms.items()}
        now.pairs = None if t.method.pairs is None else t.method.pairs.tolist()
        if log or not now.rate:
            now.rate = self.images_since / max(time.monotonic() - self.logged, 1e-9)
        if log:
            self.logged, self.images_since = time.monotonic(), 0
            self.folder.metrics.append(
                {
                    "event": "train",
                    "epoch": now.epoch,
                    "step": now.step,
                    "lr": dict(t.rates),
                    "terms": dict(now.terms),
                }
                | ({"pairs": now.pairs} if now.pairs is not None else {})
                | {"seconds": round(self.seconds(), 3), "images_per_second": round(now.rate, 1)}
            )
            if self.board is not None:
                for name, value in now.terms.items():
                    self.board.add_scalar(f"train/{name}", value, t.step)
        self.display.show(now)

    def _collect(self, split: Split) -> evaluate.Outputs:
        return evaluate.collect(
            self.training.method,
            split,
            self.data.eval_views,
            device=self.training.device,
            batch_size=self.config.evaluate.batch_size,
            workers=self.config.train.workers,
        )

    def _remember(self, event: dict[str, Any]) -> None:
        """Keep the last epoch, the best on validation, and, for comparison with the literature, the best on the test set.

        Before its final stage a method predicts as another one does, so no such epoch is the best.
        """
        entry = {name: event[name] for name in ("epoch", "step", "valid", "test")}
        self.records["last"] = entry
        if not event["final_stage"]:
            return
        for best_on, split in (("best-on-validation", "valid"), ("best-on-test", "test")):
            name = (
                self.config.evaluate.select
                if self.config.evaluate.select in entry[split]
                else "plain"
            )
            best = self.records.get(best_on, {}).get(split, {}).get(name, -math.inf)
            if name in entry[split] and entry[split][name] > best:
                self.records[best_on] = entry
                if best_on == "best-on-validation":
                    self._save_weights(self.folder.best)

    def _headline(self, accuracy: dict[str, Any]) -> str:
        return (
            self.config.evaluate.headline if self.config.evaluate.headline in accuracy else "plain"
        )

    def _save_weights(self, path: Path) -> None:
        facts = {
            "method": self.config.method.name,
            "dataset": self.config.data.name,
            "step": self.training.step,
        }
        # One entry: the order of several in the file is random, and equal runs should give equal files.
        save_weights(path, self.training.method.state_dict(), {"fairmargin": json.dumps(facts)})

    def _warn_of_collapse(self) -> None:
        similarity = self.training.method.terms.get("mean similarity")
        if similarity is not None and float(similarity) > COLLAPSED:
            text = (
                f"epoch {self.training.loader.epoch}: embeddings are collapsing (mean similarity {float(similarity):.3f}); "
                "raise method.alpha or method.variance_floor, lower method.lambda, or use method.variant=authors"
            )
            self.warnings.append(text)
            self.display.say(f"warning: {text}")

    def _arrays(self, outputs: evaluate.Outputs) -> None:
        predicted = outputs.logits.argmax(1)
        arrays = {
            "labels": outputs.labels.numpy(),
            "predicted": predicted.numpy(),
            "logits": outputs.logits.float().numpy(),
            "features": outputs.features.float().numpy(),
        }
        if outputs.bias is not None:
            arrays["bias"] = outputs.bias.numpy()
        self.folder.save_arrays("test", **arrays)
        chosen = _examples(outputs, self.data)
        index = torch.tensor([i for kind in chosen.values() for i in kind], dtype=torch.long)
        kinds = np.array([name for name, kind in chosen.items() for _ in kind], dtype="U11")
        images = (
            self.data.test.images(index)
            if len(index)
            else torch.zeros(0, *self.data.info.image_shape).byte()
        )
        self.folder.save_arrays("examples", images=images.numpy(), index=index.numpy(), kind=kinds)


def _examples(outputs: evaluate.Outputs, data: Data) -> dict[str, list[int]]:
    """Positions in the test set: some aligned and conflicting samples, spread over the classes, and the surest mistakes."""
    chosen: dict[str, list[int]] = {}
    if outputs.bias is not None and data.info.num_biases:
        known = outputs.bias >= 0
        aligned = aligned_cells(data.info.counts)[outputs.labels, outputs.bias.clamp_min(0)] & known
        for name, members in (("aligned", aligned), ("conflicting", known & ~aligned)):
            chosen[name] = _spread(outputs.labels, members)
    confidence, predicted = outputs.logits.float().softmax(1).max(1)
    wrong = (predicted != outputs.labels).nonzero()[:, 0]
    chosen["mistake"] = wrong[confidence[wrong].argsort(descending=True, stable=True)][
        :EXAMPLES
    ].tolist()
    return chosen


def _spread(labels: torch.Tensor, members: torch.Tensor) -> list[int]:
    """The first of every class, then the second, …"""
    index = members.nonzero()[:, 0]
    y = labels[index]
    turn = torch.zeros_like(y)
    for c in y.unique():
        turn[y == c] = torch.arange(int((y == c).sum()))
    order = torch.argsort(turn * (int(y.max()) + 1 if len(y) else 1) + y, stable=True)
    return index[order][:EXAMPLES].tolist()


class _Board(Protocol):
    def add_scalar(self, name: str, value: float, step: int) -> None: ...

    def close(self) -> None: ...


def _board(folder: RunFolder, step: int) -> _Board:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ValueError(
            'train.tensorboard needs an extra package: pip install "fairmargin[tensorboard]"'
        ) from error
    return SummaryWriter(str(folder.path / "tensorboard"), purge_step=step)
