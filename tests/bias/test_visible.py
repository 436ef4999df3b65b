"""A run decides once what its method may know of the bias, and hashes its data once."""

from collections import Counter

from fairmargin import config as configuration
from fairmargin.bias import providers
from fairmargin.bias.visible import visible_bias
from fairmargin.data import split as data_split
from fairmargin.run import run
from fairmargin.runs import build
from tests.bias.scored import write_scores
from tests.bias.test_scores import SMALL, colours


def config(*changes, bias):
    overrides = [*SMALL, *changes]
    return configuration.load(dataset="planted", method="ce+fairkl", bias=bias, overrides=overrides)


def counted(monkeypatch, module, name, calls):
    real = getattr(module, name)

    def counting(*values, **options):
        calls[name] += 1
        return real(*values, **options)

    monkeypatch.setattr(module, name, counting)


def test_a_run_clusters_reads_scores_and_hashes_its_data_once(tmp_path, monkeypatch):
    data = build.data(config(bias="labels"))
    write_scores(tmp_path / "scores", data, colours)
    calls = Counter()
    counted(monkeypatch, providers, "cluster", calls)
    counted(monkeypatch, providers.score_file, "read", calls)
    counted(monkeypatch, data_split, "data_hash", calls)
    chosen = config(f"data.scores={tmp_path / 'scores'}", bias="clusters")
    assert run(chosen, tmp_path / "run").finished
    # Three splits, each once.
    assert calls == {"cluster": 1, "read": 1, "data_hash": 3}


def test_what_was_found_is_what_method_and_training_use(tmp_path):
    data = build.data(config(bias="labels"))
    write_scores(tmp_path, data, colours)
    chosen = config(f"data.scores={tmp_path}", bias="clusters")
    bias = visible_bias(chosen, data)
    method = build.method(chosen, data, bias=bias)
    training = build.training(chosen, method, data, build.device("cpu"), bias=bias)
    assert training.loader.split is bias.splits["train"]
