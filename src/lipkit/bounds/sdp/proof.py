"""Multipliers to a proven bound: repair, scaling, a Cholesky factor that is multiplied out; and its derivative."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.dense_network import DenseNetwork, Slopes
from lipkit.bounds.sdp.program import Constraint, Program, Rows, couplings, factorise, parts_of, traces
from lipkit.errors import NotProvenError
from lipkit.linops import LinearOperator
from lipkit.rounding.float64 import gamma, log_up, norm_up, product_error
from lipkit.rounding.slacks import UNIT
from lipkit.trace import Network
from lipkit.trace.nodes import Node, Pointwise

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
    for point in _repair(program, guess, fallback):
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


def _repair(program: Program, guess: Tensor, fallback: Tensor) -> Iterator[Tensor]:
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
    scaled, weights, column = _balance(program, point)
    x, rest = slice(0, program.inputs), slice(program.inputs, program.size)
    weights[0] = 0.0
    form = scaled.matrix(weights)
    unit = torch.eye(program.size, dtype=torch.float64)
    # The final rho is of the order of 1 in these units; twice the slack leaves room for the proof.
    shift = 2 * (slack_of(scaled, weights) + 8 * UNIT + _factor_slack(form))
    inner, info = torch.linalg.cholesky_ex(form[rest, rest] - shift * unit[rest, rest])
    if int(info):
        return None
    half = torch.linalg.solve_triangular(inner, form[rest, x], upper=False)
    schur = half.mT @ half - form[x, x]
    values, vectors = torch.linalg.eigh((schur + schur.mT) / 2)
    rho = (max(float(values[-1]), 0.0) + shift) * (1 + 1e-13 * program.size)
    for _ in range(8):
        weights[0] = rho
        if is_positive(scaled.matrix(weights), slack_of(scaled, weights)):
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


def slack_of(program: Program, point: Float64[Tensor, " groups"]) -> float:
    """A bound of the spectral norm of the difference between `program.matrix(point)` as computed and the true P.

    A product M* D M is within gamma sum_i d_i |m_i|^2, relative errors of M included; an error e of M adds
    max(d) (2 |M| e + e^2). Adding up costs one rounding for each piece.
    """
    roundings = len(program.layers) + 8
    share = _slack_of_rows(program.output, torch.ones(len(program.output.matrix), dtype=torch.float64), roundings)
    for one in program.constraints:
        depth = len(one.group) + len(one.rest_group) + roundings
        share += _slack_of_rows(one.rest, point[1 + one.rest_group].abs(), depth)
        share += _slack_of_rows(one.into, point[1 + one.group].abs(), depth)
    rho = product_error(roundings, torch.float64) * float(point[0].abs())
    # The last term is more than underflow can cost.
    return (share + rho) * (1 + 1e-6) + 1e-280


def _slack_of_rows(rows: Rows, weight: Tensor, depth: int) -> float:
    if not rows.matrix.numel():
        return 0.0
    squares = float((weight * (rows.matrix**2).sum(1)).sum()) * (1 + 1e-9)
    relative = product_error(len(rows.matrix) + depth, torch.float64) + 2 * rows.relative + rows.relative**2
    error = rows.error * (1 + rows.relative)
    return relative * squares + float(weight.max()) * (2 * rows.size * error + error**2)


def _balance(program: Program, point: Tensor) -> tuple[Program, Tensor, Tensor]:
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


def wants_gradient(network: Network) -> bool:
    """Whether anybody can ask for a derivative."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in network.tensors())


def dual_directions(program: Program, point: Float64[Tensor, " groups"]) -> Float64[Tensor, "directions n"] | None:
    """Increments whose second moments X are dual to a point near the central path; None if it is too far away.

    X = S - S dP S with S = P^-1 and dP the Newton step to the path, so that tr(X Q_g) = 0 for every multiplier: at the
    optimum several increments may be tight at once, and X is the one mixture of them that gives the derivative.
    """
    factor = factorise(program.matrix(point), parts_of(program))
    if factor is None:
        return None
    inverse = factor.inverse()
    gradient, hessian = traces(program, inverse), couplings(program, inverse, inverse)
    scale = hessian.diagonal().rsqrt()
    chol, info = torch.linalg.cholesky_ex(scale[:, None] * hessian * scale)
    if int(info):
        return None
    cost = torch.zeros_like(gradient)
    cost[0] = 1.0
    center, down = (torch.cholesky_solve(torch.stack([gradient, cost], 1) * scale[:, None], chol) * scale[:, None]).mT
    change = program.linear(center - down * (center[0] / down[0]))
    moments, info = torch.linalg.cholesky_ex(inverse - inverse @ change @ inverse)
    return None if int(info) else moments.mT


