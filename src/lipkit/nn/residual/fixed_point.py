"""Fixed points of contractions, with a proven error, and their derivatives by the implicit function theorem."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, NotProvenError, UnsupportedError
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS, UNIT_OF

# The rounding that one evaluation of a branch may add, in units of the sizes of its input and output.
_EVALUATION = 8
# A step of so many units moves the point no more than rounding does.
_STILL = 2


@final
@dataclass(frozen=True, eq=False)
class Preimage:
    """A point that a map takes to the one given, and how far the true one may be from it.

    `error` bounds the l2 distance for each sample: c/(1 - c) times the last step, which is proven in real arithmetic,
    and 8 u (||x|| + ||y||)/(1 - c) for the rounding of one evaluation, u the unit of the type. The second part is an
    allowance: a branch that rounds by more than eight units is not known here. Invert in float64 where it matters.
    """

    point: Float[Tensor, "batch *shape"]
    error: Float64[Tensor, " batch"]
    steps: int


def fixed_point(
    step: Callable[[Tensor], Tensor], start: Float[Tensor, "batch *shape"], constant: float, tolerance: float | None
) -> Preimage:
    """The fixed point of `step`, a map of l2 constant c < 1 on each sample: x <- step(x), from `start`.

    Stops at the first x_k whose error is at most the tolerance for all samples, where ||x_k - x*|| <= c/(1 - c)
    ||x_k - x_(k-1)|| (Banach) and rounding is allowed for as `Preimage` says; without a tolerance, where steps are
    below the digits of the type. c^k ||x_1 - x_0|| says beforehand when that is; a tolerance that is not reached by
    then is an error.

    Args:
        constant: c, an upper bound of the l2 constant of `step`, below 1.
        tolerance: Largest allowed distance to the fixed point, for each sample; None: as near as the type allows.
    """
    if not 0 <= constant < 1:
        raise ArgumentError(f"Only a map of constant below 1 has one fixed point, got {constant:g}.")
    if tolerance is not None and not 0 < tolerance < math.inf:
        raise ArgumentError(f"tolerance must be a positive distance, got {tolerance}; None is as near as possible.")
    factor = constant / (1 - constant) * (1 + MILLIONS_OF_ROUNDINGS)
    unit = UNIT_OF[start.dtype]
    last, sizes = step(start), _lengths(start)
    steps, moved = 1, _lengths(last - start)
    most = _enough(constant, unit)
    while True:
        reached = _lengths(last)
        error = factor * moved + _EVALUATION * unit / (1 - constant) * (sizes + reached)
        if not bool(torch.isfinite(error).all()):
            raise NonFiniteError(
                f"Step {steps} of the iteration is not finite; look for NaN or infinite numbers in input and weights."
            )
        near = moved <= _STILL * unit * reached if tolerance is None else error <= tolerance
        if bool(near.all()) or (tolerance is None and steps >= most):
            return Preimage(last, error, steps)
        if steps >= most:
            raise NotProvenError(
                f"Rounding in {start.dtype} leaves an error of {float(error.max()):.1e} after {steps} steps, more than "
                f"tolerance = {tolerance:g}; allow more, or convert module and input to float64."
            )
        before, last = last, step(last)
        steps, moved = steps + 1, _lengths(last - before)


def _enough(constant: float, unit: float) -> int:
    """The least k with c^k <= (1 - c) u, and one more."""
    if constant == 0:
        return 1
    return 1 + math.ceil(math.log(unit * (1 - constant)) / math.log(constant))


def _lengths(x: Float[Tensor, "batch *shape"]) -> Float64[Tensor, " batch"]:
    return torch.linalg.vector_norm(x.flatten(1), dim=1, dtype=torch.float64)


def implicit_solution(
    branch: Callable[[Tensor], Tensor],
    y: Float[Tensor, "batch *shape"],
    constant: float,
    tolerance: float | None,
    differentiable: bool,
) -> Preimage:
    """The solution x of x + g(x) = y for a map g of constant c < 1 on each sample, with derivatives in y and weights.

    dx = (I + J)^-1 (dy - dg): backward solves w = v - J'w by the same iteration, which has the constant c too, to the
    digits of the type. No iterate is kept, so memory is that of one evaluation. Second derivatives are refused.

    Args:
        branch: g.
        constant: c.
        tolerance: Largest allowed distance of each sample to its solution; None: as near as the type allows.
        differentiable: Whether derivatives may be asked for.
    """
    with torch.no_grad():
        found = fixed_point(lambda x: y - branch(x), y, constant, tolerance)
    if not differentiable:
        return found
    at = found.point.detach().requires_grad_()
    # One more step, which is nearer still; its derivatives at a fixed x are those of y and of the weights.
    image = y - branch(at)
    point = image.clone()

    def solve(v: Tensor | None) -> Tensor | None:
        # Gradients that overflowed are handed on as they are: whoever scales losses looks for them and starts over.
        if v is None or not bool(torch.isfinite(v).all()):
            return v
        refuse_second_derivatives("inverse")

        def pulled(w: Tensor, v: Tensor = v) -> Tensor:
            return v + torch.autograd.grad(image, at, w, retain_graph=True)[0]

        return fixed_point(pulled, v, constant, None).point

    point.register_hook(solve)
    return Preimage(point, found.error, found.steps)


def refuse_second_derivatives(what: str) -> None:
    """Refuse to be differentiated while a gradient is: it would come out without the terms that the point moves."""
    if torch.is_grad_enabled():
        raise UnsupportedError(
            f"The {what} has first derivatives only; leave out create_graph=True, or differentiate the forward map."
        )
