import inspect
import math
import re
import tomllib
from functools import partial
from importlib import resources
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairmargin import config
from fairmargin.config import (
    Config,
    ConfigError,
    DataConfig,
    load,
    load_resolved,
    override,
    toml,
)
from fairmargin.config.options import options_of
from fairmargin.data import DATASETS, OWN
from fairmargin.methods import METHODS
from fairmargin.networks import ENCODERS
from fairmargin.runs import build

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
# People's own data have no name to load.
FAIRKL = "eps-supinfonce+fairkl"
NAMED = [name for name in config.presets() if name not in OWN]


def problems(overrides, **arguments):
    with pytest.raises(ConfigError) as caught:
        load(overrides=overrides, **arguments)
    message = str(caught.value)
    assert "pydantic" not in message.lower()
    assert "http" not in message
    assert "validation error" not in message
    return message.splitlines()


def written(tmp_path, text):
    file = tmp_path / "my.toml"
    file.write_text(text, encoding="utf-8")
    return file


class TestProblems:
    def test_unknown_key_names_its_neighbour(self):
        assert problems(["train.epoch=3"]) == [
            'unknown key "train.epoch"; did you mean "train.epochs"? See docs/configuration.md'
        ]

    def test_value_out_of_bounds(self):
        assert problems(["train.epochs=0"]) == ["train.epochs must be at least 1; got 0"]

    @pytest.mark.parametrize(
        ("override", "says"),
        [
            ("train.epochs=80.0", "train.epochs must be a whole number; got 80.0"),
            ("train.epochs=true", "train.epochs must be a whole number; got true"),
            ("train.epochs='80'", 'train.epochs must be a whole number; got "80"'),
            ("train.epochs.more=1", "train.epochs must be a whole number; got {more = 1}"),
            ("train.compile=1", "train.compile must be true or false; got 1"),
            ("train.clip=0", "train.clip must be above 0; got 0"),
            (
                "train.device=gpu",
                'train.device must be "auto", "cpu", "cuda", "cuda:1", "mps", …; got "gpu"',
            ),
            ("optimizer.lr=inf", "optimizer.lr must be a finite number; got inf"),
            ("optimizer.lr=nan", "optimizer.lr must be a finite number; got nan"),
            ("optimizer.momentum=1", "optimizer.momentum must be below 1; got 1"),
            ("optimizer.betas=[0.9]", "optimizer.betas[1] is missing"),
            (
                "optimizer.betas=[0.9, 0.99, 0.9]",
                "optimizer.betas must have 2 values; got [0.9, 0.99, 0.9]",
            ),
            ("schedule.milestones=[1, -2]", "schedule.milestones[1] must be at least 0; got -2"),
            ("schedule.milestones=-3", "schedule.milestones[0] must be at least 0; got -3"),
            ("schedule.milestones=soon", 'schedule.milestones[0] must be a number; got "soon"'),
            ("schedule.per=batch", 'schedule.per must be one of "epoch", "step"; got "batch"'),
            (
                "optimizer.name=adm",
                'optimizer.name must be one of "adam", "adamw", "sgd", "lars"; got "adm"; '
                'did you mean "adam"?',
            ),
            ("evaluate.classifiers=[]", "evaluate.classifiers must have 1 values; got []"),
            (
                "evaluate.classifiers=['own','own']",
                'evaluate.classifiers must name each once; got ["own", "own"]',
            ),
            ("evaluate.linear_epochs=0", "evaluate.linear_epochs must be at least 1; got 0"),
            ("evaluate.linear_lr=0", "evaluate.linear_lr must be above 0; got 0"),
            ("evaluate.linear_momentum=1", "evaluate.linear_momentum must be below 1; got 1"),
            ("seed=-1", "seed must be at least 0; got -1"),
            ("seed=4294967296", "seed must be below 4294967296; got 4294967296"),
            ("train=5", "train must be a table; got 5"),
            ("players=5", "players must be a table; got 5"),
            ("data=5", "data must be a table; got 5"),
            ("data.options=5", "data.options must be a table; got 5"),
            ("data.root=5", "data.root must be a path; got 5"),
            ("data.rho=high", 'data.rho must be a number; got "high"'),
            ("data.rho=true", "data.rho must be a number; got true"),
            ("data.background=1", "data.background must be true or false; got 1"),
            ("network.widths=[8, 'x']", 'network.widths[1] must be a whole number; got "x"'),
            ("network.widths=wide", 'network.widths[0] must be a whole number; got "wide"'),
            ("method.alpha=nan", "method.alpha must be a finite number; got nan"),
            ("players.probe.lr=0", "players.probe.lr must be above 0; got 0"),
        ],
    )
    def test_wrong_values_in_words(self, override, says):
        assert problems([override]) == [says]

    @pytest.mark.parametrize(
        ("override", "section", "key", "means"),
        [
            ("evaluate.classifiers=own", "evaluate", "classifiers", ("own",)),
            ("evaluate.classifiers=own, knn", "evaluate", "classifiers", ("own", "knn")),
            ("evaluate.linear_milestones=60", "evaluate", "linear_milestones", (60,)),
            ("schedule.milestones=3", "schedule", "milestones", (3,)),
            ("schedule.milestones=0.5,0.9", "schedule", "milestones", (0.5, 0.9)),
            ("train.trackers=wandb", "train", "trackers", ("wandb",)),
            ("train.trackers=none", "train", "trackers", ()),
        ],
    )
    def test_one_value_is_a_list_of_one(self, override, section, key, means):
        assert getattr(getattr(load(overrides=[override]), section), key) == means

    def test_one_value_is_a_list_of_one_in_options_and_players(self):
        config = load(overrides=["network.widths=8", "players.probe.milestones=2"])
        assert config.network.options["widths"] == (8,)
        assert config.players["probe"].milestones == (2,)
        none = load(overrides=["players.probe.milestones=none"])
        assert none.players["probe"].milestones is None

    @pytest.mark.parametrize(
        ("override", "key", "meant"),
        [
            ("data.roh=0.9", "data.roh", "data.rho"),
            ("method.lamda=1", "method.lamda", "method.lambda"),
            ("network.width=[1]", "network.width", "network.widths"),
            ("optimzer.lr=1", "optimzer", "optimizer"),
            ("train.lr=1", "train.lr", "optimizer.lr"),
            ("players.probe.schedul='step'", "players.probe.schedul", "players.probe.schedule"),
        ],
    )
    def test_unknown_keys_and_what_was_meant(self, override, key, meant):
        assert problems([override]) == [
            f'unknown key "{key}"; did you mean "{meant}"? See docs/configuration.md'
        ]

    def test_unknown_key_like_no_other_lists_what_there_is(self):
        (line,) = problems(["network.zzz=1"])
        assert line.startswith(
            'unknown key "network.zzz"; there are name, weights, freeze, pretrained_expected'
        )

    @pytest.mark.parametrize("key", ["self", "train.self", "values", "data.cls"])
    def test_keys_that_python_uses_itself(self, key):
        (line,) = problems([f"{key}=1"])
        assert line.startswith(f'unknown key "{key}"')

    def test_all_at_once_in_one_message(self, tmp_path):
        file = written(
            tmp_path,
            """
            sed = 1
            [train]
            epochs = 0
            batch = 3
            [data]
            roh = 0.9
            sampler = "shuffle"
            [optimizer]
            lr = -1
            """,
        )
        lines = problems([], file=file)
        assert len(lines) == 6
        for start in (
            'unknown key "sed"',
            "train.epochs must",
            'unknown key "train.batch"',
            'unknown key "data.roh"',
        ):
            assert sum(line.startswith(start) for line in lines) == 1
        assert any("data.sampler" in line and 'did you mean "shuffled"' in line for line in lines)
        assert "optimizer.lr must be above 0; got -1" in lines

    @pytest.mark.parametrize(
        ("override", "says"),
        [
            (
                "data.name=biased-mnst",
                "data.name is wrong: unknown dataset 'biased-mnst': did you mean 'biased-mnist'?",
            ),
            (
                "network.name=resnt18",
                "network.name is wrong: unknown encoder 'resnt18': did you mean 'resnet18'?",
            ),
            (
                "method.name=eps-supcom",
                "method.name is wrong: unknown method 'eps-supcom': did you mean 'eps-supcon'?",
            ),
        ],
    )
    def test_unknown_names(self, override, says):
        (line,) = problems([override])
        assert line.startswith(says)

    def test_a_name_that_is_no_text(self):
        assert problems(["data.name=[1]"]) == ["data.name must be text; got [1]"]
        assert problems(["method.name=3"]) == ["method.name must be text; got 3"]

    def test_a_section_built_in_python_speaks_the_same_way(self):
        with pytest.raises(ConfigError, match=r"^epochs must be at least 1; got 0$"):
            config.schema.TrainConfig(epochs=0)
        with pytest.raises(ConfigError, match=r"^train\.epochs must be at least 1; got 0$"):
            Config(train={"epochs": 0})
        assert issubclass(ConfigError, ValueError)

    def test_settings_that_contradict_each_other(self):
        assert problems(
            ["optimizer.name=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"]
        ) == ["optimizer.momentum must be above 0 with nesterov = true; got 0.0"]
        lines = problems(
            ["optimizer.name=sgd", "optimizer.nesterov=true", "players.probe.momentum=0"]
        )
        assert lines == ["players.probe.momentum must be above 0 with nesterov = true; got 0.0"]
        (line,) = problems([], dataset="folder")
        assert line.startswith('data.root is needed by the dataset "folder"')

    def test_long_values_are_cut(self):
        (line,) = problems([f"train.epochs='{'x' * 500}'"])
        assert len(line) < 120


