"""Bias scores, from the model that makes them to the methods that use them.

Bias labels must never pass between the two.
"""

import json
import shlex
import shutil
import sys
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from rich.console import Console
from typer.testing import CliRunner

from fairmargin import config as configuration
from fairmargin import losses
from fairmargin.bias import capture, score_file, visible
from fairmargin.bias.clusters import cluster, number_of_clusters
from fairmargin.bias.score_file import FILE, Answers, Captured
from fairmargin.bias.visible import visible_bias
from fairmargin.cli.app import app
from fairmargin.data.bias import count_cells
from fairmargin.data.hashes import data_hash
from fairmargin.loop import fit
from fairmargin.losses.divergences import DIVERGENCES
from fairmargin.run import run
from fairmargin.runs import build
from fairmargin.runs.folder import RunRecord
from fairmargin.runtime.files import load_weights, save_weights
from tests.bias.scored import write_scores
from tests.methods import tiny
from tests.test_torchrun import torchrun

# Left out of the inner loop.
pytestmark = pytest.mark.slow

SMALL = [
    "data.train=160",
    "data.test=64",
    "data.side=8",
    "data.rho=0.8",
    "train.epochs=1",
    "train.batch_size=32",
    "train.device=cpu",
    "evaluate.resamples=20",
    'evaluate.classifiers=["own"]',
]
FAIRKL, SOFTCON = "eps-supinfonce+fairkl", "softcon"
runner = CliRunner()


def config(*changes, method=FAIRKL, bias=None, seed=0):
    return configuration.load(
        dataset="planted", method=method, bias=bias, seed=seed, overrides=[*SMALL, *changes]
    )


def one_hot(split):
    return F.one_hot(split.bias, 4).float()


def colours(split):
    """What a one-pixel model might give: positive, never zero, and about the tint."""
    return split.pixels.float().mean((2, 3)) / 255


def quiet():
    return Console(quiet=True)


def invoke(*words):
    return runner.invoke(app, [*words, *(word for change in SMALL for word in ("--set", change))])


# Scores that are 0 or 1 are bias labels


@pytest.mark.parametrize("normalize", ["weights", "count"])
@pytest.mark.parametrize("negatives", [False, True])
@pytest.mark.parametrize("scope", ["batch", "anchor"])
@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("views", [1, 2])
def test_scores_of_0_and_1_give_the_discrete_fairkl(divergence, scope, negatives, normalize, views):
    g = torch.Generator().manual_seed(3)
    y, b = torch.arange(24) % 3, torch.randint(3, (24,), generator=g)
    shape = (24, 5) if views == 1 else (24, views, 5)
    z = torch.randn(shape, dtype=torch.float64, generator=g).requires_grad_()
    same = {
        "divergence": divergence,
        "scope": scope,
        "negatives": negatives,
        "normalize": normalize,
    }
    labelled = losses.fairkl(z, y, b, **same)
    scored = losses.fairkl(
        z, y, bias_features=7 * F.one_hot(b).double(), **same
    )  # length does not matter
    assert float(labelled.detach()) > 0
    torch.testing.assert_close(scored, labelled, rtol=1e-12, atol=1e-14)
    gradients = [torch.autograd.grad(loss, z)[0] for loss in (labelled, scored)]
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-11, atol=1e-14)
    # On the same path through the pairs, to the last bit.
    by_pairs = losses.fairkl(z, y, b, chunk=24 * views, **same)
    assert torch.equal(
        by_pairs, losses.fairkl(z, y, bias_features=F.one_hot(b).double(), chunk=24 * views, **same)
    )


@pytest.mark.parametrize(
    "options", [{}, {"divergence": "moments", "negatives": True}, {"scope": "anchor"}]
)
def test_a_step_with_scores_of_0_and_1_is_the_labelled_step(options):
    batch = tiny.batch(dtype=torch.float64)
    features = F.one_hot(batch.bias, tiny.BIASES).double()
    after = []
    for seen in (batch, replace(batch, bias=None, bias_features=features)):
        method = tiny.method(FAIRKL, **options).double().train()
        optimizers = tiny.players(method, tiny.SGD)
        for player, loss in method.updates(seen, 0):
            optimizers[player].optimizer.zero_grad()
            loss.backward(inputs=method.players()[player])
            optimizers[player].optimizer.step()
        after.append(method.state_dict())
    start = tiny.method(FAIRKL, **options).double().state_dict()
    assert any(not torch.allclose(after[0][key], start[key], atol=1e-4) for key in start)
    for key, value in after[0].items():
        torch.testing.assert_close(after[1][key], value, rtol=1e-10, atol=1e-12)


