"""Small random networks of random graph shape, and what their constants are by brute force."""

import itertools
import math

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
    extremes = [np.array([float(s) for s in node.slopes()]) for node in network.nodes]  # pyright: ignore[reportAttributeAccessIssue]
    free = [(k, i) for k, (a, b) in enumerate(extremes) if a != b for i in range(network.nodes[k].shape[0])]
    matrices = {at: _matrix(op) for at, op in network.blocks.items()}
    found = []
    for choice in itertools.product((0, 1), repeat=len(free)):
        slopes = [np.full(node.shape[0], e[1]) for node, e in zip(network.nodes, extremes, strict=True)]
        for (k, i), bit in zip(free, choice, strict=True):
            slopes[k][i] = extremes[k][bit]
        values = [np.eye(network.source[0])]
        for k in range(1, network.sink + 1):
            size = network.shape_into(k)[0]
            z = np.zeros((size, network.source[0]))
            for j in range(k):
                if (k, j) in matrices:
                    z = z + matrices[k, j] @ values[j]
            values.append(z if k == network.sink else slopes[k - 1][:, None] * z)
        found.append(values[-1])
    return np.stack(found)


def largest(matrices: np.ndarray, p: float) -> float:
    """The largest norm from l_p to l_p, p in {1, 2, inf}."""
    order = {1.0: 1, 2.0: 2, math.inf: np.inf}[p]
    return float(np.linalg.norm(matrices, ord=order, axis=(1, 2)).max())


def _matrix(op: LinearOperator) -> np.ndarray:
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