class TestFiles:
    def test_missing(self, tmp_path):
        with pytest.raises(ConfigError, match=r"there is no configuration file .*nothing\.toml"):
            load(tmp_path / "nothing.toml")

    def test_folder_and_the_file_inside(self, tmp_path):
        with pytest.raises(ConfigError, match=r"is a folder, not a configuration file$"):
            load(tmp_path)
        (tmp_path / "config.toml").write_text("seed = 1")
        with pytest.raises(ConfigError, match=r"did you mean .*config\.toml\?"):
            load(tmp_path)

    @pytest.mark.parametrize(
        "content", [b"\x80\x04\x95\x00", "seed = 1".encode("utf-16"), b"\xff\xff"]
    )
    def test_binary(self, tmp_path, content):
        (tmp_path / "a.toml").write_bytes(content)
        with pytest.raises(ConfigError, match=r"a\.toml is not a text file in UTF-8"):
            load(tmp_path / "a.toml")

    def test_syntax_error_says_file_line_and_what(self, tmp_path):
        file = written(tmp_path, "seed = 1\n[train]\nepochs 3\n")
        with pytest.raises(
            ConfigError, match=r"my\.toml, line 3, column 8: expected '=' after a key"
        ):
            load(file)
        with pytest.raises(ConfigError, match=r"my\.toml, end of document: "):
            load(written(tmp_path, "[train"))

    def test_byte_order_mark_and_empty_file(self, tmp_path):
        (tmp_path / "a.toml").write_bytes(b"\xef\xbb\xbfseed = 7\n")
        assert load(tmp_path / "a.toml").seed == 7
        (tmp_path / "b.toml").write_bytes(b"")
        assert load(tmp_path / "b.toml") == load()

    def test_bad_overrides(self):
        for text in ("train.epochs", "=3", "train.=3", ".epochs=3"):
            with pytest.raises(ConfigError, match="--set takes KEY=VALUE"):
                load(overrides=[text])


