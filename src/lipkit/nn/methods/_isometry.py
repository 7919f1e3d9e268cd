"""The base of methods for isometries: the tall side up, and a last step that rounding cannot defeat."""

from abc import abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float, Float64, Inexact
from torch import Tensor

from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import room_for, widest
from lipkit.nn.methods._arithmetic.derivative import Gradients, Tensors, with_derivative
from lipkit.nn.methods._arithmetic.safe_scaling import parts_of
from lipkit.nn.methods._base import Blocks, MatrixMethod
from lipkit.rounding.slacks import UNIT


class IsometryMethod(MatrixMethod):
    """A method that computes a near-isometry with at least as many rows as columns; wide ones are transposed."""

    # Whether some free matrices give singular values well below one: what proves the norm of isometries is loose then.
    may_fall_short: ClassVar[bool] = False

    @abstractmethod
    def isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        """W with W'W = I, up to what the arithmetic of the dtype makes of it."""

    def inverse_isometry(self, tall: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        """Free numbers of an isometry."""
        return self.at_free_size(tall)

    def matrix(self, raw: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        return self._in_type(raw, raw.dtype)

    def in_float64(self, *several: Float[Tensor, "_ _ _"]) -> tuple[Float64[Tensor, "_ _ _"], ...]:
        return tuple(self._in_type(one, torch.float64) for one in several)

    def _in_type(
        self, raw: Inexact[Tensor, "batch rows cols"], dtype: torch.dtype
    ) -> Inexact[Tensor, "batch rows cols"]:
        if raw.shape[-2] < raw.shape[-1]:
            return close_isometry(self.isometry(raw.mT), dtype, self.may_fall_short).mT
        return close_isometry(self.isometry(raw), dtype, self.may_fall_short)

    def inverse_matrix(self, weight: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        if weight.shape[-2] < weight.shape[-1]:
            return self.inverse_isometry(weight.mT).mT
        return self.inverse_isometry(weight)


def has_determinant(weight: Blocks, geometry: Geometry, sign: float) -> bool:
    """Whether all square real blocks have a determinant of this sign; others have none to ask for."""
    if geometry.rows != geometry.cols or weight.dtype.is_complex:
        return True
    return bool((torch.linalg.det(weight.detach().to(torch.float64).flatten(2)) * sign > 0).all())


def with_determinant(blocks: Blocks, geometry: Geometry, sign: float) -> Blocks:
    """The blocks with the first row negated where a square real block has a determinant of the other sign."""
    flat = blocks.reshape(geometry.groups, geometry.rows, geometry.cols)
    if geometry.rows == geometry.cols and not blocks.dtype.is_complex:
        flat[:, 0] *= (torch.linalg.det(flat).sign() * sign)[:, None]
    return flat.reshape(geometry.shape)


def close_isometry(
    tall: Inexact[Tensor, "batch rows cols"], dtype: torch.dtype, may_fall_short: bool
) -> Inexact[Tensor, "batch rows cols"]:
    """A near-isometry made one in float64, or complex128, and stored in `dtype` with norm at most 1, whatever it was.

    One Björck step, 3/2 W - 1/2 W (W'W), takes singular values s in [0, 3^(1/2)] to 3/2 s - 1/2 s^3 in [0, 1], and
    1 - e to 1 - 3/2 e^2: what float32 did before is squared away. The Gram matrix that it needs anyway proves s^2 <= 3
    by its largest row sum, or by the Schatten norm ||(W'W)^4||_F^(1/4) where not all s are near 1; a matrix for which
    it does not (a factorisation that failed) is divided by it first.

    In exact arithmetic an isometry is left as it is, so the derivative is that of the matrix before, unless it may fall
    short of one; then it is that of the step.
    """
    room = room_of_step(tall, dtype)
    return _step(tall, dtype, room, flat=False)[0] if may_fall_short else _repair(tall, dtype, room)


def _step(tall: Tensor, dtype: torch.dtype, room: float, flat: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The step, the Gram matrix it is from, and what the matrix was divided by before."""
    wide = tall.to(widest(tall.dtype))
    gram = torch.bmm(wide.mH, wide)
    excess = excess_of(gram, flat)
    root, inner = excess.sqrt(), gram / excess
    return last_step(wide / root, inner, dtype, room), inner, root


def _repair_forward(tall: Tensor, dtype: torch.dtype, room: float) -> Tensors:
    return (_step(tall, dtype, room, flat=True)[0],)


def _repair_backward(inputs: tuple[Tensor, torch.dtype, float], _: Tensors, gradients: tuple[Tensor]) -> Gradients:
    return (gradients[0].to(inputs[0].dtype),)


def _repair_jvp(inputs: tuple[Tensor, torch.dtype, float], _: Tensors, tangents: Tensors) -> Gradients:
    return (tangents[0].to(inputs[1], copy=True),)


# The step with the derivative of the matrix before.
_repair = with_derivative(_repair_forward, _repair_backward, _repair_jvp)


def excess_of(
    gram: Inexact[Tensor, "batch cols cols"],
    flat: bool,
    error: Float64[Tensor, "batch 1 1"] | None = None,
) -> Float64[Tensor, "batch 1 1"]:
    """The divisor of W'W that brings singular values into [0, 3^(1/2)]: 1, where they are proven to lie there.

    Proven by the largest row sum or, where not `flat`, also by ||(W'W)^4||_F^(1/4); `error` is how far from W'W in norm
    the given numbers may be. A constant for autograd.
    """
    fixed = gram.detach()
    # Of complex numbers both parts are added up, which is no less than their sizes and needs no root for each.
    square = torch.linalg.vector_norm(parts_of(fixed), 1, -1, keepdim=True).amax(-2, keepdim=True)
    if not flat:
        eighth = parts_of(torch.linalg.matrix_power(fixed, 4))
        square = torch.minimum(square, torch.linalg.vector_norm(eighth, dim=(-2, -1), keepdim=True) ** 0.25)
    # Below the 3 of the argument by more than any rounding of the bound.
    return torch.threshold(square if error is None else square + error, 2.9, 1.0)


def step_factors(scale: float, room: float = 1.0) -> tuple[float, float]:
    """(a, b) of a W + b W (W'W): a Björck step from c W, times r, for c = `scale` and r = `room`."""
    return 1.5 * room * scale, -0.5 * room * scale**3


def last_step(
    wide: Inexact[Tensor, "batch rows cols"], gram: Inexact[Tensor, "batch cols cols"], dtype: torch.dtype, room: float
) -> Inexact[Tensor, "batch rows cols"]:
    """(3/2 W - 1/2 W (W'W)) r for ||W||^2 <= 3 and r = `room_of_step`, with norm at most 1 in `dtype`."""
    linear, cubic = step_factors(1.0, room)
    return torch.baddbmm(wide, wide, gram, beta=linear, alpha=cubic).to(dtype)


def room_of_step(tall: Inexact[Tensor, "batch rows cols"], dtype: torch.dtype) -> float:
    """The factor that makes room for the rounding of a step in float64 and of its result to `dtype`.

    With s^2 <= 3, u = 2^-53 and ||abs(W)|| <= cols^(1/2) s, to first order: the Gram matrix is known up to rows cols
    s^2 u, which counts by s/2; its product with W, the factors and the sum are rounded by (cols + 3) cols s^3 u / 2 and
    9/2 cols^(1/2) s u; dividing by the excess, twice for W and once for W'W, by 3 cols^(1/2) s u and 3/2 cols s^3 u. In
    all that is below 2.6 cols (rows + cols + 11) u. A sum of complex products rounds as a real one of twice as many, by
    2^(1/2) as much: four times that.
    """
    rows, cols = tall.shape[-2:]
    roundings = (16 if tall.dtype.is_complex else 4) * cols * (rows + cols + 8)
    return room_for(rows, cols, 1, dtype) * (1 - roundings * UNIT)
