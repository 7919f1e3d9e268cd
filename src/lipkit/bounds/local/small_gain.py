"""The largest l2 gain of a linear map with uncertain diagonal slopes, bounded by one multiplier for each slope."""

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.local.uncertain_slopes import Uncertain
from lipkit.errors import NotProvenError
from lipkit.rounding.float64 import gamma, norm_up
from lipkit.rounding.slacks import ROUNDINGS_16, ROUNDINGS_32, ROUNDINGS_8192, ULP

# More steps than the interior-point method ever needed.
_STEPS = 80


@final
@dataclass(frozen=True, eq=False)
class _Program:
    """|v_i| <= |z_i|, z = P x + N v, y = C x + G v: minimise s = L^2 over t so that, for all x and v,

        |y|^2 + sum_i t_i (z_i^2 - v_i^2) <= s |x|^2,   that is   H = diag(s I, T) - O'O - Q'TQ >= 0,

    O = [C G], Q = [P N]. A semidefinite program in which each t_i enters through e_i e_i' - q_i q_i', of rank two, so
    that a step of an interior-point method costs a few products of its size. H >= 0 implies t >= 0, because N is
    strictly triangular. Everything is in units of diag(s I, T), whose entries differ by orders of magnitude.
    """

    o: Float64[Tensor, "out size"]
    q: Float64[Tensor, "count size"]

    @property
    def inputs(self) -> int:
        """Number of columns that belong to x."""
        return self.q.shape[1] - self.q.shape[0]

    def minimised(self, s: float, t: Tensor, rtol: float) -> Tensor:
        """Multipliers whose s is within about rtol of the least one, from a feasible point (s, t).

        Primal-dual steps in the direction of Helmberg, Rendl, Vanderbei and Wolkowicz: with L the dual matrix,
        H L = mu I is linearised as dL = mu H^-1 - L - H^-1 dH L, and dH chosen so that L + dL meets its constraints.
        """
        c, size = self.inputs, self.q.shape[1]
        dual: Tensor | None = None
        center = 0.5
        for _ in range(_STEPS):
            unit = torch.cat([t.new_full((c,), s), t]).rsqrt()
            o, q = self.o * unit, self.q * unit * t.sqrt()[:, None]
            h = torch.eye(size).to(unit) - o.mT @ o - q.mT @ q
            factor, info = torch.linalg.cholesky_ex(h)
            if int(info):
                break
            x = torch.cholesky_inverse(factor)
            dual = x * (s / x[:c, :c].trace()) if dual is None else dual
            mu = float((h * dual).sum()) / size
            if size * mu <= rtol * s:
                break
            step = _newton(x, dual, q, c, center * mu, s)
            if step is None:
                break
            moved = torch.cat([step[-1].expand(c), step[:-1]])
            dh = torch.diag(moved) - (q.mT * step[:-1]) @ q
            turn = x @ dh @ dual
            dl = center * mu * x - dual - (turn + turn.mT) / 2
            along, across = _length(h, dh), _length(dual, dl)
            s, t = s * (1 + along * float(step[-1])), t * (1 + along * step[:-1])
            rescale = (1 + along * moved).sqrt()
            dual = (dual + across * dl) * rescale * rescale[:, None]
            # Where both steps were long the path is easy: aim further ahead.
            center = (1 - 0.95 * min(along, across)) ** 2 + 0.02
        return t


def _newton(x: Tensor, dual: Tensor, q: Tensor, c: int, mu: float, s: float) -> Tensor | None:
    """Relative changes of (t, s); None if they cannot be computed."""
    count = len(q)
    qx, ql = q @ x, q @ dual
    qqx = qx @ q.mT
    cross = qx[:, c:] * ql[:, c:]
    system = x.new_empty((count + 1, count + 1))
    system[:count, :count] = x[c:, c:] * dual[c:, c:] - cross - cross.mT + qqx * (ql @ q.mT)
    system[:count, count] = (x[c:, :c] * dual[c:, :c]).sum(1) - (qx[:, :c] * ql[:, :c]).sum(1)
    system[count, :count] = system[:count, count]
    system[count, count] = (x[:c, :c] * dual[:c, :c]).sum()
    by_t = mu * (x.diagonal()[c:] - qqx.diagonal())
    right = torch.cat([by_t, (mu * x[:c, :c].trace() - s)[None]])
    unit = system.diagonal().clamp(min=1e-300).rsqrt()
    factor, info = torch.linalg.cholesky_ex(system * unit * unit[:, None] + 1e-13 * torch.eye(count + 1).to(system))
    return None if int(info) else unit * torch.cholesky_solve((unit * right)[:, None], factor)[:, 0]


