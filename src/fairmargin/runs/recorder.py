"""Write down a run while it trains: metrics, checkpoints, best epochs; at the end, its result."""

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fairmargin import evaluate
from fairmargin.batch import Batch
from fairmargin.bias.visible import VisibleBias
from fairmargin.config import Config, dataset_name, dump, parse_resolved
from fairmargin.data import OWN, Data, Split
from fairmargin.data.preprocessing import preprocessing_of
from fairmargin.loop import Training
from fairmargin.runs import build, checkpoint, provenance
from fairmargin.runs.environment import environment
from fairmargin.runs.estimate import in_words, training_seconds
from fairmargin.runs.examples import save_outputs
from fairmargin.runs.folder import RunFolder
from fairmargin.runs.integrity import CHECKSUMS, checksums
from fairmargin.runs.mistakes import Picture, worst_mistakes
from fairmargin.runs.own import own_code
from fairmargin.runs.progress import Display, Now
from fairmargin.runs.record import BIAS
from fairmargin.runs.remarks import closing_remarks, said
from fairmargin.runs.trackers import Trackers
from fairmargin.runtime import distributed, waiting
from fairmargin.runtime.agreement import check_agreement, state_facts
from fairmargin.runtime.files import CheckpointError, load_weights, save_weights
from fairmargin.runtime.signals import Interrupted, Request

# Mean similarity of a batch above which embeddings no longer tell samples apart.
COLLAPSED = 0.98
# What a process may ask of all of them after a step.
SAVE, STOP = 1, 2


def said_of(bias: Mapping[str, Any]) -> list[str]:
    """Return the lines that a run says about what it inferred of the bias.

    Args:
        bias: facts of `VisibleBias`.
    """
    lines = [bias.get(key, "") for key in ("why", "sentence", "groups")]
    lines += [f"warning: {text}" for text in bias.get("warnings", ())]
    return [line for line in lines if line]