def test_a_training_with_scores_of_0_and_1_is_the_labelled_training(tmp_path):
    """From the file to the weights, in float32.

    Adam would magnify the rounding of gradients that are 0.
    """
    plain = ["optimizer.name=sgd", "players.probe.name=sgd"]
    data = build.data(config())
    write_scores(tmp_path, data, one_hot)
    after = []
    for chosen in (config(*plain), config(*plain, f"data.scores={tmp_path}", bias="scores")):
        method = build.method(chosen, data)
        fit(build.training(chosen, method, data, torch.device("cpu")), 1)
        after.append(method.state_dict())
    for key, value in after[0].items():
        torch.testing.assert_close(after[1][key].float(), value.float(), rtol=1e-3, atol=1e-4)


# Making them


@pytest.fixture(scope="module", params=sorted(capture.CAPTURES))
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param) / "seed-0"
    chosen = capture.configuration(dataset="planted", capture=request.param, overrides=SMALL)
    return request.param, chosen, folder, capture.make(chosen, folder, console=quiet())


def test_a_capture_is_a_run_and_its_features_stand_in_the_order_of_the_split(made):
    name, chosen, folder, found = made
    expected = {
        "colours-and-places": ("simple-conv-1", "ce"),
        "simple-conv-1": ("simple-conv-1", "ce"),
        "bagnet18": ("bagnet18", "ce"),
        "early-stopped": ("simple-conv-3", "ce"),
        "gce": ("simple-conv-3", "gce"),
    }
    assert (chosen.network.name, chosen.method.name) == expected[name]
    assert RunRecord.read(folder).finished
    data = build.data(chosen)
    method = build.method(chosen, data).eval()
    method.load_state_dict(load_weights(folder / "weights.safetensors")[0])
    for split, part in (("train", data.train), ("valid", data.valid), ("test", data.test)):
        said = found.splits[split]
        assert len(said.features) == len(part)
        with torch.inference_mode():
            for i in (0, 5, len(part) - 1):
                h = method.encoder(data.eval_views(part.images(torch.tensor([i]))))
                torch.testing.assert_close(
                    said.features[i], h[0], rtol=1e-4, atol=1e-4
                )  # other batches, other sums
                torch.testing.assert_close(
                    said.logits[i], method.classifier(h)[0], rtol=1e-4, atol=1e-3
                )
        assert torch.equal(said.labels, part.labels)
        assert found.facts["hashes"][split] == data_hash(part)
    if name != "colours-and-places":  # whose places have a sign
        assert bool((found.splits["train"].features >= 0).all())  # after a ReLU, as the paper's
    assert not score_file.mismatch(found, data, 0)


def test_the_bias_labels_judge_the_capture_and_are_not_in_its_file(made):
    _, chosen, folder, found = made
    said, train = found.splits["train"], build.data(chosen).train
    right = (said.logits.argmax(1) == train.labels)[train.bias != train.labels]
    assert found.facts["accuracy"]["train"]["conflicting"] == pytest.approx(
        right.double().mean().item()
    )
    tensors, _ = load_weights(folder / FILE)
    assert {key.partition(".")[2] for key in tensors} == {"features", "logits", "labels"}
    assert chosen.data.bias == "none"


def test_made_again_nothing_is_trained_and_without_the_file_it_is_the_same(made):
    _, chosen, folder, _ = made
    file, weights = folder / FILE, folder / "weights.safetensors"
    before, written, trained = (
        file.read_bytes(),
        file.stat().st_mtime_ns,
        weights.stat().st_mtime_ns,
    )
    capture.make(chosen, folder, console=quiet())
    assert file.stat().st_mtime_ns == written
    file.unlink()
    capture.make(chosen, folder, console=quiet())
    assert file.read_bytes() == before
    assert weights.stat().st_mtime_ns == trained


def test_an_interrupted_capture_goes_on(tmp_path):
    chosen = capture.configuration(
        dataset="planted", overrides=[*SMALL, "train.epochs=2", "train.checkpoint_seconds=0"]
    )
    whole = capture.make(chosen, tmp_path / "whole", console=quiet())
    capture.make(chosen, tmp_path / "cut", console=quiet())
    (
        tmp_path / "cut" / "result.json"
    ).unlink()  # as if killed: the newest checkpoint lost, nothing exported
    max((tmp_path / "cut" / "checkpoints").glob("*.ckpt")).unlink()
    (tmp_path / "cut" / FILE).unlink()
    again = capture.make(chosen, tmp_path / "cut", console=quiet())
    for name, said in whole.splits.items():
        assert torch.equal(again.splits[name].features, said.features)


