"""How rich the functions of one architecture, or of one margin, can be: norms of weights and counts of pieces."""

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit.errors import ArgumentError, NonFiniteError, ShapeError

# exp of more is no finite number.
_LOG_MAX = math.floor(math.log(sys.float_info.max))


class PackingBounds(NamedTuple):
    """Two sides of a packing number."""

    low: float
    high: float


def path_norm(weights: Sequence[Float[Tensor, "_ _"]]) -> float:
    """Largest sum over paths to an output of products of |weights|, of a ReLU network with these layers in order.

    It bounds the constant from l_inf to l_inf, and stays when a neuron's weights are scaled by c and 1/c.
    Guarantee: a bound up to rounding. Cost: one forward pass of |W| on ones.
    Reference: Neyshabur, Tomioka, Srebro 2015.
    """
    wide = _chain(weights)
    paths = wide[0].new_ones(wide[0].shape[1])
    for weight in wide:
        paths = weight.abs() @ paths
    if not bool(torch.isfinite(paths).all()):
        raise NonFiniteError("The product of the weights overflows; rescale them.")
    return float(paths.max())


def spectral_complexity(
    weights: Sequence[Float[Tensor, "_ _"]], references: Sequence[Float[Tensor, "_ _"]] | None = None
) -> float:
    """The spectral complexity of a network with these layers and activations of constant 1.

        R = prod_i ||A_i||_2 * (sum_i (sum of row lengths of A_i - M_i / ||A_i||_2)^(2/3))^(3/2).

    With probability 1 - failure over m samples x_i, the population error is at most the share of samples with a margin
    below g, plus O((sum_i |x_i|^2)^(1/2) R log(width) / (g m) + (log(1 / failure) / m)^(1/2)), for all weights and
    margins at once. The factor in O is not small, so this compares networks, and bounds no error of one.

    Guarantee: the number, up to rounding. It does not see scales that layers exchange if all M_i are zero.
    Cost: the singular values of each layer. Reference: Bartlett, Foster, Telgarsky 2017, theorem 1.1.

    Args:
        weights: A_1, A_2, ... in order; a convolution as the matrix of its linear map.
        references: M_1, M_2, ..., chosen before the data were seen, such as the initial weights; zero if None.
    """
    wide = _chain(weights)
    others = [torch.zeros_like(one) for one in wide] if references is None else list(references)
    if [tuple(one.shape) for one in others] != [tuple(one.shape) for one in wide]:
        raise ShapeError(
            f"References have the shapes of the layers, {[tuple(one.shape) for one in wide]}, got "
            f"{[tuple(one.shape) for one in others]}."
        )
    norms = [float(torch.linalg.matrix_norm(one, 2)) for one in wide]
    if not all(norms):
        raise ArgumentError(f"Layer {norms.index(0.0)} is zero, and the complexity divides by its norm; leave it out.")
    moved = [one - other.detach().to(one) for one, other in zip(wide, others, strict=True)]
    lengths = [float(torch.linalg.vector_norm(one, dim=1).sum()) for one in moved]
    shares = sum((length / norm) ** (2 / 3) for length, norm in zip(lengths, norms, strict=True))
    found = math.prod(norms) * shares**1.5
    if not math.isfinite(found):
        raise NonFiniteError("The product of the norms overflows, or a reference is NaN or infinite.")
    return found


def num_affine_pieces_upper_bound(inputs: int, widths: Sequence[int], group: int = 2) -> int:
    """The most affine pieces that a network with sorted groups can have on R^n: a product over its layers.

        min((G!)^(w/G), sum_{j=0..d} C(h, j)),   h = (w/G) C(G, 2),   d = the smallest of n and the widths before.

    A layer of w neurons in groups of G bends where two neurons of one group are equal, so at h hyperplanes, and these
    cut a piece of dimension d into as many parts at most. With G = 2, and without the sum, this is 2^(W/2) over W
    neurons. Every piece is convex.

    Guarantee: a bound, in whole numbers of any size. Nothing is said about a VC dimension. Cost: arithmetic.
    Reference: Bethune 2024, proof of proposition 11, for 2^(W/2); Zaslavsky 1975 for hyperplanes.

    Args:
        inputs: n, the number of coordinates.
        widths: Neurons of each layer that is followed by a sort; the affine output layer is none of them.
        group: How many neurons are sorted together, 2 for MaxMin and GroupSort2; a rest of neurons is not sorted.
    """
    if inputs < 1 or group < 2 or any(width < 1 for width in widths):
        raise ArgumentError(
            f"There is an input, layers have a neuron and groups two at least, got {inputs}, {list(widths)}, {group}."
        )
    pieces, dimension = 1, inputs
    for width in widths:
        groups = width // group
        planes = groups * math.comb(group, 2)
        cut = sum(math.comb(planes, j) for j in range(min(dimension, planes) + 1))
        pieces *= min(math.factorial(group) ** groups, cut)
        dimension = min(dimension, width)
    return pieces


def margin_vc_bounds(volume: float, dimension: int, margin: float) -> PackingBounds:
    """Two sides of the VC dimension of 1-Lipschitz classifiers that reject where |f| < margin.

        (1/(2m))^n vol(X) / vol(B)  <=  VC  <=  (3/m)^n vol(X) / vol(B),   B the unit ball.

    The VC dimension is the largest number of points at mutual distance 2m. The upper side needs a convex X that
    contains a ball of radius m/2; it is infinite if the volume says that X does not.
    Reference: Bethune 2024, proposition 10, whose lower side lacks the 2.
    """
    if not (0 < volume < math.inf and dimension >= 1 and 0 < margin < math.inf):
        raise ArgumentError(f"Volume, dimension and margin are > 0, got {volume}, {dimension}, {margin}.")
    log_ball = dimension / 2 * math.log(math.pi) - math.lgamma(dimension / 2 + 1)
    log_ratio = math.log(volume) - log_ball
    low, high = (dimension * math.log(f / margin) + log_ratio for f in (0.5, 3.0))
    # A ball of radius m/2 alone has (3/2)^n; a rounding of the logarithm is forgiven.
    fits = high >= dimension * math.log(1.5) - 1e-9 * (1 + abs(log_ball) + abs(log_ratio))
    return PackingBounds(math.exp(min(low, _LOG_MAX)), math.exp(high) if fits and high <= _LOG_MAX else math.inf)


def _chain(weights: Sequence[Tensor]) -> list[Tensor]:
    """The layers in float64 and without graph, if each takes what the one before gives, and all numbers are finite."""
    if not weights or any(a.shape[0] != b.shape[1] for a, b in pairwise(weights)):
        raise ShapeError(f"Layers must fit each other, got shapes {[tuple(one.shape) for one in weights]}.")
    wide = [one.detach().double() for one in weights]
    if not all(bool(torch.isfinite(one).all()) for one in wide):
        raise NonFiniteError("Some weights are NaN or infinite; repair them first.")
    return wide
