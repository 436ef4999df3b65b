"""Rank methods honestly: the same small tasks, budgets and knowledge of the bias for all.

tasks     what the methods are tried on
entries   what is tried: a method, perhaps with other settings or an inferred bias
plan      every run of a suite, where it is kept, and how it is run
results   what the runs gave, and the files that keep it
ranking   the arithmetic: ranks, their uncertainty, who cannot be told apart
standings a table for each regime, from results and ranking
terminal  these tables for 80 columns
page      the same as suite.html
picture   the tasks, drawn for the documentation
"""