def test_the_usual_capture_goes_by_the_size_of_the_images():
    assert capture.usual((3, 28, 28)) == capture.usual((3, 64, 64)) == "colours-and-places"
    assert capture.usual((3, 65, 64)) == capture.usual((3, 224, 224)) == "bagnet18"
    chosen = capture.configuration(dataset="planted", overrides=SMALL)
    assert chosen.network.name == "simple-conv-1"
    # Stride and widths are those of the network it stands in for.
    assert chosen.network.options == {"stride": 2, "widths": (8, 16), "places": True}
    assert capture.configuration(dataset="planted", capture="bagnet18").optimizer.weight_decay == 0
    assert capture.configuration(dataset="planted", capture="early-stopped").train.epochs == 1
    longer = capture.configuration(
        dataset="planted", capture="early-stopped", overrides=["train.epochs=3"]
    )
    assert longer.train.epochs == 3  # what is asked for wins
    with pytest.raises(ValueError, match="did you mean 'bagnet18'"):
        capture.configuration(dataset="planted", capture="bagnet")


@pytest.mark.parametrize("name", ["colours-and-places", "simple-conv-1"])
def test_a_one_pixel_model_finds_the_tint_and_not_the_bar(tmp_path, name):
    easy = [
        "data.train=500",
        "data.test=160",
        "data.side=8",
        "data.noise=0.1",
        "train.epochs=12",
        "evaluate.every=0",
    ]
    chosen = capture.configuration(dataset="planted", capture=name, overrides=easy)
    found = capture.make(chosen, tmp_path, console=quiet())
    accuracy = found.facts["accuracy"]["test"]
    assert accuracy["aligned"] > 0.9
    assert accuracy["conflicting"] < 0.1
    cosines = found.facts["cosines"]["centred"]
    assert cosines["same bias"] > cosines["other bias"] + 0.5
    assert capture.doubts(found) == []
    data = build.data(chosen)
    features = score_file.features(found, "raw")
    labels = {"train": data.train.labels, "valid": data.valid.labels}
    clusters = cluster(features, labels, 4, of="all", seed=0)
    for split, pseudo in ((data.train, clusters["train"]), (data.valid, clusters["valid"])):
        cells = count_cells(split.bias, pseudo, 4, 4)
        assert cells.amax(1).sum() > 0.95 * len(split)
    # Two of each class may leave a rare tint with the usual one, and still put no usual sample with
    # the rare ones.
    unusual = cluster(features, labels, 2, of="class", seed=0)["train"] == 1
    conflicting = data.train.bias != data.train.labels
    assert (unusual & conflicting).sum() > 0.5 * conflicting.sum()
    assert (unusual & conflicting).sum() > 0.9 * unusual.sum()


def test_an_empty_validation_split_has_empty_scores(tmp_path):
    chosen = capture.configuration(dataset="planted", overrides=[*SMALL, "data.valid_fraction=0.0"])
    found = capture.make(chosen, tmp_path, console=quiet())
    assert found.splits["valid"].features.shape == (0, 48)
    used = config(f"data.scores={tmp_path}", "data.valid_fraction=0.0", bias="clusters")
    assert visible_bias(used, build.data(used)).splits["valid"].bias.shape == (0,)


# What a person is told


def told(train, cosine_5=0.1):
    empty = dict.fromkeys(("median", "95 %", "same bias", "other bias"))
    return Captured(
        {}, {"accuracy": {"train": train}, "cosines": {"raw": {"5 %": cosine_5, **empty}}}
    )


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (told({"plain": 0.95, "conflicting": 0.0}), []),
        (told({"plain": 1.0, "conflicting": 0.9}), ["90% of the conflicting"]),
        (told({"plain": 1.0}), ["right on every training sample"]),
        (told({"plain": 0.9}, 0.95), ["score_features=centred"]),
    ],
)
def test_doubts_about_a_capture(found, expected):
    said = capture.doubts(found)
    assert len(said) == len(expected)
    assert all(part in text for part, text in zip(expected, said, strict=True))