@pytest.fixture
def small_preset(monkeypatch):
    preset = {
        "network": {"name": "simple-conv-3", "stride": 2, "widths": [8, 16, 32, 64]},
        "train": {"epochs": 24, "batch_size": 64},
    }
    real = config.loading._preset
    monkeypatch.setattr(
        config.loading,
        "_preset",
        lambda name: preset if name == "biased-mnist-mini" else real(name),
    )


class TestLayers:
    @pytest.mark.usefixtures("small_preset")
    def test_each_wins_over_those_before(self, tmp_path):
        file = written(
            tmp_path, "seed = 5\n[train]\nepochs = 7\nbatch_size = 8\n[data]\nrho = 0.7\n"
        )
        assert Config().train.epochs == 80  # model
        assert load().train.epochs == 24  # preset
        assert load(file).train.epochs == 7  # file
        loaded = load(file, seed=6, overrides=["seed=9", "train.epochs=3", "train.epochs=4"])
        assert (loaded.seed, loaded.train.epochs, loaded.train.batch_size) == (9, 4, 8)
        assert load(file, seed=6).seed == 6
        assert loaded.data.options == {"rho": 0.7}
        assert loaded.optimizer.lr == 1e-3

    def test_preset_follows_the_dataset_wherever_it_is_named(self, tmp_path):
        file = written(tmp_path, '[data]\nname = "corrupted-cifar10"\n')
        for loaded in (
            load(file, method=FAIRKL),
            load(dataset="corrupted-cifar10", method=FAIRKL),
            load(method=FAIRKL, overrides=["data.name=corrupted-cifar10"]),
        ):
            assert (loaded.network.name, loaded.train.epochs, loaded.schedule.name) == (
                "resnet18",
                200,
                "cosine",
            )
            assert loaded.method.options["epsilon"] == 0.25
        assert load(dataset="utkface").train.epochs == 80  # has no preset

    @pytest.mark.usefixtures("small_preset")
    def test_preset_options_of_another_network_are_dropped(self):
        assert load().network.options == {"stride": 2, "widths": (8, 16, 32, 64)}
        assert load(network="resnet18").network.options == {}
        assert load(network="simple-conv-3").network.options == {
            "stride": 2,
            "widths": (8, 16, 32, 64),
        }
        chosen = load(overrides=["network.stem=cifar", "network.name=resnet18"])
        assert chosen.network.options == {"stem": "cifar"}

    def test_preset_options_of_another_method_are_dropped(self):
        assert load(dataset="cifar10").method.options["head"] == "mlp"
        assert load(dataset="cifar10", method="ce").method.options == {}
        assert load(dataset="biased-mnist", method="ce").method.options == {}

    def test_method_table_of_a_preset(self):
        assert (
            load(dataset="biased-mnist", method="eps-supcon+fairkl").method.options["epsilon"]
            == 0.0
        )
        trained = load(dataset="cifar10", method="ce")
        assert (trained.optimizer.lr, trained.train.epochs, trained.data.options) == (
            0.8,
            500,
            {"views": "resized-crop-flip"},
        )
        assert trained.optimizer.name == "sgd"  # from the rest of the preset

    def test_method_table_stays_below_the_users_file(self, tmp_path):
        file = written(tmp_path, "[method]\nepsilon = 0.1\n[train]\nepochs = 9\n")
        loaded = load(
            file,
            dataset="cifar10",
            method="ce",
            overrides=["method.epsilon=0.1", "method.name=eps-supcon"],
        )
        assert (loaded.method.name, loaded.train.epochs) == ("eps-supcon", 9)
        assert loaded.method.options == {"head": "mlp", "weighting": "released", "epsilon": 0.1}

    def test_method_table_of_a_users_file(self, tmp_path):
        file = written(tmp_path, '[train]\nepochs = 9\n[methods."ce".train]\nepochs = 2\n')
        assert load(file, method="ce").train.epochs == 2
        assert load(file).train.epochs == 9
        with pytest.raises(ConfigError, match="methods must hold tables"):
            load(written(tmp_path, "methods = 3"))

    def test_a_files_options_belong_to_the_name_it_states(self, tmp_path):
        stated = written(tmp_path, '[method]\nname = "eps-supcon"\nepsilon = 0.7\n')
        assert load(stated).method.options["epsilon"] == 0.7
        assert load(stated, method="ce").method.options == {}
        unnamed = written(tmp_path, "[method]\nepsilon = 0.7\n")
        assert load(unnamed, method="eps-supcon").method.options["epsilon"] == 0.7
        with pytest.raises(
            ConfigError, match=r'unknown key "method\.epsilon"'
        ):  # not dropped in silence
            load(unnamed, method="ce")

    def test_dataset_may_be_a_path(self, tmp_path):
        (tmp_path / "my.csv").write_text("path,label\n")
        data = load(dataset=str(tmp_path / "my.csv")).data
        assert (data.name, data.root) == ("folder", tmp_path / "my.csv")

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("train.clip=0.5", 0.5),
            ("train.clip=.5", 0.5),
            ("train.clip=2.", 2.0),
            ("train.clip=1e-3", 1e-3),
            ("train.clip=none", None),
            ("train.clip = 3", 3.0),
        ],
    )
    def test_values_of_overrides(self, text, value):
        assert load(overrides=["train.clip=9", text]).train.clip == value

    def test_text_lists_and_tricks_in_overrides(self):
        loaded = load(
            overrides=["data.root=a=b/c d", "schedule.milestones=[3, 5]", "data.bias=none"]
        )
        assert loaded.data.root == Path("a=b/c d")
        assert loaded.schedule.milestones == (3.0, 5.0)
        assert loaded.data.bias == "none"  # a word there, not nothing
        assert load(overrides=["data.root=1\nseed = 3"]).seed == 0  # a value is one value

    def test_override_of_a_configuration(self):
        base = load(seed=4)
        changed = override(base, ["train.epochs=3", "network.name=resnet18"])
        assert (changed.seed, changed.train.epochs, changed.network.options) == (4, 3, {})
        assert changed.method == base.method
        assert override(base, []) == base
        with pytest.raises(ConfigError, match=r"train\.epochs must be at least 1"):
            override(base, ["train.epochs=0"])


