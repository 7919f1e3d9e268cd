"""The norm from a full singular value decomposition, and what proven norms do with singular vectors."""

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float, Inexact, Int
from torch import Tensor

from lipkit.bound import Kind
from lipkit.errors import NotProvenError, UnsupportedError
from lipkit.linops import Dense, LinearOperator, stack
from lipkit.norms._base import BlockNorm, Enclosure
from lipkit.rounding.float64 import gamma, log_down, log_up, norm_up, normalize, product_error, sums_up


def select_blocks(
    blocks: Inexact[Tensor, "batch blocks rows cols"], block: Int[Tensor, " batch"]
) -> Inexact[Tensor, "batch rows cols"]:
    """The block `block[i]` of each batch entry."""
    # One by one: indexing with two tensors would first resolve the conjugation of all blocks.
    return torch.stack([of_one[index] for of_one, index in zip(blocks, block.tolist(), strict=True)])


def rayleigh(
    matrices: Inexact[Tensor, "batch rows cols"],
    start: Inexact[Tensor, "batch cols"],
    exponent: Float[Tensor, " batch"],
) -> tuple[Float[Tensor, " batch"], Inexact[Tensor, "batch rows"], Inexact[Tensor, "batch cols"]]:
    """log of a proven lower bound ||W v|| 2^exponent of the norm, with unit vectors u and v; v is `start` normalised.

    |fl(W v) - W v| <= c |W| |v|, whose length is at most c ||W||_F ||v||.
    """
    length = torch.linalg.vector_norm(start, dim=-1, keepdim=True)
    # Any unit vector serves where the start vanishes (a zero matrix).
    first = torch.zeros_like(start)
    first[..., 0] = 1
    right = torch.where(length > 0, start / torch.where(length > 0, length, 1.0), first)
    image = (matrices @ right.unsqueeze(-1)).squeeze(-1)
    norm = torch.linalg.vector_norm(image, dim=-1)
    error = product_error(matrices.shape[-1], matrices.dtype) * norm_up(matrices, 2)
    slack = gamma(2 * (image.shape[-1] + right.shape[-1]) + 8)
    left = image / torch.where(norm > 0, norm, 1.0).unsqueeze(-1)
    return log_down((norm * (1 - slack) - 2 * error) * (1 - slack), exponent), left, right


def tie_gradient(
    log_value: Float[Tensor, " batch"],
    op: LinearOperator,
    left: Inexact[Tensor, "batch ..."],
    right: Inexact[Tensor, "batch ..."],
) -> Float[Tensor, " batch"]:
    """`log_value` with the gradient of log Re <left, A right> in the tensors of `op`, vectors held fixed.

    `op` is block-diagonal over a leading axis (`linops.stack`). At convergence this is the gradient of log sigma. A
    second derivative follows the vectors as well, by solving (sigma - [0 A; A* 0]) z = g with conjugate gradients.
    """
    return _Tied.apply(log_value, left, right, op, *op.tensors())  # pyright: ignore[reportReturnType]


def _pair(op: LinearOperator, tensors: tuple[Tensor, ...], left: Tensor, right: Tensor) -> Tensor:
    return _dot(left, op.with_tensors(tensors).apply(right))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    product = a.conj() * b
    return (product.real if product.is_complex() else product).flatten(1).sum(1)


def pull_back(
    op: LinearOperator, tensors: tuple[Tensor, ...], left: Tensor, right: Tensor, weight: Tensor
) -> tuple[Tensor | None, ...]:
    """Gradient of sum_i weight_i Re <left_i, A right_i> in the tensors, for fixed vectors; None for integers."""
    inexact = [i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex()]

    def value(*some: Tensor) -> Tensor:
        full = list(tensors)
        for i, t in zip(inexact, some, strict=True):
            full[i] = t
        return (_pair(op, tuple(full), left, right) * weight).sum()

    grads = dict(
        zip(inexact, torch.func.grad(value, tuple(range(len(inexact))))(*[tensors[i] for i in inexact]), strict=True)
    )
    return tuple(grads.get(i) for i in range(len(tensors)))


class _Tied(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, log_value: Tensor, left: Tensor, right: Tensor, op: LinearOperator, *tensors: Tensor
    ) -> Tensor:
        ctx.op = op.map(Tensor.detach)
        ctx.save_for_backward(left, right, *tensors)
        return log_value.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        left, right, *rest = ctx.saved_tensors
        tensors = tuple(rest)
        if torch.is_grad_enabled():
            left, right = _Vectors.apply(left, right, ctx.op, *tensors)
        sigma = _pair(ctx.op, tensors, left, right)
        # Where the operator is zero any subgradient will do; take zero.
        inverse = torch.where(sigma > 0, 1 / torch.where(sigma > 0, sigma, 1.0), 0.0)
        return None, None, None, None, *pull_back(ctx.op, tensors, left, right, grads[0] * inverse)


class _Vectors(torch.autograd.Function):
    """The top singular vectors as functions of the operator.

    From A v = sigma u, A* u = sigma v: N (du, dv) = (dA v - dsigma u, dA* u - dsigma v) with N = sigma - [0 A; A* 0],
    positive semidefinite with kernel (u, v). So a cotangent (g, h) gives z = N^+ (g, h) and the pullback
    Re <z_u, dA v> + Re <u, dA z_v>.
    """

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, op: LinearOperator, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.op = op
        ctx.save_for_backward(left, right, *tensors)
        return left.clone(), right.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise UnsupportedError("Third derivatives of a norm are not available by singular vectors; use Gram.")
        left, right, *rest = ctx.saved_tensors
        tensors = tuple(rest)
        op = ctx.op.with_tensors(tensors)
        sigma = _dot(left, op.apply(right))
        z_left, z_right = solve_for_vectors(op, sigma, left, right, grads[0], grads[1])
        one = torch.ones_like(sigma)
        first = pull_back(ctx.op, tensors, z_left, right, one)
        second = pull_back(ctx.op, tensors, left, z_right, one)
        total = (None if a is None or b is None else a + b for a, b in zip(first, second, strict=True))
        return None, None, None, *total


