"""Debiasing with scikit-learn's interface: a classifier, and a projection of frozen embeddings.

model = FairMarginClassifier("ce+fairkl").fit(X, y, bias=b)     # vectors or images
clean = FairMarginProjector().fit(Z, y, b).transform(Z_test)    # embeddings
"""

from fairmargin.sklearn.classifier import FairMarginClassifier
from fairmargin.sklearn.projector import FairMarginProjector

__all__ = ["FairMarginClassifier", "FairMarginProjector"]
