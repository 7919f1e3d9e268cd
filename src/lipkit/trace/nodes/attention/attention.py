"""Scaled dot-product attention on separate queries, keys and values."""

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError
from lipkit.linops import Diagonal, Shape
from lipkit.regions import Domain, Reach, domain_of, reach_of, tighten
from lipkit.rounding.float64 import exp_of, log_up
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes._base import Node, Split
from lipkit.trace.nodes.attention.attention_at_point import change_from_center, derivative_at_center
from lipkit.trace.nodes.attention.score_ranges import AttentionRange, Rows


@final
@dataclass(frozen=True, eq=False)
class Attention(Node):
    """O_h = softmax(scale Q_h K_h' + mask) V_h for h = 1..`heads`; z = (Q, K, V) one after the other.

    Q is (heads, queries, width), K (heads, keys, width), V (heads, keys, out). With P the probabilities of row i,
    o_i = sum_j P_ij v_j, and Cov_i the covariance under them,
        do_i = sum_j P_ij dv_j + scale Cov_i(v, k) dq_i + scale sum_j P_ij (v_j - o_i) (q_i . dk_j).
    Let s_i(x)^2 = |Cov_i(x, x)|_2, and let c be the largest column sum of P. In l2 the three parts are at most
        V: |P|_2 <= sqrt(|P|_inf |P|_1) = sqrt(c);
        Q: scale max_i s_i(v) s_i(k), by Cauchy-Schwarz for covariances;
        K: scale max_j (sum_i P_ij s_i(v)^2 |q_i|^2)^(1/2), as with t_j = q_i . dk_j
           |Cov_i(v, t)| <= s_i(v) (sum_j P_ij t_j^2)^(1/2); or
           scale |Q|_2 max_i s_i(v) |J_i|^(1/2), as v' J_i = (v' J_i^(1/2)) J_i^(1/2) with J_i = diag(P_i) - P_i P_i';
    so Lip <= sqrt(V^2 + Q^2 + K^2), the largest of all heads. Unbounded on the whole space: the second and third part
    grow with the input (one key is the exception, where P = 1). On a region: s_i(x) is at most half the diameter of
    the x_j (Popoviciu), and at most (max_j P_ij)^(1/2) |x - 1 m'|_2 for any m; P from the range of the scores.
    In linf, with r(x) the vector of the coordinates' ranges:
        Lip <= 1 + scale max_c r(v)_c / 2 (sum r(k) / 2 + max_i |q_i|_1);
    in l1, the largest of c, scale max_c r(k)_c / 2 sum r(v) / 2 and scale sum r(v) max_c sum_i min(P_ij, 1/4) |q_ic|.
    Other l_p take their larger neighbour. Split at the center of the region by `change_from_center`. Our derivation;
    the l2 form sharpens that of Yudin et al. (2025) on a ball.
    """

    heads: int
    queries: int
    keys: int
    width: int
    out: int
    scale: float
    mask: Float[Tensor, "..."] | None = None
    domain: Domain | None = None

    def __post_init__(self) -> None:
        if self.mask is not None and tuple(self.mask.shape) != (self.heads, self.queries, self.keys):
            raise ArgumentError(
                f"The mask must have the shape {(self.heads, self.queries, self.keys)}, got {tuple(self.mask.shape)}."
            )

    @property
    def shape(self) -> Shape:
        return (self.heads * (self.queries * self.width + self.keys * (self.width + self.out)),)

    @property
    def target(self) -> Shape:
        return (self.heads, self.queries, self.out)

    def __call__(self, z: Float[Tensor, "batch ..."]) -> Float[Tensor, "batch ..."]:
        q, k, v = self.parts(z)
        scores = self.scale * (q @ k.mT)
        if self.mask is not None:
            scores = scores + self.mask.to(z)
        return scores.softmax(-1) @ v

    def parts(self, z: Float[Tensor, "batch ..."]) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V, each (batch, heads, ., .)."""
        sizes = [self.heads * self.queries * self.width, self.heads * self.keys * self.width]
        q, k, v = z.split([*sizes, z.shape[-1] - sum(sizes)], -1)
        return (
            q.reshape(-1, self.heads, self.queries, self.width),
            k.reshape(-1, self.heads, self.keys, self.width),
            v.reshape(-1, self.heads, self.keys, self.out),
        )

    def log_constant(self, p: float) -> Float64[Tensor, ""]:
        if self.keys == 1:
            # Every row of P is 1: the value is copied to each query.
            return log_up(torch.tensor(float(self.queries), dtype=torch.float64)) / p
        if self.domain is None:
            return torch.tensor(torch.inf, dtype=torch.float64)
        found = self._range(Reach(*self.domain))
        if p == 2:
            return log_up(found.two().max())
        if p in (1, torch.inf):
            return log_up((found.one() if p == 1 else found.infinity()).max())
        return log_up(torch.maximum(found.two(), found.one() if p < 2 else found.infinity()).max())

    def within(self, reach: Reach) -> "Attention":
        return replace(self, domain=domain_of(reach))

    def split(self, p: float) -> Split:
        if p != 2 or self.domain is None or not bool(torch.isfinite(self.domain[1] - self.domain[0]).all()):
            return super().split(p)
        found = self._range(Reach(*self.domain))
        rest = change_from_center(found)
        if not bool(rest.max() < exp_of(self.log_constant(p), 1.0)):
            return super().split(p)
        return Split(derivative_at_center(found), Diagonal(rest[:, None, None], self.target))

    def reach(self, reach: Reach) -> Reach:
        reach = tighten(reach)
        found, center = self._range(reach), self(reach.center[None])[0]
        low, high = found.outputs()
        constant = exp_of(self.within(reach).log_constant(2.0), 1.0)
        # Scores of `width` products are off by that many units of their size, and probabilities relatively by as much.
        sizes = [x.norms.amax() for x in (found.queries, found.keys, found.values)]
        error = ROUNDINGS_8 * (self.width + self.keys + 8) * (1 + abs(self.scale) * sizes[0] * sizes[1]) * sizes[2]
        return reach_of(low, high, center, constant * reach.radius + error * math.sqrt(self.heads * self.queries))

    def _range(self, reach: Reach) -> AttentionRange:
        ends = zip(*(self.parts(x[None]) for x in (reach.low, reach.high, reach.center)), strict=True)
        q, k, v = (Rows(low[0], high[0], center[0], reach.radius) for low, high, center in ends)
        return AttentionRange(q, k, v, self.scale, self.mask)

    def __str__(self) -> str:
        return "attention"
