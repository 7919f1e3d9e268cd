"""Lower bounds from Jacobians at random points."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from time import monotonic
from typing import final

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit._runtime import seconds_left, time_limit
from lipkit.bound import L2, Bound, Metric, Scope
from lipkit.bounds._base import RegionMethod
from lipkit.bounds.local.local import each_sample
from lipkit.bounds.lower.difference_quotients import (
    Pair,
    along,
    best_pair,
    draw_points,
    lower_bound,
    move_inside,
    prover,
)
from lipkit.errors import ArgumentError, MetricError
from lipkit.norms import dual_exponent
from lipkit.regions import Ball, Box, Everywhere, Region
from lipkit.trace import Network

# Outputs up to which whole Jacobians are formed; beyond, only products with vectors.
_ROWS = 64
# Steps of the power method where the Jacobian is not formed, or has no closed form.
_POWER_STEPS = 20
# Entries of the Jacobians, and values of the network, that are held at once.
_CHUNK_ENTRIES = 2**23
# The pairs of points beside one point, and a proof, take as long as the Jacobians of this many points, about.
_PAIRS = 6


@final
@dataclass(frozen=True, eq=False)
class Sampling(RegionMethod):
    """The largest Jacobian norm at random points, turned into two points whose difference quotient proves it.

        Lip(f) >= |f(x) - f(y)|_q / |x - y|_p - rounding,   x and y in the region, on the line through the steepest of
        `count` points, in the direction of the largest singular value there, at several distances.

    `points`, if given, are tried as well: data on which the network is used. On the whole space points are drawn at
    scales from 0.01 to 100 around zero. The two points are the bound's `state`. A region with a batch of centers gives
    a value for each of them.

    Guarantee: LOWER, from the function alone, so also at kinks, where a Jacobian of autograd may be no derivative at
    all. ESTIMATE where the rounding errors of float64 exceed half of the value. Where a call has a budget, fewer points
    are tried. Cost: one backward pass for each
    output, for `count` points in batches; then a few enclosures of the function at single points.
    """

    count: int = 1024
    metric: Metric = L2
    points: Float[Tensor, "given ..."] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ArgumentError(f"Sampling needs at least one point, got count={self.count}.")

    def _bound(self, network: Network, region: Region) -> Bound:
        samples, of = regions_of(region, network)
        prove = prover(network, self.metric)
        pairs: list[Pair] = []
        for one in samples:
            x = self._draw(network, one)
            # The other half of the time is for pairs of points and the proof.
            with time_limit(seconds_left() / 2):
                norms, directions, each = _steepest_in_time(network, x, self.metric)
            # As many as there is time to evaluate the pairs of, at least one.
            most = 4 if each == 0 else max(1, int(min(4, seconds_left() / (_PAIRS * each))))
            top = norms.argsort(descending=True)[:most]
            first, second = along(x[top], directions[top], scale_of(one, x[top]))
            pairs.append(best_pair(network, one, first, second, prove, self.metric))
        return lower_bound(pairs, region, self.metric, self, of)

    def norms(self, network: Network, region: Region = Everywhere()) -> Float64[Tensor, "..."]:
        """The Jacobian norms at the points themselves (estimates), for `profile`; with an axis in front for a batch."""
        samples, of = regions_of(region, network)
        found = [steepest(network, self._draw(network, one), self.metric)[0] for one in samples]
        return found[0] if of is Scope.WHOLE else torch.stack(found)

    def _draw(self, network: Network, region: Region) -> Tensor:
        generator = torch.Generator(network.device).manual_seed(self.seed)
        x = draw_points(region, network.source, self.count, generator)
        if self.points is None:
            return x
        return torch.cat([move_inside(region, self.points.detach().to(x)), x])

    def __str__(self) -> str:
        return f"steepest of {self.count} points"


def regions_of(region: Region, network: Network) -> tuple[list[Region], Scope]:
    """The regions to search, and what the values then range over."""
    if isinstance(region, Everywhere):
        return [region], Scope.WHOLE
    samples = each_sample(region, network.source)
    return ([region], Scope.WHOLE) if samples is None else (samples, Scope.SAMPLE)


def scale_of(region: Region, x: Float64[Tensor, "batch ..."]) -> float:
    """A length that is natural in the region: its radius, its widest side, or the size of the points."""
    match region:
        case Ball(radius=radius):
            return radius
        case Box(low, high):
            return float((high - low).max()) / 2
        case _:
            return float(torch.linalg.vector_norm(x.flatten(1), dim=1).median()) * 0.1


def _steepest_in_time(network: Network, x: Tensor, metric: Metric) -> tuple[Tensor, Tensor, float]:
    """As `steepest`, for as many of the points as there is time for, but at least one; and seconds for one point.

    These are zero where nobody set a limit.
    """
    if seconds_left() == math.inf:
        return *steepest(network, x, metric), 0.0
    parts: list[tuple[Tensor, Tensor]] = []
    done, count, each = 0, 1, 0.0
    while done < len(x):
        begun = monotonic()
        parts.append(steepest(network, x[done : done + count], metric))
        done, each = done + count, (monotonic() - begun) / count
        # No more than half of the time left at once: the next points may take longer than these did.
        # A clock may not have moved, and the time left may be more than a float holds once it is divided.
        count = 2 * count if each == 0 else int(min(2 * count, seconds_left() / (2 * each)))
        if count < 1:
            break
    return torch.cat([norm for norm, _ in parts]), torch.cat([direction for _, direction in parts]), each


def jacobians(network: Network, x: Float64[Tensor, "batch ..."]) -> Float64[Tensor, "batch out in"]:
    """df/dx at every point of a batch, as autograd gives it: one backward pass for each output.

    Evaluated in the dtype of x. At a kink this is some product of one-sided derivatives, which need not be a limit of
    Jacobians: for a proven number use `Sampling`. Cost: out backward passes of the batch.
    """
    with torch.enable_grad():
        points = x.detach().requires_grad_()
        outputs = network.detach()(points).flatten(1)
        if not outputs.requires_grad:
            return x.new_zeros((len(x), outputs.shape[1], points[0].numel()))
        rows = [
            torch.autograd.grad(outputs[:, i].sum(), points, retain_graph=True, materialize_grads=True)[0].flatten(1)
            for i in range(outputs.shape[1])
        ]
    return torch.stack(rows, dim=1)


def steepest(
    network: Network, x: Float64[Tensor, "batch ..."], metric: Metric = L2
) -> tuple[Float64[Tensor, " batch"], Float64[Tensor, "batch ..."]]:
    """The norm of the Jacobian at every point, and a direction of unit length in which it is attained.

    l2 -> l2 by a decomposition of the Jacobian, l_p -> l_inf and l1 -> l_q in closed form, other l_p -> l_q by the
    power method of Boyd (a local maximum). Beyond 64 outputs l2 goes by products with vectors, 20 steps.
    Estimates: float64 without error bounds. Cost: one backward pass for each output, in chunks of the batch.
    """
    if math.prod(network.target) > _ROWS and metric == L2:
        parts = [_by_products(network, some) for some in _chunks(network, x)]
    else:
        parts = [_of_matrix(jacobians(network, some), metric, some) for some in _chunks(network, x)]
    return torch.cat([norm for norm, _ in parts]), torch.cat([direction for _, direction in parts])


def _chunks(network: Network, x: Tensor) -> Iterator[Tensor]:
    widest = sum(math.prod(network.shape_of(j)) for j in range(network.sink))
    size = widest + math.prod(network.source) * min(_ROWS, math.prod(network.target))
    yield from x.split(max(1, _CHUNK_ENTRIES // size))


def _of_matrix(matrix: Tensor, metric: Metric, x: Tensor) -> tuple[Tensor, Tensor]:
    norm, direction = matrix_norms(matrix, metric)
    return norm, direction.reshape(x.shape)


def matrix_norms(
    matrix: Float64[Tensor, "batch out in"], metric: Metric
) -> tuple[Float64[Tensor, " batch"], Float64[Tensor, "batch in"]]:
    """The norms of a batch of matrices and maximising vectors, as in `steepest`."""
    p, q = metric
    if matrix.shape[1] == 1 or q == math.inf:
        norms = torch.linalg.vector_norm(matrix, ord=dual_exponent(p), dim=2)
        row = norms.argmax(1)
        best = matrix[torch.arange(len(matrix)), row]
        return norms.amax(1), _unit(_align(best, dual_exponent(p)), p)
    if p == 1:
        norms = torch.linalg.vector_norm(matrix, ord=q, dim=1)
        return norms.amax(1), torch.nn.functional.one_hot(norms.argmax(1), matrix.shape[2]).to(matrix)
    if metric == L2:
        return _by_gram(matrix)
    if p == math.inf:
        raise MetricError(
            f"The norm {metric} of a matrix is no simple maximum; take l2 -> l2, p_in = 1 or p_out = inf."
        )
    x = _unit(_by_gram(matrix)[1], p)
    for _ in range(_POWER_STEPS):
        image = torch.einsum("boi,bi->bo", matrix, x)
        back = torch.einsum("boi,bo->bi", matrix, _align(image, q))
        x = _unit(_align(back, dual_exponent(p)), p)
    return torch.linalg.vector_norm(torch.einsum("boi,bi->bo", matrix, x), ord=q, dim=1), x


def _by_gram(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Top singular value and right vector through the smaller Gram matrix: faster than an SVD, as good as is needed.

    A matrix whose entries are not finite counts as zero: it says nothing.
    """
    # Squares of entries overflow long before the entries do.
    size = matrix.abs().amax((1, 2), keepdim=True)
    usable = torch.isfinite(size) & (size > 0)
    size = torch.where(usable, size, 1.0)
    matrix = torch.where(usable, matrix / size, 0.0)
    wide = matrix.shape[1] <= matrix.shape[2]
    gram = matrix @ matrix.mT if wide else matrix.mT @ matrix
    vector = torch.linalg.eigh(gram).eigenvectors[..., -1]
    right = torch.einsum("boi,bo->bi", matrix, vector) if wide else vector
    right = _unit(right, 2.0)
    norm = torch.linalg.vector_norm(torch.einsum("boi,bi->bo", matrix, right), dim=1)
    return norm * size.flatten(), right


