import json
import math

import numpy as np
import pytest
import torch

from fairmargin.audit._embeddings import audit_arrays, audit_run
from fairmargin.audit.geometry import fairkl_by_class
from fairmargin.data.arrays import read
from fairmargin.evaluate.similarity import SETS, similarities
from fairmargin.losses import fairkl
from fairmargin.vectors import unit
from tests.report.fake_runs import write_awkward_run, write_run, write_unfinished_run


def biased(seed=0, n=600, classes=3, follows=0.9):
    """Embeddings that hold label and bias, and answers that follow the bias."""
    random = np.random.default_rng(seed)
    y, b = np.arange(n) % classes, random.integers(0, classes, n)
    x = 2 * np.eye(8)[y] + 3 * np.eye(8)[classes + b] + 0.3 * random.normal(size=(n, 8))
    predicted = np.where(random.random(n) < follows, b, y)
    return {"embeddings": x.astype(np.float32), "labels": y, "bias": b, "predicted": predicted}


@pytest.fixture(scope="module")
def found():
    return audit_arrays(biased())


def test_accuracies_are_those_of_the_answers(found):
    given = biased()
    right = given["predicted"] == given["labels"]
    assert found.json["accuracy"]["plain"]["value"] == pytest.approx(right.mean())
    cells = [
        [right[(given["labels"] == y) & (given["bias"] == b)].mean() for b in range(3)]
        for y in range(3)
    ]
    assert found.json["accuracy"]["cell-mean"]["value"] == pytest.approx(np.mean(cells))
    assert found.json["accuracy"]["worst-group"]["value"] == pytest.approx(np.min(cells))
    assert found.json["by_class"]["correct"] == [
        int(right[given["labels"] == y].sum()) for y in range(3)
    ]
    assert found.json["classifier"] == "own"


def test_without_the_training_set_nothing_is_called_aligned(found):
    assert set(found.json["accuracy"]) == {"plain", "cell-mean", "worst-group"}
    counts = np.where(np.eye(3, dtype=bool), 90, 5)
    told = audit_arrays(biased() | {"counts": counts}).json["accuracy"]
    assert told["aligned"]["value"] > 0.9
    assert told["conflicting"]["value"] < 0.2


def test_verdict_and_sections_say_what_is_wrong(found):
    assert "weakest group" in found.verdict
    assert "the bias can be read" in found.verdict
    assert [section.id for section in found.sections] == [
        "accuracy",
        "geometry",
        "readable",
        "slices",
    ]
    for section in found.sections:
        assert all(len(row) == len(table.head) for table in section.tables for row in table.rows)
    assert found.sections[0].figures[0].body.startswith("<svg")
    json.dumps(found.json, allow_nan=False)


def test_a_biased_embedding_is_ordered_by_bias_and_a_fair_one_is_not():
    given = biased()
    fair = given | {"embeddings": given["embeddings"][:, :3] + 0.0}
    shares = [
        [link["share"] for link in audit_arrays(one).json["geometry"]["ordering"]["links"]]
        for one in (given, fair)
    ]
    assert shares[0][0] > 0.95
    assert shares[0][1] < 0.1
    assert shares[1][0] == pytest.approx(0.5, abs=0.05)
    assert shares[1][1] > 0.95


def test_the_bias_is_read_off_against_chance(found):
    classes = found.json["bias_readable"]["classes"]
    assert [one["class"] for one in classes] == [0, 1, 2]
    assert all(
        one["accuracy"]["value"] > 0.97 and one["chance"] == pytest.approx(1 / 3) for one in classes
    )
    random = biased() | {"bias": np.random.default_rng(5).integers(0, 3, 600)}
    blind = audit_arrays(random).json["bias_readable"]
    assert abs(blind["above_chance"]) < 0.15
    assert all(one["accuracy"]["low"] < 1 / 3 + 0.06 for one in blind["classes"])