class TestOptions:
    def test_python_keyword_loses_its_underscore_in_toml(self):
        method = load(overrides=["method.lambda=0.5"]).method
        assert method.options["lambda_"] == 0.5
        assert load(overrides=["method.lambda_=0.5"]).method == method
        assert "\nlambda = 0.5\n" in config.dump(load(overrides=["method.lambda=0.5"]))

    def test_options_are_what_the_builders_take(self):
        assert options_of(DATASETS["biased-mnist-mini"]).keys() >= {"rho", "seed", "train"}
        assert options_of(ENCODERS["simple-conv-7"]).keys() == {
            "kernel_size", "last_activation", "in_channels", "stride", "widths", "places",
            "norm_parts",
        }  # fmt: skip
        resnet = options_of(ENCODERS["resnet18"])
        assert {"stem", "widths", "last_activation"} <= resnet.keys()
        assert not {"block", "depths"} & resnet.keys()
        assert options_of(ENCODERS["mlp"]).keys() == {"in_features", "widths", "last_activation"}
        bagnet = options_of(ENCODERS["bagnet18"])
        assert bagnet.keys() == {"in_channels", "last_activation", "places"}

    @pytest.mark.parametrize(
        "section", [config.DataConfig, config.NetworkConfig, config.MethodConfig]
    )
    def test_defaults_of_every_builder_are_values_of_its_options(self, section):
        for name in section.builders():
            for option in section.known(name).values():
                if option.default is not None and option.default is not inspect.Parameter.empty:
                    assert option.convert(option.default) == option.default, (name, option)

    def test_integers_become_floats_and_lists_tuples(self):
        assert repr(load(overrides=["data.rho=1"]).data.options["rho"]) == "1.0"
        assert load(overrides=["network.widths=[1, 2]"]).network.options["widths"] == (1, 2)

    def test_bound_keywords_may_be_changed(self):
        assert load(overrides=["network.kernel_size=5"]).network.options["kernel_size"] == 5

    def test_our_own_names_hide_no_option(self, tmp_path):
        chosen = load(dataset="utkface", overrides=["data.bias=none", "data.options.bias=age"])
        assert (chosen.data.bias, chosen.data.options) == ("none", {"bias": "age"})
        text = config.dump(chosen)
        assert '[data.options]\nbias = "age"' in text
        assert load_resolved(written(tmp_path, text)) == chosen
        (line,) = problems(["data.options.bias=3"], dataset="utkface")
        assert line == 'data.options.bias must be one of "race", "age"; got 3'

    def test_nothing_where_the_default_is_something(self, tmp_path):
        chosen = load(dataset="folder", overrides=["data.root=x", "data.split_column=none"])
        assert chosen.data.options == {"split_column": None}
        assert load_resolved(written(tmp_path, config.dump(chosen))) == chosen
        same = load(dataset="folder", overrides=["data.root=x", "data.test_fraction=none"])
        assert same.data.options == {}  # nothing is its default

    def test_several_kinds(self):
        def builder(
            *, sigma: float | str = 1.0, clip: float | None = None, sizes: tuple[int, ...] = ()
        ):
            pass

        known = options_of(builder)
        assert known["sigma"].convert("median") == "median"
        assert known["sigma"].convert(2) == 2.0
        assert known["sigma"].several_kinds
        assert not known["clip"].several_kinds
        assert known["clip"].convert("none") is None
        assert known["sizes"].convert([1, 2]) == (1, 2)

    def test_what_toml_cannot_say_is_no_option(self):
        def builder(*, rho: float = 1.0, decode: type[int] = int, hook: partial | None = None):
            pass

        assert options_of(builder).keys() == {"rho"}


