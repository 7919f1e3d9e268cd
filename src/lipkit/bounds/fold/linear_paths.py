"""A network with its nonlinearities pulled apart into a linear part and a bounded rest, and the linear maps in it."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.linops import (
    Dense,
    Diagonal,
    LinearOperator,
    Reshape,
    StatedRounding,
    depth,
    factors,
    magnitude,
    materialize,
    one_entry_per_row,
    product,
    sweep,
)
from lipkit.linops.queries.absolute import dominating
from lipkit.rounding.float64 import gamma
from lipkit.trace import Network, chain
from lipkit.trace.nodes import Identity, Split

# Covers the rounding of the error analysis itself, and its second-order terms.
_INFLATION = 1.01
# Added wherever numbers are rounded: gamma_d of it is above what underflow can do to 2^40 entries.
_UNDERFLOW = 2.0**-960
# Products beyond this, or below its inverse, are not multiplied out.
_RANGE = 2.0**950
# Products of more factors are multiplied out if all partial products have at most so many entries together.
_LONG, _DENSE = 6, 2**23


@final
@dataclass(frozen=True, eq=False)
class Pulled:
    """y = C z + R psi(z) for one node: the split, bounds of ||C|| and ||R||, and max |c| / |r| if they are diagonal.

    The bounds hold from l2 to l2 and from l_p to l_p.
    """

    split: Split
    center: float
    scale: float
    ratio: float

    @classmethod
    def of(cls, split: Split, device: torch.device, p: float) -> "Pulled":
        """Sizes of a split in l_p: those of diagonals and multiples of the identity are exact up to rounding."""
        center = None if split.center is None else split.center.to(device=device)
        split = Split(center, split.scale.to(device=device))
        scale = _largest(split.scale, p)
        if split.center is None:
            return cls(split, 0.0, scale, 0.0)
        if isinstance(split.center, Diagonal) and isinstance(split.scale, Diagonal):
            c, r = (op.scale.detach().abs().to(torch.float64) for op in (split.center, split.scale))
            ratio = torch.where(c == 0, 0.0, c / r).max()
            return cls(split, _largest(split.center, p), scale, float(ratio) * _INFLATION)
        return cls(split, _largest(split.center, p), scale, math.inf)


class Paths(ABC):
    """The linear maps P_sj from y_j to z_s that remain when every psi is cut out.

    `direct` holds bounds of the spectral norms of the blocks, `pulled` the split nodes. Every map comes with a
    statement of its rounding error that is made of the norms of its parts: an error that enters at stage i is
    multiplied by what lies before and behind it, not by the product of all norms. With P^ what is evaluated as P,

        P^_sj - P_sj = sum over blocks of T_k E_ki H^_i,   ||E_ki|| <= gamma_d || |A_ki| ||,
        ||P^_sj - P_sj|| <= gamma_d sum over blocks of ||T_k|| || |A_ki| || ||H^_i||,

    where H^_i leads from the source to y_i as evaluated and T_k from z_k to z_s exactly (the other way round for the
    adjoint). This telescopes, so nothing of second order is left out. All norms in it are spectral, whatever norm the
    network is measured in.
    """

    def __init__(self, network: Network, pulled: dict[int, Pulled], direct: dict[tuple[int, int], float]) -> None:
        self.network = network
        self.pulled = pulled
        self.direct = direct
        self.stage = {at: _stage(op, direct[at]) for at, op in network.blocks.items()}

    @abstractmethod
    def operator(self, s: int, j: int, rest: bool) -> LinearOperator | None:
        """P_sj R_j (`rest`), or P_sj; None if no path leads from j to s."""

    @abstractmethod
    def learn(self, s: int, j: int, rest: bool, norm: float) -> None:
        """Take note of a proven bound of the norm of `operator(s, j, rest)`."""


@final
class DensePaths(Paths):
    """All maps as matrices, P_sj = A_sj + sum_i A_si C_i P_ij, each formed once from the earlier ones."""

    def __init__(self, network: Network, pulled: dict[int, Pulled], direct: dict[tuple[int, int], float]) -> None:
        super().__init__(network, pulled, direct)
        blocks = {at: op.to(torch.float64) for at, op in network.blocks.items()}
        self._matrices = {at: materialize(op) for at, op in blocks.items()}
        self._paths: dict[tuple[int, int], Tensor | None] = {}
        self._sizes: dict[tuple[int, int], float] = {}
        self._local: dict[tuple[int, int], float] = {}
        self._spreads: dict[tuple[int, int], float] = {}
        # Behind one entry: its block, the linear part of a node, their product, and the sum over a row.
        centers = [depth(one.split.center) for one in pulled.values() if one.split.center is not None]
        deepest = max([0, *(depth(op) for op in blocks.values())]) + max([0, *centers])
        widest = max([0, *(op.in_size for op in blocks.values())])
        self._roundings = 8 + deepest + widest + max([0, *(len(row) for row in network.rows().values())])

    def operator(self, s: int, j: int, rest: bool) -> LinearOperator | None:
        matrix = self._path(s, j)
        if matrix is None:
            return None
        size = self._spread(s, j)
        flat = Dense(matrix)
        if not rest:
            return StatedRounding(flat, self._roundings, size)
        scale = self.pulled[j].split.scale.to(torch.float64)
        op = product(flat, product(Reshape(scale.out_shape, flat.in_shape), scale))
        size = (size + self._sizes[s, j]) * self.pulled[j].scale * _INFLATION + _UNDERFLOW
        return StatedRounding(op, self._roundings + depth(scale), size)

    def learn(self, s: int, j: int, rest: bool, norm: float) -> None:
        """Frobenius norms of the matrices serve here."""

    def _path(self, s: int, j: int) -> Tensor | None:
        if (s, j) in self._paths:
            return self._paths[s, j]
        found = self._matrices.get((s, j))
        local = self.stage[s, j] if found is not None else 0.0
        for i in range(j + 1, s):
            center, inner = self.pulled[i].split.center, None
            if (s, i) in self._matrices and center is not None:
                inner = self._path(i, j)
            if inner is None or center is None:
                continue
            images = center.to(torch.float64).apply(inner.mT.reshape(-1, *center.in_shape)).flatten(1).mT
            term = self._matrices[s, i] @ images
            found = term if found is None else found + term
            local += self.stage[s, i] * self.pulled[i].center * self._sizes[i, j]
        self._paths[s, j] = found
        self._sizes[s, j] = 0.0 if found is None else length(found) * _INFLATION
        self._local[s, j] = 0.0 if found is None else local + self._sizes[s, j] + _UNDERFLOW
        return found

    def _spread(self, s: int, j: int) -> float:
        """The size behind the error of the matrix of P_sj: the errors of all earlier rows, carried on to row s."""
        for low in range(s - 1, j - 1, -1):
            if (s, low) in self._spreads or self._path(s, low) is None:
                continue
            carried = [
                (self._sizes[s, i] + gamma(self._roundings) * self._spreads[s, i]) * self.pulled[i].center * local
                for i in range(low + 1, s)
                if (s, i) in self._spreads and (local := self._local.get((i, low), 0.0))
            ]
            self._spreads[s, low] = sum(carried, self._local[s, low]) * _INFLATION + _UNDERFLOW
        return self._spreads[s, j]


@final
class SweepPaths(Paths):
    """Maps that are applied, never written out; norms that were measured bound the parts of later ones."""

    def __init__(self, network: Network, pulled: dict[int, Pulled], direct: dict[tuple[int, int], float]) -> None:
        super().__init__(network, pulled, direct)
        self._known: dict[tuple[int, int, bool], float] = {}
        self._errors: dict[tuple[int, int, bool], float] = {}
        self._through: dict[tuple[int, int], LinearOperator] = {}
        for (k, i), op in network.blocks.items():
            if k < network.sink and (center := pulled[k].split.center) is not None:
                self._through[k, i] = product(center, op)
        # Norms of the blocks as they are evaluated, rounding included.
        rounding = {at: gamma(depth(self._through.get(at, op)) + 1) for at, op in network.blocks.items()}
        self._evaluated = {at: direct[at] + rounding[at] * self.stage[at] + _UNDERFLOW for at in network.blocks}

    def operator(self, s: int, j: int, rest: bool) -> LinearOperator | None:
        edges = [(k, i, op) for (k, i), op in self._through.items() if j <= i and k < s]
        edges += [(s, i, op) for i, op in self.network.row(s).items() if i >= j]
        path = sweep(edges, j, s)
        if path is None:
            return None
        start = self.pulled[j].scale if rest else 1.0
        op = product(path, self.pulled[j].split.scale) if rest else path
        heads, tails = self._heads(s, j, rest, start), self._tails(s, j)
        inside = [(k, i) for k, i in self.network.blocks if j <= i and k <= s and i in heads and k in tails]
        size = start + sum(tails[k] * (self.stage[k, i] * heads[i] + _UNDERFLOW) for k, i in inside)
        size = size * _INFLATION + _UNDERFLOW
        roundings = depth(op)
        self._errors[s, j, rest] = gamma(roundings) * size
        return StatedRounding(op, roundings, size) if math.isfinite(size) else op

    def learn(self, s: int, j: int, rest: bool, norm: float) -> None:
        # As evaluated, the map is longer than its norm by what rounding may have done to it.
        self._known[s, j, rest] = (norm + self._errors[s, j, rest]) * _INFLATION

    def _heads(self, s: int, j: int, rest: bool, start: float) -> dict[int, float]:
        """Bounds of the linear part of y_i per unit at the source, exact and as evaluated, for j <= i < s."""
        found = {j: start}
        for k in range(j + 1, s):
            reached = [self._evaluated[k, i] * found[i] for i in self.network.row(k) if i in found]
            if reached:
                found[k] = self.pulled[k].center * min(sum(reached), self._known.get((k, j, rest), math.inf))
        return found

    def _tails(self, s: int, j: int) -> dict[int, float]:
        """Bounds of the map from z_k to z_s, exact and as evaluated, for j < k <= s."""
        found = {s: 1.0}
        users: dict[int, list[int]] = {}
        for k, i in self.network.blocks:
            users.setdefault(i, []).append(k)
        for i in range(s - 1, j, -1):
            pulled = self.pulled[i]
            reached = [found[k] * self._evaluated[k, i] for k in users.get(i, []) if k in found]
            if reached:
                bounds = [sum(reached) * pulled.center]
                if (s, i, True) in self._known and math.isfinite(pulled.ratio):
                    bounds.append(self._known[s, i, True] * pulled.ratio)
                found[i] = min(bounds)
        return found


def multiply_out(op: LinearOperator) -> LinearOperator:
    """A long product as its matrix, with the rounding error that the norms of its parts tell; others as they are.

    The error of a product as `linops.magnitude` bounds it grows with the product of the sizes of all factors, which
    beyond a few factors has nothing to do with their product. Products that leave the range of float64 stay as they
    are too.
    """
    given = list(reversed(factors(op)))
    widths = [given[0].in_size, *(part.out_size for part in given)]
    entries = sum(n * sum(widths[: k + 1]) for k, n in enumerate(widths[1:]))
    if len(given) <= _LONG or entries > _DENSE:
        return op
    parts = [part.to(torch.float64) for part in given]
    if any(magnitude(part).relative for part in parts):
        return op
    network = chain(parts, Identity())
    device = network.device
    pulled = {k: Pulled.of(node.split(2.0), device, 2.0) for k, node in enumerate(network.nodes, start=1)}
    sizes = {at: float(magnitude(block).absolute) for at, block in network.blocks.items()}
    found = DensePaths(network, pulled, sizes).operator(network.sink, 0, rest=False)
    assert isinstance(found, StatedRounding), "a chain leads from its input to its output"
    # Near the ends of the range of float64 the matrix says little; the factors are refused there, by name.
    return found if 1 / _RANGE < found.size < _RANGE else op


def length(matrix: Tensor) -> float:
    """The Frobenius norm, in units of the largest entry, so that squares do not underflow."""
    largest = matrix.detach().abs().max()
    return float(largest * torch.linalg.vector_norm(matrix.detach() / largest)) if bool(largest > 0) else 0.0


def _largest(op: LinearOperator, p: float) -> float:
    """A bound of the norm from l2 to l2 and from l_p to l_p; all of these are one number for a diagonal operator."""
    known = magnitude(op)
    if known.relative == 0 and (p == 2 or (one_entry_per_row(op) and one_entry_per_row(op.T))):
        return float(known.absolute)
    # The largest row sum and the largest column sum bound every l_p norm (Riesz-Thorin).
    with torch.no_grad():
        bound = dominating(op.to(torch.float64))
        sums = [
            side.apply(torch.ones(side.in_shape, dtype=torch.float64, device=op.device)) for side in (bound, bound.T)
        ]
    return max(float(total.max()) for total in sums) * _INFLATION


def _stage(op: LinearOperator, norm: float) -> float:
    """|| |A| ||: what the rounding errors of one application are relative to, for `norm` >= ||A||, all spectral."""
    known = magnitude(op)
    return float(known.absolute) + known.relative * norm