def test_slices_are_the_groups_that_the_bias_misleads(found):
    slices = found.json["slices"]["found"]
    assert len(slices) >= 3
    for one in slices:
        assert one["confirmation"]["value"] > one["rest_of_class"]["value"]
        assert one["p_corrected"] <= 0.05
        # A cluster is a group here: nearly all of it has one bias value, not its class's.
        assert one["bias"][0]["share"] > 0.9
        assert one["bias"][0]["name"] != str(one["class"])
        assert one["answers"][0]["name"] == one["bias"][0]["name"]


def loop_sets(z, y, b, k):
    """Cosines of the pairs of each set whose anchor is of class k, by plain loops."""
    found = {name: [] for name in SETS}
    for i in range(len(z)):
        for j in range(len(z)):
            if i != j and y[i] == k and b[i] >= 0 and b[j] >= 0:
                sign = "positive" if y[i] == y[j] else "negative"
                found[f"{sign}-{'aligned' if b[i] == b[j] else 'conflicting'}"].append(
                    float(z[i] @ z[j])
                )
    return found


def test_fairkl_of_a_class_by_plain_loops():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(30, 5, generator=g)
    y, b = torch.randint(3, (30,), generator=g), torch.randint(-1, 2, (30,), generator=g)
    found = fairkl_by_class(x, y, b, 3)
    for k in range(3):
        sets = loop_sets(unit(x.double()), y, b, k)
        for name in SETS:
            assert found[k]["sets"][name]["pairs"] == len(sets[name])
            assert found[k]["sets"][name]["mean"] == pytest.approx(np.mean(sets[name]))
            assert found[k]["sets"][name]["std"] == pytest.approx(np.std(sets[name]))
        for sign in ("positive", "negative"):
            a, c = (2 - 2 * np.array(sets[f"{sign}-{kind}"]) for kind in ("aligned", "conflicting"))
            kl = 0.5 * (
                (a.var() + (a.mean() - c.mean()) ** 2) / c.var() - math.log(a.var() / c.var()) - 1
            )
            assert found[k]["kl"][sign] == pytest.approx(kl)


def test_fairkl_of_a_class_is_the_loss_on_its_samples():
    g = torch.Generator().manual_seed(1)
    x, y, b = (
        torch.randn(40, 4, generator=g),
        torch.arange(40) % 2,
        torch.randint(3, (40,), generator=g),
    )
    found = fairkl_by_class(x, y, b, 2)
    for k in range(2):
        alone = fairkl(x[y == k].double(), y[y == k], b[y == k], variance_floor=0.0)
        assert found[k]["kl"]["positive"] == pytest.approx(float(alone))
    single = fairkl_by_class(x, torch.zeros(40, dtype=torch.long), b, 1)[0]
    whole = similarities(x, torch.zeros(40, dtype=torch.long), b)
    assert single["kl"]["positive"] == pytest.approx(whole["kl"]["positive"])
    assert single["kl"]["negative"] is None
    both = fairkl(x.double(), y, b, negatives=True)
    assert (
        min(one["fairkl"] for one in found) < float(both) * 3
    )  # of the same size; anchors are split by class


def test_fairkl_of_a_class_without_pairs_is_none():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    found = fairkl_by_class(x, torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 0, 0]), 3)
    assert found[0]["kl"]["positive"] is None
    assert found[2] == {
        "sets": {name: {"pairs": 0, "mean": None, "std": None} for name in SETS},
        "kl": {"positive": None, "negative": None},
        "fairkl": None,
    }


def test_without_answers_a_cross_validated_probe_is_judged():
    given = biased()
    del given["predicted"], given["bias"]
    found = audit_arrays(given)
    assert found.json["classifier"] == "linear probe, 5-fold"
    assert found.json["accuracy"]["plain"]["value"] > 0.98
    assert found.json["geometry"] is None
    assert [section.id for section in found.sections] == ["accuracy", "slices"]
    random = np.random.default_rng(0)
    noise = {"embeddings": random.normal(size=(300, 40)), "labels": np.arange(300) % 3}
    at = audit_arrays(noise).json["accuracy"]["plain"]
    assert at["value"] == pytest.approx(
        1 / 3, abs=0.1
    )  # had it seen what it is judged on, this would be far above


