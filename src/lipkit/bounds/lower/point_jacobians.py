"""Jacobians at points, their norms, and the directions in which these are attained."""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Float64
from torch import Tensor

from lipkit.bound import L2, Metric
from lipkit.errors import MetricError
from lipkit.norms import dual_exponent
from lipkit.trace import Network

# Outputs up to which whole Jacobians are formed; beyond, only products with vectors.
_ROWS = 64
# Steps of the power method where the Jacobian is not formed, or has no closed form.
_POWER_STEPS = 20
# Entries of the Jacobians, and values of the network, that are held at once.
_CHUNK_ENTRIES = 2**23


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
