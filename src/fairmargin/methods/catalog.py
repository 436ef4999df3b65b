"""Where each method comes from and what it asks for: the table of docs/methods.md."""

import json
from dataclasses import dataclass, replace
from importlib.resources import files

from fairmargin.methods.objectives import ROWS

# Of training relative to cross-entropy's, written by `python -m benchmarks.methods --write`.
COSTS: dict[str, float] = json.loads(
    (files("fairmargin.methods") / "costs.json").read_text("utf-8")
)


@dataclass(frozen=True)
class Facts:
    paper: str
    venue: str
    needs: str  # beside images and class labels: "nothing", "bias labels", "bias features", …
    networks: str  # that are trained
    file: str  # under src/fairmargin/methods


BARBANO = "Barbano et al., Unbiased Supervised Contrastive Learning"
HONG = "Hong & Yang, Unbiased Classification through Bias-Contrastive and Bias-Balanced Learning"
IDRISSI = "Idrissi et al., Simple Data Balancing Achieves Competitive Worst-Group-Accuracy"
CLARK = "Clark et al., Don't Take the Easy Way Out"
ONE, TWO, BESIDE = "one", "two", "one, and a network that sees only the bias"

_FACTS = {
    "ce": Facts("the usual", "–", "nothing", ONE, "objectives.py"),
    "gce": Facts(
        "Zhang & Sabuncu, Generalized Cross Entropy Loss",
        "NeurIPS 2018",
        "nothing",
        ONE,
        "objectives.py",
    ),
    "logit-adjusted": Facts(
        "Menon et al., Long-Tail Learning via Logit Adjustment",
        "ICLR 2021",
        "nothing",
        ONE,
        "objectives.py",
    ),
    "class-reweighted": Facts("the usual", "–", "nothing", ONE, "objectives.py"),
    "group-reweighted": Facts(IDRISSI, "CLeaR 2022", "bias labels", ONE, "objectives.py"),
    "group-balanced": Facts(IDRISSI, "CLeaR 2022", "bias labels", ONE, "objectives.py"),
    "biasbal": Facts(HONG, "NeurIPS 2021", "bias labels", ONE, "objectives.py"),
    "end": Facts(
        "Tartaglione et al., EnD: Entangling and Disentangling",
        "CVPR 2021",
        "bias labels",
        ONE,
        "objectives.py",
    ),
    "max-margin": Facts(
        "Liu et al., Large-Margin Softmax Loss", "ICML 2016", "nothing", ONE, "objectives.py"
    ),
    "large-margin": Facts(
        "Elsayed et al., Large Margin Deep Networks",
        "NeurIPS 2018",
        "nothing",
        ONE,
        "objectives.py",
    ),
    "supcon": Facts(
        "Khosla et al., Supervised Contrastive Learning",
        "NeurIPS 2020",
        "nothing",
        ONE,
        "objectives.py",
    ),
    "supcon-in": Facts(
        "Khosla et al., Supervised Contrastive Learning",
        "NeurIPS 2020",
        "nothing",
        ONE,
        "objectives.py",
    ),
    "simclr": Facts(
        "Chen et al., A Simple Framework for Contrastive Learning",
        "ICML 2020",
        "two views",
        ONE,
        "objectives.py",
    ),
    "eps-infonce": Facts(BARBANO, "ICLR 2023", "two views", ONE, "objectives.py"),
    "infol1o": Facts(BARBANO, "ICLR 2023", "two views", ONE, "objectives.py"),
    "eps-supcon": Facts(BARBANO, "ICLR 2023", "nothing", ONE, "objectives.py"),
    "eps-supinfonce": Facts(BARBANO, "ICLR 2023", "nothing", ONE, "objectives.py"),
    "biascon": Facts(HONG, "NeurIPS 2021", "bias labels", ONE, "objectives.py"),
    "biascon+ce": Facts(HONG, "NeurIPS 2021", "bias labels", ONE, "objectives.py"),
    "biascon+biasbal": Facts(HONG, "NeurIPS 2021", "bias labels", ONE, "objectives.py"),
    "softcon": Facts(HONG, "NeurIPS 2021", "bias features", ONE, "objectives.py"),
    "lnl": Facts(
        "Kim et al., Learning Not to Learn",
        "CVPR 2019",
        "bias labels",
        "one, and a bias predictor",
        "lnl.py",
    ),
    "blind-eye": Facts(
        "Alvi et al., Turning a Blind Eye",
        "ECCV Workshops 2018",
        "bias labels",
        "one, and a bias classifier",
        "blind_eye.py",
    ),
    "group-dro": Facts(
        "Sagawa et al., Distributionally Robust Neural Networks",
        "ICLR 2020",
        "bias labels",
        ONE,
        "group_dro.py",
    ),
    "dfr": Facts(
        "Kirichenko et al., Last Layer Re-Training Is Sufficient",
        "ICLR 2023",
        "validation bias labels",
        ONE,
        "dfr.py",
    ),
    "jtt": Facts(
        "Liu et al., Just Train Twice", "ICML 2021", "nothing", "two, one after the other", "jtt.py"
    ),
    "lff": Facts("Nam et al., Learning from Failure", "NeurIPS 2020", "nothing", TWO, "lff.py"),
    "dfa": Facts(
        "Lee et al., Learning Debiased Representation via Disentangled Feature Augmentation",
        "NeurIPS 2021",
        "nothing",
        TWO,
        "dfa.py",
    ),
    "sin": Facts(
        "Geirhos et al., ImageNet-Trained CNNs Are Biased towards Texture",
        "ICLR 2019",
        "stylised images",
        ONE,
        "sin.py",
    ),
    "sin-proxy": Facts("ours, after Geirhos et al.", "–", "nothing", ONE, "sin.py"),
    "rebias": Facts(
        "Bahng et al., Learning De-biased Representations",
        "ICML 2020",
        "nothing",
        BESIDE,
        "rebias.py",
    ),
    "hex": Facts(
        "Wang et al., Learning Robust Representations by Projecting Superficial Statistics Out",
        "ICLR 2019",
        "nothing",
        "one, and a texture branch",
        "hex.py",
    ),
    "rubi": Facts(
        "Cadene et al., RUBi: Reducing Unimodal Biases",
        "NeurIPS 2019",
        "nothing",
        BESIDE,
        "rubi.py",
    ),
    "learned-mixin": Facts(CLARK, "EMNLP 2019", "nothing", BESIDE, "learned_mixin.py"),
    "learned-mixin+h": Facts(CLARK, "EMNLP 2019", "nothing", BESIDE, "learned_mixin.py"),
}

