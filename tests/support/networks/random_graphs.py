"""Small random networks of random graph shape, and what their constants are by brute force."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lipkit.linops import Dense, LinearOperator, Reshape, Shape, pad
from lipkit.trace import Network
from lipkit.trace.nodes import RELU, Activation, Identity, Node, PiecewiseLinear, Pointwise

LEAKY = PiecewiseLinear("leaky_relu(0.3)", lambda z: functional.leaky_relu(z, 0.3), (0.0,), (0.3, 1.0))
ABS = PiecewiseLinear("abs", torch.abs, (0.0,), (-1.0, 1.0))
STEEP = PiecewiseLinear("steep", lambda z: functional.leaky_relu(z, -0.2) * 1.5, (0.0,), (-0.3, 1.5))


def random_network(
    seed: int, depth: int = 4, width: int = 3, neurons: int = 9, dtype: torch.dtype = torch.float64
) -> Network:
    """Up to `depth` rows with skip connections, joined parts and identities, and at most `neurons` kinks."""
    rng = np.random.default_rng(seed)
    shapes: list[Shape] = [(int(rng.integers(1, width + 1)),)]
    source = shapes[0]
    nodes: list[Node] = []
    blocks: dict[tuple[int, int], LinearOperator] = {}
    biases: dict[int, Tensor] = {}
    left = neurons
    for k in range(1, int(rng.integers(2, depth + 1)) + 2):
        earlier = [j for j in range(k) if j == k - 1 or rng.random() < 0.4]
        joined = len(earlier) > 1 and rng.random() < 0.3
        size = sum(shapes[j][0] for j in earlier) if joined else int(rng.integers(1, width + 1))
        offset = 0
        for j in earlier:
            n = shapes[j][0]
            if joined:
                blocks[k, j] = pad((n,), ((offset, size - offset - n),))
                offset += n
            elif n == size and rng.random() < 0.3:
                blocks[k, j] = Reshape((n,), (n,))
            else:
                blocks[k, j] = Dense(torch.from_numpy(rng.normal(size=(size, n)) * 10 ** rng.uniform(-1, 1)).to(dtype))
        if rng.random() < 0.7:
            biases[k] = torch.from_numpy(rng.normal(size=size)).to(dtype)
        choices: list[Activation] = [Identity()] if size > left else [RELU, RELU, LEAKY, ABS, STEEP, Identity()]
        activation = choices[int(rng.integers(len(choices)))]
        left -= 0 if isinstance(activation, Identity) else size
        nodes.append(Pointwise(activation, (size,)))
        shapes.append((size,))
    *nodes, _ = nodes
    return Network(source, tuple(nodes), blocks, biases, target=shapes[-1])


def jacobians(network: Network) -> np.ndarray:
    """The Jacobian for every choice of an extreme slope at every neuron: (patterns, out, in), in numpy."""
    return _through(network, patterns(network))[0][-1]


def patterns(network: Network) -> np.ndarray:
    """Every choice of an extreme slope at every neuron: (patterns, neurons)."""
    sizes = [node.shape[0] for node in network.nodes]
    low, high = (np.repeat(ends, sizes) for ends in zip(*extreme_slopes(network), strict=True))
    free = low != high
    count = int(free.sum())
    choices = np.zeros((2**count, len(free)), dtype=bool)
    choices[:, free] = np.array(list(itertools.product((False, True), repeat=count)), dtype=bool)
    return np.where(choices, high, low)


def jacobians_at(network: Network, points: np.ndarray) -> np.ndarray:
    """The Jacobian at every point (points, in) of a network with kinks at zero: (points, out, in), in numpy."""
    extremes, matrices = extreme_slopes(network), {at: matrix_of(op) for at, op in network.blocks.items()}
    values, slopes = [points], np.zeros((len(points), 0))
    for k in range(1, network.sink):
        z = np.zeros((len(points), network.shape_into(k)[0])) + _bias(network, k)
        for j in range(k):
            if (k, j) in matrices:
                z = z + values[j] @ matrices[k, j].T
        slope = np.where(z > 0, extremes[k - 1][1], extremes[k - 1][0])
        values.append(slope * z)
        slopes = np.hstack([slopes, slope])
    return _through(network, slopes)[0][-1]


def affine_pieces(network: Network) -> tuple[Callable[[int], tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """The Jacobians of all patterns, and a function of the pattern's number: rows and shifts, so that the pattern
    holds where rows x + shifts >= 0; for kinks at zero."""
    chosen, extremes = patterns(network), extreme_slopes(network)
    values, inputs = _through(network, chosen)
    constants = _through(network, chosen, shifts=True)[1]
    kinked = [k for k, (a, b) in enumerate(extremes, start=1) if a != b]
    ends = np.cumsum([0, *(node.shape[0] for node in network.nodes)])

    def form(i: int) -> tuple[np.ndarray, np.ndarray]:
        signs = [np.where(chosen[i, ends[k - 1] : ends[k]] == extremes[k - 1][1], 1.0, -1.0) for k in kinked]
        rows = [sign[:, None] * inputs[k][i] for k, sign in zip(kinked, signs, strict=True)]
        shifts = [sign * constants[k][i, :, 0] for k, sign in zip(kinked, signs, strict=True)]
        empty = np.zeros((0, network.source[0]))
        return np.vstack([empty, *rows]), np.concatenate([empty[:, 0], *shifts])

    return form, values[-1]


def _through(
    network: Network, slopes: np.ndarray, shifts: bool = False
) -> tuple[list[np.ndarray], dict[int, np.ndarray]]:
    """d y_k / dx, and d z_k / dx, for a batch of slopes (batch, neurons); with `shifts` the values at x = 0 instead."""
    source = 1 if shifts else network.source[0]
    start = np.zeros((network.source[0], 1)) if shifts else np.eye(source)
    parts = np.split(slopes, np.cumsum([node.shape[0] for node in network.nodes])[:-1], axis=1)
    matrices = {at: matrix_of(op) for at, op in network.blocks.items()}
    values, inputs = [np.broadcast_to(start, (len(slopes), *start.shape))], dict[int, np.ndarray]()
    for k in range(1, network.sink + 1):
        z = np.zeros((len(slopes), network.shape_into(k)[0], source)) + (_bias(network, k)[:, None] if shifts else 0.0)
        for j in range(k):
            if (k, j) in matrices:
                z = z + matrices[k, j] @ values[j]
        inputs[k] = z
        values.append(z if k == network.sink else parts[k - 1][:, :, None] * z)
    return values, inputs


def _bias(network: Network, k: int) -> np.ndarray:
    bias = network.biases.get(k)
    return np.zeros(network.shape_into(k)) if bias is None else bias.detach().double().numpy()


def extreme_slopes(network: Network) -> list[tuple[float, float]]:
    """The smallest and the largest slope of every node."""
    ends = [node.slopes() for node in network.nodes]  # pyright: ignore[reportAttributeAccessIssue]
    return [(float(low), float(high)) for low, high in ends]


def largest(matrices: np.ndarray, p: float) -> float:
    """The largest norm from l_p to l_p, p in {1, 2, inf}."""
    order = {1.0: 1, 2.0: 2, math.inf: np.inf}[p]
    return float(np.linalg.norm(matrices, ord=order, axis=(1, 2)).max())


def matrix_of(op: LinearOperator) -> np.ndarray:
    """The matrix of an operator, column by column."""
    units = torch.eye(op.in_size, dtype=torch.float64)
    return op.to(torch.float64).apply(units.reshape(-1, *op.in_shape)).detach().numpy().reshape(op.in_size, -1).T


def reference_network() -> Network:
    """The 2-4-3-1 ReLU network whose constants are printed in the survey's test vectors."""

    def entries(fn: np.ufunc, rows: int, cols: int, offset: int, down: int, right: int) -> Tensor:
        i, j = np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij")
        return torch.from_numpy(fn(offset + down * i + right * j).astype(np.float64))

    weights = [entries(np.sin, 4, 2, 1, 3, 5), entries(np.cos, 3, 4, 2, 7, 2), entries(np.sin, 1, 3, 4, 0, 2)]
    biases = {1: torch.from_numpy(0.5 * np.cos(np.arange(4.0))), 2: torch.from_numpy(0.5 * np.sin(np.arange(3.0)))}
    nodes = (Pointwise(RELU, (4,)), Pointwise(RELU, (3,)))
    return Network((2,), nodes, {(k, k - 1): Dense(w) for k, w in enumerate(weights, start=1)}, biases, target=(1,))
