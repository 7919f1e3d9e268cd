"""Convolutions on a torus: the exact norm under circular padding, an upper bound under any other."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from lipkit.bound import Bound
from lipkit.linops import LinearOperator
from lipkit.norms._base import BlockNorm, Norm, refuse_state
from lipkit.norms.convolutions.symbol_grid import over_grid, symbols
from lipkit.norms.svd import SVD


@final
@dataclass(frozen=True)
class Circulant(Norm):
    """The norm of a convolution from its symbol on the torus that carries it, max_w ||E(w)||, `inner` taking each norm.

    Circular padding of an input whose size the stride divides: the Fourier transform block-diagonalises the operator,
    so this is its norm, EXACT with an exact `inner`. Zero padding: n points with p zeros on either side are part of a
    torus of n + p points, so the operator is a corner of the circulant one and the value is an upper bound, with no
    factor and never above the supremum of the symbol. Reflect and replicate padding add the norm of the copying.

    Guarantee: EXACT or UPPER, all rounding counted. Cost: about half as many blocks (out/groups x in/groups stride^2)
    as the torus has points. Gradient: through the largest block only, so memory is flat.
    References: Sedghi, Gupta, Long 2019; Delattre et al. 2023. The corner argument for zero padding is ours.
    """

    inner: BlockNorm = field(default_factory=SVD)

    def __str__(self) -> str:
        return f"symbol on the torus by {self.inner}"

    def _batch(self, ops: Sequence[LinearOperator], state: Tensor | None) -> list[Bound]:
        refuse_state(self, state)
        first, kernels = symbols(ops)
        # With a single tap the symbol is constant along that axis.
        grid = tuple(n if taps > 1 else 1 for n, taps in zip(first.torus, first.taps, strict=True))
        return over_grid(self, first, kernels, self.inner, grid, 1.0, first.exact)
