"""Linear operators, which act on one input of a given shape: the abstract operator, and its algebra."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Self, final

import torch
from jaxtyping import Inexact
from torch import Tensor

from lipkit.errors import ShapeError

Shape = tuple[int, ...]


class Live:
    """A frozen dataclass whose fields are tensors, other live data, tuples of these, or plain values.

    Operators, nodes and activations are live: they hold a model's own tensors, which can be reached and exchanged.
    """

    @final
    def tensors(self) -> tuple[Tensor, ...]:
        """The live tensors in it, in a fixed order."""
        return _tensors_in(tuple(value for _, value in self._fields()))

    @final
    def map(self, fn: Callable[[Tensor], Tensor]) -> Self:
        """The same data over `fn(tensor)` for each of its tensors, in the order of `tensors`."""
        mapped = {name: _map_value(value, fn) for name, value in self._fields()}
        # Conversions that change nothing are frequent, and this is a value: the same one will do.
        if all(mapped[name] is value for name, value in self._fields()):
            return self
        return replace(self, **mapped)  # pyright: ignore[reportArgumentType]

    @final
    def _fields(self) -> tuple[tuple[str, object], ...]:
        # Every concrete class is a dataclass; see the docstring.
        return tuple((f.name, getattr(self, f.name)) for f in fields(self))  # pyright: ignore[reportArgumentType]


class LinearOperator(Live, ABC):
    """A linear map from tensors of `in_shape` to tensors of `out_shape`, over the model's live tensors.

    A subclass is a frozen dataclass (`eq=False`) whose tensors are fields, or lie in fields that are operators or
    tuples of either; it defines `_apply` on one batch axis and, if it can do better than autograd, `_adjoint`.
    Nothing is copied: gradients reach the weights, and a weight that changes changes the operator.
    `adjoint` is the Hermitian adjoint: <A x, y> = <x, A* y>.
    """

    @property
    @abstractmethod
    def in_shape(self) -> Shape:
        """Shape of one input, without batch axis."""

    @property
    @abstractmethod
    def out_shape(self) -> Shape:
        """Shape of one output, without batch axis."""

    @abstractmethod
    def _apply(self, x: Tensor) -> Tensor:
        """A x for x of shape (batch, *in_shape)."""

    def _adjoint(self, y: Tensor) -> Tensor:
        """A* y for y of shape (batch, *out_shape); by default the vector-Jacobian product of `_apply`."""
        pullback = torch.func.vjp(self._apply, y.new_zeros((y.shape[0], *self.in_shape)))[1]
        return pullback(y)[0]

    @final
    def apply(self, x: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
        """A x, for any number of leading batch axes."""
        return _on_batches(self._apply, x, self.in_shape, self.out_shape, "apply")

    @final
    def adjoint(self, y: Inexact[Tensor, "..."]) -> Inexact[Tensor, "..."]:
        """A* y, for any number of leading batch axes."""
        return _on_batches(self._adjoint, y, self.out_shape, self.in_shape, "adjoint")

    @final
    @property
    def in_size(self) -> int:
        """Number of entries of one input."""
        return math.prod(self.in_shape)

    @final
    @property
    def out_size(self) -> int:
        """Number of entries of one output."""
        return math.prod(self.out_shape)

    @final
    def with_tensors(self, tensors: tuple[Tensor, ...]) -> Self:
        """The same operator over other tensors, given in the order of `tensors`."""
        supply = iter(tensors)
        return self.map(lambda _: next(supply))

    @final
    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """The same operator in another precision or on another device; index tensors keep their dtype.

        A real dtype asked of a complex operator becomes the complex dtype of that precision.
        """

        def move(t: Tensor) -> Tensor:
            if dtype is None or not (t.is_floating_point() or t.is_complex()):
                return t.to(device=device)
            return t.to(device=device, dtype=dtype.to_complex() if t.is_complex() else dtype)

        return self.map(move)

    @final
    @property
    def dtype(self) -> torch.dtype:
        """The dtype the operator works in: the promotion of its tensors' (float64 if it holds none).

        As in torch, a 0-d tensor only decides whether the result is complex, unless there is no other.
        """
        inexact = [t for t in self.tensors() if t.is_floating_point() or t.is_complex()]
        arrays = [t.dtype for t in inexact if t.ndim] or [t.dtype for t in inexact] or [torch.float64]
        result = reduce(torch.promote_types, arrays)
        return result.to_complex() if any(t.is_complex() for t in inexact) else result

    @final
    @property
    def device(self) -> torch.device:
        """The device of its tensors (cpu if it holds none); positions and 0-d factors follow the weights."""
        tensors = sorted(self.tensors(), key=lambda t: (t.dtype == torch.int64, t.ndim == 0))
        return tensors[0].device if tensors else torch.device("cpu")

    @final
    @property
    def T(self) -> "LinearOperator":
        """The Hermitian adjoint as an operator."""
        return self.inner if isinstance(self, Adjoint) else Adjoint(self)

    @final
    def __matmul__(self, inner: "LinearOperator") -> "LinearOperator":
        """First `inner`, then this one."""
        return Compose(self, inner)

    @final
    def __add__(self, other: "LinearOperator") -> "LinearOperator":
        """x -> A x + B x."""
        return Sum(self, other)

    @final
    def __mul__(self, factor: float | Inexact[Tensor, ""]) -> "LinearOperator":
        """x -> factor A x; a 0-d tensor stays live."""
        return Scaled(factor if isinstance(factor, Tensor) else torch.tensor(factor, dtype=torch.float64), self)

    __rmul__ = __mul__

    def __str__(self) -> str:
        return f"{type(self).__name__} {self.in_shape} -> {self.out_shape}"


@final
@dataclass(frozen=True, eq=False)
class Adjoint(LinearOperator):
    """A*, exchanging `apply` and `adjoint`."""

    inner: LinearOperator

    @property
    def in_shape(self) -> Shape:
        return self.inner.out_shape

    @property
    def out_shape(self) -> Shape:
        return self.inner.in_shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.inner._adjoint(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.inner._apply(y)


@final
@dataclass(frozen=True, eq=False)
class Compose(LinearOperator):
    """x -> outer(inner(x))."""

    outer: LinearOperator
    inner: LinearOperator

    def __post_init__(self) -> None:
        if self.outer.in_shape != self.inner.out_shape:
            raise ShapeError(
                f"Cannot compose: the inner operator ends in {self.inner.out_shape}, "
                f"the outer one starts in {self.outer.in_shape}."
            )

    @property
    def in_shape(self) -> Shape:
        return self.inner.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.outer.out_shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.outer._apply(self.inner._apply(x))

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.inner._adjoint(self.outer._adjoint(y))


@final
@dataclass(frozen=True, eq=False)
class Sum(LinearOperator):
    """x -> left(x) + right(x)."""

    left: LinearOperator
    right: LinearOperator

    def __post_init__(self) -> None:
        if (self.left.in_shape, self.left.out_shape) != (self.right.in_shape, self.right.out_shape):
            raise ShapeError(f"Cannot add {self.left} and {self.right}: both shapes must agree.")

    @property
    def in_shape(self) -> Shape:
        return self.left.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.left.out_shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.left._apply(x) + self.right._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.left._adjoint(y) + self.right._adjoint(y)


@final
@dataclass(frozen=True, eq=False)
class Scaled(LinearOperator):
    """x -> factor inner(x), with a live 0-d factor."""

    factor: Inexact[Tensor, ""]
    inner: LinearOperator

    def __post_init__(self) -> None:
        if self.factor.ndim != 0:
            raise ShapeError(
                f"An operator is scaled by a number, got a tensor of shape {tuple(self.factor.shape)}; use Diagonal."
            )

    @property
    def in_shape(self) -> Shape:
        return self.inner.in_shape

    @property
    def out_shape(self) -> Shape:
        return self.inner.out_shape

    def _apply(self, x: Tensor) -> Tensor:
        return self.factor.to(x.device) * self.inner._apply(x)

    def _adjoint(self, y: Tensor) -> Tensor:
        return self.factor.to(y.device).conj() * self.inner._adjoint(y)


def promote(weight: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider of their dtypes: a real weight acts on complex vectors, and precision is never lost."""
    dtype = torch.promote_types(weight.dtype, x.dtype)
    return weight.to(dtype), x.to(dtype)


def _on_batches(fn: Callable[[Tensor], Tensor], x: Tensor, given: Shape, result: Shape, verb: str) -> Tensor:
    cut = x.ndim - len(given)
    if cut < 0 or tuple(x.shape[cut:]) != given:
        raise ShapeError(f"{verb} expects (*batch, {', '.join(map(str, given))}), got {tuple(x.shape)}.")
    batch = x.shape[:cut]
    return fn(x.reshape(math.prod(batch), *given)).reshape((*batch, *result))


def _map_value(value: object, fn: Callable[[Tensor], Tensor]) -> object:
    if isinstance(value, Tensor):
        return fn(value)
    if isinstance(value, Live):
        return value.map(fn)
    if not isinstance(value, tuple):
        return value
    found = tuple(_map_value(v, fn) for v in value)
    return value if all(new is old for new, old in zip(found, value, strict=True)) else found


def _tensors_in(value: object) -> tuple[Tensor, ...]:
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, Live):
        return value.tensors()
    return tuple(t for v in value for t in _tensors_in(v)) if isinstance(value, tuple) else ()
