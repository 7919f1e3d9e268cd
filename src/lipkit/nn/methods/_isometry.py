"""What methods for isometries have in common: the tall side up, and a last step that rounding cannot defeat."""

from abc import abstractmethod
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods._products import gram_of, product
from lipkit.nn.methods._rounding import room_for
from lipkit.nn.methods._transforms import plainly


class IsometryMethod(MatrixMethod):
    """A method that computes a near-isometry with at least as many rows as columns; wide ones are transposed."""

    # Whether some free matrices give singular values well below one: what proves the norm of isometries is loose then.
    may_fall_short: ClassVar[bool] = False

    @abstractmethod
    def isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        """W with W'W = I, up to what the arithmetic of the dtype makes of it."""

    def inverse_isometry(self, tall: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        """Free numbers of an isometry."""
        return tall

    def matrix(self, raw: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        if raw.shape[-2] < raw.shape[-1]:
            return closed(self.isometry(raw.mT), raw.dtype, self.may_fall_short).mT
        return closed(self.isometry(raw), raw.dtype, self.may_fall_short)

    def inverse_matrix(self, weight: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        if weight.shape[-2] < weight.shape[-1]:
            return self.inverse_isometry(weight.mT).mT
        return self.inverse_isometry(weight)


def closed(
    tall: Float[Tensor, "batch rows cols"], dtype: torch.dtype, may_fall_short: bool
) -> Float[Tensor, "batch rows cols"]:
    """A near-isometry made one in float64 and stored in `dtype` with norm at most 1, whatever it was before.

    One Björck step, 3/2 W - 1/2 W (W'W), takes singular values s in [0, 3^(1/2)] to 3/2 s - 1/2 s^3 in [0, 1], and
    1 - e to 1 - 3/2 e^2: what float32 did before is squared away. The Gram matrix that it needs anyway proves s^2 <= 3
    by its largest row sum, or by the Schatten norm ||(W'W)^4||_F^(1/4) where not all s are near 1; a matrix for which
    it does not (a factorisation that failed) is divided by it first.

    In exact arithmetic an isometry is left as it is, so the derivative is that of the matrix before, unless it may fall
    short of one; then it is that of the step.
    """
    if may_fall_short or plainly():
        return _repaired(tall, dtype, flat=not may_fall_short)
    return (_Repair if torch.compiler.is_compiling() else _ForwardRepair).apply(tall, dtype)


class _Repair(torch.autograd.Function):
    """`_repaired` with the derivative of the matrix before."""

    generate_vmap_rule = True

    @staticmethod
    def forward(tall: Tensor, dtype: torch.dtype) -> Tensor:
        return _repaired(tall, dtype, flat=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, torch.dtype], output: Tensor) -> None:
        ctx.kind, ctx.found = inputs[0].dtype, output.dtype

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0].to(ctx.kind), None


@final
class _ForwardRepair(_Repair):
    """With forward mode, which compilers refuse."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return tangents[0].to(ctx.found, copy=True)


def _repaired(tall: Tensor, dtype: torch.dtype, flat: bool) -> Tensor:
    gram = gram_of(tall, torch.float64)
    root = excess_of(gram, flat).rsqrt()
    return _product(tall, gram, root, dtype)


def finished(tall: Float[Tensor, "batch rows cols"], dtype: torch.dtype) -> Float[Tensor, "batch rows cols"]:
    """`closed` for a matrix whose norm is known to be below 3^(1/2): the last step of an iteration."""
    return _product(tall, gram_of(tall, torch.float64), 1.0, dtype)


def factor(
    gram: Float[Tensor, "batch cols cols"], scale: float | Tensor = 1.0, room: float | Tensor = 1.0
) -> Float[Tensor, "batch cols cols"]:
    """(3/2 c I - 1/2 c^3 W'W) r: what a Björck step from c W multiplies W by, with r in [0, 1] for rounding."""
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return (1.5 * room * scale) * identity - (0.5 * room * scale**3) * gram


def excess_of(
    gram: Float64[Tensor, "batch cols cols"], flat: bool, error: float | Tensor = 0.0
) -> Float64[Tensor, "batch 1 1"]:
    """What to divide W'W by for singular values in [0, 3^(1/2)]: 1, where that is proven of it as it is.

    Proven by the largest row sum or, where not `flat`, also by ||(W'W)^4||_F^(1/4); `error` is how far from W'W in norm
    the given numbers may be. A constant for autograd.
    """
    fixed = gram.detach()
    square = fixed.abs().sum(-1).amax(-1)
    if not flat:
        eighth = torch.linalg.matrix_power(fixed, 4)
        square = torch.minimum(square, torch.linalg.vector_norm(eighth, dim=(-2, -1)) ** 0.25)
    square = square + error
    # Below the 3 of the argument by more than any rounding of the bound.
    return torch.where(square > 2.9, square, 1.0)[:, None, None]


def _product(tall: Tensor, gram: Tensor, scale: float | Tensor, dtype: torch.dtype) -> Tensor:
    rows, cols = tall.shape[-2:]
    # The rounding of the two products: at most 3 cols (gamma_rows + gamma_cols) in norm, for s^2 <= 3.
    room = room_for(rows, cols, 1, dtype) * (1 - 4 * cols * (rows + cols + 8) * 2.0**-53)
    return product(tall, factor(gram, scale, room), dtype)
