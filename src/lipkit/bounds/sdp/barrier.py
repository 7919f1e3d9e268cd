"""The logarithmic barrier of a semidefinite program: factor, inverse, gradient and Hessian."""

from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.program import Layer, Program


@final
@dataclass(frozen=True, eq=False)
class Factor:
    """P = L D L* block by block, where P couples only neighbouring parts of the variables.

    `pivots` are the Cholesky factors of the diagonal blocks D_i = P_ii - P_i,i-1 D_i-1^-1 P_i-1,i; `links` are
    D_i^-1 P_i,i+1.
    """

    parts: tuple[slice, ...]
    pivots: tuple[Tensor, ...]
    links: tuple[Tensor, ...]

    @property
    def log_det(self) -> float:
        """log det P."""
        return 2 * float(sum(pivot.diagonal().log().sum() for pivot in self.pivots))

    def inverse(self) -> Float64[Tensor, "n n"]:
        """P^-1, all of it: row i is -link_i times row i + 1, and the diagonal blocks follow from it."""
        size = self.parts[-1].stop
        found = torch.zeros(size, size, dtype=torch.float64)
        last = self.parts[-1]
        found[last, last] = torch.cholesky_inverse(self.pivots[-1])
        pairs = list(zip(self.parts, self.parts[1:], self.pivots, self.links, strict=False))
        for part, following, pivot, link in reversed(pairs):
            right = -link @ found[following, following.start :]
            found[part, following.start :] = right
            found[following.start :, part] = right.mT
            found[part, part] = torch.cholesky_inverse(pivot) - right[:, : link.shape[1]] @ link.mT
        return found

    def solve(self, right: Float64[Tensor, "n k"]) -> Float64[Tensor, "n k"]:
        """P^-1 B, by substitution down and up."""
        found = right.clone()
        for before, part, link in zip(self.parts, self.parts[1:], self.links, strict=False):
            found[part] -= link.mT @ found[before]
        for i in reversed(range(len(self.parts))):
            part = self.parts[i]
            found[part] = torch.cholesky_solve(found[part], self.pivots[i])
            if i + 1 < len(self.parts):
                found[part] -= self.links[i] @ found[self.parts[i + 1]]
        return found


def parts_of(program: Program) -> tuple[slice, ...]:
    """The variables in consecutive parts such that P couples neighbours only; one part if there is no such order."""
    edges = sorted({0, program.inputs, program.size, *(c.own.start for c in program.constraints)})
    spans = [layer.span for layer in program.layers] + [program.output.span]
    while True:
        for span in spans:
            # The edges strictly inside what one form couples; all but the first have to go.
            inside = [e for e in edges if span.start < e < span.stop]
            if len(inside) > 1:
                edges = [e for e in edges if e not in inside[1:]]
                break
        else:
            return tuple(slice(a, b) for a, b in pairwise(edges))


def factorise(matrix: Float64[Tensor, "n n"], parts: tuple[slice, ...]) -> Factor | None:
    """The factor of P, or None if it is not positive definite."""
    pivots: list[Tensor] = []
    links: list[Tensor] = []
    block = matrix[parts[0], parts[0]]
    for i, part in enumerate(parts):
        pivot, info = torch.linalg.cholesky_ex(block)
        if int(info):
            return None
        pivots.append(pivot)
        if i + 1 < len(parts):
            coupling = matrix[part, parts[i + 1]]
            links.append(torch.cholesky_solve(coupling, pivot))
            block = matrix[parts[i + 1], parts[i + 1]] - coupling.mT @ links[-1]
    return Factor(parts, tuple(pivots), tuple(links))


def derivatives(program: Program, inverse: Float64[Tensor, "n n"]) -> tuple[Tensor, Tensor]:
    """Gradient and Hessian of -log det P in (rho, tau), up to the sign of the gradient, from S = P^-1."""
    return traces(program, inverse), couplings(program, inverse, inverse)


def traces(program: Program, matrix: Float64[Tensor, "n n"]) -> Float64[Tensor, " groups"]:
    """tr(A Q_g) for P = rho E + sum_g tau_g Q_g + const, E first.

    Q_g is a signed sum of squares of rows m of the constraints, so that this is one of m A m*.
    """
    found = torch.zeros(program.groups + 1, dtype=torch.float64)
    found[0] = matrix.diagonal()[: program.inputs].sum()
    for layer in program.layers:
        image = layer.matrix @ matrix[layer.span, layer.span]
        found[layer.entries] = _gather((image * layer.matrix).sum(1, keepdim=True), layer, None)[:, 0]
    return found


def couplings(
    program: Program, left: Float64[Tensor, "n n"], right: Float64[Tensor, "n n"]
) -> Float64[Tensor, "groups groups"]:
    """tr(Q_g A Q_h B) for symmetric A and B: signed sums of (m A n*) (m B n*). Products are shared where A is B."""
    x = slice(0, program.inputs)
    count = program.groups + 1
    found = torch.zeros(count, count, dtype=torch.float64)
    found[0, 0] = (left[x, x] * right[x, x]).sum()
    for i, layer in enumerate(program.layers):
        here = layer.entries
        image = layer.matrix @ left[layer.span]
        other_image = image if left is right else layer.matrix @ right[layer.span]
        found[here, 0] = _gather((image[:, x] * other_image[:, x]).sum(1, keepdim=True), layer, None)[:, 0]
        for other in program.layers[: i + 1]:
            cross = image[:, other.span] @ other.matrix.mT
            cross.mul_(cross if left is right else other_image[:, other.span] @ other.matrix.mT)
            block = _gather(cross, layer, other)
            found[here, other.entries] = block
            found[other.entries, here] = block.mT
    found[0] = found[:, 0]
    return found


def _gather(entries: Tensor, rows: Layer, cols: Layer | None) -> Tensor:
    """Signed sums of the entries that share a multiplier."""
    for axis, layer in ((0, rows), (1, cols)):
        if layer is None:
            continue
        width = layer.entries.stop - layer.entries.start
        if 2 * width == len(layer.group):
            # One rest and one input for each multiplier, in order.
            entries = entries.narrow(axis, 0, width) - entries.narrow(axis, width, width)
        else:
            signed = entries * (layer.sign[:, None] if axis == 0 else layer.sign)
            entries = signed.sum(axis, keepdim=True)
    return entries
