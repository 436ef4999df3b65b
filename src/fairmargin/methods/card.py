"""MethodCard: everything a reader asks about a method that its code does not say.

CARD = MethodCard(
    "Just Train Twice",
    "Liu et al., Just Train Twice",
    "ICML 2021",
    networks="two, one after the other",
    file="jtt.py",
    options={"up_weight": OptionCard("weight of the samples in the error set", ABOVE_ZERO)},
)

A card stands beside its method; `catalog.CARDS` gathers them. Types, choices and defaults of the
options stay where they are, in the signature of the method's builder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fairmargin.checks import ABOVE_ZERO as ABOVE_ZERO
from fairmargin.checks import FROM_ONE as FROM_ONE
from fairmargin.checks import FROM_ZERO as FROM_ZERO
from fairmargin.checks import SHARE as SHARE
from fairmargin.checks import Range as Range

Needs = Literal[
    "nothing",
    "two views",
    "stylised images",
    "bias labels",
    "bias features",
    "bias labels or features",
    "validation bias labels",
    "what is known of the bias",
    "–",
]


@dataclass(frozen=True)
class Between:
    """Search the numbers in [low, high].

    Args:
        log: search the logarithm, so that every factor is as likely as any other.
    """

    low: float
    high: float
    log: bool = True

    def nearest(self, value: Any) -> float:
        """Return the number of the interval that is nearest to `value`."""
        return min(max(float(value), self.low), self.high)


@dataclass(frozen=True)
class OneOf:
    """Search these values.

    Args:
        epochs: the values are epochs before the method proper begins. Those that would fill the
            whole run are not tried.
    """

    values: tuple[Any, ...]
    epochs: bool = False

    def nearest(self, value: Any) -> Any:
        """Return `value` if it is one of the values, else the first of them."""
        return value if value in self.values else self.values[0]


Search = Between | OneOf
Space = dict[str, Search]  # by key of the configuration, such as "method.epsilon"


@dataclass(frozen=True)
class OptionCard:
    """What one option of a method means.

    Args:
        meaning: a phrase without a full stop.
        range: the numbers it may be, or words for values that no type lists. Choices of a
            `Literal` are not repeated here.
        search: where `fairmargin tune` looks for its value; None: it keeps the configured one.
    """

    meaning: str
    range: Range | str = ""
    search: Search | None = None


# Shared by the methods that train a network g which sees little but the bias.
ONE_AND_BIAS_NETWORK = "one, and a network that sees only the bias"
BIAS_NETWORK = OptionCard(
    "g, a network too simple to see more than the bias", 'see "fairmargin list networks"'
)


@dataclass(frozen=True)
class ValidationFit:
    """The setting with which a method learns from the validation samples.

    `fairmargin tune` refuses it, because it chooses by the accuracy on these samples.

    Args:
        option: name of the option.
        value: its value that makes the method learn from them.
        instead: what to do instead, for the error message.
    """

    option: str
    value: str
    instead: str


@dataclass(frozen=True)
class MethodCard:
    """The facts about one method.

    Args:
        title: display name, for reports.
        paper: authors and title.
        venue: conference and year; "–" if it was not published.
        needs: what it needs besides images and class labels.
        networks: how many networks are trained.
        file: its file in src/fairmargin/methods.
        options: what each keyword of its builder means, by the name used in a configuration.
        search: what `fairmargin tune` searches besides its options and the learning rate.
        validation_fit: when it learns from the validation samples, if ever.
        cost: training time relative to cross-entropy's; None: not measured. `catalog` reads it
            from costs.json.
    """

    title: str
    paper: str
    venue: str
    needs: Needs = "nothing"
    networks: str = "one"
    file: str = "objectives.py"
    options: Mapping[str, OptionCard] = field(default_factory=dict)
    search: Mapping[str, Search] = field(default_factory=dict)
    validation_fit: ValidationFit | None = None
    cost: float | None = None

    @property
    def space(self) -> Space:
        """The search space of this method, without the learning rate."""
        searched = {
            f"method.{name}": option.search
            for name, option in self.options.items()
            if option.search is not None
        }
        return searched | dict(self.search)

    @property
    def needs_bias_labels(self) -> bool:
        """Whether a dataset without bias labels, and without bias features, is refused."""
        return "bias labels" in self.needs

    @property
    def uses_bias_labels(self) -> bool:
        """Whether bias labels of the training samples change what is learned, where there are."""
        return self.needs.startswith("bias labels") or self.needs == "what is known of the bias"

    @property
    def source(self) -> str:
        """Authors and venue in short: "Liu et al., ICML 2021"."""
        authors = self.paper.partition(",")[0]
        return self.paper if self.venue == "–" else f"{authors}, {self.venue}"

    @property
    def cost_text(self) -> str:
        """The cost as tables show it: "1.1×", or "–" if it was not measured."""
        return "–" if self.cost is None else f"{self.cost:.1f}×"
