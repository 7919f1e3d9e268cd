"""The base of norm methods: frozen dataclasses that turn operators into bounds."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from lipkit._runtime import refuse_late, seconds_left
from lipkit.bound import Bound, Kind, Witness
from lipkit.errors import ArgumentError, NonFiniteError, UnsupportedError
from lipkit.linops import Dense, LinearOperator, depth, magnitude, materialize, rounding_is_bounded, signature
from lipkit.rounding.float64 import product_error, widen_log

# How far an EXACT value may lie above the truth, relatively.
_EXACT = 1e-6
# Products of weights beyond 2^900 or below 2^-900 may leave the range of float64 on the way.
_RANGE = 900.0
# Entries of an operator that is measured by itself where the time is limited.
_LARGE = 2**20


class Norm(ABC):
    """A way to bound the operator norm; hyper-parameters are fields, the call is the algorithm.

    `method(op)` gives a `Bound` that is differentiable in the operator's tensors; `method.many(ops)` groups operators
    of one signature and evaluates each group in one batch. Everything that is EXACT or UPPER is computed in float64.
    `answers_late` are norms that are evaluated even when the time of a call is over, because it must have an answer.
    """

    answers_late: ClassVar[bool] = False

    @final
    def __call__(self, op: LinearOperator, /, *, state: Tensor | None = None) -> Bound:
        """The norm of one operator; `state` is the `state` of an earlier bound, for methods that start warm."""
        self._refuse_late()
        with plain_arithmetic():
            return _as_known(op, self._batch([check_operator(op)], None if state is None else state[None])[0])

    @final
    def many(self, ops: Sequence[LinearOperator], /) -> list[Bound]:
        """The norms of many operators, batched wherever type, shape and geometry agree."""
        groups: dict[object, list[int]] = {}
        for i, op in enumerate(ops):
            groups.setdefault(signature(check_operator(op)), []).append(i)
        found: dict[int, Bound] = {}
        with plain_arithmetic():
            for group in groups.values():
                op = ops[group[0]]
                # Large operators gain nothing by being stacked, and one at a time the clock is read between them.
                alone = seconds_left() < math.inf and op.in_size * op.out_size >= _LARGE
                for members in ([i] for i in group) if alone else [group]:
                    self._refuse_late()
                    found.update(zip(members, self._batch([ops[i] for i in members], None), strict=True))
        return [_as_known(op, found[i]) for i, op in enumerate(ops)]

    def _refuse_late(self) -> None:
        if not self.answers_late:
            refuse_late()

    def loosened(self, factor: float, /) -> "Norm":
        """A cheaper method whose excess over the norm may be `factor` times as large; itself if there is none."""
        return self

    @abstractmethod
    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        """One bound per operator, all of one signature; `state` has a leading axis over operators."""


@final
@dataclass(frozen=True)
class Enclosure:
    """Both sides of the norms of a batch of block-diagonal matrices, as logarithms.

    `block` is the block that carries the upper bound; `left` and `right` are unit vectors of that block with
    Re <left, block right> = exp(log_lower) up to rounding.
    """

    log_upper: Float[Tensor, " batch"]
    log_lower: Float[Tensor, " batch"]
    block: Int[Tensor, " batch"]
    left: Inexact[Tensor, "batch rows"]
    right: Inexact[Tensor, "batch cols"]


class BlockNorm(Norm):
    """A method for explicit matrices: the norm of a block-diagonal matrix is the largest norm of a block.

    Used on the dense matrix of an operator (one block), and by the methods for convolutions on the values of the symbol
    (one block for each frequency and group).
    """

    kind: ClassVar[Kind] = Kind.UPPER

    @abstractmethod
    def enclose(self, blocks: Inexact[Tensor, "batch blocks rows cols"]) -> Enclosure:
        """Both sides of the norm, without gradient; `blocks` is float64 or complex128, any scale."""

    @abstractmethod
    def attach_gradient(
        self, matrices: Inexact[Tensor, "batch rows cols"], enclosure: Enclosure
    ) -> Float[Tensor, " batch"]:
        """`enclosure.log_upper` with a gradient to `matrices`, the blocks that carry it."""

    @final
    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        matrices = torch.stack([materialize(op.to(torch.float64)) for op in ops])
        with torch.no_grad():
            enclosure = self.enclose(matrices.detach().unsqueeze(1))
            error = torch.stack([_entry_error(op, enclosure.log_upper[i]) for i, op in enumerate(ops)])
            log_upper = widen_log(enclosure.log_upper, error, 1.0)
            log_lower = widen_log(enclosure.log_lower, error, -1.0)
        if matrices.requires_grad:
            gradient = self.attach_gradient(matrices, enclosure)
            log_upper = log_upper + torch.where(torch.isfinite(gradient), gradient - gradient.detach(), 0.0)
        # Where rounding while the matrix was written out is no longer negligible, the number is only a bound.
        close = (log_upper.detach() - log_lower < _EXACT).tolist()
        zero = torch.isneginf(log_upper.detach()).tolist()
        return [
            Bound(
                log_upper[i],
                self.kind if close[i] or zero[i] else Kind.UPPER,
                self,
                lower=Bound(log_lower[i], Kind.LOWER, self),
                witness=Witness(enclosure.left[i].reshape(op.out_shape), enclosure.right[i].reshape(op.in_shape)),
            )
            for i, op in enumerate(ops)
        ]


def _as_known(op: LinearOperator, bound: Bound) -> Bound:
    """The bound itself; an estimate with both sides in its note if rounding errors of the operator are not bounded."""
    if bound.kind is Kind.ESTIMATE or rounding_is_bounded(op):
        return bound
    sides = [bound] if bound.lower is None else [bound, bound.lower]
    said = ", ".join(f"{side.kind.value} {float(side.value.detach()):.6g}" for side in sides)
    note = f"Rounding of products with this operator is not bounded; without rounding it would be: {said}."
    return replace(bound, kind=Kind.ESTIMATE, lower=None, note=note)


def _entry_error(op: LinearOperator, log_norm: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """A bound of the norm of what rounding did to the entries while the matrix was written out; a matrix has none."""
    if isinstance(op, Dense):
        return torch.zeros_like(log_norm)
    size = magnitude(op)
    return product_error(depth(op), op.dtype) * (size.absolute.to(log_norm) + 2 * size.relative * log_norm.exp())


def refuse_state(method: object, state: Tensor | None) -> None:
    """Methods without a warm start say so instead of ignoring one."""
    if state is not None:
        raise ArgumentError(f"{method} has no warm start; leave out `state`, or use Power or Lanczos.")


def positive_int(name: str, value: int, least: int = 1) -> None:
    """Validation of step counts and sizes."""
    if value < least:
        raise ArgumentError(f"{name} must be an integer >= {least}, got {value}.")


@contextmanager
def plain_arithmetic() -> Iterator[None]:
    """Convolutions by torch's own matrix products instead of cuDNN, and no automatic casts to half precision.

    In float64 those are 4 to 9 times faster on a GPU for 3 x 3 kernels (docs/benchmarks.md), and their sums are plain
    sums, as the rounding analysis assumes: no transforms.
    """
    on_gpu = torch.autocast("cuda", enabled=False) if torch.cuda.is_available() else nullcontext()
    with torch.backends.cudnn.flags(enabled=False), torch.autocast("cpu", enabled=False), on_gpu:
        yield


def check_operator(op: LinearOperator) -> LinearOperator:
    """The operator, if it has a norm and its weights multiply within the range of float64."""
    if not isinstance(op, LinearOperator):
        raise UnsupportedError(
            f"A norm takes a linear operator, got {type(op).__name__}; "
            "use lipkit.linops.of(module, in_shape) or lipkit.spectral_norm(module, in_shape)."
        )
    if op.in_size == 0 or op.out_size == 0:
        raise ArgumentError(f"{op} is empty, so it has no norm.")
    weights = [t.detach() for t in op.tensors() if (t.is_floating_point() or t.is_complex()) and t.numel()]
    if len(weights) > 1:
        # Zero and non-finite weights are another matter, and are met elsewhere.
        sizes = [size for size in (float(t.abs().max()) for t in weights) if 0 < size < math.inf]
        if sum(abs(math.log2(size)) for size in sizes) > _RANGE:
            raise NonFiniteError(
                f"{op} multiplies weights so large or so small that products may leave the range of float64; rescale."
            )
    return op


def dual_exponent(p: float) -> float:
    """q with 1/p + 1/q = 1."""
    if not p >= 1:
        raise ArgumentError(f"A norm exponent lies in [1, inf], got {p}.")
    return math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
