"""The derivative of a semidefinite bound in the weights of the network."""

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bounds.sdp.barrier import derivatives, factorised, parts_of
from lipkit.bounds.sdp.dense_network import DenseNetwork, Slopes
from lipkit.bounds.sdp.program import Constraint, Program
from lipkit.bounds.sdp.proof import Proof
from lipkit.linops import LinearOperator
from lipkit.trace import Network
from lipkit.trace.nodes import Node, Pointwise


def wanted(network: Network) -> bool:
    """Whether anybody can ask for a derivative."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in network.tensors())


def dual(program: Program, point: Float64[Tensor, " groups"]) -> Float64[Tensor, "directions n"] | None:
    """Increments whose second moments X are dual to a point near the central path; None if it is too far away.

    X = S - S dP S with S = P^-1 and dP the Newton step to the path, so that tr(X Q_g) = 0 for every multiplier: at the
    optimum several increments may be tight at once, and X is the one mixture of them that gives the derivative.
    """
    factor = factorised(program.matrix(point), parts_of(program))
    if factor is None:
        return None
    inverse = factor.inverse()
    gradient, hessian = derivatives(program, inverse)
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


def attached(
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
                z = z + _applied(op, values[j]) * 2.0 ** (dense.units[j] - dense.units[k])
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


def _applied(op: LinearOperator, x: Tensor) -> Tensor:
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
        value = value + _applied(split.center, z)
    if constraint is None:
        return value, z.new_zeros(())
    weight = point[1 + constraint.rest_group[0]].to(z)
    moved = _applied(split.scale, u.reshape(-1, *split.scale.in_shape))
    return value + moved, weight * ((z**2).sum() - (u**2).sum())