def _by_products(network: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    frozen = network.detach()
    generator = torch.Generator(x.device).manual_seed(0)
    direction = torch.randn(x.shape, dtype=x.dtype, device=x.device, generator=generator)
    direction = _unit(direction.flatten(1), 2.0).reshape(x.shape)
    norm = x.new_zeros(len(x))
    for _ in range(_POWER_STEPS):
        image, pull = push_forward(frozen, x, direction)
        norm = torch.linalg.vector_norm(image.flatten(1), dim=1)
        direction = _unit(pull.flatten(1), 2.0).reshape(x.shape)
        if seconds_left() <= 0:
            break
    return norm, direction


def push_forward(
    network: Network, x: Float64[Tensor, "batch ..."], direction: Float64[Tensor, "batch ..."]
) -> tuple[Float64[Tensor, "batch ..."], Float64[Tensor, "batch ..."]]:
    """J v and J' J v at every point, by differentiating J' u, which is linear in u, once more."""
    with torch.enable_grad():
        point = x.detach().requires_grad_()
        value = network(point)
        if not value.requires_grad:
            return torch.zeros_like(value), torch.zeros_like(x)
        covector = torch.zeros_like(value, requires_grad=True)
        back = torch.autograd.grad(value, point, covector, create_graph=True, materialize_grads=True)[0]
        if not back.requires_grad:
            return torch.zeros_like(value), torch.zeros_like(x)
        image = torch.autograd.grad(back, covector, direction, retain_graph=True, materialize_grads=True)[0]
        pulled = torch.autograd.grad(value, point, image, materialize_grads=True)[0]
    return image.detach(), pulled


def _align(x: Tensor, p: float) -> Tensor:
    """A vector with <x, y> = |x|_p |y|_dual(p), up to its length."""
    if p == math.inf:
        top = torch.nn.functional.one_hot(x.abs().argmax(1), x.shape[1]).to(x)
        return top * x.sign()
    size = x.abs() / x.abs().amax(1, keepdim=True).clamp(min=1e-300)
    return x.sign() * (torch.ones_like(x) if p == 1 else size ** (p - 1))


def dual_vector(x: Float64[Tensor, "batch ..."], p: float) -> Float64[Tensor, "batch ..."]:
    """u with <u, x> = |x|_p and |u|_dual(p) = 1, for every entry of the batch."""
    return _unit(_align(x.flatten(1), p), dual_exponent(p)).reshape(x.shape)


def _unit(x: Tensor, p: float) -> Tensor:
    return x / torch.linalg.vector_norm(x, ord=p, dim=1, keepdim=True).clamp(min=1e-300)
