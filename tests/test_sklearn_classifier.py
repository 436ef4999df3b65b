import copy
import pickle

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fairmargin import FairMarginClassifier
from fairmargin.methods import METHODS
from fairmargin.methods.base import Unsuited
from fairmargin.methods.catalog import card_of
from fairmargin.sklearn import defaults
from fairmargin.sklearn.inputs import images_of, pixels, standard

WORDS = np.array(["ant", "bee", "cow"])
QUICK = {"epochs": 3, "random_state": 0, "device": "cpu"}


@pytest.mark.slow
@parametrize_with_checks([FairMarginClassifier("ce", epochs=60, random_state=0, device="cpu")])
def test_scikit_learns_estimator_checks(estimator, check):
    check(estimator)


def shortcut(seed, n=600, agreement=0.95, classes=3):
    """(X, y, bias): a weak core and a strong cue."""
    random = np.random.default_rng(seed)
    y = random.integers(0, classes, n)
    b = np.where(random.random(n) < agreement, y, random.integers(0, classes, n))
    core = np.eye(classes)[y] + 0.4 * random.normal(size=(n, classes))
    cue = 4 * np.eye(classes)[b] + 0.1 * random.normal(size=(n, classes))
    return np.concatenate([core, cue, random.normal(size=(n, 4))], 1), y, b


@pytest.fixture(scope="module")
def data():
    return shortcut(0), shortcut(1, agreement=0.0)


