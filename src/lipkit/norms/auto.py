"""The tightest affordable method for the operator at hand."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

from torch import Tensor, nn

from lipkit.bound import Bound
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import (
    BatchNorm,
    BlockColumn,
    BlockDiagonal,
    BlockRow,
    Dense,
    Diagonal,
    Index,
    LinearOperator,
    Permute,
    Reshape,
    Shape,
    StatedRounding,
    Symbol,
    factors,
    of,
    one_entry_per_row,
    symbol,
)
from lipkit.linops.composites import parts_of
from lipkit.linops.queries.matrix_forms import ENTRIES, bare_matrix, one_position
from lipkit.norms._base import Norm, refuse_state
from lipkit.norms.cholesky import Cholesky
from lipkit.norms.convolutions.skew_series import SkewSeries, is_skew_series
from lipkit.norms.convolutions.symbol_grid import Circulant, SmallGrid
from lipkit.norms.matrix_free.lanczos import Lanczos
from lipkit.norms.monomial import Monomial
from lipkit.norms.svd import SVD

# Up to this side a full decomposition costs a millisecond.
_TINY = 64
# Up to this many entries an operator that is not a matrix already is written out as one.
_WRITTEN_OUT = 2**22
# Applications of a composed operator, each by itself: about twice as many as a randomised bound makes.
_APPLICATIONS = 256
# From this excess on a randomised bound takes a few steps only, fewer than writing out takes applications.
_HASTY = 0.1
# Beyond this side the Gram matrix takes longer than the few products with vectors of a hasty bound.
_LONG = 512
# From this torus on, zero padding lowers the norm by less than a fifth of a percent below the symbol's supremum.
_WIDE = 28


class Selection(NamedTuple):
    """The method that `Auto` would run, and why."""

    method: Norm
    why: str


@final
@dataclass(frozen=True)
class Auto(Norm):
    """Picks by structure and size; `select(op)` tells what and why. The bound names the method that made it.

    `rtol` is the excess over the true norm asked for. `failure` is the probability a randomised bound may fail with; it
    is spent only on operators too large for a proof at that accuracy. With `failure=0` everything is deterministic, and
    convolutions on small images may exceed `rtol` by the gap between zero padding and the torus (a few percent).

    Guarantee: EXACT or UPPER.
    """

    rtol: float = 1e-2
    failure: float = 1e-9

    def __post_init__(self) -> None:
        if not 1e-6 <= self.rtol < 1:
            raise ArgumentError(f"Auto.rtol must lie in [1e-6, 1), got {self.rtol}.")
        if not 0 <= self.failure < 1:
            raise ArgumentError(f"Auto.failure must lie in [0, 1), got {self.failure}.")

    def __str__(self) -> str:
        return f"automatic choice, rtol {self.rtol:g}"

    def select(self, op: LinearOperator, /) -> Selection:
        """The method for this operator, and the reason in one sentence."""
        side = min(op.in_size, op.out_size)
        if one_entry_per_row(op) or one_entry_per_row(op.T):
            return Selection(Monomial(), "one entry in each row or each column: they are orthogonal")
        if one_position(op) and _WRITTEN_OUT < op.in_size * op.out_size <= ENTRIES:
            return Selection(self._matrix(), f"a convolution with one position, so a matrix with a side of {side}")
        found = _symbol_of(op)
        if found is not None and found.exact:
            return self._exact_symbol(found)
        if side <= _TINY and op.in_size * op.out_size <= _WRITTEN_OUT:
            return Selection(SVD(), f"{side} singular values: a full decomposition is cheapest")
        if is_skew_series(op):
            return Selection(SkewSeries(), "the series of a skew convolution, which is a contraction as it is written")
        if bare_matrix(op) is not None and side > _LONG and self.failure > 0 and self.rtol >= _HASTY:
            method = Lanczos(steps=300, rtol=self.rtol, failure=self.failure)
            return Selection(method, f"a matrix with a side of {side}, in a hurry: a few products with vectors")
        if isinstance(op, Dense) or (op.in_size * op.out_size <= _WRITTEN_OUT and not self._applies_sooner(op, side)):
            return Selection(self._matrix(), f"a matrix with a side of {side}")
        if found is not None and (self.failure == 0 or min(found.torus) >= _WIDE):
            method = SmallGrid(rtol=self.rtol / 2, inner=Cholesky(rtol=self.rtol / 4, steps=40))
            return Selection(method, f"a convolution on a torus of {found.torus}, close to its symbol's supremum")
        if self.failure == 0:
            raise UnsupportedError(
                f"{op} is too large to write out and has no symbol, so only a randomised bound is affordable; "
                "allow one with Auto(failure=1e-9)."
            )
        method = Lanczos(steps=300, rtol=self.rtol, failure=self.failure)
        why = (
            f"a convolution on the small torus {found.torus}" if found is not None else "an operator without structure"
        )
        return Selection(method, f"{why}, too large to write out: randomised, with failure {self.failure:g}")

    def _applies_sooner(self, op: LinearOperator, side: int) -> bool:
        """Whether writing out takes longer than a randomised bound: one application for each entry of a side."""
        return self.failure > 0 and side > _APPLICATIONS and (self.rtol >= _HASTY or count_layers(op) > 1)

    def _matrix(self) -> Norm:
        return Cholesky(rtol=min(self.rtol, 1e-6))

    def _exact_symbol(self, found: Symbol) -> Selection:
        block = min(found.kernel.shape[1:3])
        inner = SVD() if block <= _TINY else Cholesky(rtol=min(self.rtol / 2, 1e-3), steps=60)
        return Selection(Circulant(inner), f"its symbol on the torus {found.torus} gives the norm exactly")

    def loosened(self, factor: float, /) -> Norm:
        """The same with `factor` times the `rtol`, at most a quarter."""
        return replace(self, rtol=max(self.rtol, min(factor * self.rtol, 0.25)))

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        return self.select(ops[0]).method.many(ops)


def spectral_norm(
    target: nn.Module | LinearOperator, in_shape: Shape | None = None, method: Norm | None = None
) -> Bound:
    """The l2 norm of a linear module or operator, as a number with a guarantee.

    `in_shape` is the shape of one input, without batch axis; operators and nn.Linear know theirs. `method` is `Auto()`
    by default. The bound is differentiable in the module's parameters.
    """
    if isinstance(target, LinearOperator):
        op = target
    elif in_shape is not None:
        op = of(target, in_shape)
    elif isinstance(target, nn.Linear):
        op = of(target, (target.in_features,))
    else:
        raise ShapeError(
            f"The norm of {type(target).__name__} depends on the shape of its input; "
            "give in_shape without the batch axis, e.g. in_shape=(3, 32, 32)."
        )
    return (Auto() if method is None else method)(op)


def _symbol_of(op: LinearOperator) -> Symbol | None:
    # Neither products whose rounding is stated have one, nor matrices between changes of shape.
    if isinstance(op, StatedRounding) or all(isinstance(factor, Dense | Reshape) for factor in factors(op)):
        return None
    try:
        return symbol(op)
    except UnsupportedError:
        return None


def count_layers(op: LinearOperator) -> int:
    """How many operators other than scales and changes of place one application passes through."""
    if isinstance(op, BatchNorm | Diagonal | Index | Permute | Reshape):
        return 0
    parts = () if isinstance(op, BlockColumn | BlockDiagonal | BlockRow) else parts_of(op)
    return sum(map(count_layers, parts)) if parts else 1