def _length(matrix: Tensor, change: Tensor) -> float:
    """Nearly the longest step in [0, 1] that keeps the matrix positive definite."""
    length = 1.0
    for _ in range(60):
        if not int(torch.linalg.cholesky_ex(matrix + length / 0.95 * change)[1]):
            return length
        length *= 0.8
    return 0.0


def small_gain(found: Uncertain, rtol: float | None) -> Float64[Tensor, ""]:
    """An upper bound of max ||M||_2 over all slopes, within about rtol / 2 of the best this method has, and a proof.

    With `rtol=None` the multipliers are not optimised but scaled: see `_balance`.

    With W = [O; T^(1/2) Q] and U = diag(s I, T)^(-1/2) the matrix U H U = I - (W U)'(W U) is factored, multiplied out
    and compared: it is >= -e I, with e counted. Then |M x|^2 <= s |x|^2 + e (s |x|^2 + sum_i t_i v_i^2), and the last
    sum is at most kappa^2 |x|^2 for every admissible v. What rounding did to C, G, N, P is added. The optimiser is not
    trusted.
    """
    g, n = found.g.mid * found.spread, found.n.mid * found.spread
    base = _factor(torch.cat([found.c.mid, found.p.mid]))
    o, q = torch.cat([base[: len(g)], g], dim=1), torch.cat([base[len(g) :], n], dim=1)
    if not bool(o.any()):
        return found.lost()
    t, least = _balance(found, o, q)
    if rtol is not None:
        t = _Program(o, q).minimised(1.5 * least, t, rtol)
        least = _least(o, q, t)
    square, error = _proven(o, q, t, least)
    kappa = norm_up(t.sqrt()[:, None] * found.reached(found.p.mid.abs() + found.p.width), 2)
    total = (square + error * (square + kappa**2)) * (1 + ROUNDINGS_8192 * error + ROUNDINGS_32)
    return (total.sqrt() + found.lost() + _of_spreads(found)) * (1 + ROUNDINGS_32)


def _of_spreads(found: Uncertain) -> Tensor:
    """The most that one rounding in each entry of the products of G and N with the spreads can change."""
    inside = found.reached(found.p.mid.abs() + found.p.width)
    outer = (found.g.mid.abs() + found.g.width) * found.spread
    error = outer @ inside + outer @ found.reached(((found.n.mid.abs() + found.n.width) * found.spread) @ inside)
    return ULP * norm_up(error.flatten(), 1) * (1 + ROUNDINGS_8192)


def _factor(rows: Float64[Tensor, "rows cols"]) -> Float64[Tensor, "rows some"]:
    """B with B B' >= rows rows', as matrices, and no more columns than rows; `rows` itself where that is so already."""
    count, length = rows.shape
    if length <= count:
        return rows
    sizes = torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1e-140)
    even = rows / sizes
    gram, eye = even @ even.mT, torch.eye(count).to(rows)
    # Products, one division in each entry of the rows, and one product in each entry of the factor.
    formed = gamma(length + 16) * norm_up(even, 2) ** 2 * (1 + ROUNDINGS_8192)
    slack = 4 * formed
    for _ in range(40):
        factor, info = torch.linalg.cholesky_ex(gram + slack * eye)
        lost = norm_up(gram + slack * eye - factor @ factor.mT, 2) + gamma(count + 16) * norm_up(factor, 2) ** 2
        if int(info) == 0 and bool((lost + formed) * (1 + ROUNDINGS_8192) <= slack):
            return factor * sizes
        slack = 2 * slack + 2 * torch.where(torch.isfinite(lost), lost, 0.0)
    return rows