class TestPlayers:
    def test_a_player_inherits_what_it_does_not_say(self):
        chosen = load(
            overrides=[
                "players.probe.lr=0.5",
                "players.probe.schedule=constant",
                "players.probe.floor=0.25",
            ]
        )
        optimizer, schedule = chosen.for_player("probe")
        assert optimizer == chosen.optimizer.model_copy(update={"lr": 0.5})
        assert schedule == chosen.schedule.model_copy(update={"name": "constant", "floor": 0.25})
        assert chosen.for_player("main") == (chosen.optimizer, chosen.schedule)

    def test_the_users_word_is_above_the_methods(self):
        wants = {"name": "sgd", "lr": 0.1, "schedule": "cosine"}
        chosen = load(overrides=["players.probe.lr=0.5"])
        optimizer, schedule = chosen.for_player("probe", wants)
        assert (optimizer.name, optimizer.lr, schedule.name) == ("sgd", 0.5, "cosine")
        assert optimizer.weight_decay == chosen.optimizer.weight_decay
        with pytest.raises(ConfigError, match="unknown key"):
            chosen.for_player("probe", {"rate": 1})

    def test_has_every_field_of_optimizer_and_schedule(self):
        both = (
            config.schema.OptimizerConfig.model_fields.keys()
            | config.schema.ScheduleConfig.model_fields.keys()
        )
        assert config.schema.PlayerConfig.model_fields.keys() == both | {"schedule"}


text_values = st.text(max_size=12)
numbers = st.floats(0, 1e9)
positive = st.floats(min_value=1e-12, max_value=1e9)
shares = st.floats(0, 1)


