"""What formulas about whole networks give as printed, and what is true: numbers of docs/errata.md, without lipkit."""

import math
from collections.abc import Callable

import numpy as np
import scipy.special
import torch
from torch import Tensor
from torch.nn import functional


def matrix(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def spectral(found: Tensor) -> float:
    return float(torch.linalg.matrix_norm(found, 2))


def slope(f: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """The norm of the Jacobian at one point: never above the constant near it."""
    jacobian = torch.autograd.functional.jacobian(f, x)
    assert isinstance(jacobian, Tensor)
    return spectral(jacobian.reshape(-1, x.numel()))


def gelu_slope() -> float:
    x = torch.tensor(math.sqrt(2), dtype=torch.float64, requires_grad=True)
    return float(torch.autograd.grad(functional.gelu(x), x)[0])


def attention(x: Tensor, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Dot-product attention of tokens in rows."""
    return torch.softmax(scale * (x @ q) @ (x @ k).mT, -1) @ (x @ v)


def distance_attention(x: Tensor, q: Tensor, v: Tensor, o: Tensor) -> Tensor:
    """L2 attention with one head and tied queries and keys, tokens in rows."""
    root = math.sqrt(q.shape[1])
    weights = torch.softmax(-(torch.cdist(x @ q, x @ q) ** 2) / root, -1)
    return weights @ x @ (q @ q.mT / root) @ v @ o


def growing(a: float) -> float:
    """The slope of dot-product attention with three tokens 0, a, -a and all weights 1."""
    one = matrix([1.0])
    return slope(lambda x: attention(x, one, one, one, 1.0), matrix([0.0], [a], [-a]))


# d = 2, m = 1: queries read the first coordinate, keys and values the second.
QUERY, KEY = matrix([1.0], [0.0]), matrix([0.0], [1.0])
CROSSED = matrix([0.0, 3.0], [0.0, -3.0])


def crossed() -> float:
    return slope(lambda x: attention(x, QUERY, KEY, KEY, 2**-0.5), CROSSED)


def castin(scores: float, delta: float, tokens: int) -> float:
    """sqrt 3 |W_V| (|A|^2 delta^4 (4 n + 1) + n)^(1/2) with |A| = scores and |W_V| = 1."""
    return math.sqrt(3 * (scores**2 * delta**4 * (4 * tokens + 1) + tokens))


def kim(tokens: int) -> float:
    """sqrt n (4 phi^-1(n - 1) + 1), where all weights are 1."""
    return math.sqrt(tokens) * (4 * float(scipy.special.lambertw((tokens - 1) / math.e).real) + 1)


def aligned(ratio: float, alpha: float) -> float:
    """The printed factor for two layers with the same ratio of singular values."""
    return math.sqrt((1 - 2 * ratio) * alpha + 2 * ratio + ratio**2)


def independent(n: int) -> float:
    """Slope over product of norms for two Gaussian layers at a random point."""
    rng = np.random.default_rng(0)
    first, last = rng.standard_normal((2, n, n))
    active = first @ rng.standard_normal(n) > 0
    return float(
        np.linalg.norm(last @ (first * active[:, None]), 2) / np.linalg.norm(first, 2) / np.linalg.norm(last, 2)
    )


def printed_sdp() -> np.ndarray:
    """(152) for leaky ReLU with slopes [1/2, 1], W0 = W1 = 1 and T = 2, its symmetric part."""
    alpha, beta, t = 0.5, 1.0, 2.0
    found = np.array([[-2 * alpha * beta * t, alpha + beta], [(alpha + beta) * t, -2 * t + 1]])
    return (found + found.T) / 2


def coupled_sdp(rho: float, weight: float) -> np.ndarray:
    """The matrix of theorem 1 for relu(x) - relu(x - 5), T = weight (e1 - e2)(e1 - e2)'."""
    inner, outer, e = np.array([[1.0], [1.0]]), np.array([[1.0, -1.0]]), np.array([[1.0], [-1.0]])
    t = weight * e @ e.T
    return np.block([[-rho * np.eye(1), inner.T @ t], [t @ inner, -2 * t + outer.T @ outer]])


# One direction that power iteration has to tell from 15 others.
SPREAD = np.diag([1.0, *[0.9] * 15])


def power_iteration(found: np.ndarray, passes: int) -> float:
    u = np.ones(found.shape[1])
    for _ in range(passes):
        u = found.T @ (found @ u)
        u /= np.linalg.norm(u)
    return float(np.linalg.norm(found @ u))


def liplt(inner: np.ndarray, outer: np.ndarray, norm: Callable[[np.ndarray], float]) -> float:
    """(16) for one hidden layer of ReLU."""
    return (norm(outer @ inner) + norm(outer) * norm(inner)) / 2


def pooled_impulse() -> float:
    """The norm of the max-pooled image that has one 1, against which the zero image is pooled to zero."""
    image = torch.zeros(1, 1, 7, 7, dtype=torch.float64)
    image[0, 0, 1, 1] = 1
    return float(functional.max_pool2d(image, 3, 2, 1).norm())


def border_average() -> float:
    units = torch.eye(3, dtype=torch.float64)[:, None]
    return spectral(functional.avg_pool1d(units, 3, 1, 1, count_include_pad=False)[:, 0])


def gershgorin(g: np.ndarray, q: np.ndarray) -> np.ndarray:
    """T_ii = sum_j |G'G|_ij q_j / q_i."""
    return np.abs(g.T @ g) @ q / q


def silu_slope() -> float:
    x = torch.tensor(2.3993572805, dtype=torch.float64, requires_grad=True)
    return float(torch.autograd.grad(functional.silu(x), x)[0])


def of_gelu() -> list[str]:
    return [f"{gelu_slope():.4f}", f"{silu_slope():.4f}", f"{100 * (1 - 1.1 / gelu_slope()):.1f} %"]


def of_activations() -> list[str]:
    quotient = (functional.gelu(matrix([1.5])) - functional.gelu(matrix([1.3]))) / 0.2
    two = slope(lambda z: torch.softmax(z, -1), matrix([0.0, 0.0]))
    assert two == 0.5
    return [f"{gelu_slope():.4f}", f"{silu_slope():.4f}", f"{float(quotient):.3f}"]


def of_pooling() -> list[str]:
    assert pooled_impulse() == 2
    shortcut = slope(lambda x: 3 * x + functional.relu(x) / 2, matrix([1.0]))
    return [f"{border_average():.4f}", f"{2 * shortcut:.0f}/2"]


def of_vector() -> list[str]:
    gradient = matrix([1.0, 1.0])
    entries = [float(torch.linalg.vector_norm(gradient, q)) for q in (1, 2, math.inf)]
    operators = [float(torch.linalg.matrix_norm(gradient, q)) for q in (1, 2, math.inf)]
    assert entries == [2, math.sqrt(2), 1]
    assert operators == [1, math.sqrt(2), 2]
    return ["2, √2 and 1", "1, √2 and 2"]


def of_zero() -> list[str]:
    one = matrix([1.0])
    assert slope(lambda x: attention(x, one, one, one, 1.0), torch.zeros(2, 1, dtype=torch.float64)) == 1
    return [f"{2 * 3 * 0.1**2 * (1 + 1):.2f}"]


def of_shape() -> list[str]:
    assert float((KEY.mT @ QUERY).norm()) == 0
    return [f"{castin(0.0, 5.0, 2):.3f}", f"{crossed():.3f}", f"{castin(2**-0.5, 5.0, 2):.1f}"]


def of_dot_product() -> list[str]:
    return [f"{kim(3):.2f}", ", ".join(f"{growing(a):.{n}f}" for a, n in ((3.0, 2), (10.0, 1), (30.0, 1), (100.0, 0)))]


def of_queries() -> list[str]:
    ten, one = matrix([10.0]), matrix([1.0])
    found = slope(lambda x: distance_attention(x, ten, one, one), matrix([1.0]))
    return [f"= {found:.0f}x", f"({kim(1) * 10:.0f}"]


def of_single_token() -> list[str]:
    ones = torch.ones(4, 4, dtype=torch.float64)
    x = torch.ones(1, 4, dtype=torch.float64)
    change = distance_attention(2 * x, ones, ones, ones) - distance_attention(x, ones, ones, ones)
    return [f"{float(change.abs().max()):.0f}", f"{4 * 4 * 4 * 4 / 4:.0f}"]


def of_cuts() -> list[str]:
    first, second = {"skip": 1, "relu": 2}, {"skip": 1, "relu": 3}
    paths = sum(a * b for a in first.values() for b in second.values())
    assert paths == sum(first.values()) * sum(second.values())
    return [f"{paths} = 3 · 4"]


def of_margin() -> list[str]:
    crossing = -1 / (10 - 1)
    assert math.isclose(10 * crossing + 1, crossing)
    return [f"{1 / (10 - 1):.3f}"]


def of_end_point() -> list[str]:
    # Uniform in the ball of R^5: a direction times a fifth root, 200 batches of 256.
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 256, 5))
    x *= rng.random((200, 256, 1)) ** 0.2 / np.linalg.norm(x, axis=-1, keepdims=True)
    return [f"{np.abs(x[..., 0]).max(1).mean():.2f}"]


def of_coordinates() -> list[str]:
    inner, outer = 3.0, 1.0
    assert (max(outer * outer, 0), max(outer * inner, 0)) == (1, 3)
    always_on = -outer * inner
    return [f"L + C = U + C = {always_on:.0f}", f"{math.sqrt(2 + 2):.0f} instead of {math.hypot(2, 2):.3f}"]


def of_alignment() -> list[str]:
    return [f"{aligned(0.9, 1.0):.4f}"]


def of_pi() -> list[str]:
    return [f"{1 / math.pi:.3f}", ", ".join(f"{independent(n):.3f}" for n in (12, 50, 200))]


def of_sdp() -> list[str]:
    assert np.linalg.eigvalsh(printed_sdp()).max() < 0
    return [f"{np.linalg.det(printed_sdp()):.4f}"]


def of_coupling() -> list[str]:
    assert np.linalg.eigvalsh(coupled_sdp(0.0, 0.5)).max() <= 0
    return ["ρ = 0"]


def of_integers() -> list[str]:
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    assert torch.equal(functional.relu(x) - functional.relu(-x), x)
    return ["[0, 2]"]


def of_ratio() -> list[str]:
    g = np.array([[1.0, 3.0]])
    assert gershgorin(g, np.ones(2)).tolist() == [4, 12]
    assert gershgorin(g, np.array([1.0, 3.0])).tolist() == [10, 10]
    return [f"{math.sqrt(12):.3f}", f"{math.sqrt(10):.3f}"]


def of_power() -> list[str]:
    return [", ".join(f"{liplt(SPREAD, np.eye(16), lambda m, n=n: power_iteration(m, n)):.3f}" for n in (1, 2, 5, 10))]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "Activations that are not 1-Lipschitz": of_activations,
    "Pooling and shortcuts in the product bound": of_pooling,
    "A vector lost from the local constant": of_vector,
    "The constant of GELU": of_gelu,
    "Self-attention near zero": of_zero,
    "The matrix in the bound for bounded tokens": of_shape,
    "Bounds of another attention": of_dot_product,
    "The power of the query weights": of_queries,
    "The term that is left for one token": of_single_token,
    "Cut vertices alone do not tighten": of_cuts,
    "A radius needs the constant of the margin": of_margin,
    "The end point of the law, not its mean": of_end_point,
    "Fast-Lip": of_coordinates,
    "The alignment factor can exceed 1": of_alignment,
    "Independent layers do not gain a factor of π": of_pi,
    "The matrix inequality of LipSDP": of_sdp,
    "Coupled multipliers": of_coupling,
    "What LipMIP solves": of_integers,
    "A weight that cancels": of_ratio,
    "Norms from below": of_power,
}
