"""Numbers of the errata about sensitivities and bounds of gradients, without lipkit."""

import math
from collections.abc import Callable

import torch
from torch.nn import functional


def activations() -> list[str]:
    slope, weight, x = 0.5, 2.0, 1.0
    z = weight * x
    return [f"‖z_1‖ = {z:.0f} and ‖h_1‖ = {slope * z:.0f}", f"{x:.0f} and {slope * x}"]


def gradients() -> list[str]:
    slope, weight, bias, x, depth = 2.0, 0.5, 0.3, 2.0, 4
    square, h = 0.0, x
    for t in range(1, depth + 2):
        square += (slope * weight) ** (2 * (depth + 1 - t)) * (1 + h * h)
        h = slope * (weight * h + bias)
    n = depth + 1
    printed = n * (1 + x * x) + x * bias * depth * n + bias**2 * depth * n * (2 * depth + 1) / 6
    return [f"{math.sqrt(square):.4f}", f"{math.sqrt(printed):.4f}"]


def bias() -> list[str]:
    """The gradient of a bias at 64 places, whose cotangent is 1/8 at each."""
    return [f"is {(torch.full((8, 8), 1 / 8).sum()):.0f}."]


def reflect() -> list[str]:
    """sup <g, K * x> over unit vectors, by alternating power steps."""

    def form(kernel: torch.Tensor, x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return (functional.conv2d(functional.pad(x, (1, 1, 1, 1), mode="reflect"), kernel) * g).sum()

    parts = [torch.ones(1, 1, n, n, dtype=torch.float64) / n for n in (3, 8, 8)]
    found = 0.0
    for step in range(300):
        at = step % 3
        free = [part.clone().requires_grad_(k == at) for k, part in enumerate(parts)]
        (gradient,) = torch.autograd.grad(form(*free), free[at])
        found = float(gradient.norm())
        parts[at] = gradient / found
    return [f"{found:.3f}", "above √9 = 3"]


def kantorovich() -> list[str]:
    """The gradient of the loss of one record, at any logits."""
    share = torch.full((10,), 0.1, dtype=torch.float64)
    gradient = 1 / (1 - share) / 10
    gradient[3] = -1 / share[3] / 10
    return [f"{gradient.norm():.5f}"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "Activations for a slope other than one": activations,
    "The global bound for a slope other than one": gradients,
    "A bias that is added at many places": bias,
    "Kernels under reflect padding": reflect,
    "The constant of KR with many classes": kantorovich,
}