def _balance(found: Uncertain, o: Tensor, q: Tensor) -> tuple[Tensor, float]:
    """Multipliers t_i = scale b_i / f_i, and the least s for them, the scale found by trying powers of two.

    f_i bounds |z_i| / |x| and b_i what v_i can do to y, both along all paths without signs: for a single uncertain
    slope this balance is optimal. Where no scale is feasible, the multipliers that always are.
    """
    forward = torch.linalg.vector_norm(found.reached(found.p.mid.abs()), dim=1).clamp(min=1e-100)
    backward = torch.linalg.vector_norm(_contributions(found), dim=0).clamp(min=1e-100)
    ratio = backward / forward
    t = _start(o, q, found.blocks)
    best = (_least(o, q, t), t)
    # Numbers out of the range of floats say nothing about the scale.
    exponent = round(math.log2(math.sqrt(best[0]))) if 0 < best[0] < math.inf else 0
    tried: dict[int, float] = {}

    def value(power: int) -> float:
        if power not in tried:
            tried[power] = _least(o, q, ratio * 2.0**power)
        return tried[power]

    # The least s is convex in t, so along this line too: infinite, then falling, then rising.
    while not math.isfinite(value(exponent)) and exponent < 1000:
        exponent += 2
    while value(exponent - 1) < value(exponent):
        exponent -= 1
    while value(exponent + 1) < value(exponent):
        exponent += 1
    return (ratio * 2.0**exponent, value(exponent)) if value(exponent) < best[0] else (best[1], best[0])


def _contributions(found: Uncertain) -> Tensor:
    """|G| s (I - |N| s)^-1: the most that each uncertain slope can contribute to the outputs, along all paths."""
    size = (found.g.mid.abs() * found.spread).clone()
    inner = found.n.mid.abs() * found.spread
    for at in reversed(found.blocks):
        size[:, at] = size[:, at] + size[:, at.stop :] @ inner[at.stop :, at]
    return size


def _start(o: Tensor, q: Tensor, blocks: tuple[slice, ...]) -> Tensor:
    """Multipliers with T - Z'Z >= T/2, one for each node, from the last to the first."""
    c = q.shape[1] - q.shape[0]
    t = q.new_zeros(len(q))
    for at in reversed(blocks):
        columns = slice(c + at.start, c + at.stop)
        behind = t[at.stop :].sqrt()[:, None] * q[at.stop :, columns]
        size = torch.linalg.matrix_norm(torch.cat([o[:, columns], behind]), 2)
        t[at] = 2 * len(blocks) * (size**2).clamp(min=1e-100)
    return t


def _least(o: Tensor, q: Tensor, t: Tensor) -> float:
    """The smallest s for these multipliers, up to rounding: from the Schur complement of T - Z'Z in H; inf if none."""
    c = q.shape[1] - q.shape[0]
    unit = torch.cat([t.new_ones(c), t.rsqrt()])
    scaled_o, scaled_q = o * unit, q * unit * t.sqrt()[:, None]
    gram = scaled_o.mT @ scaled_o + scaled_q.mT @ scaled_q
    inner, info = torch.linalg.cholesky_ex(torch.eye(len(t)).to(t) - gram[c:, c:])
    if int(info):
        return math.inf
    image = torch.linalg.solve_triangular(inner, gram[c:, :c], upper=False)
    return max(float(torch.linalg.matrix_norm(gram[:c, :c] + image.mT @ image, 2)), 1e-200)


def _proven(
    o: Float64[Tensor, "out size"], q: Float64[Tensor, "count size"], t: Float64[Tensor, " count"], guess: float
) -> tuple[Tensor, Tensor]:
    """(s, e) with U H U >= -e I for U = diag(s I, T)^(-1/2) and s near the guess."""
    c = q.shape[1] - q.shape[0]
    for step in range(60):
        s = guess * (1 + 1e-9 * 2.0**step)
        unit = torch.cat([t.new_full((c,), s), t]).rsqrt()
        w = torch.cat([o, t.sqrt()[:, None] * q]) * unit
        h = torch.eye(len(unit)).to(w) - w.mT @ w
        # Forming it: inner products, a root and two products in each of their terms, the units on the diagonal.
        formed = gamma(len(w) + 32) * norm_up(w, 2) ** 2 * (1 + ROUNDINGS_8192) + ROUNDINGS_16
        # A small shift lets the factorisation succeed where H is singular, and is part of what is counted.
        factor, info = torch.linalg.cholesky_ex(h + formed * torch.eye(len(h)).to(h))
        error = norm_up(h - factor @ factor.mT, 2) + gamma(len(h) + 16) * norm_up(factor, 2) ** 2 + formed
        if int(info) == 0 and bool(torch.isfinite(error)):
            return t.new_tensor(s), error * (1 + ROUNDINGS_8192)
    raise NotProvenError("No multipliers could be proven; take fewer uncertain slopes, or use Local.")
