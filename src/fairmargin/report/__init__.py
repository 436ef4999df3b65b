"""Figures and pages, drawn from numbers that are already there."""
