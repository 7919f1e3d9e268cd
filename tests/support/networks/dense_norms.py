"""Norms of dense Jacobians from l_p to l_p, p in {1, 2, inf}, in numpy."""

import math

import numpy as np

from lipkit.bound import Metric


def largest(jacobians: np.ndarray, metric: Metric) -> np.ndarray:
    """The largest norm over (points, out, in)."""
    assert metric.p_in == metric.p_out
    order = {1.0: 1, 2.0: 2, math.inf: np.inf}[metric.p_in]
    return np.linalg.norm(jacobians, ord=order, axis=(1, 2)).max()


def largest_of_pairs(jacobians: np.ndarray, metric: Metric) -> np.ndarray:
    """The largest dual norm of the difference of two rows, over the points: (out, out)."""
    dual = {1.0: np.inf, 2.0: 2, math.inf: 1}[metric.p_in]
    return np.linalg.norm(jacobians[:, :, None] - jacobians[:, None], ord=dual, axis=-1).max(0)