@st.composite
def configurations(draw):
    players = st.dictionaries(
        text_values,
        st.fixed_dictionaries(
            {},
            optional={
                "lr": positive,
                "name": st.sampled_from(["adam", "sgd"]),
                "betas": st.tuples(st.floats(0, 0.99), st.floats(0, 0.99)),
                "milestones": st.lists(st.floats(0, 1e9), max_size=3),
                "nesterov": st.just(False),
                "schedule": st.sampled_from(["constant", "cosine"]),
            },
        ),
        max_size=2,
    )
    folder = {
        "name": "folder",
        "root": draw(text_values.filter(lambda t: "\0" not in t and t != "none")),
        **draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "bias_columns": st.lists(text_values, max_size=3),
                    "path_column": text_values,
                    "split_column": st.none() | text_values,
                    "test_fraction": st.none() | st.floats(0, 0.99),
                    "image_size": st.integers(1, 4096),
                    "skip_bad": st.booleans(),
                    "options": st.fixed_dictionaries(
                        {}, optional={"base": st.just(Path("none")) | st.just("a/b")}
                    ),
                },
            )
        ),
    }
    scopes = st.sampled_from(["batch", "anchor"])  # a Literal; options of "folder" are any text
    method = draw(
        st.fixed_dictionaries({}, optional={"lambda": numbers, "epsilon": numbers, "scope": scopes})
    )
    train = {
        "steps": st.none() | st.integers(1, 10**9),
        "clip": st.none() | positive,
        "checkpoint_seconds": st.floats(0, 1e9),
        "compile": st.booleans(),
    }
    return Config(
        seed=draw(st.integers(0, 2**32 - 1)),
        data=folder,
        network={"name": "resnet18", "widths": draw(st.lists(st.integers(1, 65536), max_size=3))},
        method={"name": FAIRKL, **method},
        players=draw(players),
        schedule={
            "milestones": draw(st.lists(st.floats(0, 1e9), max_size=4)),
            "floor": draw(shares),
        },
        train=draw(st.fixed_dictionaries({}, optional=train)),
        evaluate={
            "classifiers": draw(st.permutations(["own", "probe", "knn", "linear"])),
            "linear_lr": draw(positive),
            "linear_milestones": draw(st.lists(st.floats(0, 1e9), max_size=4)),
        },
    )


class TestDump:
    @settings(max_examples=40, deadline=None)
    @given(chosen=configurations())
    def test_round_trip_is_exact(self, chosen):
        tables = tomllib.loads(config.dump(chosen))
        assert Config(**tables) == chosen
        assert config.dump(Config(**tables)) == config.dump(chosen)

    def test_what_is_taken_from_a_preset_does_not_come_back(self, tmp_path):
        """`fairmargin train RUN/config.toml` puts the file on top of the dataset's preset."""
        given = {"dataset": "corrupted-cifar10", "method": "lff"}
        assert config.load(**given).train.steps == 50_000
        chosen = config.load(**given, overrides=["train.steps=none", "train.epochs=20"])
        again = config.load(written(tmp_path, config.dump(chosen)))
        assert again.train.steps is None
        assert again == chosen

    @pytest.mark.parametrize("dataset", NAMED)
    def test_resolved_file_needs_no_preset(self, tmp_path, dataset, monkeypatch):
        chosen = load(dataset=dataset, seed=3)
        file = written(tmp_path, config.dump(chosen))
        monkeypatch.setattr(
            config.loading, "_preset", lambda name: pytest.fail("looked for a preset")
        )
        assert load_resolved(file) == chosen

    def test_infinite_margin(self, tmp_path):
        chosen = load(method=FAIRKL, overrides=["method.epsilon=inf"])
        assert math.isinf(
            load_resolved(written(tmp_path, config.dump(chosen))).method.options["epsilon"]
        )

    @given(
        st.dictionaries(
            st.text(), st.text() | st.integers() | numbers | st.booleans() | st.lists(st.text())
        )
    )
    @settings(max_examples=100, deadline=None)
    def test_text_of_any_table(self, table):
        assert tomllib.loads(toml.document({"outer": {"in ner": table}})) == {
            "outer": {"in ner": table}
        }

    def test_frozen(self):
        chosen = load()
        with pytest.raises(ValueError, match="frozen"):
            chosen.seed = 3


@pytest.mark.usefixtures("small_preset")
class TestDifference:
    def test_both_values_with_their_paths(self):
        a = load()
        b = load(
            overrides=[
                "train.epochs=80",
                "data.rho=0.9",
                "players.probe.lr=1.0",
                "network.name=resnet18",
            ]
        )
        assert config.difference(a, b) == [
            'network.name "simple-conv-3" → "resnet18"',
            "network.stride 2 → not set",
            "network.widths [8, 16, 32, 64] → not set",
            "train.epochs 24 → 80",
            "data.rho not set → 0.9",
            "players.probe.lr not set → 1.0",
        ]
        assert config.difference(a, a) == []