def solve_for_vectors(
    op: LinearOperator, sigma: Tensor, left: Tensor, right: Tensor, g: Tensor, h: Tensor
) -> tuple[Tensor, Tensor]:
    """Conjugate gradients for N z = (g, h) off the directions that unit vectors cannot move in, batched."""

    def wide(x: Tensor, like: Tensor) -> Tensor:
        return x.reshape(-1, *(1,) * (like.ndim - 1))

    def off(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        a, b = a - wide(_dot(left, a), a) * left, b - wide(_dot(right, b), b) * right
        if not a.is_complex():
            return a, b
        # A common phase of both vectors changes nothing they are used for: it is in the kernel too.
        phase = (_dot(1j * left, a) + _dot(1j * right, b)) / 2
        return a - 1j * wide(phase, a) * left, b - 1j * wide(phase, b) * right

    def system(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        return off(wide(sigma, a) * a - op.apply(b), wide(sigma, b) * b - op.adjoint(a))

    ra, rb = off(g, h)
    za, zb = torch.zeros_like(ra), torch.zeros_like(rb)
    pa, pb = ra, rb
    rho = _dot(ra, ra) + _dot(rb, rb)
    # Relative to what was given, not to what the projection left: a converged first-order term leaves only rounding.
    goal = 1e-24 * (_dot(g, g) + _dot(h, h))
    for _ in range(2 * (left[0].numel() + right[0].numel()) + 64):
        if bool((rho <= goal).all()):
            return za, zb
        qa, qb = system(pa, pb)
        curvature = _dot(pa, qa) + _dot(pb, qb)
        step = torch.where(rho > goal, rho / torch.where(curvature > 0, curvature, 1.0), 0.0)
        za, zb = za + wide(step, pa) * pa, zb + wide(step, pb) * pb
        ra, rb = ra - wide(step, qa) * qa, rb - wide(step, qb) * qb
        fresh = _dot(ra, ra) + _dot(rb, rb)
        ratio = fresh / torch.where(rho > 0, rho, 1.0)
        pa, pb, rho = ra + wide(ratio, pa) * pa, rb + wide(ratio, pb) * pb, fresh
    raise NotProvenError(
        "The second derivative of a norm did not converge: its two largest singular values are too close for it; "
        "use Gram, whose value is smooth."
    )


@final
@dataclass(frozen=True)
class SVD(BlockNorm):
    """The spectral norm from a full singular value decomposition W = U S V*.

    The decomposition is only a guess until it is multiplied out: with B = W V,
        ||W|| <= ||B|| / sigma_min(V),   ||B||^2 <= max row sum of |B* B|,   sigma_min(V)^2 >= 1 - max row sum of |V* V
        - I|,
    every rounding error of these three products counted. Nothing of the library's SVD is trusted.

    Guarantee: EXACT, meaning never below and within about n^2 2^-53 (1e-9 at n = 4096). Cost: one SVD and three
    products.
    """

    kind: ClassVar[Kind] = Kind.EXACT

    def __str__(self) -> str:
        return "singular value decomposition"

    def enclose(self, blocks: Inexact[Tensor, "batch blocks rows cols"]) -> Enclosure:
        scaled, exponent = normalize(blocks, self)
        flipped = blocks.shape[-1] > blocks.shape[-2]
        tall = scaled.mH if flipped else scaled
        v = torch.linalg.svd(tall, full_matrices=False).Vh.mH
        upper = _proven(tall, v)
        if not bool(torch.isfinite(upper).all()):
            raise NotProvenError("The SVD returned vectors that are not orthonormal; use Cholesky or Gram instead.")
        value, block = upper.max(1)
        log_lower, left, right = rayleigh(select_blocks(tall, block), select_blocks(v, block)[..., 0], exponent)
        if flipped:
            left, right = right, left
        return Enclosure(log_up(value, exponent), log_lower, block, left, right)

    def attach_gradient(
        self, matrices: Inexact[Tensor, "batch rows cols"], enclosure: Enclosure
    ) -> Float[Tensor, " batch"]:
        return tie_gradient(enclosure.log_upper, stack([Dense(m) for m in matrices]), enclosure.left, enclosure.right)


def _proven(w: Tensor, v: Tensor) -> Tensor:
    """An upper bound of ||w|| from nearly orthonormal v, inf where v is not."""
    rows, cols = w.shape[-2:]
    in_v, in_w = product_error(cols, w.dtype), product_error(rows, w.dtype)
    size_v, size_w = norm_up(v, 2), norm_up(w, 2)
    b = w @ v
    image = sums_up(b.mH @ b) + 2 * in_w * norm_up(b, 2) ** 2
    image = image.sqrt() * (1 + gamma(8)) + 2 * in_v * size_w * size_v
    defect = sums_up(v.mH @ v - torch.eye(cols, dtype=v.dtype, device=v.device)) + 2 * in_v * size_v**2 + gamma(4)
    smallest = torch.sqrt(1 - defect) * (1 - gamma(8))
    return torch.where(defect < 0.5, image / smallest * (1 + gamma(8)), torch.inf)
