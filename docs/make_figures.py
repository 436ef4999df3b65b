"""Redraws the pictures of docs/: make figures."""

from pathlib import Path

import torch

from fairmargin.reproduce.figures.information import draw as draw_information
from fairmargin.reproduce.figures.margin import draw as draw_margin
from fairmargin.reproduce.figures.toy import draw as draw_toy
from fairmargin.reproduce.figures.toy import toy_pair
from fairmargin.suite.picture import draw_tasks

FIGURES = Path(__file__).parent / "figures"

if __name__ == "__main__":
    torch.manual_seed(0)
    FIGURES.mkdir(exist_ok=True)
    print(draw_margin(FIGURES / "margin.png"))
    print(draw_information(FIGURES / "information.png"))
    print(draw_toy(toy_pair(), FIGURES / "toy.png"))
    print(draw_tasks(FIGURES / "suite.png"))
