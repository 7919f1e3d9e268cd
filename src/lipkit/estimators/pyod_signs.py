"""The signs and the names of PyOD around an estimator of scikit-learn."""

import copy
from typing import Self, final

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator

from lipkit.estimators.one_class import OneClassSDF


@final
class PyODSigns(BaseEstimator):
    """The detector with PyOD's conventions: scores are high for anomalies, and labels are 1 for them, 0 for the rest.

    `decision_scores_`, `labels_` and `threshold_` are those of the training rows. PyOD itself is not needed.

    Guarantee: scores are those of the estimator times -1, so `estimator_.bound_` is their constant too.
    Cost: that of the estimator.

    Args:
        estimator: A detector; it is copied. None for `OneClassSDF()`.
    """

    def __init__(self, estimator: OneClassSDF | None = None) -> None:
        self.estimator = estimator

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Train on rows of the one class; `y` is not looked at."""
        del y
        self.estimator_ = copy.deepcopy(OneClassSDF() if self.estimator is None else self.estimator).fit(X)
        self.contamination_ = self.estimator_.contamination
        self.threshold_ = -self.estimator_.offset_
        self.decision_scores_ = self.decision_function(X)
        self.labels_ = (self.decision_scores_ > self.threshold_).astype(int)
        return self

    def decision_function(self, X: ArrayLike) -> np.ndarray:
        """Scores in float64; anomalies score high."""
        return -self.estimator_.score_samples(X)

    def predict(self, X: ArrayLike) -> np.ndarray:
        """1 for anomalies, 0 for normal rows."""
        return (self.decision_function(X) > self.threshold_).astype(int)
