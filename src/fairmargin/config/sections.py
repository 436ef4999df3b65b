"""What the sections of a configuration are made of: kinds of values, and two base classes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fairmargin.checks import LARGEST, MOST_VALUES, Range, check_choice
from fairmargin.config.code import is_code
from fairmargin.config.errors import ConfigError, Problem, problems_of
from fairmargin.config.options import Option, as_list, options_of, parse_none, written

# "none" for a value that may be empty.
Nothing = BeforeValidator(parse_none)
# One value where several may stand is a list of one.
OneOrMany = BeforeValidator(as_list)
# Every number has a range with two ends; tests/config/test_ranges.py looks at all of them.
MOST = int(LARGEST)
Whole = Annotated[int, Strict()]
WholeFromZero = Annotated[Whole, Field(ge=0, le=MOST)]
WholeAboveZero = Annotated[Whole, Field(ge=1, le=MOST)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
FromZero = Annotated[Number, Field(ge=0, le=LARGEST)]
AboveZero = Annotated[Number, Field(gt=0, le=LARGEST)]
# Samples at once, in a batch or a picture.
BatchSize = Annotated[Whole, Field(ge=1, le=1_000_000)]
# Epochs at which something changes.
Milestones = Annotated[tuple[FromZero, ...], Field(max_length=MOST_VALUES)]
Share = Annotated[Number, Field(ge=0, le=1)]
Decay = Annotated[Number, Field(ge=0, lt=1)]
Switch = Annotated[bool, Strict()]


def setting(default: Any, meaning: str) -> Any:
    """Return a field with its default and what it means, as docs/configuration.md lists it.

    Args:
        default: None for a key that may be empty.
        meaning: a phrase that says what the value is or does.
    """
    return Field(default=default, description=meaning)


class Section(BaseModel):
    """A table of a configuration, frozen; it raises `ConfigError` with every problem."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise ConfigError(problems_of(error, tuple(type(self).model_fields))) from None


class Named(Section):
    """A name in a registry, and keywords of the builder of that name.

    Options are written beside the name, and gathered in `options`.
    """

    # What the registry holds, for messages.
    what: ClassVar[str]
    # Whether the name may be an import path, whose options are checked when it is built.
    takes_code: ClassVar[bool] = False
    name: str
    options: dict[str, Any] = Field(default_factory=dict, description="")

    @classmethod
    def builders(cls) -> Mapping[str, Callable[..., Any]]:
        """Return the registry."""
        raise NotImplementedError

    @classmethod
    def known(cls, name: str) -> dict[str, Option]:
        """Return the options of the builder called `name`, as they are written in TOML.

        Args:
            name: a key of `builders`.
        """
        return options_of(cls.builders()[name], cls.ranges(name))

    @classmethod
    def ranges(cls, name: str) -> Mapping[str, Range]:
        """Return the ranges of the options that are numbers, by their names in TOML.

        Args:
            name: a key of `builders`.
        """
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _gather_options(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("options", {}), dict):
            return values
        flat = {key: value for key, value in values.items() if key not in cls.model_fields}
        own = {key: value for key, value in values.items() if key in cls.model_fields}
        return {**own, "options": {**flat, **values.get("options", {})}}

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not (cls.takes_code and is_code(name)):
            check_choice(name, cls.what, cls.builders())
        return name

    @field_validator("options")
    @classmethod
    def _check_options(cls, given: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        # An unknown name is a problem already.
        if "name" not in info.data:
            return given
        if is_code(info.data["name"]):
            return {key: parse_none(value) for key, value in given.items()}
        known = cls.known(info.data["name"])
        options, problems = {}, []
        for key, value in given.items():
            path = ("options", key) if key in cls.model_fields else (key,)
            option = known.get(written(key))
            if option is None:
                siblings = (*(own for own in cls.model_fields if own != "options"), *known)
                problems.append(Problem(path, unknown=True, siblings=siblings))
                continue
            try:
                converted = option.convert(value)
            except ValidationError as error:
                wrong = problems_of(error)
                if option.several_kinds:
                    wrong = [replace(wrong[0], path=())]
                problems += [problem.under(*path) for problem in wrong]
                continue
            # None where it is the default says nothing.
            if converted is not None or option.default is not None:
                options[option.parameter] = converted
        if problems:
            raise ConfigError(problems)
        return options
