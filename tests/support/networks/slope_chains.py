"""Feed-forward networks with slopes of any sign for each neuron, and their largest Jacobian by brute force."""

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from lipkit.linops import Dense
from lipkit.trace import Network
from lipkit.trace.nodes import PiecewiseLinear, Pointwise

INTERVALS = [(0.0, 1.0), (0.01, 1.0), (-0.13, 1.13), (1.0, 1.0), (-0.5, -0.2), (-1.0, 1.0), (0.97, 1.0)]
# Brute force in numpy may be high by a few units in the last place of sums of ten products; nothing else is forgiven.
BELOW = 1 - 1e-13


def two_slopes(alpha: Tensor, beta: Tensor) -> PiecewiseLinear:
    """One pair of slopes for each neuron."""
    return PiecewiseLinear("two slopes", lambda z, a, b: torch.where(z < 0, a * z, b * z), (0.0,), (alpha, beta))


def random_chain(seed: int, neurons: int = 9) -> tuple[Network, list[np.ndarray], list[np.ndarray]]:
    """A feed-forward net of random widths, with the matrices and the (alpha, beta) of every layer, in numpy."""
    rng = np.random.default_rng(seed)
    widths = [int(w) for w in rng.integers(1, 7, size=int(rng.integers(3, 6)))]
    while sum(widths[1:-1]) > neurons:
        del widths[1]
    matrices = [rng.normal(size=(b, a)) for a, b in pairwise(widths)]
    slopes = [np.array([INTERVALS[i] for i in rng.integers(len(INTERVALS), size=w)]).T for w in widths[1:-1]]
    nodes = tuple(Pointwise(two_slopes(torch.from_numpy(a), torch.from_numpy(b)), (len(a),)) for a, b in slopes)
    blocks = {(k, k - 1): Dense(torch.from_numpy(m)) for k, m in enumerate(matrices, start=1)}
    return Network((widths[0],), nodes, blocks, target=(widths[-1],)), matrices, slopes


def all_corners(matrices: list[np.ndarray], slopes: list[np.ndarray]) -> float:
    """The largest norm of the product over all choices of an extreme slope at every neuron."""
    found = matrices[0][None]
    for matrix, (alpha, beta) in zip(matrices[1:], slopes, strict=True):
        n = len(alpha)
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        corners = np.where(bits, beta, alpha)
        found = (corners[None, :, :, None] * found[:, None]).reshape(-1, *found.shape[1:])
        found = matrix @ found
    return float(np.linalg.norm(found, ord=2, axis=(1, 2)).max())
