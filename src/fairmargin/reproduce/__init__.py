"""The paper's tables and figures, run again and compared with the published numbers.

The modules follow an experiment from the paper to our pages, and are best read in this order:

    published     the numbers that the paper prints, from CSV files
    readings      what FairKL is: as printed, as released or as recommended; a study of its choices
    cells         each number as a configuration, a *cell*; files writes cells as TOML
    budgets       how much of the protocol is run: paper, laptop or smoke
    campaign      trains cells × seeds; synthetic draws stand-in data, estimate predicts the time
    measures      which accuracy of a run is compared with the published one
    ledger        published and measured numbers with verdicts; orderings checks two claims
    pages         the ledger as Markdown; show prints tables to the terminal
    figures       the paper's figures, and those of the documentation

`command` puts them together for `fairmargin reproduce`.
"""
