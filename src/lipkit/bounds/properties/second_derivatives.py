"""Bounds of the second derivatives of nodes that do not work entry by entry."""

import math
from functools import singledispatch

from lipkit.bounds.properties.soft_maximum import SoftMaximum
from lipkit.rounding.slacks import ROUNDINGS_8
from lipkit.trace.nodes import Node
from lipkit.trace.nodes.attention.attention import Attention
from lipkit.trace.nodes.attention.log_softmax import LogSoftmax, LogSumExp
from lipkit.trace.nodes.attention.softmax import Softmax
from lipkit.trace.nodes.entrywise_product import Product
from lipkit.trace.nodes.interpolation import Interpolation
from lipkit.trace.nodes.matrix_product import MatrixProduct
from lipkit.trace.nodes.normalization import Normalization

# Covers the rounding of a square root.
_UP = 1 + ROUNDINGS_8


@singledispatch
def curvature(_: Node) -> float | None:
    """sup over z and unit u, v of ||D^2 phi(z)[u, v]||_2, rounded up; None where no bound is known.

    Along the axis of a softmax with probabilities p, Cov_p(u, v) is at most the product of two standard deviations,
    each at most ||.||_2 / sqrt(2) (no two entries of a unit vector differ by more than sqrt(2)); groups share nothing.
    """
    return None


@curvature.register(SoftMaximum)
def _soft_maximum(node: SoftMaximum) -> float:
    return node.curvature


@curvature.register(LogSumExp)
def _log_sum_exp(_: LogSumExp) -> float:
    # D^2 = Cov_p(u, v).
    return 0.5


@curvature.register(LogSoftmax)
def _log_softmax(node: LogSoftmax) -> float:
    # The same number in every one of n entries.
    return 0.5 * math.sqrt(node.shape[-1]) * _UP


@curvature.register(Softmax)
def _softmax(_: Softmax) -> float:
    # p_i ((u_i - mean)(v_i - mean) - Cov): sum_i p_i |.||.| <= 1/2, and |p|_2 |Cov| <= 1/2.
    return 1.0


@curvature.register(MatrixProduct)
def _matrix_product(_: MatrixProduct) -> float:
    # |u_a v_b + v_a u_b| <= |u_a||v_b| + |v_a||u_b| <= |u||v|.
    return 1.0


@curvature.register(Product)
def _product(node: Product) -> float:
    # The same entry by entry; the gauge divides one factor.
    return 1.0 / node.gauge


@curvature.register(Interpolation)
def _interpolation(node: Interpolation) -> float:
    # The same for the factors g and b - a, and |v_b - v_a| <= sqrt(2) |(v_a, v_b)|.
    return math.sqrt(2) / node.gauge * _UP


def is_smooth(node: Node) -> bool:
    """Whether a node that is no pointwise function is known to be differentiable at every point."""
    match node:
        case Attention():
            return True
        case Normalization():
            return node.eps > 0
        case _:
            return curvature(node) is not None