def test_a_run_is_read_and_its_kept_pictures_are_shown(tmp_path):
    run = write_run(tmp_path / "ce", "ce", n=800)
    steps = []
    found = audit_run(run, progress=lambda doing, done, total: steps.append((doing, done, total)))
    result = json.loads((run / "result.json").read_text("utf-8"))
    stored = np.load(run / "test.npz")
    assert found.json["accuracy"]["plain"]["value"] == pytest.approx(
        (stored["predicted"] == stored["labels"]).mean()
    )
    assert found.json["method"] == result["method"]
    assert {"aligned", "conflicting", "train-weighted"} <= set(found.json["accuracy"])
    assert found.json["groups"]["n"] == result["test"]["own"]["groups"]["n"]
    for doing in {step[0] for step in steps}:
        assert [step for step in steps if step[0] == doing][-1][1:] == (
            steps_total(steps, doing),
        ) * 2


def steps_total(steps, doing):
    return next(total for name, _, total in steps if name == doing)


def test_a_run_without_bias_labels(tmp_path):
    found = audit_run(write_awkward_run(tmp_path / "run"))
    assert found.json["bias_readable"] is None
    assert list(found.json["accuracy"]) == ["plain"]
    assert found.json["class_names"][1] == "<b>dog</b>"
    assert all(
        "<b>dog" not in str(figure.body) for section in found.sections for figure in section.figures
    )


def test_an_unfinished_run_is_said_so(tmp_path):
    with pytest.raises(OSError, match="not finished"):
        audit_run(write_unfinished_run(tmp_path / "run"))


def test_text_labels_and_positions_give_the_same(tmp_path):
    given = biased(n=300)
    words = np.array(["ant", "bee", "cow"])
    text = given | {name: words[given[name]] for name in ("labels", "predicted", "bias")}
    file = tmp_path / "x.npz"
    np.savez(file, **text)
    one, other = (
        audit_arrays(file),
        audit_arrays(given | {"class_names": words, "bias_names": words}),
    )
    assert one.json == other.json
    assert one.title == "Audit of x.npz"


def test_bytes_are_the_text_they_spell(tmp_path):
    given = biased(n=300)
    words = np.array(["ant", "bée", "cow"])
    text = given | {name: words[given[name]] for name in ("labels", "predicted", "bias")}
    text["bias"][:50] = ""
    encoded = {
        name: np.char.encode(text[name], "utf-8") for name in ("labels", "predicted", "bias")
    }
    np.savez(tmp_path / "x.npz", **text | encoded)
    assert audit_arrays(tmp_path / "x.npz").json == audit_arrays(text).json
    named = given | {
        "class_names": np.char.encode(words, "utf-8"),
        "bias_names": np.char.encode(words, "utf-8"),
    }
    assert read(named).class_names == read(named).bias_names == ("ant", "bée", "cow")
    digits = given | {"labels": given["labels"].astype("S1"), "bias": given["bias"].astype("S1")}
    del digits["predicted"]
    assert read(digits).class_names == ("0", "1", "2")


def test_too_few_samples_for_slices_are_said_so():
    tiny = audit_arrays({"embeddings": np.eye(3), "labels": np.array(["x", "y", "y"])})
    assert "There were too few samples to look for slices." in tiny.verdict
    assert "No slice" not in tiny.verdict
    said = "too few samples to look for slices in 2 classes (a class needs 40): x, y"
    assert said in tiny.warnings
    assert tiny.sections[-1].lead == f"There were {said}."


def test_classes_without_slices_are_named():
    given = biased(n=300)
    kept = (given["labels"] != 2) | (np.arange(300) < 100)  # 33 samples of the last class
    given = {name: values[kept] for name, values in given.items()}
    given["predicted"] = given["labels"]
    found = audit_arrays(given)
    assert (
        "In the 2 of 3 classes with enough samples to look for slices, none fails" in found.verdict
    )
    said = "too few samples to look for slices in 1 class (a class needs 40): 2"
    assert said in found.warnings
    assert found.sections[-1].lead.endswith(f"Bias labels were not used. There were {said}.")
    assert (
        "No slice fails" in audit_arrays(biased(n=300, follows=0.0)).verdict
    )  # with enough of every class


