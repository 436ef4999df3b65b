import base64
import json
import re
import statistics
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fairmargin.evaluate.accuracy import aligned_cells
from fairmargin.methods import METHODS
from fairmargin.report import colours, embedding, figures, pictures, svg, words
from fairmargin.report.grouping import parts_of, read_runs
from fairmargin.report.page import write_report
from fairmargin.report.runs import method_name
from fairmargin.runs.record import RunError
from tests.report.fake_runs import NAMES, write_awkward_run, write_run, write_unfinished_run

FIGURES = {
    "headline", "examples-aligned", "examples-conflicting", "groups", "curve-test", "curve-valid",
} | {
    f"{kind}-{method}"
    for kind in ("mistakes", "cells", "similarity", "map-label", "map-bias", "terms", "calibration")
    for method in ("cross-entropy", "eps-supinfonce-fairkl")
} | {"pairs-eps-supinfonce-fairkl"}  # fmt: skip
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


class Reader(HTMLParser):
    """The page's text, `<data>` numbers, attributes and figures, as a browser would read them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.numbers: list[tuple[float, str]] = []
        self.open: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["data"]:
            self.numbers.append((float(str(self.tags[-1][1]["value"])), data))
            self.open.append("")
        if self.open[-1:] not in (["style"], ["script"]):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        write_run(folder / "ce", "ce"),
        write_run(folder / "fk", "eps-supinfonce+fairkl", extra=True),
    ]


@pytest.fixture(scope="module")
def html(runs, tmp_path_factory) -> str:
    return write_report(runs, tmp_path_factory.mktemp("out") / "deep" / "report.html").read_text(
        encoding="utf-8"
    )


def small(folder: Path, method: str, **options) -> Path:
    return write_run(folder, method, n=60, **options)


def row_of(html: str, table: int, method: str) -> str:
    """The first row of a method in the nth table of accuracies."""
    body = html.split('<table class="accuracies">')[table + 1].split("</table>")[0]
    return next(row for row in body.split("<tr")[2:] if method in Reader(row).text)


def result(run: Path) -> dict:
    return json.loads((run / "result.json").read_text(encoding="utf-8"))


def test_table_shows_the_numbers_of_the_results(html, runs):
    for run, method in zip(runs, ("Cross-entropy", "ε-SupInfoNCE + FairKL"), strict=True):
        accuracy = result(run)["test"]["own"]["accuracy"]
        row = row_of(html, 0, method)
        assert [value for value, _ in Reader(row).numbers] == [
            accuracy[name]["value"] for name in NAMES
        ]
        for name in NAMES:
            one = accuracy[name]
            interval = f"{100 * one['low']:.1f}–{100 * one['high']:.1f}"
            assert f"{100 * one['value']:.1f}</data><small>{interval}</small>" in row


def test_other_classifiers_and_test_sets_have_their_tables(html, runs):
    stored = result(runs[1])
    judged = [stored["test"]["probe"], stored["extra_tests"]["rotated"]["own"]]
    for table, one in enumerate(judged, 1):
        shown = [value for value, _ in Reader(row_of(html, table, "ε-SupInfoNCE + FairKL")).numbers]
        assert shown == [one["accuracy"][name]["value"] for name in NAMES]


def test_records_stand_side_by_side(html, runs):
    text = Reader(html).text
    assert (
        "It stands here for comparison with literature that does so, and for nothing else." in text
    )
    best = result(runs[0])["records"]["best-on-test"]
    assert (
        f'<data value="{best["test"]["cell-mean"]}">{100 * best["test"]["cell-mean"]:.1f}</data>'
        in html
    )
    assert '<td>best on test</td><td class="num">21</td>' in html


def test_answer_names_cross_entropy_and_the_best(html, runs):
    low, high = (
        f"{100 * result(run)['test']['own']['accuracy']['cell-mean']['value']:.0f}\u00a0%"
        for run in runs
    )
    answer = Reader(html.split("<h1>")[1].split("</h1>")[0]).text
    expected = (
        f"On digits whose colours are shuffled, cross-entropy is right {low} of the time; "
        f"ε-SupInfoNCE + FairKL {high}."
    )
    assert answer == " ".join(expected.split())
    assert "the intervals do not overlap" in Reader(html).text


def change(run: Path, **changes) -> None:
    stored = result(run)
    for dotted, value in changes.items():
        at = stored
        *parents, last = dotted.split("__")
        for name in parents:
            at = at[name]
        at[last] = value
    (run / "result.json").write_text(json.dumps(stored), encoding="utf-8")


def first_sentence(runs, target: Path, **options) -> str:
    html = write_report(runs, target, **options).read_text(encoding="utf-8")
    return Reader(html.split("<h1>")[1].split("</h1>")[0]).text


def three(tmp_path: Path) -> list[Path]:
    """Runs of which GCE is worst; validation prefers EnD and the test SupCon."""
    runs = []
    for method, test, valid in (
        ("gce", 0.1, 0.1), ("supcon", 0.9, 0.5), ("ce", 0.3, 0.3), ("end", 0.8, 0.7),
    ):  # fmt: skip
        run = small(tmp_path / method, method)
        at = {"value": test, "low": test - 0.01, "high": test + 0.01}
        kept = result(run)["records"]["last"]
        valid_at = kept["valid"] | {"cell-mean": valid}
        change(
            run,
            test__own__accuracy=result(run)["test"]["own"]["accuracy"] | {"cell-mean": at},
            records__last=kept | {"valid": valid_at},
        )
        runs.append(run)
    return runs


def test_the_best_is_chosen_on_validation(tmp_path):
    runs = three(tmp_path)
    html = write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")
    text = Reader(html).text
    assert "cross-entropy is right 30 % of the time; EnD 80 %." in text
    assert (
        "EnD is the best of the other 3 methods by “cell-mean” accuracy on the validation images."
        in text
    )
    assert "The difference is 50.0 points, and the intervals do not overlap." in text
    assert "differ in more than the method" not in text


def test_without_validation_the_best_is_chosen_on_the_test_and_that_is_said(tmp_path):
    runs = three(tmp_path)
    change(runs[0], records={})
    text = Reader(write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "cross-entropy is right 30 % of the time; SupCon 90 %." in text
    assert "by “cell-mean” accuracy on the test images" in text


def test_the_user_names_what_is_compared(tmp_path):
    runs = three(tmp_path)
    named = first_sentence(runs, tmp_path / "a.html", headline=("supcon", "gce"))
    assert named.endswith("SupCon is right 90 % of the time; GCE 10 %.")
    one = first_sentence(runs, tmp_path / "b.html", headline=("gce",))
    assert one.endswith("cross-entropy is right 30 % of the time; GCE 10 %.")
    without = first_sentence([runs[0], runs[1], runs[3]], tmp_path / "c.html")
    assert without.endswith("SupCon is right 90 % of the time; EnD 80 %.")
    with pytest.raises(ValueError, match="no finished run of jtt; there are gce, supcon, ce, end"):
        write_report(runs, tmp_path / "d.html", headline=("jtt",))
    with pytest.raises(ValueError, match="compares two methods"):
        write_report(runs, tmp_path / "e.html", headline=("ce", "gce", "end"))


def test_runs_that_did_not_train_alike_are_told(tmp_path):
    runs = [small(tmp_path / name, name) for name in ("ce", "supcon", "gce")]
    change(runs[1], epochs=80, steps=1200)
    data = json.loads((runs[2] / "data.json").read_text("utf-8"))
    data["sizes"]["train"] = 100
    (runs[2] / "data.json").write_text(json.dumps(data), encoding="utf-8")
    text = Reader(write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert (
        "These runs differ in more than the method: "
        "epochs 24 (Cross-entropy and GCE), 80 (SupCon); "
        "training images 3,600 (Cross-entropy and SupCon), 100 (GCE)." in text
    )


def test_different_seeds_are_told(tmp_path):
    runs = [small(tmp_path / f"ce-{seed}", "ce", seed=seed) for seed in (0, 1)]
    runs.append(small(tmp_path / "gce", "gce"))
    text = Reader(write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "seeds 0, 1 (Cross-entropy), 0 (GCE)" in text


def test_a_setting_that_one_run_lacks_is_told_of_the_other(tmp_path):
    runs = [
        small(tmp_path / "a", "eps-supinfonce"),
        small(tmp_path / "b", "eps-supinfonce", settings="scores = 'runs/scores'"),
    ]
    names = [group.name for group in parts_of(read_runs(runs))[0].groups]
    assert names == ["ε-SupInfoNCE", "ε-SupInfoNCE (scores runs/scores)"]


def test_long_names_that_are_cut_alike_stay_apart(tmp_path):
    long = "x" * 80
    runs = [
        small(tmp_path / str(k), "ce", settings=f"note = '{long}{k}'", seed=k) for k in range(3)
    ]
    names = [group.name for group in parts_of(read_runs(runs))[0].groups]
    assert len(set(names)) == 3


def test_equal_methods_are_not_told_apart(tmp_path):
    runs = [small(tmp_path / "a", "ce"), small(tmp_path / "b", "supcon")]
    for k, run in enumerate(runs):
        stored = result(run)
        stored["test"]["own"]["accuracy"]["cell-mean"] = {
            "value": 0.501 + k / 500,
            "low": 0.4,
            "high": 0.6,
        }
        (run / "result.json").write_text(json.dumps(stored), encoding="utf-8")
    text = Reader(write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "cross-entropy is right 50.1 % of the time; SupCon 50.3 %." in text
    assert "the intervals overlap, so this test set does not tell the two apart" in text


def test_every_figure_is_there_once(html):
    named = [figure["data-figure"] for figure in Reader(html).all("figure")]
    assert sorted(named) == sorted(FIGURES)
    ids = [attributes["id"] for _, attributes in Reader(html).tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_links_lead_somewhere(html):
    ids = {attributes.get("id") for _, attributes in Reader(html).tags}
    links = [str(link["href"]) for link in Reader(html).all("a")]
    assert len(links) == 8
    assert all(link[1:] in ids for link in links)


def test_page_loads_nothing(html):
    read = Reader(html)
    assert [
        meta["content"]
        for meta in read.all("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    ] == [POLICY]
    assert not re.search(r"https?://|url\(|@import|//cdn", html)
    assert not read.all("link") + read.all("iframe")
    assert all("src" not in script for script in read.all("script"))
    assert all(
        str(image["src"]).startswith("data:image/png;base64,") and image["alt"]
        for image in read.all("img")
    )


def test_page_is_small(html):
    assert len(html.encode()) < 400_000


def test_page_is_always_the_same_and_a_run_given_twice_counts_once(tmp_path):
    run = write_run(tmp_path / "run", "ce", n=120)  # enough for t-SNE
    once, again = (
        write_report([run] * k, tmp_path / f"{k}.html").read_text(encoding="utf-8") for k in (1, 2)
    )
    assert once == again


def test_pictures_and_captions_are_those_of_the_run(html, runs):
    strip = html.split('data-figure="mistakes-cross-entropy"')[1].split("</figure>")[0]
    examples, test = np.load(runs[0] / "examples.npz"), np.load(runs[0] / "test.npz")
    first = int(np.flatnonzero(examples["kind"] == "mistake")[0])
    index = int(examples["index"][first])
    uri = str(Reader(strip).all("img")[0]["src"])
    with Image.open(BytesIO(base64.b64decode(uri.split(",")[1]))) as picture:
        assert np.array_equal(np.asarray(picture).transpose(2, 0, 1), examples["images"][first])
    logits = test["logits"][index].astype(float)
    confidence = np.exp(logits).max() / np.exp(logits).sum()
    caption = Reader(strip.split("<li>")[1]).text
    assert f"label {test['labels'][index]}, bias" in str(Reader(strip).all("img")[0]["alt"])
    assert f"Cross-entropy: {test['predicted'][index]} ✗ wrong {100 * confidence:.0f} %" in caption


def test_heat_map_shows_the_groups(html, runs):
    groups = result(runs[1])["test"]["own"]["groups"]
    told = html.split('data-figure="cells-eps-supinfonce-fairkl"')[1].split("</figure>")[0]
    titles = re.findall(r"<title>(.*?)</title>", told)
    assert len(titles) == 100
    assert (
        titles[23]
        == f"2, yellow: {groups['correct'][2][3]} of {groups['n'][2][3]} right; 2 in training"
    )
    assert told.count('class="aligned"') == 10
    shown = re.findall(r'<text [^>]*class="middle i\d+"[^>]*>(\d+)</text>', told)
    counted = zip(np.ravel(groups["correct"]), np.ravel(groups["n"]), strict=True)
    assert shown == [f"{100 * right / n:.0f}" for right, n in counted if n]


def test_framed_cells_are_those_that_evaluation_calls_aligned(runs):
    import torch

    (part,) = parts_of(read_runs(runs))
    assert part.aligned is not None
    assert part.counts is not None
    assert np.array_equal(part.aligned, aligned_cells(torch.from_numpy(part.counts)).numpy())


def test_similarities_and_their_order_are_told_in_words(html, runs):
    stored, text = result(runs[0]), Reader(html).text
    link = stored["ordering"]["links"][1]["share"]
    assert (
        "“same label, other bias” is closer than “other label, same bias” in "
        f"{100 * link:.0f} % of comparisons." in text
    )
    assert "KL from same bias to other bias, same label: 0.432." in text
    mean = stored["similarity"]["sets"]["positive-aligned"]["mean"]
    assert f'<data value="{mean}">{mean:.2f}</data>' in html


def test_similarities_of_all_methods_have_one_scale(tmp_path):
    runs = [small(tmp_path / "a", "ce"), small(tmp_path / "b", "supcon")]
    stored = result(runs[0])
    for one in stored["similarity"]["sets"].values():
        one["counts"] = [0] * 32 + one["counts"][32:]  # nothing below 0, unlike the other method
    (runs[0] / "result.json").write_text(json.dumps(stored), encoding="utf-8")
    html = write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")
    charts = [part.split("</figure>")[0] for part in html.split('data-figure="similarity-')[1:]]
    scales = [re.findall(r'class="middle">([−\d.]+)</text>', chart) for chart in charts]
    assert scales == [["−1", "−0.5", "0", "0.5", "1"]] * 2


def test_repeating_is_possible(html, runs):
    text = Reader(html).text
    assert "fairmargin train biased-mnist-mini --method ce --seed 0 --set data.rho=0.95" in text
    assert "0123456789abcdef0123456789abcdef01234567" in text
    assert "1" * 64 in text  # a data hash
    assert " ".join((runs[0] / "config.toml").read_text(encoding="utf-8").split()) in text


def test_seeds_are_averaged(tmp_path):
    runs = [small(tmp_path / f"s{seed}", "ce", seed=seed) for seed in range(3)]
    html = write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")
    values = [result(run)["test"]["own"]["accuracy"]["conflicting"]["value"] for run in runs]
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    row = row_of(html, 0, "Cross-entropy")
    assert (
        f'<data value="{mean}">{100 * mean:.1f}</data><small>± {100 * deviation:.1f}</small>' in row
    )
    assert Reader(row).text.endswith(" 3")
    groups = [result(run)["test"]["own"]["groups"] for run in runs]
    right, n = (np.sum([group[name] for group in groups], axis=0) for name in ("correct", "n"))
    assert n[4, 4] > 0
    assert f"<title>4, magenta: {right[4, 4]} of {n[4, 4]} right; 342 in training</title>" in html


def test_variants_of_a_method_are_not_averaged(tmp_path):
    for k, epsilon in enumerate((0.1, 0.5)):
        small(tmp_path / f"e{k}", "eps-supinfonce", settings=f"epsilon = {epsilon}\n")
    html = write_report([tmp_path / "e0", tmp_path / "e1"], tmp_path / "r.html").read_text(
        encoding="utf-8"
    )
    assert "ε-SupInfoNCE (epsilon 0.1)" in Reader(row_of(html, 0, "(epsilon 0.1)")).text
    assert Reader(row_of(html, 0, "(epsilon 0.5)")).text.endswith(" 1")


def test_datasets_have_parts_of_their_own(tmp_path):
    runs = [
        small(tmp_path / "a", "ce"),
        small(tmp_path / "b", "ce", seed=1),
        write_awkward_run(tmp_path / "c"),
    ]
    config = (runs[1] / "config.toml").read_text(encoding="utf-8")
    (runs[1] / "config.toml").write_text(
        config.replace("rho = 0.95", "rho = 0.9"), encoding="utf-8"
    )
    html = write_report(runs, tmp_path / "r.html", story="Told once.").read_text(encoding="utf-8")
    text = Reader(html).text
    assert "2 methods on 3 datasets" in text
    assert "biased-mnist-mini (rho 0.9)" in text
    assert "On the test images of “pets & co”, my-own <method> is right" in text
    assert text.count("Told once.") == 1
    assert len(re.findall('data-figure="headline"', html)) == 3


def test_text_from_data_is_escaped(tmp_path):
    run = write_awkward_run(tmp_path / "run")
    html = write_report(
        [run], tmp_path / "r.html", title="<u>mine</u>", story="A <s>story</s>.\n\nAnother."
    ).read_text(encoding="utf-8")
    for markup in ("<b>dog", "<method>", "<script>alert", "<i>skipped", "<u>mine", "<s>story"):
        assert markup not in html
        assert markup in Reader(html).text.replace("&lt;", "<") or markup == "<u>mine"
    assert "<title>&lt;u&gt;mine&lt;/u&gt;</title>" in html
    assert html.count('<p class="story">') == 2


def test_run_without_bias_still_has_a_report(tmp_path):
    html = write_report([write_awkward_run(tmp_path / "run")], tmp_path / "r.html").read_text(
        encoding="utf-8"
    )
    named = {figure["data-figure"] for figure in Reader(html).all("figure")}
    slug = "my-own-method"
    assert named == {"headline", f"mistakes-{slug}", f"cells-{slug}", f"map-label-{slug}"}
    test = np.load(tmp_path / "run" / "test.npz")
    right = int(((test["labels"] == 0) & (test["predicted"] == 0)).sum())
    assert f"<title>cat, all: {right} of {int((test['labels'] == 0).sum())} right</title>" in html
    assert "No bias was written down for this dataset" in html
    assert "bootstrap interval." not in html.split("</figure>")[0]  # it has none


def test_unfinished_runs_are_listed(tmp_path):
    runs = [small(tmp_path / "a", "ce"), write_unfinished_run(tmp_path / "later")]
    text = Reader(write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert re.search(r"later\s*ε-SupInfoNCE\s*biased-mnist-mini\s*2\s*7 of 24\s*120", text)
    alone = Reader(write_report(runs[1:], tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "No run has finished yet" in alone


def test_run_that_has_only_begun_is_listed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(
        'seed = 1\n[method]\nname = "ce"\n', encoding="utf-8"
    )
    assert "Cross-entropy" in write_report([tmp_path / "run"], tmp_path / "r.html").read_text(
        encoding="utf-8"
    )


def test_errors_say_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="at least one run folder and got none"):
        write_report([], tmp_path / "r.html")
    with pytest.raises(RunError, match=r"is not a run folder: it has no config\.toml"):
        write_report([tmp_path], tmp_path / "r.html")
    run = small(tmp_path / "run", "ce")
    with pytest.raises(ValueError, match="is a folder; give the file to write"):
        write_report([run], tmp_path)
    small(tmp_path / "same", "ce")
    with pytest.raises(
        ValueError, match="both ce on biased-mnist-mini with seed 0 and one configuration"
    ):
        write_report([run, tmp_path / "same"], tmp_path / "r.html")
    (run / "result.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match=r"result\.json is not valid JSON"):
        write_report([run], tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_of_many_methods_some_have_charts_and_all_have_rows(tmp_path):
    methods = [
        "ce",
        "eps-supinfonce+fairkl",
        "eps-supinfonce",
        *(f"method-{letter}" for letter in "abcdefgh"),
    ]
    runs = [small(tmp_path / method, method) for method in methods]
    value = {
        method_name(m): result(run)["test"]["own"]["accuracy"]["cell-mean"]["value"]
        for m, run in zip(methods, runs, strict=True)
    }
    ranked = sorted(value, key=lambda name: -value[name])
    page = write_report(runs, tmp_path / "r.html").read_text(encoding="utf-8")
    text = Reader(page).text
    chosen = [name for name in ranked if name in {*ranked[:4], "Cross-entropy", ranked[-1]}]
    assert f"Images and charts are of {len(chosen)} of the 11 methods" in text
    drawn = {str(one["data-figure"]) for one in Reader(page).all("figure") if "data-figure" in one}
    assert len([name for name in drawn if name.startswith("cells-")]) == len(chosen)
    rows = page.split('<table class="accuracies">')[1].split("</table>")[0].split("<tr")[2:]
    assert [
        next(name for name in sorted(value, key=len, reverse=True) if name in Reader(row).text)
        for row in rows
    ] == ranked
    few = write_report(runs[:8], tmp_path / "few.html").read_text(encoding="utf-8")
    assert "Images and charts are of" not in few


def test_method_names():
    assert method_name("eps-supinfonce+fairkl") == "ε-SupInfoNCE + FairKL"
    assert method_name("ce") == "Cross-entropy"
    assert [
        name
        for name in METHODS
        if any(part == part.lower() for part in method_name(name).split(" + "))
    ] == []
    assert method_name("mine") == "mine"
    assert [
        words.in_sentence(name) for name in ("Cross-entropy", "SupCon", "ε-SupCon", "mine")
    ] == [
        "cross-entropy",
        "SupCon",
        "ε-SupCon",
        "mine",
    ]


def test_pca_keeps_the_directions_of_largest_variance():
    x = np.random.default_rng(0).normal(size=(50, 4)) * [1, 5, 0.1, 3]
    values, vectors = np.linalg.eigh(np.cov(x.T))
    expected = (x - x.mean(0)) @ vectors[:, np.argsort(-values)[:2]]
    assert np.allclose(np.abs(embedding.pca(x, 2)), np.abs(expected))


@pytest.mark.parametrize("n", [40, 150])  # PCA, t-SNE
def test_map_keeps_clusters_apart_and_inside_the_square(n):
    random = np.random.default_rng(0)
    label = random.integers(0, 3, n)
    x = 6 * np.eye(8)[label] + random.normal(size=(n, 8))
    points, how = embedding.project(x)
    assert how == ("PCA" if n == 40 else "t-SNE")
    assert points.min() >= 0
    assert points.max() <= 1
    centre = np.stack([points[label == k].mean(0) for k in range(3)])
    nearest = ((points[:, None] - centre) ** 2).sum(-1).argmin(1)
    assert (nearest == label).mean() > 0.95
    assert np.array_equal(points, embedding.project(x)[0])


@pytest.mark.parametrize(
    "features", [np.ones((200, 5)), np.zeros((3, 1)), np.full((120, 2), np.nan)]
)
def test_map_of_features_without_spread_is_a_point(features):
    points, how = embedding.project(features)
    assert how == "PCA"
    assert np.allclose(points, 0.5)


def test_chosen_points_are_in_order_and_the_same_again():
    chosen = embedding.choose(1000, 50)
    assert len(set(chosen)) == 50
    assert list(chosen) == sorted(chosen)
    assert np.array_equal(chosen, embedding.choose(1000, 50))
    assert list(embedding.choose(5, 50)) == [0, 1, 2, 3, 4]


def test_ticks_are_round_and_inside():
    assert svg.ticks(0, 1) == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    assert svg.ticks(1, 24, 5) == pytest.approx([5, 10, 15, 20])
    assert svg.ticks(3, 3) == [3]


def test_long_curves_are_thinned_to_means():
    points = figures.thinned(range(1000), [2.0 * x for x in range(1000)], most=100)
    assert len(points) == 100
    assert points[0] == (4.5, 9.0)


def test_colours_can_be_read(html):
    for theme in ("light", "dark"):
        assert all(colours.contrast(fill, ink) >= 4.5 for fill, ink in colours.heat_colours(theme))
    assert colours.contrast("#000000", "#ffffff") == pytest.approx(21)
    blocks = re.findall(
        r"--paper: (#\w{6}); --panel: (#\w{6}); --ink: (#\w{6}); --ink-2: (#\w{6});(.*?)--h0",
        html,
        re.DOTALL,
    )
    assert len(blocks) == 3  # light, dark, print
    for paper, panel, ink, second, rest in blocks:
        methods = re.findall(r"--m\d: (#\w{6})", rest)
        assert len(methods) == 8
        assert min(colours.contrast(colour, paper) for colour in (ink, second, *methods)) >= 4.5
        assert min(colours.contrast(colour, panel) for colour in (ink, second, *methods)) >= 4.5


def test_photographs_become_small_thumbnails():
    pixels = np.random.default_rng(0).integers(0, 255, (3, 224, 160)).astype(np.uint8)
    with Image.open(BytesIO(base64.b64decode(pictures.picture(pixels).split(",")[1]))) as picture:
        assert picture.size == (69, 96)
    grey = np.arange(12, dtype=np.uint8).reshape(1, 3, 4)
    with Image.open(BytesIO(base64.b64decode(pictures.picture(grey).split(",")[1]))) as picture:
        assert np.array_equal(np.asarray(picture), grey[0])


def test_headings_are_turned_where_they_would_run_into_each_other():
    flat, wide, top = svg.column_headings(["red", "green"], 40, widest=84)
    assert "rotate" not in "".join(flat)
    assert (wide, top) == (84, 20)
    names = [f"a long name {k}" for k in range(8)]
    turned, wide, top = svg.column_headings(names, 40, widest=84)
    assert "".join(turned).count("rotate(-48") == 8
    assert wide < 84
    assert top > 20
