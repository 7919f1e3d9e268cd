"""Matrices with singular values cut off at one."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import UnsupportedError
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.core.precision import store
from lipkit.nn.methods._arithmetic.derivative import Gradients, Tensors, with_derivative
from lipkit.nn.methods._base import MatrixMethod, Promise
from lipkit.rounding.slacks import UNIT

# Eigenvalues nearer than this are taken as equal in second derivatives, to balance rounding against truncation.
_EQUAL = 1e-6


@final
@dataclass(frozen=True)
class SingularClip(MatrixMethod):
    """sigma_i -> min(sigma_i, 1), the nearest matrix of norm at most one: P min(S, 1) R' for W = P S R'.

    Computed as W g(W'W) with g(t) = min(1, t^(-1/2)), in the basis R. Its divided differences are bounded, so the
    derivative is finite everywhere, singular values that meet included; at sigma = 1 it is a one-sided one. Large
    singular values keep no gradient along themselves, unlike dividing by the largest, which scales all of them.

    Guarantee: norm at most 1 as stored. The decomposition is not trusted: the norm of the result is bounded by the row
    sums of its Gram matrix in the basis R, and by how far R is from orthogonal. Reaches every matrix of norm at most
    one, which is its own free matrix. Cost: one singular value decomposition in float64, 8 products. Gradient: closed
    form, first and second order.
    Reference: Sedghi, Gupta and Long 2019 for the projection; Daleckii and Krein 1965 for the derivative.
    """

    def __str__(self) -> str:
        return "singular values clipped at 1"

    def promise(self, geometry: Geometry) -> Promise:
        super().promise(geometry)
        return Promise.CONTRACTION

    def matrix(self, raw: Float[Tensor, "batch rows cols"]) -> Float[Tensor, "batch rows cols"]:
        flipped = raw.shape[-2] < raw.shape[-1]
        tall = (raw.mT if flipped else raw).to(torch.float64)
        _, values, right = torch.linalg.svd(tall.detach(), full_matrices=False)
        basis = right.mT
        clipped = tall @ _damp(tall.mT @ tall, basis, values)
        found = store(clipped / _bound(clipped.detach(), basis).clamp(min=1.0), raw.dtype)
        return found.mT if flipped else found


def _bound(tall: Tensor, basis: Tensor) -> Tensor:
    """An upper bound of the norm that is sharp if the columns of `basis` are right singular vectors."""
    rows, n = tall.shape[-2:]
    identity = torch.eye(n, dtype=tall.dtype, device=tall.device)
    turned = tall @ basis
    # The rounding error of a product of matrices, relative to their Frobenius norms, with room for three of them.
    slack = 4 * (rows + n + 8) * UNIT
    size = torch.linalg.vector_norm(tall, dim=(-2, -1)) + 1
    defect = (basis.mT @ basis - identity).abs().sum(-1).amax(-1) + slack * n
    gram = (turned.mT @ turned).abs().sum(-1).amax(-1) + slack * n * size.square()
    return (gram / (1 - defect)).sqrt()[:, None, None]


def _damp_forward(gram: Tensor, basis: Tensor, values: Tensor) -> Tensors:  # noqa: ARG001 - what the derivative is of
    return ((basis / values.clamp(min=1.0)[:, None, :]) @ basis.mT,)


def _damp_backward(inputs: Tensors, _: Tensors, gradients: tuple[Tensor]) -> Gradients:
    return _slope(gradients[0], *inputs), None, None


def _slope_forward(direction: Tensor, gram: Tensor, basis: Tensor, values: Tensor) -> Tensors:  # noqa: ARG001
    return (basis @ (_first(values) * (basis.mT @ direction @ basis)) @ basis.mT,)


def _slope_backward(inputs: Tensors, _: Tensors, gradients: tuple[Tensor]) -> Gradients:
    direction, basis, values = inputs[0], *inputs[2:]
    first = _first(values)
    one, other = basis.mT @ direction @ basis, basis.mT @ gradients[0] @ basis
    one, other = (one + one.mT) / 2, (other + other.mT) / 2
    second = basis @ _second(values, first, one, other) @ basis.mT
    return _last(basis @ (first * other) @ basis.mT), _last(second), None, None


def _last_forward(x: Tensor) -> Tensors:
    return (x.clone(),)


def _last_backward(_: Tensors, __: Tensors, ___: tuple[Tensor]) -> Gradients:
    raise UnsupportedError("SingularClip has first and second derivatives only; use Polar for higher ones.")


# g(G) for symmetric G with eigenvectors `basis` and eigenvalues `values`^2, g(t) = min(1, t^(-1/2)).
_damp = with_derivative(_damp_forward, _damp_backward, tensors=3)
# The derivative of g at G in the direction E, R (D o R'ER) R' with the divided differences D of g.
_slope = with_derivative(_slope_forward, _slope_backward, tensors=4)
# The identity, without a derivative.
_last = with_derivative(_last_forward, _last_backward)


def _first(values: Tensor) -> Tensor:
    """(g(a^2) - g(b^2)) / (a^2 - b^2) for singular values a, b, without cancellation; g' if they are equal."""
    high = torch.maximum(values[:, :, None], values[:, None, :])
    low = torch.minimum(values[:, :, None], values[:, None, :])
    above = -1 / (high * low * (high + low)).clamp(min=1.0)
    # high > 1 >= low: never equal.
    apart = torch.where((high > 1) & (low <= 1), high - low, 1.0)
    across = -(high - 1) / (high.clamp(min=1.0) * (high + low).clamp(min=1.0) * apart)
    return torch.where(low > 1, above, torch.where(high > 1, across, 0.0))


def _second(values: Tensor, first: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """sum_k g[i, k, j] (E_ik K_kj + K_ik E_kj), the second divided differences summed by products."""
    square = values.square()
    gap = square[:, :, None] - square[:, None, :]
    equal = gap.abs() <= _EQUAL * (1 + square[:, :, None] + square[:, None, :])
    safe = torch.where(equal, 1.0, gap)
    difference = (first * one) @ other + (first * other) @ one
    apart = (difference - difference.mT) / safe
    # i = j: g[i, i, k] = (g'(i) - g[i, k]) / (i - k), and g''/2 where all three meet.
    slope = torch.diagonal(first, dim1=-2, dim2=-1)[:, :, None]
    curve = torch.where(values > 1, 0.375 * values.clamp(min=1.0) ** -5, 0.0)[:, :, None]
    double = torch.where(equal, curve, (slope - first) / safe)
    together = (double * one) @ other + (double * other) @ one
    return torch.where(equal, (together + together.mT) / 2, apart)
