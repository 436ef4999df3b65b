import pickle
import subprocess
import sys
import time

import numpy as np
import pytest
import sklearn
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import fairmargin
from fairmargin import FairMarginProjector
from fairmargin.losses import eps_supinfonce, fairkl
from fairmargin.sklearn.projector import _clusters, _whitening

WORDS = np.array(["ant", "bee", "cow"])


@pytest.mark.slow
@parametrize_with_checks([FairMarginProjector(max_iter=3)])
def test_scikit_learns_estimator_checks(estimator, check):
    check(estimator)


def shortcut(seed, n=600, agreement=0.95, classes=3):
    """(Z, y, bias): a weak core and a strong cue."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, n)
    b = np.where(random.random(n) < agreement, y, random.integers(0, classes, n))
    core = np.eye(classes)[y] + 0.45 * random.normal(size=(n, classes))
    cue = 4 * np.eye(classes)[b] + 0.1 * random.normal(size=(n, classes))
    return np.concatenate([core, cue, random.normal(size=(n, 4))], 1), y, b


@pytest.fixture(scope="module")
def data():
    return shortcut(0), shortcut(1, agreement=0.0)


def conflicting(model, test):
    z, y, b = test
    return (model.predict(z) == y)[b != y].mean()


def steps(**settings):
    return Pipeline(
        [
            ("projector", FairMarginProjector(random_state=0, **settings)),
            ("classifier", LogisticRegression()),
        ]
    )


def test_the_shortcut_is_followed_before_and_less_after(data):
    (z, y, b), test = data
    before = conflicting(LogisticRegression().fit(z, y), test)
    after = conflicting(steps(max_iter=100).fit(z, y, projector__bias=b), test)
    assert after > before + 0.2


def test_an_epsilon_that_cannot_be_met_is_warned_of_once_in_a_fit(data):
    (z, y, b), _ = data
    with pytest.warns(UserWarning, match="leads by 15 at most among 3 classes") as caught:
        FairMarginProjector(epsilon=16, max_iter=3, random_state=0).fit(z, y, b)
    assert [w for w in caught if "epsilon" in str(w.message)] == [caught[0]]
    assert caught[0].filename == __file__


def test_fairkl_falls(data):
    (z, y, b), _ = data

    def measured(projector):
        x = torch.from_numpy(projector.fit(z, y, b).transform(z))
        return float(
            fairkl(
                x, torch.from_numpy(y), torch.from_numpy(b), divergence="moments", negatives=True
            )
        )

    with_it, without = (
        measured(FairMarginProjector(max_iter=100, fairkl_weight=weight, random_state=0))
        for weight in (1.0, 0.0)
    )
    assert with_it < 0.5 * without


def test_the_first_loss_is_that_of_the_whitened_embeddings(data):
    (z, y, b), _ = data
    projector = FairMarginProjector(
        max_iter=1,
        batch_size=len(z),
        sampling="shuffled",
        alpha=0.3,
        fairkl_weight=2.0,
        epsilon=0.1,
        random_state=0,
    ).fit(z, y, b)
    x = (z - z.mean(0)) / z.std(0)
    start = torch.from_numpy(x) @ _whitening(x, z.shape[1]).T
    labels, bias = torch.from_numpy(y), torch.from_numpy(b)
    expected = 0.3 * eps_supinfonce(start, labels, epsilon=0.1, temperature=0.1) + 2 * fairkl(
        start, labels, bias, divergence="moments", negatives=True
    )
    assert projector.loss_curve_ == pytest.approx([float(expected)], rel=1e-4)


def test_whitening_makes_all_directions_equal():
    random = np.random.default_rng(0)
    x = random.normal(size=(500, 5)) @ random.normal(size=(5, 5))
    x[:, 4] = x[:, 0] + x[:, 1]
    x -= x.mean(0)
    white = x @ _whitening(x, 5).numpy().T
    assert np.cov(white.T, bias=True) == pytest.approx(np.diag([1, 1, 1, 1, 0]), abs=1e-6)


def test_transform_is_what_components_say(data):
    (z, y, b), (other, _, _) = data
    projector = FairMarginProjector(4, max_iter=5, unit_norm=False, random_state=0).fit(z, y, b)
    assert projector.components_.shape == (4, 10)
    by_hand = (
        other - projector.mean_
    ) / projector.scale_ @ projector.components_.T + projector.layers_[0][1]
    assert projector.transform(other) == pytest.approx(by_hand)
    unit = FairMarginProjector(4, max_iter=5, random_state=0).fit(z, y, b).transform(other)
    assert np.linalg.norm(unit, axis=1) == pytest.approx(np.ones(len(other)))
    assert projector.get_feature_names_out().tolist() == [
        f"fairmarginprojector{k}" for k in range(4)
    ]


def test_hidden_layers(data):
    (z, y, b), (other, _, _) = data
    projector = FairMarginProjector(
        5, hidden=(16,), max_iter=5, unit_norm=False, random_state=0
    ).fit(z, y, b)
    assert not hasattr(projector, "components_")
    (w, c), (v, d) = projector.layers_
    x = (other - projector.mean_) / projector.scale_
    assert projector.transform(other) == pytest.approx(np.maximum(x @ w.T + c, 0) @ v.T + d)
    assert hasattr(projector.set_params(hidden=()).fit(z, y, b), "components_")
    assert not hasattr(projector.set_params(hidden=(3,)).fit(z, y, b), "components_")


def test_the_scale_of_features_does_not_matter(data):
    (z, y, b), _ = data
    scale, shift = np.geomspace(1e-3, 1e3, 10), np.arange(10)
    one, other = (
        FairMarginProjector(max_iter=10, random_state=0).fit(x, y, b).transform(x)
        for x in (z, z * scale + shift)
    )
    assert one == pytest.approx(other, abs=1e-3)


def test_the_same_random_state_gives_the_same_and_leaves_torch_alone(data):
    (z, y, b), _ = data
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, other, third = (
        FairMarginProjector(max_iter=5, hidden=(8,), random_state=seed).fit(z, y, b).transform(z)
        for seed in (0, 0, 1)
    )
    assert np.array_equal(one, other)
    assert not np.allclose(one, third)
    assert torch.equal(torch.rand(3), expected)


def test_text_labels_and_bias_give_the_same(data):
    (z, y, b), _ = data
    words = np.array(["ant", "bee", "cow"])
    one, other = (
        FairMarginProjector(max_iter=5, random_state=0).fit(z, labels, bias).transform(z)
        for labels, bias in ((y, b), (words[y], words[b]))
    )
    assert np.array_equal(one, other)


@pytest.mark.parametrize("sampling", ["group-balanced", "bias-aware", "shuffled"])
def test_batches_hold_no_sample_twice(data, sampling):
    (_, y, b), _ = data
    projector = FairMarginProjector(sampling=sampling, batch_size=64)
    batches = projector._batches(torch.from_numpy(y), torch.from_numpy(b), 0)
    rare = []
    for _ in range(20):
        drawn = next(batches).numpy()
        assert len(np.unique(drawn)) == len(drawn) <= 64
        rare.append((y[drawn] != b[drawn]).mean())
    share = (y != b).mean()
    if sampling == "shuffled":
        assert np.mean(rare) == pytest.approx(share, abs=0.03)
    else:
        assert np.mean(rare) > 1.5 * share


def test_unknown_bias_is_left_out_of_fairkl_only(data):
    (z, y, b), _ = data
    unknown = np.full(len(y), -1)
    settings = {"max_iter": 5, "random_state": 0, "sampling": "shuffled"}
    one = FairMarginProjector(**settings).fit(z, y, unknown).transform(z)
    other = FairMarginProjector(**settings).fit(z, y).transform(z)
    assert one == pytest.approx(other)
    assert FairMarginProjector(**settings).fit(z, y).bias_values_ is None
    assert FairMarginProjector(**settings).fit(
        z, y, np.where(b == 0, -1, b)
    ).bias_values_.tolist() == [1, 2]


@pytest.mark.parametrize(
    "missing",
    [
        lambda b: np.where(b == 0, np.nan, b),
        lambda b: np.where(b == 0, -1.0, b),
        lambda b: np.where(b == 0, -1, b).astype(object),
        lambda b: np.where(b == 0, None, b),
        lambda b: np.where(b == 0, np.nan, b).astype(object),
        lambda b: np.where(b == 0, None, WORDS[b]),
        lambda b: np.where(b == 0, "", WORDS[b]),
        lambda b: np.where(b == 0, "-1", WORDS[b]),
        lambda b: np.where(b == 0, b"", WORDS[b].astype("S")),
        lambda b: [float("nan") if one == 0 else str(WORDS[one]) for one in b],
        lambda b: [None if one == 0 else int(one) for one in b],
    ],
    ids=["nan", "-1.0", "object -1", "object None", "object nan", "text None", "text",
         "-1 as text", "bytes", "list nan", "list None"],
)  # fmt: skip
def test_unknown_is_unknown_in_every_kind_of_array(data, missing):
    (z, y, b), _ = data
    fitted = FairMarginProjector(max_iter=3, random_state=0).fit(z, y, missing(b))
    assert len(fitted.bias_values_) == 2
    told = FairMarginProjector(max_iter=3, random_state=0).fit(z, y, np.where(b == 0, -1, b))
    assert np.array_equal(fitted.transform(z), told.transform(z))


@pytest.mark.parametrize("kind", ["Int64", "string", "category"])
def test_what_pandas_calls_missing_is_unknown(data, kind):
    pandas = pytest.importorskip("pandas")
    (z, y, b), _ = data
    values = [None if one == 0 else int(one) if kind == "Int64" else str(one) for one in b]
    fitted = FairMarginProjector(max_iter=1, random_state=0).fit(
        z, y, pandas.Series(values, dtype=kind)
    )
    assert [int(value) for value in fitted.bias_values_] == [1, 2]


def test_numbers_and_texts_are_told_apart_as_texts(data):
    (z, y, b), _ = data
    mixed = np.where(b == 0, "none", b.astype(object))
    assert FairMarginProjector(max_iter=1).fit(z, y, mixed).bias_values_.tolist() == [
        "1",
        "2",
        "none",
    ]


def test_without_a_known_bias_there_must_be_something_else_to_learn(data):
    (z, y, b), _ = data
    for bias in (None, np.full(len(y), -1), np.full(len(y), None)):
        with pytest.raises(
            ValueError, match=r"alpha=0 leaves FairKL alone, .* none is known; give fit the bias"
        ):
            FairMarginProjector(alpha=0).fit(z, y, bias)
    FairMarginProjector(alpha=0, max_iter=1).fit(z, y, b)
    FairMarginProjector(alpha=0, max_iter=1, pseudo_bias=2).fit(z, y)


def test_clusters_take_the_place_of_a_bias_nobody_wrote_down(data):
    (z, y, _), _ = data
    cue = _clusters((z - z.mean(0)) / z.std(0), y, 3, np.random.RandomState(0))
    assert all(
        len(np.unique(y[cue == k])) == 1 for k in np.unique(cue)
    )  # no two classes share a cluster
    assert [len(np.unique(cue[y == k])) for k in range(3)] == [3, 3, 3]
    apart = []
    for number in (None, 3):
        projector = FairMarginProjector(max_iter=60, pseudo_bias=number, random_state=0).fit(z, y)
        x = torch.from_numpy(projector.transform(z))
        apart.append(
            float(fairkl(x, torch.from_numpy(y), torch.from_numpy(cue), divergence="moments"))
        )
    assert apart[1] < 0.7 * apart[0]


def test_pipeline_grid_search_and_routing(data):
    (z, y, b), _ = data
    search = GridSearchCV(steps(max_iter=5), {"projector__n_components": [2, 5]}, cv=2)
    search.fit(z, y, projector__bias=b)
    assert search.best_params_["projector__n_components"] in (2, 5)
    assert search.best_estimator_[0].bias_values_.tolist() == [0, 1, 2]
    with sklearn.config_context(enable_metadata_routing=True):
        projector = FairMarginProjector(max_iter=5, random_state=0).set_fit_request(bias=True)
        routed = Pipeline([("projector", projector), ("classifier", LogisticRegression())])
        assert GridSearchCV(routed, {"classifier__C": [1.0]}, cv=2).fit(
            z, y, bias=b
        ).best_estimator_[0].bias_values_.tolist() == [0, 1, 2]


def test_it_ends_early_when_nothing_changes_any_more(data):
    (z, y, b), _ = data
    assert (
        FairMarginProjector(max_iter=400, tol=10.0, n_iter_no_change=2).fit(z, y, b).n_iter_ == 60
    )
    projector = FairMarginProjector(max_iter=70, tol=0.0).fit(z, y, b)
    assert projector.n_iter_ == len(projector.loss_curve_) == 70


def test_float32_stays_and_pickles_are_whole(data):
    (z, y, b), _ = data
    projector = FairMarginProjector(max_iter=5, random_state=0).fit(z, y, b)
    assert projector.transform(z.astype(np.float32)).dtype == np.float32
    assert np.array_equal(
        pickle.loads(pickle.dumps(projector)).transform(z), projector.transform(z)
    )


def test_more_features_than_samples():
    random = np.random.default_rng(0)
    z, y = random.normal(size=(30, 50)), np.arange(30) % 2
    out = (
        FairMarginProjector(max_iter=5, random_state=0)
        .fit(z, y, random.integers(0, 2, 30))
        .transform(z)
    )
    assert np.isfinite(out).all()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampling": "group"}, "group-balanced"),
        ({"divergence": "moment"}, "'moments'"),
        ({"n_components": 0}, "n_components must be an integer of at least 1 or None; got 0"),
        ({"n_components": 20}, "more than the 10 features"),
        ({"batch_size": 2}, "at least 4"),
        ({"pseudo_bias": 1}, "at least 2 or None"),
        ({"learning_rate": 0}, "learning_rate must be above 0"),
        ({"alpha": -1}, "alpha must be 0 or more"),
        ({"alpha": 0, "fairkl_weight": 0}, "nothing to learn"),
        ({"hidden": (0,)}, "hidden must be widths"),
        ({"epsilon": -1}, "epsilon"),
        ({"temperature": 0}, "temperature"),
    ],
)
def test_wrong_settings_are_said_so(data, settings, said):
    (z, y, b), _ = data
    with pytest.raises(ValueError, match=said):
        FairMarginProjector(**settings).fit(z, y, b)


def test_wrong_data_is_said_so(data):
    (z, y, b), _ = data
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        FairMarginProjector().fit(z, y, b[:10])
    with pytest.raises(ValueError, match="1 class only"):
        FairMarginProjector().fit(z, np.zeros(len(z)), b)
    with pytest.raises(ValueError, match="Unknown label type"):
        FairMarginProjector().fit(z, np.linspace(0, 1, len(z)), b)


def test_importing_the_package_does_not_import_torch():
    code = "import sys, fairmargin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        fairmargin.Nothing  # noqa: B018


@pytest.mark.slow
def test_ten_thousand_embeddings_take_seconds():
    random = np.random.default_rng(0)
    z, y = random.normal(size=(10_000, 128)), random.integers(0, 10, 10_000)
    started = time.process_time()
    FairMarginProjector(tol=0.0, random_state=0).fit(z, y, random.integers(0, 10, 10_000))
    assert time.process_time() - started < 30