def test_cosines_are_summarised_over_pairs_of_one_class():
    features = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 2.0], [3.0, 4.0]])
    train = Answers(features, torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
    found = capture.cosines(train, torch.tensor([5, 5, 6, -1]))["raw"]
    assert found["same bias"] == pytest.approx(1)
    assert found["other bias"] == pytest.approx(0)
    assert found["5 %"] == pytest.approx(0)
    assert found["95 %"] == pytest.approx(1)
    alone = capture.cosines(Answers(features[:1], torch.zeros(1, 2), torch.tensor([0])), None)[
        "raw"
    ]
    assert set(alone.values()) == {None}


# Finding them


def test_where_scores_are_looked_for(tmp_path):
    assert (
        score_file.locate(None, "planted", 3).as_posix()
        == "runs/scores/planted/seed-3/scores.safetensors"
    )
    assert score_file.locate(tmp_path, "planted", 3) == tmp_path / FILE
    (tmp_path / "seed-3").mkdir()
    assert score_file.locate(tmp_path, "planted", 3) == tmp_path / "seed-3" / FILE
    assert score_file.locate(tmp_path, "planted", 4) == tmp_path / FILE
    (tmp_path / FILE).write_bytes(b"")
    assert (
        score_file.locate(tmp_path, "planted", 3) == tmp_path / FILE
    )  # its own before those of others
    assert score_file.locate(tmp_path / FILE, "planted", 9) == tmp_path / FILE


def refused(chosen):
    with pytest.raises(ValueError, match=r"Make|Read|fairmargin scores") as caught:
        visible_bias(chosen, build.data(chosen))
    return str(caught.value)


@pytest.mark.parametrize("bias", ["scores", "clusters"])
def test_missing_scores_come_with_the_command_that_makes_them(tmp_path, monkeypatch, bias):
    monkeypatch.chdir(tmp_path)
    message = refused(config(bias=bias, seed=3))
    command = message.partition("Make it: ")[2]
    assert f"--bias {bias} needs runs/scores/planted/seed-3/scores.safetensors" in message.replace(
        "\\", "/"
    )
    assert shlex.split(command)[:6] == [
        "fairmargin",
        "scores",
        "--dataset",
        "planted",
        "--seed",
        "3",
    ]
    assert "--set data.rho=0.8" in command
    assert "train.epochs" not in command
    made = runner.invoke(app, [*shlex.split(command)[1:], "--set", "train.epochs=1"])
    assert made.exit_code == 0, made.output
    assert visible_bias(config(bias=bias, seed=3), build.data(config(seed=3))).info is not None
    elsewhere = refused(config("data.scores=else where", bias=bias))
    assert elsewhere.endswith("--out 'else where'")


def test_scores_of_something_else_are_refused(tmp_path):
    data = build.data(config())
    write_scores(tmp_path, data, one_hot)
    use = lambda *changes, **more: config(
        f"data.scores={tmp_path}", *changes, bias="scores", **more
    )
    assert visible_bias(use(), data).features
    assert "other pixels, files or bias labels in the train split" in refused(use("data.noise=0.1"))
    assert "128 samples, not 240 in the train split" in refused(use("data.train=300"))
    assert "seed 0, not 1" in refused(use(seed=1))
    assert "--seed 1 " in refused(use(seed=1))
    assert "--out OTHER" in refused(use(seed=1))
    shutil.copytree(tmp_path, tmp_path / "x")
    write_scores(tmp_path, data, one_hot, dataset="cifar10")
    assert "dataset cifar10, not planted" in refused(use())


def test_another_seed_is_refused_unless_the_file_itself_is_named(tmp_path):
    """With the data of one seed for all, the features fit.

    People decide whether one capture should serve many seeds, by naming the file.
    """
    data = build.data(config("data.seed=7"))
    file = write_scores(tmp_path, data, one_hot)
    by_folder = config("data.seed=7", f"data.scores={tmp_path}", bias="scores", seed=1)
    assert "seed 0, not 1" in refused(by_folder)
    by_file = config("data.seed=7", f"data.scores={file}", bias="scores", seed=1)
    assert visible_bias(by_file, data).info.bias_features == 4


def test_scores_in_another_order_are_refused(tmp_path):
    data = build.data(config())
    backwards = torch.arange(len(data.train)).flip(0)
    write_scores(tmp_path, replace(data, train=data.train.subset(backwards)), one_hot)
    assert "the samples in another order in the train split" in refused(
        config(f"data.scores={tmp_path}", bias="scores")
    )
    others = replace(
        data.train, labels=(data.train.labels + (torch.arange(len(data.train)) == 0)) % 4
    )
    write_scores(tmp_path, replace(data, train=others), one_hot)
    assert "samples of other classes" in refused(config(f"data.scores={tmp_path}", bias="scores"))


def test_files_that_are_no_scores_are_refused(tmp_path):
    chosen = config(f"data.scores={tmp_path}", bias="scores")
    (tmp_path / FILE).write_bytes(b"half a file")
    with pytest.raises(OSError, match="not a whole safetensors file"):
        visible_bias(chosen, build.data(chosen))
    save_weights(tmp_path / FILE, {"weight": torch.zeros(2)})
    assert 'was not written by "fairmargin scores"' in refused(chosen)


def test_features_must_be_finite_and_not_zero(tmp_path):
    data = build.data(config())

    def broken(value):
        def features(split):
            x = colours(split).clone()
            x[17:19] = value
            return x

        return features

    with pytest.raises(ValueError, match=r"not finite in 2 of 128 rows \(first: sample 17\)"):
        write_scores(tmp_path, data, broken(torch.nan))
    assert not (tmp_path / FILE).exists()
    write_scores(tmp_path, data, broken(0.0))
    use = lambda *changes: config(f"data.scores={tmp_path}", *changes, bias="scores")
    message = refused(use())
    assert "2 of 128 train samples have scores that are all 0 (first: sample 17)" in message
    assert "data.score_features=centred" in message
    centred = visible_bias(use("data.score_features=centred"), data).features
    assert torch.allclose(centred["train"].mean(0), torch.zeros(3), atol=1e-6)
    raw = score_file.read(tmp_path / FILE).splits
    assert torch.allclose(centred["valid"], raw["valid"].features - raw["train"].features.mean(0))
    probabilities = visible_bias(use("data.score_features=probabilities"), data).features["train"]
    assert torch.allclose(probabilities, torch.full((128, 4), 0.25))


def test_data_that_changed_under_a_finished_capture_are_noticed(tmp_path, monkeypatch):
    chosen = capture.configuration(dataset="planted", overrides=SMALL)
    capture.make(chosen, tmp_path, console=quiet())
    changed = build.data(config("data.noise=0.1"))
    monkeypatch.setattr(build, "data", lambda config: changed)
    with pytest.raises(ValueError, match=r"made from other data.*Remove its folder"):
        capture.make(chosen, tmp_path, console=quiet())


# Clusters


def blobs(sizes, seed=0, dimension=6):
    """Features around so many orthogonal directions, and whose they are."""
    g = torch.Generator().manual_seed(seed)
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    group = group[torch.randperm(len(group), generator=g)]
    return torch.eye(dimension)[group] + 0.05 * torch.randn(
        len(group), dimension, generator=g
    ), group


def test_clusters_of_a_class_are_numbered_by_size_and_assign_held_out_samples():
    x, group = blobs([5, 40, 12])
    y = torch.zeros(len(x), dtype=torch.long)
    held, held_group = blobs([4, 3, 2], seed=1)
    labels = {"train": y, "valid": torch.zeros(len(held), dtype=torch.long)}
    found = cluster({"train": x, "valid": held}, labels, 3, of="class", seed=0)
    rank = torch.tensor([2, 0, 1])
    assert torch.equal(found["train"], rank[group])
    assert torch.equal(found["valid"], rank[held_group])
    again = cluster({"train": x, "valid": held}, labels, 3, of="class", seed=0)
    assert torch.equal(again["train"], found["train"])
    scaled = cluster(
        {"train": 9 * x, "valid": held}, labels, 3, of="class", seed=0
    )  # directions count
    assert torch.equal(scaled["train"], found["train"])


def test_clusters_over_all_mean_the_same_in_every_class():
    """Class 0 is mostly in direction 0 and class 1 in direction 1.

    Clustered for itself, each class calls its own direction 0.
    """
    x, group = blobs([50, 40])
    y = torch.where(torch.arange(len(x)) % 5 == 0, 1 - group, group)
    features, labels = {"train": x, "valid": x[:0]}, {"train": y, "valid": y[:0]}
    assert torch.equal(cluster(features, labels, 2, of="all", seed=0)["train"], group)
    assert torch.equal(
        cluster(features, labels, 2, of="class", seed=0)["train"], (group != y).long()
    )


def test_clusters_of_few_or_equal_samples():
    y = torch.tensor([0, 1, 1, 1])
    features = {
        "train": torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]]),
        "valid": torch.ones(1, 2),
    }
    found = cluster(features, {"train": y, "valid": torch.tensor([1])}, 3, of="class", seed=0)
    assert found["train"][0] == 0
    assert len(found["train"][1:].unique()) == 1
    assert number_of_clusters(None, "class", 10) == 2
    assert number_of_clusters(None, "all", 10) == 10
    assert number_of_clusters(5, "class", 10) == 5


