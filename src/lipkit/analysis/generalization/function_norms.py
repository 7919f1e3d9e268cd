"""Whether a norm of functions comes from an inner product: the Lipschitz norm does not."""

import math
from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError


def parallelogram_defect(
    norm: Callable[[Tensor], Tensor | float], f: Float[Tensor, "*points"], g: Float[Tensor, "*points"]
) -> float:
    """(|f + g|^2 + |f - g|^2) / (2 |f|^2 + 2 |g|^2) - 1, in [-1/2, 1]; 0 for all f and g if and only if a norm comes
    from an inner product.

    On functions with f(x_0) = 0, |f| = Lip(f) is a norm, and its defect may be -1/2, the least there is: f = max(x, 0)
    and g = min(x, 0) on the line. So these functions are no Hilbert space, and no Gaussian process has their norm.

    Guarantee: up to the rounding of the norms; outside of [-1/2, 1] the function was no norm.
    Cost: four norms. Reference: Jordan and von Neumann 1935; Bethune 2024, section 8.1.3.

    Args:
        norm: Takes the values of a function.
        f: The values of a function at some points, such as those of a grid.
        g: The values of another one.
    """
    if f.shape != g.shape:
        raise ShapeError(f"Both functions have values at the same points, got {tuple(f.shape)} and {tuple(g.shape)}.")
    own, other, together, apart = (float(norm(one)) for one in (f, g, f + g, f - g))
    scale = max(own, other)
    if not (scale > 0 and all(map(math.isfinite, (own, other, together, apart)))):
        raise ArgumentError(f"Norms are finite and not both zero, got {own}, {other}, {together} and {apart}.")
    own, other, together, apart = (one / scale for one in (own, other, together, apart))
    return (together**2 + apart**2) / (2 * own**2 + 2 * other**2) - 1
