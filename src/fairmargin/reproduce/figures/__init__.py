"""The paper's figures, and those of the documentation.

    drawing         Figures 1–5 by name, from run records where they are measured
    illustrations   Figures 1 and 3: samples around an anchor, nothing measured
    deviations      Figure 4: equal means are not enough
    measured        Figures 2 and 5: accuracy against ε, and similarities by epoch
    curves          accuracy by epoch of runs at the published protocol, for the ledger
    toy, margin, information    figures of the documentation
    picture, symbols            what they share: pages, files, colours and legends

Each of the paper's figures is written as SVG, as PNG and as JSON with the numbers it shows.
"""
