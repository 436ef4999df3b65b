"""`import fairmargin as fm`: what it offers, and that it costs nothing until it is used."""

import inspect
import subprocess
import sys

import pytest

import fairmargin as fm

LOSSES = (
    "eps_infonce",
    "eps_supinfonce",
    "eps_supcon",
    "supcon",
    "supcon_in",
    "simclr",
    "fairkl",
    "biascon",
    "softcon",
    "end",
    "bias_balanced_cross_entropy",
    "generalized_cross_entropy",
    "hsic",
    "l_softmax",
    "large_margin",
    "information_bounds",
    "largest_epsilon",
)


def run(script):
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout


def test_every_name_is_there_and_is_listed():
    assert dir(fm) == sorted(fm.__all__)
    for name in fm.__all__:
        assert getattr(fm, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'loses'"):
        _ = fm.loses


def test_the_import_loads_nothing_heavy():
    script = "import sys, fairmargin as fm; dir(fm); heavy = ('torch', 'numpy', 'sklearn', 'rich')"
    script += "; print([name for name in heavy if name in sys.modules])"
    assert run(script).strip() == "[]"


def test_packages_come_on_first_use():
    script = "import fairmargin as fm; print(fm.losses.fairkl.__name__, fm.Config.__name__)"
    assert run(script).split() == ["fairkl", "Config"]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_is_a_function_that_teaches(name):
    loss = getattr(fm.losses, name)
    assert inspect.isfunction(loss)
    text = inspect.getdoc(loss)
    assert len(text.splitlines()) > 3
    positional = [
        parameter.name
        for parameter in inspect.signature(loss).parameters.values()
        if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
    ]
    # Tensors first, everything else by keyword.
    assert 1 <= len(positional) <= 4


def test_every_loss_module_teaches():
    shells = [
        getattr(fm.losses, name)
        for name in fm.losses.__all__
        if inspect.isclass(getattr(fm.losses, name))
    ]
    assert len(shells) > 10
    for shell in shells:
        assert len(inspect.getdoc(shell) or "") > 60, shell


@pytest.mark.parametrize("name", [name for name in LOSSES if name != "largest_epsilon"])
def test_the_help_of_a_loss_says_what_goes_in_and_out(name):
    loss = getattr(fm.losses, name)
    text = inspect.getdoc(loss)
    for part in ("Args:", "Returns:", "Example:"):
        assert f"\n{part}\n" in text
    for parameter in inspect.signature(loss).parameters:
        assert f"\n    {parameter}: " in text


def test_the_help_of_a_module_is_that_of_its_function():
    for module, function in (("EpsSupInfoNCE", "eps_supinfonce"), ("FairKL", "fairkl")):
        text = inspect.getdoc(getattr(fm.losses, module))
        assert inspect.getdoc(getattr(fm.losses, function)) in text
        assert "settings" not in inspect.signature(getattr(fm.losses, module)).parameters


def test_no_private_module_hides_a_public_name():
    for name in fm.losses.__all__:
        assert not inspect.ismodule(getattr(fm.losses, name))