@pytest.fixture(scope="module")
def pictures():
    """(X, y, bias): the class is the half of the image that is bright, the bias its colour."""
    random = np.random.default_rng(0)
    n, side = 120, 12
    y = random.integers(0, 2, n)
    b = np.where(random.random(n) < 0.8, y, 1 - y)
    x = random.integers(0, 60, (n, side, side, 3))
    x[y == 0, : side // 2] += 120
    x[y == 1, side // 2 :] += 120
    x[np.arange(n), :, :, b] += 60
    return x.astype(np.uint8), y, b


def conflicting(model, test):
    x, y, b = test
    return (model.predict(x) == y)[b != y].mean()


@pytest.mark.parametrize("seed", [0, 1])
def test_by_default_fairkl_clearly_beats_cross_entropy_where_the_shortcut_misleads(seed):
    x, y, b = shortcut(seed, n=2000)
    test = shortcut(100 + seed, n=2000, agreement=0.0)
    plain = FairMarginClassifier("ce", random_state=seed).fit(x, y)
    fair = FairMarginClassifier(random_state=seed).fit(x, y, bias=b)
    assert conflicting(fair, test) > conflicting(plain, test) + 0.15


def test_fairkl_is_in_the_recommended_form_unless_told_otherwise(data):
    (x, y, b), _ = data
    config = FairMarginClassifier(**QUICK).fit(x, y, b).trained_.config
    assert config.data.sampler == "group-balanced"
    assert config.method.options == {
        "divergence": "moments",
        "negatives": True,
        "last_activation": "relu",
    }
    options = {"divergence": "kl", "lambda_": 2.0}
    told = FairMarginClassifier(method_options=options, sampler="method", **QUICK).fit(x, y, b)
    assert told.trained_.config.data.sampler == "auto"
    assert told.trained_.config.method.options["divergence"] == "kl"
    assert told.trained_.method.fairkl_weight == 2.0
    contrastive = FairMarginClassifier("eps-supinfonce+fairkl", **QUICK).fit(x, y, b)
    assert contrastive.trained_.method.alpha == 0.1


def test_cross_entropy_sees_nothing_of_the_bias(data):
    (x, y, b), _ = data
    one = FairMarginClassifier("ce", **QUICK).fit(x, y)
    other = FairMarginClassifier("ce", **QUICK).fit(x, y, bias=b)
    assert np.array_equal(one.predict_proba(x), other.predict_proba(x))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_on_vectors_or_says_why_not(data, name):
    (x, y, b), _ = data
    model = FairMarginClassifier(name, **QUICK)
    unsuited = name in defaults.IMAGES_ONLY or card_of(name).needs == "bias features"
    if unsuited or name.removesuffix("+fairkl") in ("simclr", "eps-infonce", "infol1o"):
        with pytest.raises(Unsuited, match=r"works on images|features of a bias-capturing model"):
            model.fit(x, y, bias=b)
        return
    model.fit(x, y, bias=b)
    assert model.predict_proba(x).sum(1) == pytest.approx(np.ones(len(x)))
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.decision_function(x), model.decision_function(x))
    assert model.transform(x[:5]).shape == (5, len(model.get_feature_names_out()))


def needs_bias(name):
    two_views = name.startswith(("simclr", "eps-infonce", "infol1o"))
    return "bias labels" in card_of(name).needs and not two_views


@pytest.mark.parametrize("name", list(filter(needs_bias, METHODS)))
def test_methods_that_need_the_bias_say_so_and_how_to_give_it(data, name):
    (x, y, _), _ = data
    for bias in (None, np.full(len(y), -1)):
        with pytest.raises(Unsuited, match=r"needs to know the bias") as caught:
            FairMarginClassifier(name, **QUICK).fit(x, y, bias=bias)
        assert ("fit(X, y, bias=…)" in str(caught.value)) == (bias is None)


def test_texts_give_the_same_as_numbers(data):
    (x, y, b), _ = data
    one = FairMarginClassifier(**QUICK).fit(x, y, b)
    other = FairMarginClassifier(**QUICK).fit(x, WORDS[y], WORDS[b])
    assert other.classes_.tolist() == WORDS.tolist()
    assert other.bias_values_.tolist() == WORDS.tolist()
    assert np.array_equal(WORDS[one.predict(x)], other.predict(x))
    assert np.array_equal(one.predict_proba(x), other.predict_proba(x))


@pytest.mark.parametrize("unknown", [None, np.nan, "", -1])
def test_unknown_bias_is_allowed(data, unknown):
    (x, y, b), _ = data
    some = np.array([unknown if k % 3 == 0 else WORDS[one] for k, one in enumerate(b)], object)
    model = FairMarginClassifier(**QUICK).fit(x, y, bias=some)
    assert model.bias_values_.tolist() == WORDS.tolist()
    assert int(model.trained_.info.counts.sum()) == sum(k % 3 != 0 for k in range(len(b)))
    told = FairMarginClassifier(**QUICK).fit(x, y, bias=np.where(np.arange(len(b)) % 3, b, -1))
    assert np.array_equal(model.predict_proba(x), told.predict_proba(x))


def test_the_same_random_state_gives_the_same_and_leaves_torch_alone(data):
    (x, y, b), _ = data
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    found = []
    for seed in (0, 0, 1):
        model = FairMarginClassifier(epochs=2, random_state=seed).fit(x, y, b)
        found.append(pickle.loads(pickle.dumps(model)).predict_proba(x))
    assert np.array_equal(found[0], found[1])
    assert not np.allclose(found[0], found[2])
    assert torch.equal(torch.rand(3), expected)


def test_the_scale_of_features_does_not_matter(data):
    (x, y, b), _ = data
    scale, shift = np.geomspace(1e-3, 1e3, 10), np.arange(10)
    one = FairMarginClassifier(**QUICK).fit(x, y, b).predict_proba(x)
    moved = x * scale + shift
    other = FairMarginClassifier(**QUICK).fit(moved, y, b).predict_proba(moved)
    assert one == pytest.approx(other, abs=1e-3)


def test_clone_copy_and_names_of_columns(data):
    pandas = pytest.importorskip("pandas")
    (x, y, b), _ = data
    table = pandas.DataFrame(x, columns=[f"f{k}" for k in range(10)])
    model = FairMarginClassifier(method_options={"lambda": 2.0}, **QUICK)
    fitted = clone(model).fit(table, pandas.Series(WORDS[y]), bias=pandas.Series(b))
    assert fitted.feature_names_in_.tolist() == list(table.columns)
    assert fitted.n_features_in_ == 10
    assert clone(fitted).get_params() == model.get_params()
    assert np.array_equal(copy.deepcopy(fitted).predict(table), fitted.predict(table))
    with pytest.raises(ValueError, match="feature names"):
        fitted.predict(table[table.columns[::-1]])


def test_decisions_probabilities_and_classes_agree(data):
    (x, y, b), _ = data
    three = FairMarginClassifier(**QUICK).fit(x, y, b)
    assert three.decision_function(x).shape == three.predict_proba(x).shape == (len(x), 3)
    assert np.array_equal(three.predict(x), three.predict_proba(x).argmax(1))
    two = FairMarginClassifier(**QUICK).fit(x, y == 0, b)
    decided = two.decision_function(x)
    assert decided.shape == (len(x),)
    assert np.array_equal(decided > 0, two.predict(x))
    assert 1 / (1 + np.exp(-decided)) == pytest.approx(two.predict_proba(x)[:, 1])


def test_the_score_with_bias_is_the_mean_over_groups(data):
    (x, y, b), _ = data
    model = FairMarginClassifier("ce", **QUICK).fit(x, y)
    right = model.predict(x) == y
    cells = [right[(y == k) & (b == j)].mean() for k in range(3) for j in range(3)]
    assert model.score(x, y, bias=b) == pytest.approx(np.mean(cells))
    assert model.score(x, y) == pytest.approx(right.mean())
    assert model.score(x, y, bias=np.where(b == 0, -1, b)) == pytest.approx(
        np.mean([cells[3 * k + j] for k in range(3) for j in (1, 2)])
    )
    with pytest.raises(ValueError, match="give one of the two"):
        model.score(x, y, np.ones(len(y)), b)
    with pytest.raises(ValueError, match="no bias is known"):
        model.score(x, y, bias=np.full(len(y), -1))


def test_grid_search_over_methods_gives_each_fold_its_bias(data):
    (x, y, b), _ = data
    search = GridSearchCV(FairMarginClassifier(**QUICK), {"method": ["ce", "ce+fairkl"]}, cv=2)
    search.fit(x, WORDS[y], bias=b)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.bias_values_.tolist() == [0, 1, 2]


def test_with_routing_the_search_is_for_the_best_mean_over_groups():
    x, y, b = shortcut(2, n=1600)
    with sklearn.config_context(enable_metadata_routing=True):
        model = FairMarginClassifier(random_state=0)
        model.set_fit_request(bias=True).set_score_request(bias=True)
        search = GridSearchCV(model, {"method": ["ce", "ce+fairkl"]}, cv=2).fit(x, y, bias=b)
        assert search.best_params_ == {"method": "ce+fairkl"}
        assert search.score(x, y, bias=b) == search.best_estimator_.score(x, y, bias=b)


def test_pipeline_and_cross_validation(data):
    (x, y, b), _ = data
    model = Pipeline([("scale", StandardScaler()), ("classify", FairMarginClassifier(**QUICK))])
    assert model.fit(x, y, classify__bias=b).predict(x).shape == y.shape
    assert cross_val_predict(model, x, y, cv=2, params={"classify__bias": b}).shape == y.shape
    features = FairMarginClassifier(**QUICK).set_output(transform="default")
    assert features.fit_transform(x, y, bias=b).shape[0] == len(x)


def test_few_samples_get_as_many_steps_as_many():
    assert defaults.epochs(2000, 128) * 16 >= defaults.STEPS
    assert defaults.epochs(100, 128) == defaults.MOST_EPOCHS
    assert defaults.epochs(10**6, 128) == defaults.LEAST_EPOCHS


def test_history_has_the_mean_of_each_term_of_each_epoch(data):
    (x, y, b), _ = data
    model = FairMarginClassifier(**QUICK).fit(x, y, b)
    assert model.epochs_ == len(model.history_) == 3
    assert set(model.history_[0]) == {"ce", "fairkl", "mean similarity"}
    assert model.history_[-1]["ce"] < model.history_[0]["ce"]


def test_dfr_holds_out_a_fifth_by_itself(data):
    (x, y, b), _ = data
    model = FairMarginClassifier("dfr", **QUICK).fit(x, y, b)
    assert model.trained_.info.train_size == round(0.8 * len(x))
    all_of_it = FairMarginClassifier("ce", **QUICK).fit(x, y, b)
    assert all_of_it.trained_.info.train_size == len(x)
    some = FairMarginClassifier("ce", validation_fraction=0.5, **QUICK).fit(x, y, b)
    assert some.trained_.info.train_size == len(x) // 2


@pytest.mark.parametrize("layout", ["last", "first"])
def test_images_of_both_layouts(pictures, layout):
    x, y, b = pictures
    given = x if layout == "last" else x.transpose(0, 3, 1, 2)
    model = FairMarginClassifier(epochs=15, batch_size=32, random_state=0).fit(given, y, bias=b)
    assert model.score(given, y) > 0.9
    assert model.image_shape_ == (3, 12, 12)
    assert model.n_features_in_ == 3 * 12 * 12
    assert model.trained_.config.network.name == "simple-conv-7"
    assert model.transform(x).shape == (len(x), 64)
    assert np.array_equal(pickle.loads(pickle.dumps(model)).predict(x), model.predict(x))


def test_views_of_images(pictures):
    x, y, b = pictures
    settings = {"epochs": 1, "batch_size": 32, "random_state": 0}
    for views in ("crop-flip", "supcon"):
        FairMarginClassifier(views=views, **settings).fit(x, y, b).predict(x)
    FairMarginClassifier("simclr", views="supcon", **settings).fit(x, y).predict(x)
    with pytest.raises(Unsuited, match='set views="supcon"'):
        FairMarginClassifier("simclr", **settings).fit(x, y)
    with pytest.raises(ValueError, match="cut squares and these images are 12×6"):
        FairMarginClassifier(views="supcon", **settings).fit(x[:, :, :6], y, b)


def test_methods_that_look_at_images(pictures):
    x, y, b = pictures
    for name in ("rebias", "hex", "lnl", "rubi"):
        model = FairMarginClassifier(name, epochs=1, batch_size=32, random_state=0)
        assert model.fit(x, y, bias=b).predict_proba(x).shape == (len(x), 2)


def test_the_network_follows_the_size_of_images():
    for side, name in ((28, "simple-conv-7"), (64, "simple-conv-7"), (96, "resnet18")):
        inputs = images_of(np.zeros((2, 3, side, side), np.uint8))
        assert defaults.network(inputs)[0] == name


def test_images_are_normalized_by_the_training_data(pictures):
    x, _, _ = pictures
    inputs = images_of(pixels(x))
    seen = inputs.views()(inputs.tensor(pixels(x)))
    assert seen.mean((0, 2, 3)).numpy() == pytest.approx(np.zeros(3), abs=1e-4)
    assert seen.std((0, 2, 3)).numpy() == pytest.approx(np.ones(3), abs=1e-3)
    assert images_of(np.zeros((2, 3, 4, 4), np.uint8)).std == (1.0, 1.0, 1.0)


def test_constant_features_stay_finite():
    mean, scale = standard(np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert mean.tolist() == [2.0, 5.0]
    assert scale.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"method": "ce+fairk"}, r"unknown method 'ce\+fairk': did you mean 'ce\+fairkl'"),
        ({"network": "resnet"}, "unknown network 'resnet'"),
        ({"network": "resnet18"}, "takes images and X holds vectors"),
        ({"sampler": "group"}, "group-balanced"),
        ({"views": "supcn"}, "did you mean 'supcon'"),
        ({"views": "supcon"}, 'vectors; leave views="plain"'),
        ({"epochs": 0}, "epochs must be an integer of at least 1 or None; got 0"),
        ({"batch_size": 0.5}, "batch_size must be an integer of at least 1; got 0.5"),
        ({"batch_size": 1}, "leaves nothing to compare"),
        ({"learning_rate": 0}, "learning_rate must be above 0"),
        ({"weight_decay": -1}, "weight_decay must be 0 or more"),
        ({"validation_fraction": 1.0}, "validation_fraction must be from 0 to below 1"),
        ({"method_options": {"lamda": 1.0}}, r'did you mean "method\.lambda"'),
        ({"network_options": {"width": (8,)}}, r'did you mean "network\.widths"'),
        ({"method": "jtt", "epochs": 1}, "raise train.epochs"),
        ({"device": "gpu"}, "cannot be used here"),
    ],
)
def test_wrong_settings_are_said_so(data, settings, said):
    (x, y, b), _ = data
    with pytest.raises(ValueError, match=said):
        FairMarginClassifier(**{**QUICK, **settings}).fit(x, y, b)