# What may be known


@pytest.fixture
def scored(tmp_path):
    """(data, the changes that make a run use its scores)."""
    data = build.data(config())
    write_scores(tmp_path, data, colours)
    return data, f"data.scores={tmp_path}"


def test_methods_see_features_or_clusters_and_never_the_labels(scored):
    data, where = scored
    seen = {
        bias: visible_bias(config(where, bias=bias), data)
        for bias in ("labels", "none", "scores", "clusters")
    }
    assert seen["labels"].splits["train"].bias is data.train.bias
    for bias in ("none", "scores"):
        assert all(split.bias is None for split in seen[bias].splits.values())
        assert seen[bias].info.bias_names == ()
        assert seen[bias].info.counts.shape == (4, 0)
    assert seen["none"].features == {}
    assert seen["scores"].info.bias_features == 3
    assert torch.equal(seen["scores"].features["valid"], colours(data.valid))
    clusters = seen["clusters"]
    assert clusters.info.bias_names == ("cluster 0", "cluster 1", "cluster 2", "cluster 3")
    pseudo = clusters.splits["train"].bias
    assert torch.equal(clusters.info.counts, count_cells(data.train.labels, pseudo, 4, 4))
    assert not torch.equal(pseudo, data.train.bias)
    assert (
        visible_bias(config(where, "data.clusters_of=class", bias="clusters"), data).info.num_biases
        == 2
    )
    assert (
        visible_bias(config(where, "data.clusters=3", bias="clusters"), data).info.num_biases == 3
    )
    assert data.info.bias_names != ()  # what evaluation looks at is untouched