class TestBackbones:
    def test_names_of_other_libraries(self):
        chosen = load(network="hf:some/folder", overrides=["network.pooling=mean"])
        assert (chosen.network.name, chosen.network.options) == (
            "hf:some/folder",
            {"pooling": "mean"},
        )
        assert problems(["network.name=hf:"]) == [
            'network.name "hf:" needs the name of a network after hf:'
        ]
        (line,) = problems(["network.name=torchvison:resnet50"])
        assert "did you mean 'torchvision'?" in line
        (line,) = problems(["network.name=timm:resnet50", "network.pooling=mean"])
        assert line.startswith('unknown key "network.pooling"')

    def test_weights_belong_to_their_network(self):
        base = load(network="resnet18", overrides=["network.weights=a.pth", "network.freeze=true"])
        changed = override(base, ["network.name=resnet34"]).network
        assert (changed.weights, changed.freeze) == (None, True)
        assert override(base, ["train.epochs=3"]).network.weights == Path("a.pth")

    @pytest.mark.parametrize("key", ["optimizer.backbone_lr", "players.main.backbone_lr"])
    def test_a_frozen_encoder_has_no_rate(self, key):
        (line,) = problems(["network.freeze=true", f"{key}=1e-5"])
        assert line.startswith(f"{key} does nothing with network.freeze = true")
        assert problems([f"{key}=0"])[0].startswith(f"{key} must be above 0")

    def test_the_rate_of_a_player_wins(self):
        chosen = load(overrides=["optimizer.backbone_lr=1e-4", "players.main.backbone_lr=1e-5"])
        assert chosen.for_player("main")[0].backbone_lr == 1e-5
        assert chosen.for_player("probe")[0].backbone_lr == 1e-4


class TestPresets:
    def test_the_papers_datasets_have_one(self):
        assert set(config.presets()) >= {
            "biased-mnist", "biased-mnist-mini", "corrupted-cifar10", "bffhq", "imagenet9",
            "cifar10", "cifar100", "imagenet100",
        }  # fmt: skip

    @pytest.mark.parametrize("dataset", NAMED)
    def test_opens_with_its_command_and_every_table_loads(self, dataset):
        text = (resources.files("fairmargin") / "config" / "presets" / f"{dataset}.toml").read_text(
            "utf-8"
        )
        command, _, method = text.partition("\n")[0].rpartition(" ")
        assert command == f"# fairmargin train --dataset {dataset} --method"
        assert method in METHODS
        own = dataset == "planted" or dataset.startswith("suite-")
        assert own or "et al. (" in text or "READMEs of" in text  # its source
        tables = tomllib.loads(text)
        wanted: dict[str, dict[str, object]] = {}
        for names, table in tables.get("methods", {}).items():
            for method in names.split(", "):
                wanted.setdefault(method, {}).update(toml.leaves(table))  # later tables win
        for method, values in wanted.items():
            got = dict(
                toml.leaves(tomllib.loads(config.dump(load(dataset=dataset, method=method))))
            )
            assert {key: got[key] for key in values} == values, method

    @pytest.mark.parametrize(
        ("dataset", "method", "alpha", "weight", "epsilon"),
        [
            ("biased-mnist", "eps-supinfonce+fairkl", 0.03, 0.5, 0.5),  # Table 6, ρ = 0.99
            ("biased-mnist", "eps-supcon+fairkl", 0.03, 0.5, 0.0),
            ("corrupted-cifar10", "eps-supinfonce+fairkl", 0.1, 1.0, 0.25),  # Table 7, 5 %
            ("bffhq", "eps-supinfonce+fairkl", 0.1, 1.5, 0.25),
            ("imagenet9", "eps-supinfonce+fairkl", 0.5, 1.0, 0.5),
        ],
    )
    def test_published_values(self, dataset, method, alpha, weight, epsilon):
        options = load(dataset=dataset, method=method).method.options
        assert (options["alpha"], options["lambda_"], options["epsilon"]) == (
            alpha,
            weight,
            epsilon,
        )
        # … at the datasets' default strength of the bias
        strengths = {"biased-mnist": ("rho", 0.99), "corrupted-cifar10": ("ratio", 5.0)}
        if dataset in strengths:
            option, value = strengths[dataset]
            assert DataConfig.known(dataset)[option].default == value

    def test_what_the_protocols_start_from(self):
        expected = {
            "waterbirds": "imagenet",
            "celeba": "imagenet",
            "bar": "imagenet",
            "bffhq": None,
            "imagenet9": None,
        }
        for dataset, weights in expected.items():
            assert load(dataset=dataset).network.pretrained_expected == weights
        # … whatever network is trained
        other = load(dataset="waterbirds", network="resnet18")
        assert other.network.pretrained_expected == "imagenet"

    def test_published_schedules(self):
        mnist, cifar = load(dataset="biased-mnist", method=FAIRKL), load(dataset="cifar10")
        assert (mnist.train.epochs, mnist.train.batch_size, mnist.schedule.milestones) == (
            80,
            256,
            (26, 53),
        )
        assert (mnist.optimizer.name, mnist.optimizer.lr, mnist.optimizer.weight_decay) == (
            "adam",
            1e-3,
            1e-5,
        )
        assert cifar.schedule.warmup_from * cifar.optimizer.lr == pytest.approx(0.01)
        ce = load(dataset="cifar100", method="ce")
        assert ce.schedule.warmup_from * ce.optimizer.lr == pytest.approx(0.01)
        assert load(dataset="imagenet100").schedule.warmup_epochs == 0