def test_many_classes_without_slices_are_counted():
    labels = np.arange(60) % 30
    (said,) = [
        warning
        for warning in audit_arrays(
            {"embeddings": np.eye(30)[labels], "labels": labels, "predicted": labels}
        ).warnings
        if "slices" in warning
    ]
    assert said.endswith("18, 19 and 10 more")


def test_unknown_bias_counts_in_plain_only():
    given = biased(n=300)
    given["bias"] = np.where(np.arange(300) < 100, -1, given["bias"])
    found = audit_arrays(given).json
    assert sum(map(sum, found["groups"]["n"])) == 200
    assert sum(found["by_class"]["n"]) == 300
    assert found["bias_names"] == ["0", "1", "2"]


def test_logits_that_are_not_finite_are_no_answer():
    given = biased(n=300)
    logits = 5 * np.eye(3)[given.pop("predicted")]
    logits[:10] = np.nan
    predicted = read(given | {"logits": logits}).predicted
    assert predicted.tolist()[:10] == [-1] * 10
    assert predicted.tolist()[10:] == logits[10:].argmax(1).tolist()


def test_answers_count_before_logits():
    given = biased(n=300)
    assert (
        read(given | {"logits": np.zeros((300, 3))}).predicted.tolist()
        == given["predicted"].tolist()
    )


def test_a_misspelt_array_is_warned_about():
    given = biased(n=300)
    given["predictions"] = given.pop("predicted")
    assert any('did you mean "predicted"?' in warning for warning in read(given).warnings)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": np.zeros(5, int)}, r"labels must have shape \[300\].*got \[5\]"),
        ({"labels": np.zeros(300, int)}, "all 300 labels are '0'"),
        ({"labels": np.arange(300) - 1}, "Leave out samples of unknown class"),
        ({"labels": np.arange(300) / 2}, "integers or text"),
        ({"embeddings": np.zeros((300, 2, 2))}, r"shape \[N, D\]"),
        ({"embeddings": np.full((300, 2), np.nan)}, "NaN or inf in 300 of 300 rows"),
        ({"embeddings": np.zeros((300, 2))}, "300 of 300 rows of embeddings are zeros"),
        ({"features": np.ones((300, 2))}, "leave one out"),
        ({"predicted": np.array(["a"] * 300)}, "in the same words"),
        ({"class_names": ["a", "b"]}, "from 0 to 1, positions in the 2 class_names"),
        ({"bias": np.full(300, -2)}, "−1 for unknown"),
        ({"counts": np.ones((2, 2), int)}, r"\[3 classes, 3 biases\]"),
        ({"labels": np.array([None] * 300)}, "Python objects"),
        ({"labels": np.array([b"\xff"] * 300)}, "labels holds bytes that are not UTF-8 text"),
    ],
)
def test_wrong_arrays_are_said_so(change, said):
    with pytest.raises(ValueError, match=said):
        audit_arrays(biased(n=300) | change)


def test_missing_arrays_and_files_are_said_so(tmp_path):
    with pytest.raises(ValueError, match='no "labels"; it has embeddings'):
        audit_arrays({"embeddings": np.ones((3, 2))})
    with pytest.raises(ValueError, match=r'needs one array of "embeddings".*it has labels'):
        audit_arrays({"labels": np.arange(3)})
    with pytest.raises(FileNotFoundError, match="there is no file"):
        audit_arrays(tmp_path / "x.npz")
    (tmp_path / "text.npz").write_text("hello")
    with pytest.raises(ValueError, match=r"numpy\.savez"):
        audit_arrays(tmp_path / "text.npz")


def test_a_few_zero_rows_are_warned_about():
    given = biased(n=300)
    given["embeddings"][:3] = 0
    found = audit_arrays(given)
    assert any("3 of 300 rows" in warning for warning in found.warnings)


def test_the_length_of_embeddings_changes_nothing():
    arrays = biased()
    long = arrays | {"embeddings": arrays["embeddings"] * np.float32(2.0**73)}
    near, far = audit_arrays(arrays), audit_arrays(long)
    assert far.verdict == near.verdict
    assert far.json["bias_readable"] == near.json["bias_readable"]
    assert far.json["slices"] == near.json["slices"]