def test_every_batch_brings_its_own_features(scored):
    data, where = scored
    chosen = config(
        where, "method.second=shuffled", "method.second_views=own", method=SOFTCON, bias="scores"
    )
    training = build.training(chosen, build.method(chosen, data), data, torch.device("cpu"))
    batches = {"train": list(training.loader), "second": list(training.second)}
    batches |= {
        "valid": list(training.sweep("valid")),
        "train sweep": list(training.sweep("train")),
    }
    for name, found in batches.items():
        whole = colours(data.valid if name == "valid" else data.train)
        assert found
        for batch in found:
            assert batch.bias is None
            assert torch.equal(batch.bias_features, whole[batch.index])


@pytest.mark.parametrize(
    ("bias", "method", "changes"),
    [
        ("scores", FAIRKL, ()),
        ("scores", SOFTCON, ("method.second=shuffled", "method.second_views=own")),
        ("clusters", FAIRKL, ("data.sampler=bias-aware",)),
        ("clusters", "group-dro", ()),
        ("clusters", "dfr", ("method.draws=1", "method.inverse_strength=1.0")),
        ("clusters", "biasbal", ("data.clusters_of=class",)),
        ("none", "logit-adjusted", ()),
    ],
)
def test_other_bias_labels_change_nothing_in_training(tmp_path, bias, method, changes):
    """Hidden labels may be anything: the weights and the choice of the epoch are the same."""
    chosen = config(f"data.scores={tmp_path}", *changes, method=method, bias=bias)
    true = build.data(chosen)
    shuffled = {
        name: replace(split, bias=split.bias.flip(0))
        for name, split in (("train", true.train), ("valid", true.valid))
    }
    info = replace(true.info, counts=count_cells(true.train.labels, shuffled["train"].bias, 4, 4))
    after = []
    for data in (true, replace(true, **shuffled, info=info)):
        write_scores(tmp_path, data, colours)
        trained = build.method(chosen, data)
        fit(build.training(chosen, trained, data, torch.device("cpu")), 1)
        after.append(trained.state_dict())
    assert not torch.equal(true.train.bias, shuffled["train"].bias)
    for key, value in after[0].items():
        assert torch.equal(after[1][key], value), key


def test_pseudo_labels_stay_out_of_evaluation(scored, tmp_path):
    data, where = scored
    record = run(config(where, bias="clusters"), tmp_path / "run", console=quiet())
    assert record.data["bias_names"] == list(data.info.bias_names)
    assert record.data["counts"] == data.info.counts.tolist()
    own, arrays = record.result["test"]["own"], record.arrays("test")
    assert torch.equal(torch.from_numpy(arrays["bias"]), data.test.bias)
    right = (arrays["predicted"] == arrays["labels"])[arrays["bias"] != arrays["labels"]]
    assert own["accuracy"]["conflicting"]["value"] == pytest.approx(right.mean())
    assert len(own["groups"]["n"][0]) == 4  # tints, not clusters