class TestPage:
    def test_lists_every_key_with_its_default_and_meaning(self):
        page = PAGE.read_text("utf-8")
        for key in config.all_keys():
            default = f"`{key.default}`" if key.default else "–"
            row = f"| `{key.path}` | {default} | {key.range or '–'} | {key.meaning} |"
            assert row in page, key.path

    def test_every_key_says_what_it_means(self):
        assert all(key.meaning for key in config.all_keys())

    def test_its_examples_load(self, tmp_path):
        blocks = PAGE.read_text("utf-8").split("```toml\n")[1:]
        assert blocks
        for block in blocks:
            load(written(tmp_path, block.split("```")[0]))


class TestMethodTables:
    """[methods."NAME"] of the user's own: applied, or refused; never passed over."""

    def test_on_the_command_line(self):
        changes = ["train.epochs=3", "methods.ce.train.epochs=7"]
        assert load(dataset="planted", method="ce", overrides=changes).train.epochs == 7
        assert load(dataset="planted", method="supcon", overrides=changes).train.epochs == 3

    def test_one_table_for_several_methods(self, tmp_path):
        both = '[methods."ce, supcon".train]\nepochs = 7\nlog_steps = 3\n'
        file = written(tmp_path, both + '[methods."ce".train]\nepochs = 8\n')
        one, other = (load(file, dataset="planted", method=name).train for name in ("ce", "supcon"))
        assert (one.epochs, one.log_steps) == (8, 3)  # the later table wins
        assert (other.epochs, other.log_steps) == (7, 3)
        assert load(file, dataset="planted", method="gce").train.epochs not in (7, 8)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                '[methods."ce, supcan".train]\nepochs = 4',
                'unknown key "methods.supcan"; did you mean "methods.supcon"',
            ),
            ('[methods."ce, supcon".method]\nepsilon = 4', 'epsilon"; '),
            (
                '[methods."cee".train]\nepochs = 4',
                'unknown key "methods.cee"; did you mean "methods.ce"',
            ),
            ('[methods."supcon".train]\nepoch = 4', 'unknown key "methods.supcon.train.epoch"'),
            (
                '[methods."supcon".method]\nepsilon = 4',
                'unknown key "methods.supcon.method.epsilon"',
            ),
            ('[methods."supcon".train]\nepochs = 0', "methods.supcon.train.epochs must be"),
        ],
    )
    def test_those_of_other_methods_are_checked_too(self, tmp_path, text, message):
        (tmp_path / "mine.toml").write_text(text)
        with pytest.raises(config.ConfigError, match=re.escape(message)):
            load(tmp_path / "mine.toml", dataset="planted", method="ce")

    def test_players_that_a_method_does_not_have(self):
        chosen = load(dataset="planted", method="ce", overrides=["players.nobody.lr=0.5"])
        data = build.data(chosen)
        with pytest.raises(ValueError, match=r"players.nobody: ce has no such player, only main"):
            build.training(chosen, build.method(chosen, data), data, torch.device("cpu"))


class TestOldKeys:
    """Keys that had another spelling before 0.1.0."""

    def test_from_a_file_an_argument_and_a_run_folder(self, tmp_path):
        old = '[optimiser]\nlr = 0.5\n[method]\nname = "ce+fairkl"\nnormalise = "count"\n'
        old += '[methods."ce+fairkl".optimiser]\nmomentum = 0.3\n'
        chosen = load(
            written(tmp_path, old), dataset="planted", overrides=["optimiser.weight_decay=0.25"]
        )
        assert (chosen.optimizer.lr, chosen.optimizer.momentum, chosen.optimizer.weight_decay) == (
            0.5,
            0.3,
            0.25,
        )
        assert chosen.method.options["normalize"] == "count"
        resolved = (
            config.dump(chosen)
            .replace("[optimizer]", "[optimiser]")
            .replace("normalize", "normalise")
        )
        assert "[optimiser]" in resolved
        assert load_resolved(written(tmp_path, resolved)) == chosen

    def test_the_present_name_wins(self, tmp_path):
        both = "[optimiser]\nlr = 0.5\n[optimizer]\nlr = 0.25\n"
        assert load(written(tmp_path, both), dataset="planted").optimizer.lr == 0.25
