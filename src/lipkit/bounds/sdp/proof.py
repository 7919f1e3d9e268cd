"""Multipliers to a proven bound: repair, scaling, and a Cholesky factorisation that is multiplied out."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.linear_rows import Rows
from lipkit.bounds.sdp.program import Program
from lipkit.errors import NotProvenError
from lipkit.rounding.float64 import gamma, norm_up, product_error
from lipkit.rounding.logarithm import log_up
from lipkit.rounding.slacks import UNIT

# How far multipliers are moved into the interior, from one attempt to the next: by factors, then towards others.
_GROWTH = (0.0, 1e-9, 1e-7, 1e-5)
_SHARES = (1e-20, 1e-16, 1e-12, 1e-9, 1e-6, 1e-3, 1e-1)
# Up to this many variables an attempt takes milliseconds.
_SMALL = 256


@final
@dataclass(frozen=True, eq=False)
class Proof:
    """`log_value` >= log of the constant, by the multipliers `point`; `vector` is where the inequality is tightest."""

    log_value: Float64[Tensor, ""]
    point: Float64[Tensor, " groups"]
    vector: Float64[Tensor, " n"]


def prove(program: Program, guess: Float64[Tensor, " groups"], fallback: Float64[Tensor, " groups"]) -> Proof:
    """The smallest rho that these multipliers prove, after a repair where they need one; rounding is all counted.

    Given tau, rho = lambda_max(P_x,r P_r,r^-1 P_r,x - P_x,x) at rho = 0 (r: all variables but the input). The matrix
    at the rho found is then shown to be positive semidefinite: P = R R* + s I + E with ||E|| + slack <= s.
    Multipliers are repaired by factors that grow from the output to the input, then by adding a share of `fallback`,
    which is strictly feasible: both add to all diagonal blocks.
    """
    proofs: list[Proof] = []
    for point in _repaired(program, guess, fallback):
        found = _attempt(program, point)
        if found is not None:
            proofs.append(found)
        # A little more repair may cost less than it gains; where attempts are cheap, see. Bad multipliers may even
        # prove less than none.
        enough = 1 if program.size > _SMALL else 2
        if len(proofs) >= enough and bool(proofs[0].point[0] <= fallback[0]):
            break
    if proofs:
        return min(proofs, key=lambda proof: float(proof.log_value))
    raise NotProvenError(
        "No multipliers could be verified in float64: the weights of the network are too ill-conditioned; use LipLT."
    )


def _repaired(program: Program, guess: Tensor, fallback: Tensor) -> Iterator[Tensor]:
    if bool(torch.isfinite(guess).all()):
        point = guess.clamp(min=0)
        tau = point[1:]
        point[1:] = torch.where(tau > 0, tau, 1e-12 * tau.max() if len(tau) else 0.0)
        point[0] = torch.where(point[0] > 0, point[0], fallback[0])
        for repair in _GROWTH if bool((point > 0).all()) else ():
            grown = point.clone()
            for depth, one in enumerate(reversed(program.constraints), start=1):
                chosen = 1 + one.rest_group.unique()
                grown[chosen] = point[chosen] * (1 + repair) ** depth
            yield grown
        for share in _SHARES:
            yield guess.clamp(min=0) + share * fallback
    yield fallback


def _attempt(program: Program, point: Tensor) -> Proof | None:
    scaled, weights, column = _balanced(program, point)
    x, rest = slice(0, program.inputs), slice(program.inputs, program.size)
    weights[0] = 0.0
    form = scaled.matrix(weights)
    unit = torch.eye(program.size, dtype=torch.float64)
    # The final rho is of the order of 1 in these units; twice the slack leaves room for the proof.
    shift = 2 * (scaled.slack(weights) + 8 * UNIT + _factor_slack(form))
    inner, info = torch.linalg.cholesky_ex(form[rest, rest] - shift * unit[rest, rest])
    if int(info):
        return None
    half = torch.linalg.solve_triangular(inner, form[rest, x], upper=False)
    schur = half.mT @ half - form[x, x]
    values, vectors = torch.linalg.eigh((schur + schur.mT) / 2)
    rho = (max(float(values[-1]), 0.0) + shift) * (1 + 1e-13 * program.size)
    for _ in range(8):
        weights[0] = rho
        if is_positive(scaled.matrix(weights), scaled.slack(weights)):
            top = vectors[:, -1:]
            below = -torch.linalg.solve_triangular(inner.mT, half @ top, upper=True)
            vector = torch.cat([top, below])[:, 0] * column
            exponent = torch.tensor(program.exponent, dtype=torch.float64)
            unit_x = torch.frexp(column[0]).exponent - 1
            log = log_up(torch.tensor(rho, dtype=torch.float64).sqrt() * (1 + gamma(4)), exponent - unit_x)
            proven = point.clone()
            proven[0] = rho / float(column[0]) ** 2
            return Proof(log, proven, vector)
        rho = rho * (1 + 1e-9) + 4 * shift
        shift = 4 * shift
    return None


def is_positive(form: Tensor, slack: float) -> bool:
    """Whether every matrix within `slack` of `form` is positive semidefinite; proven, not believed."""
    size = len(form)
    shift = 1.5 * (slack + _factor_slack(form))
    matrix = form.clone()
    matrix.diagonal().sub_(shift)
    factor, info = torch.linalg.cholesky_ex(matrix)
    if int(info):
        return False
    # Zeros cost no rounding: an inner product is as deep as it has terms.
    terms = int((factor != 0).sum(1).max())
    residual = norm_up(matrix - factor @ factor.mT, 2) + 2 * UNIT * norm_up(form, 2)
    error = float(residual + product_error(terms, torch.float64) * norm_up(factor, 2) ** 2) * (1 + gamma(size))
    # Subtracting the shift rounded each entry of the diagonal.
    return error + slack + 2 * UNIT * (float(form.diagonal().abs().max()) + shift) <= shift


def _factor_slack(form: Tensor) -> float:
    """About what multiplying out a Cholesky factor will cost; nothing is proven with it."""
    terms = int((form != 0).sum(1).max()) + 8
    return 4 * terms * UNIT * float(form.diagonal().abs().sum())


def _balanced(program: Program, point: Tensor) -> tuple[Program, Tensor, Tensor]:
    """The same program in units in which the diagonal of P and the multipliers are about 1, by powers of two.

    Returns it with the point in its units and, for each variable, its old value for a new value of 1.
    """
    diagonal = program.matrix(point).diagonal().clone()
    diagonal[: program.inputs] = point[0]
    usable = torch.where(diagonal > 0, diagonal, 1.0)
    column = torch.exp2(-(torch.log2(usable) / 2).round().clamp(-400, 400))
    row = torch.exp2((torch.log2(torch.where(point > 0, point, 1.0)) / 2).round().clamp(-400, 400))

    def moved(rows: Rows, group: Tensor | None) -> Rows:
        scale = torch.ones(len(rows.matrix), dtype=torch.float64) if group is None else row[1 + group]
        width = column[rows.span]
        largest = float(scale.max() * width.max()) if rows.matrix.numel() else 1.0
        return Rows(rows.start, scale[:, None] * rows.matrix * width, rows.relative, rows.error * largest)

    constraints = tuple(
        replace(one, into=moved(one.into, one.group), rest=moved(one.rest, one.rest_group))
        for one in program.constraints
    )
    weights = point / row**2
    weights[0] = point[0] * column[0] ** 2 if math.isfinite(float(point[0])) else 1.0
    return replace(program, constraints=constraints, output=moved(program.output, None)), weights, column