def attach_gradient(
    network: Network, dense: DenseNetwork, program: Program, proof: Proof, directions: Float64[Tensor, "directions n"]
) -> Float64[Tensor, ""]:
    """`proof.log_value` with its gradient in the tensors of `network`, multipliers held fixed.

    For fixed tau, rho |x|^2 = max over increments of |output|^2 + sum_g tau_g (|z_g|^2 - |w_g|^2); its derivative is
    that of the right-hand side, summed over the increments `directions` at which the maximum is. At optimal multipliers
    this is the derivative of the bound itself (envelope theorem). Cost: every operator applied to all directions.
    """
    device = network.tensors()[0].device
    constraints = {one.node: one for one in program.constraints}
    first = directions[:, : program.inputs]
    first = first if dense.lift is None else first @ dense.lift.mT
    values = {0: first.to(device).reshape(-1, *network.source)}
    form = torch.zeros((), dtype=torch.float64, device=device)
    rows = network.rows()
    for k in (*dense.nodes, dense.sink):
        z = torch.zeros((len(directions), *network.shape_into(k)), dtype=torch.float64, device=device)
        for j, op in rows[k].items():
            if j in values:
                z = z + _apply(op, values[j]) * 2.0 ** (dense.units[j] - dense.units[k])
        if k == dense.sink:
            form = form + (z**2).sum()
            break
        node, slopes, constraint = network.nodes[k - 1], dense.nodes[k], constraints.get(k)
        own = directions[:, constraint.own].to(z) if constraint is not None else z.new_zeros(len(z), 0)
        if isinstance(node, Pointwise) and isinstance(slopes, Slopes):
            values[k], term = _through(node, slopes, z.flatten(1), own, constraint, proof.point)
        else:
            values[k], term = _through_whole(node, z, own, constraint, proof.point)
        form = form + term
    if not bool(form.detach() > 0):
        return proof.log_value
    return proof.log_value + ((form - form.detach()) / (2 * form.detach())).to(proof.log_value.device)


def _apply(op: LinearOperator, x: Tensor) -> Tensor:
    return op.to(torch.float64).apply(x)


def _through(
    node: Pointwise, slopes: Slopes, z: Tensor, u: Tensor, constraint: Constraint | None, point: Tensor
) -> tuple[Tensor, Tensor]:
    """The value of a node, its variables u held fixed, and what its constraint adds to the form."""
    alpha, beta = (s.to(z).expand(node.shape).reshape(-1) for s in node.slopes())
    center, radius = (alpha + beta) / 2, (beta - alpha) / 2
    value = center * z
    if constraint is None:
        return value.reshape(-1, *node.shape), z.new_zeros(())
    at, direct = constraint.neurons.to(z.device), constraint.direct.to(z.device)
    weight = point[1 + constraint.rest_group].to(z)
    inner = z[:, at]
    mine = torch.where(direct, u, value[:, at] + radius[at] * u)
    restricted = weight / slopes.radius.to(z)[at] ** 2 * (u - alpha[at] * inner) * (beta[at] * inner - u)
    term = torch.where(direct, restricted, weight * (inner**2 - u**2))
    return value.index_copy(1, at, mine).reshape(-1, *node.shape), term.sum()


def _through_whole(
    node: Node, z: Tensor, u: Tensor, constraint: Constraint | None, point: Tensor
) -> tuple[Tensor, Tensor]:
    split = node.split(2.0)
    value = z.new_zeros(len(z), *node.target)
    if split.center is not None:
        value = value + _apply(split.center, z)
    if constraint is None:
        return value, z.new_zeros(())
    weight = point[1 + constraint.rest_group[0]].to(z)
    moved = _apply(split.scale, u.reshape(-1, *split.scale.in_shape))
    return value + moved, weight * ((z**2).sum() - (u**2).sum())