def test_wrong_data_is_said_so(data, pictures):
    (x, y, b), _ = data
    images, labels, cue = pictures
    model = FairMarginClassifier(**QUICK)
    with pytest.raises(NotFittedError):
        model.predict(x)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(x, y, b[:10])
    with pytest.raises(ValueError, match="1 class only"):
        model.fit(x, np.zeros(len(x)), b)
    with pytest.raises(TypeError, match=r"takes no sample_weight.*class-reweighted"):
        model.fit(x, y, b, sample_weight=np.ones(len(y)))
    with pytest.raises(TypeError, match="does not know groups"):
        model.fit(x, y, groups=b)
    with pytest.raises(ValueError, match=r"got uint8 \[120, 12, 12\].*np\.repeat"):
        model.fit(images[..., 0], labels, cue)
    with pytest.raises(ValueError, match="must be uint8 pixels from 0 to 255"):
        model.fit(images / 255, labels, cue)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        model.fit(images, labels[:5], cue)
    fitted = FairMarginClassifier(epochs=1, random_state=0).fit(images, labels, cue)
    with pytest.raises(ValueError, match=r"fitted to \[3, 12, 12\]"):
        fitted.predict(images[:, :8])


def test_a_bias_that_is_the_class_is_warned_of(data):
    (x, y, _), _ = data
    with pytest.warns(UserWarning, match="nothing tells the bias from the class") as caught:
        FairMarginClassifier(**QUICK).fit(x, y, bias=y)
    assert caught[0].filename == __file__
