"""Small networks on regions, and what is true of them by brute force: nothing here uses lipkit's own bounds."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from lipkit.linops import Dense
from lipkit.regions import Ball, Box, Region
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, Activation

HALF_BOX = Box(torch.full((2,), -0.5), torch.full((2,), 0.5))


def reference_weights() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """ReLU 2 -> 4 -> 3 -> 1 with weights from sines and cosines: the network that published figures are given for."""
    w0 = [[math.sin(1 + 3 * i + 5 * j) for j in range(2)] for i in range(4)]
    w1 = [[math.cos(2 + 7 * i + 2 * j) for j in range(4)] for i in range(3)]
    w2 = [[math.sin(4 + 2 * j) for j in range(3)]]
    biases = [[0.5 * math.cos(i) for i in range(4)], [0.5 * math.sin(i) for i in range(3)], [0.0]]
    return [np.array(w) for w in (w0, w1, w2)], [np.array(b) for b in biases]


def random_weights(
    seed: int, depth: int, width: int, source: int, target: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    sizes = [source, *rng.integers(2, width + 1, depth - 1).tolist(), target]
    pairs = list(itertools.pairwise(sizes))
    return [rng.normal(size=(m, n)) for n, m in pairs], [0.5 * rng.normal(size=m) for _, m in pairs]


def network_of(
    weights: list[np.ndarray],
    biases: list[np.ndarray],
    activation: Activation = RELU,
    dtype: torch.dtype = torch.float64,
) -> Network:
    matrices = [Dense(torch.from_numpy(w).to(dtype)) for w in weights]
    return chain(matrices, activation, [torch.from_numpy(b).to(dtype) for b in biases])


def reference_network() -> Network:
    return network_of(*reference_weights())


def box_of(region: Region) -> tuple[np.ndarray, np.ndarray]:
    match region:
        case Box(low, high):
            return low.double().numpy(), high.double().numpy()
        case Ball(center, radius):
            return center.double().numpy() - radius, center.double().numpy() + radius
        case _:
            raise AssertionError(region)


def pieces(weights: list[np.ndarray], biases: list[np.ndarray], region: Box) -> Iterator[np.ndarray]:
    """The Jacobians of all linear pieces of a ReLU network that meet the inside of a box, by linear programs."""
    low, high = box_of(region)

    def roomy(normals: list[np.ndarray], offsets: list[float]) -> bool:
        # Is there a ball of radius 1e-7 with normals x + offsets >= 0 in it? Smaller pieces do not occur here.
        a, b = np.array(normals), np.array(offsets)
        lengths = np.linalg.norm(a, axis=1, keepdims=True)
        size = len(low)
        found = optimize.linprog(
            np.append(np.zeros(size), -1.0),
            np.vstack([np.hstack([-a, lengths]), np.hstack([np.eye(size), np.ones((size, 1))]),
                       np.hstack([-np.eye(size), np.ones((size, 1))])]),
            np.concatenate([b, high, -low]),
            bounds=[(None, None)] * size + [(0, 1)],
        )  # fmt: skip
        return found.status == 0 and found.x[-1] > 1e-7

    def walk(layer: int, form: np.ndarray, shift: np.ndarray, normals: list, offsets: list) -> Iterator[np.ndarray]:
        z, c = weights[layer] @ form, weights[layer] @ shift + biases[layer]
        if layer == len(weights) - 1:
            yield z
            return

        def decide(i: int, on: list[float], normals: list, offsets: list) -> Iterator[np.ndarray]:
            if i == len(z):
                yield from walk(layer + 1, np.diag(on) @ z, np.diag(on) @ c, normals, offsets)
                return
            for sign in (1.0, -1.0):
                if np.abs(z[i]).max() < 1e-12:
                    # A constant neuron has the sign of its constant.
                    if sign * c[i] > 0:
                        yield from decide(i + 1, [*on, max(sign, 0.0)], normals, offsets)
                    continue
                more = [*normals, sign * z[i]], [*offsets, sign * c[i]]
                if roomy(*more):
                    yield from decide(i + 1, [*on, max(sign, 0.0)], *more)

        yield from decide(0, [], normals, offsets)

    yield from walk(0, np.eye(len(low)), np.zeros(len(low)), [], [])


def norm_of(matrix: np.ndarray, p: float) -> float:
    """The norm from l_p to l_p for p = 1, 2, inf."""
    return float(np.linalg.norm(matrix, {1.0: 1, 2.0: 2, math.inf: np.inf}[p]))


def exact_constant(weights: list[np.ndarray], biases: list[np.ndarray], region: Box, p: float) -> float:
    return max(norm_of(jacobian, p) for jacobian in pieces(weights, biases, region))


def points_in(region: Region, count: int, seed: int = 0) -> Tensor:
    """Random points of the region, its corners or poles among them."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(region, Box):
        low, high = region.low.double(), region.high.double()
        inside = low + torch.rand((count, *low.shape), dtype=torch.float64, generator=generator) * (high - low)
        corner = torch.rand((count, *low.shape), generator=generator) < 0.5
        return torch.cat([inside, torch.where(corner, low, high)])
    assert isinstance(region, Ball)
    center = region.center.double()
    away = torch.randn((count, *center.shape), dtype=torch.float64, generator=generator)
    lengths = torch.linalg.vector_norm(away.flatten(1), ord=region.p, dim=1).reshape(-1, *(1,) * center.ndim)
    share = torch.rand((count, *(1,) * center.ndim), dtype=torch.float64, generator=generator)
    share[: count // 2] = 1.0
    # A little inside, so that rounding does not lead out of the ball.
    around = center + region.radius * (1 - 1e-12) * share * away / lengths
    poles = torch.eye(center.numel(), dtype=torch.float64).reshape(-1, *center.shape) * region.radius * (1 - 1e-12)
    return torch.cat([around, center + poles, center - poles])
