"""How much the loss can rise near the parameters: Keskar's measure."""

import torch

from lipkit._seeds import generator
from lipkit.analysis.curvature.loss_hessian import Hessian
from lipkit.errors import ArgumentError


def keskar_sharpness(hessian: Hessian, epsilon: float = 1e-3, steps: int = 20, starts: int = 3, seed: int = 0) -> float:
    """(max L(theta + delta) - L(theta)) / (1 + L(theta)) over the box |delta_i| <= epsilon (|theta_i| + 1).

    The maximum is searched by steps along the sign of the gradient from random corners, so the number is what was
    found: a lower bound of the measure, up to rounding. The published form multiplies it by 100.

    Guarantee: LOWER, up to the rounding of the loss. Not invariant to a rescaling of neurons (Dinh et al. 2017).
    Cost: starts times steps gradients. Reference: Keskar et al. 2017, with the whole space as its subspace.

    Args:
        hessian: Says which loss, data and parameters.
        epsilon: Size of the box.
        steps: Gradient steps from each start.
        starts: Random corners to start from.
        seed: Of the corners.
    """
    if not epsilon > 0 or steps < 1 or starts < 1:
        raise ArgumentError(
            f"epsilon must be positive, steps and starts at least 1, got {epsilon}, {steps} and {starts}."
        )
    point = hessian.point
    half = epsilon * (point.abs() + 1)
    with torch.no_grad():
        here = float(hessian.value())
    if not here > -1:
        raise ArgumentError(f"The measure divides by 1 + loss, so the loss must be above -1, got {here}.")
    best, source = here, generator(seed)
    for _ in range(starts):
        corner = torch.randint(0, 2, point.shape, generator=source).to(point) * 2 - 1
        # Half way to a corner, where the gradient is not that of the minimum.
        delta = corner * half / 2
        for step in range(steps):
            moved = (point + delta).requires_grad_()
            with torch.enable_grad():
                value = hessian.value(moved)
                (slope,) = torch.autograd.grad(value, moved)
            best = max(best, float(value.detach()))
            # Shorter and shorter steps; the first one crosses the box.
            delta = (delta + half * slope.sign() * 2 / (step + 1)).clamp(-half, half)
        with torch.no_grad():
            best = max(best, float(hessian.value(point + delta)))
    return (best - here) / (1 + here)
