"""The paper's tables and figures as lists of runs."""
