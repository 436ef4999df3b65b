"""Every number of a configuration has a range with two ends, and the page says which."""

import types
from pathlib import Path
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest

from fairmargin.config import ConfigError, all_keys, load
from fairmargin.config.ranges import ranges_of
from fairmargin.config.schema import Config, DataConfig, MethodConfig, NetworkConfig, PlayerConfig
from fairmargin.config.sections import Section

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
NAMED = {"data": DataConfig, "network": NetworkConfig, "method": MethodConfig}
SECTIONS = [
    field.annotation
    for field in Config.model_fields.values()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
]


def has_number(kind):
    """True for a type that holds whole numbers or decimal ones somewhere."""
    if get_origin(kind) is Annotated:
        return has_number(get_args(kind)[0])
    if get_origin(kind) is Literal:
        return False
    return kind in (int, float) or any(map(has_number, get_args(kind)))


def options():
    """("data", "planted", its option side), …"""
    for section, model in NAMED.items():
        for name in model.builders():
            for option in model.known(name).values():
                yield section, name, option


class TestEveryNumber:
    @pytest.mark.parametrize("section", [Config, PlayerConfig, *SECTIONS])
    def test_of_a_section_has_a_range(self, section):
        for name, field in section.model_fields.items():
            for found in ranges_of(field.annotation, field.metadata):
                assert found is not None, f"{section.__name__}.{name} has a number without a range"

    def test_of_an_option_has_a_range(self):
        without = {
            f"{section}.{option.written} of {name}"
            for section, name, option in options()
            if has_number(option.kind) and option.range is None
        }
        assert not without, sorted(without)

    def test_of_a_default_is_in_its_range(self):
        for section, name, option in options():
            values = option.default if isinstance(option.default, tuple) else (option.default,)
            for value in values:
                if option.range is not None and type(value) in (int, float):
                    assert value in option.range, f"{section}.{option.written} of {name}"

    def test_a_number_without_a_range_is_noticed(self):
        assert list(ranges_of(Union[int, None])) == [None]  # noqa: UP007
        assert list(ranges_of(tuple[types.NoneType, float])) == [None]


class TestOutOfRange:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ("network.widths=[100000000]", "network.widths[0] must be at most 65536"),
            ("network.widths=[0]", "network.widths[0] must be at least 1"),
            ("network.stride=0", "network.stride must be at least 1"),
            ("network.kernel_size=-3", "network.kernel_size must be at least 1"),
            ("network.in_channels=0", "network.in_channels must be at least 1"),
            ("method.lambda=-1.0", "method.lambda must be at least 0"),
            ("method.epsilon=-inf", "method.epsilon must be at least 0"),
            ("method.temperature=0", "method.temperature must be above 0"),
            ("data.train=0", "data.train must be at least 1"),
            ("data.rho=1.5", "data.rho must be at most 1"),
            ("data.seed=-1", "data.seed must be at least 0"),
            ("train.workers=100000", "train.workers must be at most 256"),
            ("train.epochs=10000000000000000000000", "train.epochs must be at most 1000000000"),
        ],
    )
    def test_is_refused_with_the_limit(self, change, says):
        with pytest.raises(ConfigError) as caught:
            load(dataset="biased-mnist-mini", method="eps-supinfonce+fairkl", overrides=[change])
        assert says in str(caught.value)

    def test_a_list_is_not_endless(self):
        widths = ", ".join(["4"] * 5000)
        with pytest.raises(ConfigError, match="must have at most 1000 values"):
            load(dataset="planted", overrides=[f"network.widths=[{widths}]"])


class TestPage:
    def test_says_the_range_of_every_key(self):
        page = PAGE.read_text("utf-8")
        for key in all_keys():
            default = f"`{key.default}`" if key.default else "–"
            row = f"| `{key.path}` | {default} | {key.range or '–'} | {key.meaning} |"
            assert row in page, key.path

    def test_says_the_range_of_every_option_of_datasets_and_networks(self):
        page = PAGE.read_text("utf-8")
        for section, _, option in options():
            if section != "method" and option.range is not None:
                assert f"| `{section}.{option.written}` | {option.range} |" in page


class TestDepth:
    @pytest.mark.parametrize("depth", [60, 5000])
    @pytest.mark.parametrize(("left", "right"), [("[", "]"), ("{a=", "}")])
    def test_of_a_value_is_limited(self, depth, left, right):
        value = left * depth + "1" + right * depth
        with pytest.raises(ConfigError, match="nested more than 50 deep"):
            load(dataset="planted", overrides=[f"data.train={value}"])

    def test_of_a_file_is_limited_and_the_file_named(self, tmp_path):
        file = tmp_path / "deep.toml"
        file.write_text("x = " + "[" * 5000 + "]" * 5000)
        with pytest.raises(ConfigError, match=r"deep\.toml: tables and lists are nested"):
            load(file)

    def test_of_a_file_that_never_ends_is_limited(self, tmp_path):
        file = tmp_path / "long.toml"
        file.write_bytes(bytes((1 << 20) + 1))
        with pytest.raises(ConfigError, match=r"long\.toml has more than 1 MiB"):
            load(file)

    def test_of_a_key_is_limited(self):
        with pytest.raises(ConfigError, match="nested more than 50 deep"):
            load(overrides=[f"{'a.' * 3000}b=1"])

    def test_of_digits_is_limited(self):
        with pytest.raises(ConfigError, match="a number has thousands of digits"):
            load(overrides=[f"seed={'9' * 5000}"])