def test_hidden_labels_choose_no_epoch(scored, tmp_path):
    _, where = scored
    assert config().evaluate.select == "cell-mean"
    for bias in ("none", "scores", "clusters"):
        assert config("evaluate.select=conflicting", bias=bias).evaluate.select == "plain"
    chosen = config(where, "train.epochs=4", "evaluate.report=best-on-validation", bias="scores")
    assert configuration.Config(**configuration.loading._plain(chosen)) == chosen
    record = run(chosen, tmp_path / "run", console=quiet())
    epochs = [event for event in record.metrics if event["event"] == "evaluation"]
    best = max(epochs, key=lambda event: event["valid"]["plain"])
    assert record.result["records"]["best-on-validation"]["epoch"] == best["epoch"]


# Who takes what


@pytest.mark.parametrize(
    "name",
    ["group-dro", "lnl", "blind-eye", "dfr", "biasbal", "biascon+ce", "end", "group-balanced"],
)
def test_methods_that_need_labels_are_sent_to_clusters(scored, name):
    data, where = scored
    with pytest.raises(ValueError, match=r"needs to know the bias.*--bias clusters"):
        build.method(config(where, method=name, bias="scores"), data)
    build.method(config(where, method=name, bias="clusters"), data)
    with pytest.raises(ValueError, match=r"fairmargin scores.*--bias clusters"):
        build.method(config(method=name, bias="none"), data)


def test_methods_that_take_features_say_what_to_run_without(scored):
    data, where = scored
    with pytest.raises(
        ValueError,
        match=r'needs to know the bias.*"fairmargin scores" and train with --bias scores',
    ):
        build.method(config(bias="none"), data)
    with pytest.raises(
        ValueError, match=r'"fairmargin scores" and train with --bias scores.*biascon'
    ):
        build.method(config(method=SOFTCON), data)
    with pytest.raises(ValueError, match=r"variant=paper.*--bias clusters"):
        build.method(config(where, "method.variant=authors", bias="scores"), data)
    build.method(config(where, "method.variant=authors", bias="clusters"), data)


@pytest.mark.parametrize("sampler", ["group-balanced", "bias-aware", "weighted"])
def test_samplers_by_bias_want_labels_or_clusters(scored, sampler):
    data, where = scored
    for bias in ("none",) if sampler == "weighted" else ("none", "scores"):
        chosen = config(where, f"data.sampler={sampler}", method="ce", bias=bias)
        with pytest.raises(ValueError, match=r"no bias labels.*--bias clusters"):
            build.training(chosen, build.method(chosen, data), data, torch.device("cpu"))
    chosen = config(where, f"data.sampler={sampler}", method="ce", bias="clusters")
    training = build.training(chosen, build.method(chosen, data), data, torch.device("cpu"))
    assert sum(len(batch) for batch in training.loader) == len(data.train)


def test_rare_scores_are_drawn_more_often():
    """Hong & Yang's weights of SoftCon: the mean over references of 1 − cos."""
    y = torch.tensor([0] * 10 + [1] * 3)
    x = torch.tensor([[2.0, 0.0]] * 9 + [[0.0, 1.0]] + [[3.0, 4.0]] * 3)
    found = score_file.rarity(x, y, seed=0)
    assert found[:9] == pytest.approx([0.1] * 9, abs=0.03)  # one of ten is elsewhere
    assert found[9] == pytest.approx(0.9, abs=0.03)
    assert bool((found[10:] < 1e-5).all())
    assert bool((found > 0).all())
    assert torch.equal(found, score_file.rarity(5 * x, y, seed=0))


def test_softcon_draws_its_second_stream_by_scores(tmp_path):
    data = build.data(config())
    write_scores(tmp_path, data, one_hot)
    chosen = config(
        f"data.scores={tmp_path}", "method.second=weighted", method=SOFTCON, bias="scores"
    )
    training = build.training(chosen, build.method(chosen, data), data, torch.device("cpu"))
    drawn = torch.cat([batch.index for _ in range(4) for batch in training.second])
    share = lambda index: (data.train.bias != data.train.labels)[index].double().mean()
    assert share(drawn) > 1.5 * share(torch.arange(len(data.train)))
    fit(training, 1)


def test_a_split_whose_labels_cannot_be_hidden_is_refused():
    class Own:
        labels = bias = torch.zeros(3, dtype=torch.long)

    with pytest.raises(TypeError, match="make it a dataclass"):
        visible._relabelled(Own(), None)


