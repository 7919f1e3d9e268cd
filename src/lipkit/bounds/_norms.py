"""Which norm a block of a network is measured in, and by what."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

from lipkit.bound import L2, Bound, Metric
from lipkit.bounds._core import core
from lipkit.bounds._linearised import multiplied_out
from lipkit.errors import KindError, MetricError
from lipkit.linops import LinearOperator, magnitude
from lipkit.norms import Auto, Mixed, Norm


@final
@dataclass(frozen=True)
class Meter:
    """Measures blocks for a constant in `metric`: l_p in the middle of the network, l_p_in -> l_p at its input.

    The middle norm p is that of the output, so that the last block needs no change of norm. In l2 blocks are measured
    by `spectral`; otherwise by closed forms (`Mixed`), which exist for p_in = 1, p_out = inf and p_in = p_out.
    """

    metric: Metric = L2
    spectral: Norm = Auto()

    @property
    def p(self) -> float:
        """The norm of the values inside the network."""
        return self.metric.p_out

    def many(self, ops: Sequence[LinearOperator], at_input: Sequence[bool], loosened: float = 1.0) -> list[Bound]:
        """Bounds of the norms of blocks, those that act on the input told apart; refuses what is no upper bound.

        With `loosened` > 1 their excess over the norms may be that many times as large, where that is cheaper.
        """
        p_in = [self.metric.p_in if first else self.p for first in at_input]
        found: dict[int, Bound] = {}
        for p in set(p_in):
            chosen = [i for i, q in enumerate(p_in) if q == p]
            euclidean = (p, self.p) == (2.0, 2.0)
            method = self.spectral.loosened(loosened) if euclidean else _mixed(p, self.p, self.metric)
            cores = [multiplied_out(core(ops[i], euclidean)) for i in chosen]
            # The vectors of a core are not those of the block.
            found.update(
                (i, replace(b, witness=None, state=None)) for i, b in zip(chosen, method.many(cores), strict=True)
            )
        for bound in found.values():
            if not bound.kind.certifies:
                raise KindError(
                    f"{self.spectral} gave {bound}, which is no upper bound; use a norm that is, such as norms.Auto()."
                )
        return [found[i] for i in range(len(ops))]

    def spectral_size(self, op: LinearOperator, bound: Bound, at_input: bool) -> float:
        """A bound of ||A||_2 from the bound of ||A|| in the norms this measures in, which may be far smaller:

            ||A||_2 <= m^(1/2 - 1/q)+ n^(1/p - 1/2)+ ||A||_{p -> q},   for A from R^n to R^m.

        Rounding errors are stated in the spectral norm, so their weights must be. Where || |A| ||_2 is known and is
        smaller, it serves.
        """
        p = self.metric.p_in if at_input else self.p
        power = op.out_size ** max(0.0, 0.5 - 1 / self.p) * op.in_size ** max(0.0, 1 / p - 0.5)
        size = float(bound.value.detach()) * power * (1 + 2.0**-40)
        known = magnitude(op)
        return size if known.relative or power == 1 else min(size, float(known.absolute))


def _mixed(p_in: float, p_out: float, metric: Metric) -> Norm:
    if p_in == 1 or p_out == math.inf or p_in == p_out:
        return Mixed(p_in, p_out)
    raise MetricError(
        f"A constant in {metric} needs the norm of a block from l{p_in:g} to l{p_out:g}, which has no closed form; "
        "use a metric with p_in = p_out, p_in = 1 or p_out = inf."
    )
