"""Published walks to level sets, as printed, and where they end: numbers of docs/errata.md."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def bent_line(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """A function of constant 1 with the shape x < 0: -x up to 1, then with the slope -0.3."""
    return torch.where(x <= 1, -x, -1 - 0.3 * (x - 1))


# Starts outside of the shape, and the level that walks go to.
BENT = torch.linspace(0.01, 5.0, 500, dtype=torch.float64), -0.05


def published_walk(
    starts: Float[Tensor, "..."], level: float, rate: float, steps: int, squared: bool = True
) -> Float[Tensor, "..."]:
    """Steps (rate/steps)(level - f)+ g/|g|^2 on the bent line; algorithm 6 prints |g| instead of its square."""
    x = starts
    for _ in range(steps):
        slope = torch.where(x <= 1, 1.0, 0.3)
        gap = (level - bent_line(x)).clamp(min=0.0)
        # The gradient points to smaller x.
        x = x - rate / steps * gap * slope / (slope**2 if squared else slope)
    return x


def denominator() -> list[str]:
    found: list[str] = []
    for squared in (True, False):
        x = torch.tensor([-100.0], dtype=torch.float64)
        for _ in range(4):
            # On the line f = 0.3 x.
            x = x + 1 / 4 * -(0.3 * x) * 0.3 / (0.3**2 if squared else 0.3)
        found.append(f"{float(x / -100):.4f}")
    return found


def overshoot() -> list[str]:
    starts, level = BENT
    shares = [
        (bent_line(published_walk(starts, level, rate, steps)) > 0).double().mean()
        for rate, steps in ((1, 1), (20, 16))
    ]
    return [f"{100 * float(share):.0f} %" for share in shares]


def density_variance(eta: float) -> float:
    """The variance of the density that is proportional to exp(-eta f^2) on the line, for the shape {0}."""
    x = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    # The signed distance to the point 0, negative outside.
    weight = torch.exp(-eta * (-x.abs()) ** 2)
    return float((weight * x**2).sum() / weight.sum())


def langevin() -> list[str]:
    return [f"{density_variance(eta):.4f}" for eta in (1.0,)]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The step of the sampler has a square": denominator,
    "Steps of the sampler can overshoot": overshoot,
    "The density of the sampler": langevin,
}