# The commands


def test_compare_with_scores_over_two_seeds(tmp_path):
    for seed in ("0", "1"):
        made = invoke(
            "scores",
            "--dataset",
            "planted",
            "--seed",
            seed,
            "--out",
            str(tmp_path / "s" / f"seed-{seed}"),
        )
        assert made.exit_code == 0, made.output
        assert "conflicting" in made.output
        assert "centred" in made.output
    where = ["--set", f"data.scores={tmp_path / 's'}"]
    words = [
        "compare",
        "--dataset",
        "planted",
        "--methods",
        f"{FAIRKL},{SOFTCON}",
        "--bias",
        "scores",
        "--seeds",
        "2",
    ]
    done = invoke(*words, "--out", str(tmp_path / "runs"), *where)
    assert done.exit_code == 0, done.output
    results = sorted((tmp_path / "runs").rglob("result.json"))
    assert len(results) == 4
    assert {json.loads(file.read_text("utf-8"))["seed"] for file in results} == {0, 1}
    shutil.rmtree(tmp_path / "s")
    folder = results[0].parent
    assert configuration.load_resolved(folder / "config.toml").data.bias == "scores"
    judged = runner.invoke(app, ["evaluate", str(folder)])  # weights are enough to judge them
    assert judged.exit_code == 0, judged.output
    resumed = runner.invoke(app, ["train", "--resume", str(folder), "--bias", "labels"])
    assert resumed.exit_code == 2


def test_runs_that_saw_something_else_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert invoke("train", "--dataset", "planted", "--method", "ce").exit_code == 0
    assert (
        invoke("train", "--dataset", "planted", "--method", "ce", "--bias", "none").exit_code == 0
    )
    assert (tmp_path / "runs" / "planted" / "ce" / "seed-0" / "result.json").is_file()
    assert (tmp_path / "runs" / "planted-bias-none" / "ce" / "seed-0" / "result.json").is_file()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train", "--bias", "score"], "did you mean 'scores'?"),
        (["train", "--bias", "scores"], "fairmargin scores --dataset planted --seed 0"),
        (
            ["compare", "--bias", "clusters", "--seeds", "1"],
            "fairmargin scores --dataset planted --seed 0",
        ),
        (["scores", "--capture", "bagnet"], "did you mean 'bagnet18'?"),
        (
            ["train", "--bias", "clusters", "--set", "data.clusters=1"],
            "data.clusters must be at least 2; got 1",
        ),
        (["scores", "--out", "{out}/file"], "cannot write into"),
    ],
)
def test_mistakes_are_said_in_one_message(tmp_path, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    words = [word.format(out=tmp_path) for word in words]
    result = invoke(words[0], "--dataset", "planted", *words[1:])
    assert result.exit_code == 2, result.output
    assert expected in result.output
    assert "Traceback" not in result.output


@pytest.mark.slow
@pytest.mark.skipif(
    not dist.is_available() or sys.platform == "win32", reason="needs torch.distributed with gloo"
)
def test_two_processes_share_the_scores_by_index(tmp_path):
    """Made and used under torchrun, they give the features and the weights of one process."""
    # Adam would magnify the rounding of gradients that are 0, such as that of a bias before a batch
    # norm.
    small = [word for change in (*SMALL, "optimizer.name=sgd") for word in ("--set", change)]
    write_scores(tmp_path, build.data(config()), colours)
    used = ["--set", f"data.scores={tmp_path / FILE}"]
    for processes in "12":
        out = tmp_path / processes
        for words in (
            ["scores", "--out", str(out / "made")],
            ["train", "--method", SOFTCON, "--bias", "scores", *used, "--out", str(out / "scores")],
            [
                "train",
                "--method",
                "group-dro",
                "--bias",
                "clusters",
                *used,
                "--out",
                str(out / "clusters"),
            ],
        ):
            command = [*words, "--dataset", "planted", *small]
            if processes == "1":
                assert runner.invoke(app, command).exit_code == 0
            else:
                torchrun(2, "-m", "fairmargin", *command)
    first, second = (
        score_file.read(tmp_path / n / "made" / FILE).splits["train"].features for n in "12"
    )
    torch.testing.assert_close(first, second, rtol=1e-3, atol=1e-5)
    for bias in ("scores", "clusters"):
        one, two = (load_weights(tmp_path / n / bias / "weights.safetensors")[0] for n in "12")
        for key, value in one.items():
            torch.testing.assert_close(two[key].float(), value.float(), rtol=1e-3, atol=1e-4)
