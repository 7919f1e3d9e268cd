"""A linear acyclic graph as one operator: values flow once through every edge, however many paths there are."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import final

from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError
from lipkit.linops._base import LinearOperator, Shape

Edge = tuple[int, int, LinearOperator]


@final
@dataclass(frozen=True, eq=False)
class Sweep(LinearOperator):
    """x -> v_sink, where v_source = x and v_k = sum_j A_kj v_j over the edges (k, j, A_kj), j < k.

    The edges are sorted by their heads k, and each lies on a path from the source to the sink; `sweep` makes it so.
    Cost: every edge once, where a sum over paths would cost their number; intermediate values are freed after use.
    """

    edges: tuple[Edge, ...]
    source: int
    sink: int

    def __post_init__(self) -> None:
        heads = [k for k, _, _ in self.edges]
        if not heads or heads != sorted(heads) or any(j >= k for k, j, _ in self.edges):
            raise ArgumentError(
                "Sweep needs edges (k, j, operator) with j < k, sorted by k; use `sweep` to prepare them."
            )
        shapes: dict[int, Shape] = {}
        for k, j, op in self.edges:
            for at, shape in ((k, op.out_shape), (j, op.in_shape)):
                if shapes.setdefault(at, shape) != shape:
                    raise ShapeError(f"Value {at} of Sweep has shape {shapes[at]} on one edge and {shape} on another.")

    @property
    def in_shape(self) -> Shape:
        return next(op.in_shape for _, j, op in self.edges if j == self.source)

    @property
    def out_shape(self) -> Shape:
        return next(op.out_shape for k, _, op in self.edges if k == self.sink)

    def _apply(self, x: Tensor) -> Tensor:
        last = {j: k for k, j, _ in self.edges}
        values = {self.source: x}
        for k, j, op in self.edges:
            term = op._apply(values[j])
            values[k] = values[k] + term if k in values else term
            if last[j] == k:
                values = {at: value for at, value in values.items() if at != j or last[j] > k}
        return values[self.sink]

    def _adjoint(self, y: Tensor) -> Tensor:
        values = {self.sink: y}
        for k, j, op in reversed(self.edges):
            term = op._adjoint(values[k])
            values[j] = values[j] + term if j in values else term
        return values[self.source]


def sweep(edges: Iterable[Edge], source: int, sink: int) -> LinearOperator | None:
    """The operator from one value of a linear graph to another; None if no path leads there.

    Edges off all paths are dropped, and a single edge is returned as it is.
    """
    ordered = sorted(edges, key=lambda edge: (edge[0], edge[1]))
    down, up = {source}, {sink}
    for k, j, _ in ordered:
        if j in down:
            down.add(k)
    for k, j, _ in reversed(ordered):
        if k in up:
            up.add(j)
    kept = tuple((k, j, op) for k, j, op in ordered if j in down and k in up)
    if not kept or sink not in down:
        return None
    return kept[0][2] if len(kept) == 1 else Sweep(kept, source, sink)
