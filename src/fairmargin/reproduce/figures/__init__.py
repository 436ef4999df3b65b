"""The paper's figures, and those of the documentation, as SVG, PNG and the numbers they show."""
