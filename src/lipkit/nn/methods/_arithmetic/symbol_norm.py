"""Certified norms of matrices and of kernels by Gram iteration, in a fixed number of plain operations."""

import math
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit._runtime import is_reading
from lipkit.linops import Shape
from lipkit.norms.convolutions.symbol_grid import between, points_for
from lipkit.rounding.slacks import UNIT

# Entries of symbols held at once.
_CHUNK = 2**22


def norm_above(
    kernel: Float64[Tensor, "groups rows cols *taps"], steps: int, slack: float
) -> Float64[Tensor, " groups"]:
    """b >= sup_w ||E(w)|| for the symbol E of each kernel (stride 1), entries of at most one; for matrices b >= ||W||.

    The symbol is evaluated on a grid that makes the supremum at most 1 + `slack` times the maximum on the grid (as in
    norms.SmallGrid), and at each frequency b is the Schatten norm of index 2^(steps + 1), or the largest sum of a row
    of the last Gram product if that is less. All rounding is counted. Real arithmetic throughout: of a complex
    Hermitian product, three real products instead of four.
    Gradient: of the frequency with the largest value; the others are not differentiated.
    """
    return torch.ops.lipkit.norm_above(kernel, steps, slack) if is_reading() else _norm_above(kernel, steps, slack)


def _norm_above(kernel: Tensor, steps: int, slack: float) -> Tensor:
    taps = kernel.shape[3:]
    tall = kernel if kernel.shape[1] >= kernel.shape[2] else kernel.transpose(1, 2)
    if all(t == 1 for t in taps):
        return schatten(tall.flatten(2)[..., : tall.shape[2]], None, steps)
    grid, factor = small_grid(tuple(taps), slack)
    flat = tall.flatten(3)
    cos, sin = _turns(tuple(taps), grid, kernel.device)
    count = len(cos)
    fixed = flat.detach()
    width = max(1, _CHUNK // fixed[..., 0].numel())
    values = [_at(fixed, cos[i : i + width], sin[i : i + width], steps) for i in range(0, count, width)]
    largest, at = torch.cat(values, 1).max(1)
    weight = torch.stack([cos[at], sin[at]], 1)
    real, imaginary = (torch.einsum("grct,gt->grc", flat, weight[:, part]) for part in (0, 1))
    carried = schatten(real, imaginary, steps)
    return (largest + _error(fixed) + (carried - carried.detach())) * (factor * (1 + 8 * UNIT))


# One operation while a model is read: its two hundred small ones take longer to be written down than to be executed.
_LIBRARY = torch.library.Library("lipkit", "FRAGMENT")
_LIBRARY.define("norm_above(Tensor kernel, int steps, float slack) -> Tensor")
_LIBRARY.impl("norm_above", _norm_above, "CompositeImplicitAutograd")


def _several_norms(
    _info: Any, in_dims: tuple[int, None, None], kernels: Tensor, steps: int, slack: float
) -> tuple[Tensor, int]:
    return torch.stack([_norm_above(kernel, steps, slack) for kernel in kernels.movedim(in_dims[0], 0)]), 0


torch.library.register_vmap("lipkit::norm_above", _several_norms, lib=_LIBRARY)


def small_grid(taps: Shape, slack: float) -> tuple[Shape, float]:
    """Points for each axis, and the factor from the maximum on that grid to the supremum; at most 1 + slack."""
    curved = sum(t > 1 for t in taps)
    grid = tuple(1 if t == 1 else points_for((t - 1) / 2, (1 + slack) ** (1 / curved)) for t in taps)
    factor = 1.0
    for t, n in zip(taps, grid, strict=True):
        factor *= between((t - 1) / 2, n) if t > 1 else 1.0
    return grid, factor


def schatten(
    real: Float64[Tensor, "*batch rows cols"], imaginary: Float64[Tensor, "*batch rows cols"] | None, steps: int
) -> Float64[Tensor, "*batch"]:
    """An upper bound of the norms of a batch of matrices, real or complex, by `steps` Gram products.

    Each iterate is divided by its Frobenius norm f; with Y = X/f, ||X|| <= f (||fl Y*Y|| + error)^(1/2), so the bound
    walks back along the chain. The factors f cancel, so they carry no gradient.
    """
    factors: list[Tensor] = []
    errors: list[float] = []
    for _ in range(steps):
        size = torch.linalg.vector_norm(real.detach(), dim=(-2, -1))
        if imaginary is not None:
            size = torch.hypot(size, torch.linalg.vector_norm(imaginary.detach(), dim=(-2, -1)))
        factors.append(size)
        # Re and Im of Y*Y are off by gamma ||Y||_F^2 each; ||Y||_F is one but for rounding.
        depth = 2 * (2 * real.shape[-2] + 8)
        errors.append(2 * depth * UNIT)
        inverse = torch.where(size > 0, size, 1.0).reciprocal()[..., None, None]
        real, imaginary = _gram(real * inverse, None if imaginary is None else imaginary * inverse)
    found = _readout(real, imaginary)
    for size, error in zip(reversed(factors), reversed(errors), strict=True):
        found = size * ((found + error).sqrt() * (1 + 8 * UNIT) + 8 * UNIT)
    return found


def _gram(real: Tensor, imaginary: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if imaginary is None:
        return real.mT @ real, None
    both = torch.cat([real, imaginary], -2)
    cross = real.mT @ imaginary
    return both.mT @ both, cross - cross.mT


def _readout(real: Tensor, imaginary: Tensor | None) -> Tensor:
    """The Frobenius norm, or the largest absolute sum of a row or a column, whichever is less; rounded up."""
    size = real.abs() if imaginary is None else real.abs() + imaginary.abs()
    n = size.shape[-1]
    sums = torch.maximum(size.sum(-1).amax(-1), size.sum(-2).amax(-1)) * (1 + 4 * n * UNIT)
    parts = real if imaginary is None else torch.cat([real, imaginary], -2)
    return torch.minimum(sums, torch.linalg.vector_norm(parts, dim=(-2, -1)) * (1 + 4 * (n * n + 4) * UNIT))


def _turns(taps: Shape, grid: Shape, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and -sin of the angle of each tap at each frequency; of a real kernel half of the first axis is enough."""
    turns = torch.zeros(1, 1, dtype=torch.float64, device=device)
    for axis, (t, n) in enumerate(zip(taps, grid, strict=True)):
        at = torch.arange(n if axis else n // 2 + 1, device=device)
        # Integer arithmetic first: the angle keeps full accuracy however many turns it makes.
        part = (at[:, None] * torch.arange(t, device=device) % n).to(torch.float64) / n
        turns = (turns[:, None, :, None] + part[None, :, None, :]).flatten(2).flatten(0, 1)
    angle = (2 * math.pi) * turns
    return angle.cos(), -angle.sin()


def _at(flat: Tensor, cos: Tensor, sin: Tensor, steps: int) -> Tensor:
    real, imaginary = (torch.einsum("grct,ft->gfrc", flat, part) for part in (cos, sin))
    return schatten(real, imaginary, steps)


def _error(flat: Tensor) -> Tensor:
    """A bound of ||fl E(w) - E(w)||: angles, sines and the sum over taps, acting on the sums of absolute taps."""
    size = torch.linalg.vector_norm(flat.abs().sum(-1), dim=(-2, -1))
    return size * ((3 * (flat.shape[-1] + 4) + 64) * UNIT * 1.001)