FACTS: dict[str, Facts] = _FACTS | {
    f"{name}+fairkl": replace(
        _FACTS[name], paper=BARBANO, venue="ICLR 2023", needs="bias labels or features"
    )
    for name, row in ROWS.items()
    if not row.needs and name in _FACTS
}
UNKNOWN = Facts("–", "–", "–", "–", "–")  # of a method that was added without


def table() -> str:
    """In Markdown; "+fairkl" has one line for all rows that can take it."""
    lines = [["method", "paper", "venue", "needs", "networks", "cost", "file"], ["---"] * 7]
    for name, x in _FACTS.items():
        lines.append(
            [
                f"[`{name}`](#{anchor(name)})",
                x.paper,
                x.venue,
                x.needs,
                x.networks,
                cost(name),
                f"`{x.file}`",
            ]
        )
    twins = FACTS["ce+fairkl"]
    more = f"{cost('ce+fairkl')} with `ce`"
    lines.append(
        [
            "[`…+fairkl`](#fairkl)",
            twins.paper,
            twins.venue,
            twins.needs,
            ONE,
            more,
            "`objective.py`",
        ]
    )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def cost(name: str) -> str:
    """Times cross-entropy's; not measured of methods that do not suit biased-mnist-mini as it is."""
    return f"{COSTS[name]:.1f}×" if name in COSTS else "–"


def anchor(name: str) -> str:
    """As headings are linked to: "### biascon+ce" is #biasconce."""
    return name.replace("+", "")