class Recorder:
    """Evaluates and writes on rank 0; on other ranks it only asks whether to stop.

    Args:
        folder: the run folder, locked by the caller.
        config: the run's settings.
        data: the dataset; its validation and test splits are evaluated.
        training: what `loop.fit` moves.
        display: what a person sees.
        stop: becomes true when a signal asks the run to stop.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        data: Data,
        training: Training,
        display: Display,
        stop: Request,
    ) -> None:
        self.folder = folder
        self.config = config
        self.data = data
        self.training = training
        self.display = display
        self.stop = stop
        self.writes = distributed.rank() == 0
        self.records: dict[str, Any] = {}
        self.warnings: list[str] = []
        # Training time of earlier processes of this run.
        self.seconds_before = 0.0
        self.started = self.saved = self.logged = time.monotonic()
        self.images_since = 0
        # Whole numbers that the method reports by name, of the step that was read last.
        self.counts: dict[str, list[int]] = {}
        self.now = Now()
        self.trackers: Trackers | None = None
        # What a proxy network calls the validation samples, if that chooses an epoch.
        self.proxy: torch.Tensor | None = None

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *error: object) -> None:
        if self.trackers is not None:
            self.trackers.close()

    def begin(self, command: Sequence[str], bias: VisibleBias) -> None:
        """Describe the run in its folder, and load the newest checkpoint that is whole.

        Args:
            command: the words of the command line, kept in environment.json.
            bias: what the method sees of it; what was inferred is kept in the folder.
        """
        found, hashes = None, {}
        if self.writes or distributed.world_size() > 1:
            hashes = self.data.hashes | build.source(self.config)
        check_agreement(hashes, "at the start")
        self.proxy = bias.proxy
        if self.writes:
            found = checkpoint.newest(self.folder.checkpoints)
            if found:
                self._refuse_other_data(hashes)
                self._refuse_other_bias(bias)
            for path, why in found.damaged if found else []:
                self.display.say(
                    f"{path.name} cannot be used ({why}); going back to the one before it"
                )
            if found:
                self._refuse_other_settings(found.state.get("config"))
        state = distributed.from_first_rank(found.state if found else None)
        if state is not None:
            self.training.load_state_dict(state["training"])
            self.records = state["records"]
            self.warnings = state["warnings"]
            self.seconds_before = state["seconds"]
        self._compare_ranks()
        for text in self.folder.network().get("warnings", []) if self.writes else []:
            self.display.say(f"warning: {text}")
        for text in said_of(bias.facts):
            self.display.say(text)
        self.display.begin(self.training.step)
        if self.writes:
            self._describe(command, hashes, bias, self.training.step)
            say, step = self.display.say, self.training.step
            self.trackers = Trackers(self.config, self.folder, step, say)
            # Steps after the checkpoint are done again, so their metrics are removed.
            self.folder.metrics.truncate(state["metrics"] if state else 0)
            self._estimate()

    def _refuse_other_settings(self, text: str | None) -> None:
        """Refuse a checkpoint of other settings, where config.toml was lost or exchanged.

        Args:
            text: that configuration as TOML; None in checkpoints of older versions.
        """
        changes = [] if text is None else build.changed(parse_resolved(text), self.config)
        if changes:
            raise ValueError(
                f"{self.folder.path} holds checkpoints of a run with another configuration: "
                f"{', '.join(changes)}. Choose another folder with --out, or remove that one"
            )

    def _estimate(self) -> None:
        """Say how long the training of people's own images will take, before it starts."""
        own = self.config.data.name in OWN and distributed.world_size() == 1
        left = self.display.steps - self.training.step
        if not own or not left or self.display.brief:
            return
        seconds = training_seconds(self.training, left)
        if seconds is not None:
            self.display.detail(
                f"training will take about {in_words(seconds)}: {self.display.epochs} epochs of "
                f"{len(self.data.train):,} images on {_place(self.training.device)}"
            )

    def _refuse_other_data(self, hashes: dict[str, str]) -> None:
        before = self.folder.data_hashes()
        splits = ("train", "valid", "test")
        other = [name for name in splits if before.get(name, hashes[name]) != hashes[name]]
        if other:
            said = f"its {' and '.join(other)} samples were others"
        # Large datasets are told by names and sizes; an image exchanged at equal size by this.
        elif before.get("images", hashes.get("images")) != hashes.get("images"):
            said = "an image file holds another picture than it did then"
        else:
            return
        raise ValueError(
            f"{self.folder.path} holds a run that was begun on other data: {said}. "
            "Choose another folder with --out, or remove that one"
        )

    def _refuse_other_bias(self, bias: VisibleBias) -> None:
        before = self.folder.bias().get("digest")
        if before and before != bias.facts.get("digest"):
            raise ValueError(
                f"{self.folder.path} holds a run that was begun with other bias labels: "
                f"{bias.facts.get('source')} gives others now, because its scores, its table or "
                "the way it is measured has changed. Choose another folder with --out, or remove "
                "that one"
            )

    def _describe(
        self, command: Sequence[str], hashes: dict[str, str], bias: VisibleBias, step: int
    ) -> None:
        info, data = self.data.info, self.data
        threads, processes = torch.get_num_threads(), distributed.world_size()
        self.folder.write_config(dump(self.config))
        facts = environment(self.training.device, threads, processes, command, hashes)
        facts |= own_code(self.config)
        facts, changes = provenance.appended(self.folder.environment(), facts, step)
        if changes:
            self._warn(f"from step {step} on, {changes}: numbers may differ from those of one part")
        self.folder.write_environment(facts)
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
                **({"bias": bias.facts} if bias.facts else {}),
            }
        )
        if bias.inferred is not None and bias.inferred.labels:
            self.folder.save_arrays(BIAS, **bias.inferred.labels)

    def _compare_ranks(self) -> None:
        """Stop all processes if weights, statistics or optimizers of one are others."""
        if distributed.world_size() > 1:
            facts = state_facts(self.training.state_dict())
            check_agreement(facts, f"at step {self.training.step}")

    def after_step(self, batch: Batch) -> None:
        """Log and save when it is time; raise `Interrupted`, after saving, if asked to stop.

        Args:
            batch: that the step was made on.
        """
        training, settings = self.training, self.config.train
        self.images_since += len(batch) * distributed.world_size()
        if self.writes:
            log = training.step % settings.log_steps == 0
            if log or self.display.due():
                self._read_step(log)
        due = self.writes and time.monotonic() - self.saved >= settings.checkpoint_seconds
        asked = STOP if self.stop else SAVE if due else 0
        wanted = distributed.largest(asked, training.device)
        if wanted:
            self._compare_ranks()
            if self.writes:
                self.save(must=wanted == STOP)
        if wanted == STOP:
            raise Interrupted(
                f"stopped at step {training.step} and saved; "
                f"continue with: fairmargin train --resume {self.folder.path}",
                self.stop.number,
            )

    def after_epoch(self) -> None:
        """Evaluate on validation and test split, every `evaluate.every` epochs and at the end."""
        every, epoch = self.config.evaluate.every, self.training.loader.epoch
        last = epoch >= self.config.train.epochs or self.training.step == self.config.train.steps
        if not self.writes or not (last or (every and epoch % every == 0)):
            return
        started = time.monotonic()
        event: dict[str, Any] = {
            "event": "evaluation",
            "epoch": epoch,
            "step": self.training.step,
            "final_stage": self.training.in_final_stage,
        }
        for name, split in (("valid", self.data.valid), ("test", self.data.test)):
            outputs = self._collect(split)
            event[name] = evaluate.quick_of(outputs, self.data.info)
            if name == "valid" and self.proxy is not None:
                event[name]["ula"] = evaluate.balanced_by(outputs, self.proxy)
            if name == "test" and self.config.evaluate.similarities:
                event["similarity"] = evaluate.similarity_of(outputs)
        self._remember(event)
        self.folder.metrics.append(event | {"seconds": round(time.monotonic() - started, 3)})
        self._warn_of_collapse()
        self.now.accuracy = self._accuracy_line(event)
        self._read_step(log=False)
        self.display.epoch_done()
        if self.trackers is not None:
            values = {f"{w}/{name}": x for w in ("valid", "test") for name, x in event[w].items()}
            self.trackers.log("evaluation", values, self.training.step)

    def _accuracy_line(self, event: dict[str, Any]) -> str:
        """Return "valid plain 91.2%, test plain 90.8%"."""
        parts = []
        for where in ("valid", "test"):
            if event[where]:
                name = self._headline(event[where])
                parts.append(f"{where} {name} {event[where][name]:.1%}")
        return ", ".join(parts)

    def save(self, *, must: bool = True) -> None:
        """Write a checkpoint.

        Args:
            must: raise an error if it cannot be written. Otherwise only warn: the run goes on, with
                the checkpoint before it to fall back on.
        """
        state = {
            "training": self.training.state_dict(),
            # So that the state of another configuration is not taken for this run's.
            "config": dump(self.config),
            "records": self.records,
            "warnings": self.warnings,
            "metrics": self.folder.metrics.position(),
            "seconds": self.seconds(),
        }
        keep = self.config.train.keep
        try:
            checkpoint.save(self.folder.checkpoints, self.training.step, state, keep=keep)
        except CheckpointError as error:
            if must:
                raise
            self.display.say(f"warning: {error}")
        self.saved = time.monotonic()

    def seconds(self) -> float:
        """Seconds that the run has taken so far, over all its processes."""
        return self.seconds_before + time.monotonic() - self.started

    def conclude(self) -> None:
        """Save the last state, evaluate the reported weights on the test sets, write the result."""
        self._compare_ranks()
        if self.writes:
            with waiting.unlimited():
                self._conclude()

    def _conclude(self) -> None:
        training, config = self.training, self.config
        self.save()
        self._save_weights(self.folder.weights)
        reported = config.evaluate.report
        if reported == "best-on-validation" and reported in self.records:
            training.method.load_state_dict(load_weights(self.folder.best)[0])
        else:
            reported = "last"
        self.display.detail("evaluating")
        judged = evaluate.evaluate(
            training.method,
            self.data,
            classifiers=config.evaluate.classifiers,
            device=training.device,
            batch_size=config.evaluate.batch_size,
            workers=config.train.workers,
            resamples=config.evaluate.resamples,
            linear=build.linear(config),
            progress=self._stage,
            report=config.evaluate.report_classifier,
            probe_weights=build.probe_weights(config, training.loader),
        )
        classifier = next(iter(judged.test))
        outputs = self._keep_head(judged, classifier)
        save_outputs(self.folder, outputs, self.data)
        accuracy = judged.test[classifier]["accuracy"]
        result: dict[str, Any] = {
            "method": config.method.name,
            "dataset": dataset_name(config),
            "seed": config.seed,
            "epochs": training.loader.epoch,
            "steps": training.step,
            "seconds": round(self.seconds(), 1),
            "reported": reported,
            "headline": {"classifier": classifier, "accuracy": self._headline(accuracy)},
            "records": self.records,
            "test": judged.test,
            "extra_tests": judged.extra_tests,
            "similarity": judged.similarity,
            "ordering": judged.ordering,
            "warnings": [
                *self._data_warnings(),
                *self.folder.network().get("warnings", []),
                *self._bias_warnings(),
                *self.warnings,
                *judged.warnings,
            ],
            CHECKSUMS: checksums(self.folder.path),
        }
        remarks = closing_remarks(result, config)
        result["warnings"] += remarks
        self.folder.write_result(result)
        for remark in remarks:
            self.display.say(f"note: {said(remark, self.folder.path)}")
        if self.trackers is not None:
            self.trackers.conclude(result, self.data.info, self._pictures(judged.outputs))

    def _pictures(self, outputs: evaluate.Outputs) -> dict[str, Picture]:
        """What trackers show beside numbers; nothing if there are none."""
        most = self.config.train.tracked_images if self.trackers else 0
        mistakes = worst_mistakes(outputs, self.data, most)
        return {} if mistakes is None else {"mistakes": mistakes}

    def _keep_head(self, judged: evaluate.Evaluation, classifier: str) -> evaluate.Outputs:
        """Write the reported classifier if it is not the method's own; return what it says."""
        head = judged.heads.get(classifier)
        if head is None:
            self.folder.head.unlink(missing_ok=True)
            return judged.outputs
        save_weights(self.folder.head, head.state_dict(), {"classifier": classifier})
        return replace(judged.outputs, logits=head(judged.outputs.features))

    def _bias_warnings(self) -> list[str]:
        """What limits the use of inferred bias labels, and of groups that were made of them."""
        said = self.folder.bias()
        return [text for text in (*said.get("warnings", ()), said.get("groups", "")) if text]

    def _stage(self, what: str, done: int, of: int) -> None:
        """Show how far a long evaluation is, and stop it if asked to; the training is saved."""
        self.display.stage(what, done, of)
        if self.stop:
            raise Interrupted(
                f"stopped in {what}; the training is done and saved. Evaluate with: "
                f"fairmargin train --resume {self.folder.path}",
                self.stop.number,
            )

    def _data_warnings(self) -> list[str]:
        """Notes of the dataset that limit what its numbers mean."""
        return [note for name, note in self.data.info.notes.items() if name == "stand-in"]

    def _read_step(self, log: bool) -> None:
        """Copy the step's numbers from the device to the display.

        Args:
            log: also write them to metrics.jsonl.
        """
        training, now = self.training, self.now
        now.epoch = training.loader.epoch
        now.step = training.step
        now.terms = {name: float(value) for name, value in training.method.terms.items()}
        self.counts = {name: values.tolist() for name, values in training.method.counts.items()}
        now.pairs = self.counts.get("pairs")
        if log or not now.rate:
            now.rate = self.images_since / max(time.monotonic() - self.logged, 1e-9)
        if log:
            self.logged = time.monotonic()
            self.images_since = 0
            self._log_step()
        self.display.show(now)

    def _log_step(self) -> None:
        now = self.now
        event: dict[str, Any] = {
            "event": "train",
            "epoch": now.epoch,
            "step": now.step,
            "lr": dict(self.training.rates),
            "terms": dict(now.terms),
        }
        event |= self.counts
        event["seconds"] = round(self.seconds(), 3)
        event["images_per_second"] = round(now.rate, 1)
        self.folder.metrics.append(event)
        if self.trackers is not None:
            values = {f"train/{name}": value for name, value in now.terms.items()}
            values |= {f"lr/{player}": rate for player, rate in self.training.rates.items()}
            self.trackers.log("train", values, now.step)

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
        """Keep the last epoch, the best on validation and the best on the test set.

        The best on the test set is kept for comparison with the literature only. Epochs before a
        method's final stage are never the best: there the method predicts as another one does.
        """
        entry = {name: event[name] for name in ("epoch", "step", "valid", "test")}
        self.records["last"] = entry
        if not event["final_stage"]:
            return
        for best_on, split in (("best-on-validation", "valid"), ("best-on-test", "test")):
            name = self._name_in(entry[split], self.config.evaluate.select)
            best = self.records.get(best_on, {}).get(split, {}).get(name, -math.inf)
            if name in entry[split] and entry[split][name] > best:
                self.records[best_on] = entry
                if best_on == "best-on-validation":
                    self._save_weights(self.folder.best)

    def _headline(self, accuracy: dict[str, Any]) -> str:
        return self._name_in(accuracy, self.config.evaluate.headline)

    @staticmethod
    def _name_in(accuracy: dict[str, Any], wanted: str) -> str:
        """The wanted accuracy if it was measured, else "plain"."""
        return wanted if wanted in accuracy else "plain"

    def _save_weights(self, path: Path) -> None:
        facts = {
            "method": self.config.method.name,
            "dataset": dataset_name(self.config),
            "step": self.training.step,
        }
        # One entry only: several would stand in random order, and equal runs give equal files.
        save_weights(path, self.training.method.state_dict(), {"fairmargin": json.dumps(facts)})

    def _warn_of_collapse(self) -> None:
        similarity = self.training.method.terms.get("mean similarity")
        if similarity is not None and float(similarity) > COLLAPSED:
            text = (
                f"epoch {self.training.loader.epoch}: embeddings are collapsing "
                f"(mean similarity {float(similarity):.3f}); raise method.alpha or "
                "method.variance_floor, lower method.lambda, or use method.variant=authors"
            )
            self._warn(text)

    def _warn(self, text: str) -> None:
        """Say a warning now, and write it into the result."""
        if text not in self.warnings:
            self.warnings.append(text)
        self.display.say(f"warning: {text}")


def _place(device: torch.device) -> str:
    """Return "2 threads of the CPU", or the device."""
    if device.type != "cpu":
        return str(device)
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' if threads > 1 else ''} of the CPU"
