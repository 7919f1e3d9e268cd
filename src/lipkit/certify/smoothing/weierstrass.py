"""The Weierstrass transform f~(x) = E f(x + sigma Z) and its derivatives, estimated by sampling."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from lipkit.errors import ArgumentError, ShapeError


class SampleMean(NamedTuple):
    """A mean over samples and its standard error, entry by entry: an estimate, which certifies nothing."""

    mean: Float64[Tensor, "..."]
    standard_error: Float64[Tensor, "..."]


@torch.no_grad()
def smooth(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "batch *shape"],
    sigma: float,
    n: int,
    generator: torch.Generator,
    *,
    block: int = 1024,
) -> SampleMean:
    """f~(x) = E f(x + sigma Z), the mean of n samples.

    Guarantee: ESTIMATE. Cost: n + 1 evaluations of f for each input.

    Args:
        f: A function of a batch of inputs, one row of outputs for each.
        x: The inputs.
        sigma: Standard deviation of the noise.
        n: Number of samples for each input.
        generator: Source of the noise, on the device of `x`.
        block: How many inputs f is given at a time; other blocks draw other noise.
    """
    # Deviations from f(x) keep their digits when squares are summed.
    middle = f(x).double()
    first, second = torch.zeros_like(middle), torch.zeros_like(middle)
    for noise in _noise(x, sigma, n, generator, block):
        deviation = _values(f, x + noise) - middle
        first += deviation.sum(0)
        second += deviation.square().sum(0)
    found = _summarize(first, second, n)
    return SampleMean(middle + found.mean, found.standard_error)


def stein_gradient(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "batch *shape"],
    sigma: float,
    n: int,
    generator: torch.Generator,
    *,
    antithetic: bool = True,
    block: int = 1024,
) -> SampleMean:
    """The gradient of f~ for a scalar f, of the shape of `x`; f need not have one. See `stein_jacobian`."""
    found = stein_jacobian(lambda at: f(at)[:, None], x, sigma, n, generator, antithetic=antithetic, block=block)
    return SampleMean(found.mean[:, 0], found.standard_error[:, 0])


@torch.no_grad()
def stein_jacobian(
    f: Callable[[Tensor], Tensor],
    x: Float[Tensor, "batch *shape"],
    sigma: float,
    n: int,
    generator: torch.Generator,
    *,
    antithetic: bool = True,
    block: int = 1024,
) -> SampleMean:
    """The Jacobian of f~ from values of f alone: E[f(x + sigma Z) Z'] / sigma, (batch, outputs, *shape).

    Guarantee: ESTIMATE. Cost: n evaluations of f for each input, and two products with the noise for each.
    Reference: Stein 1981.

    Args:
        f: A function of a batch of inputs with a vector of outputs for each; measurable is enough.
        x: The inputs.
        sigma: Standard deviation of the noise.
        n: Number of evaluations for each input; even if `antithetic`.
        generator: Source of the noise, on the device of `x`.
        antithetic: Whether (f(x + sigma Z) - f(x - sigma Z))/2 takes the place of f(x + sigma Z). It has the same mean
            and no even part, so constants and curvature add no variance.
        block: How many inputs f is given at a time; other blocks draw other noise.
    """
    if antithetic and n % 2:
        raise ArgumentError(f"Antithetic samples come in pairs, got n = {n}; make it even.")
    samples = n // 2 if antithetic else n
    first = second = torch.zeros((), dtype=torch.float64, device=x.device)
    for noise in _noise(x, sigma, samples, generator, block):
        values = _values(f, x + noise)
        if values.ndim != 3:
            raise ShapeError(
                f"A Jacobian is of a vector for each input, got outputs of shape {tuple(values.shape[1:])}."
            )
        if antithetic:
            values = (values - _values(f, x - noise)) / 2
        direction = noise.double().flatten(2) / sigma**2
        first = first + torch.einsum("nbo,nbd->bod", values, direction)
        second = second + torch.einsum("nbo,nbd->bod", values.square(), direction.square())
    found = _summarize(first, second, samples)
    return SampleMean(*(part.unflatten(-1, x.shape[1:]) for part in found))


def _noise(x: Tensor, sigma: float, n: int, generator: torch.Generator, block: int) -> Iterator[Tensor]:
    if not 0.0 < sigma < float("inf"):
        raise ArgumentError(f"The standard deviation of the noise is a finite number > 0, got {sigma}.")
    if n < 2:
        raise ArgumentError(f"A standard error needs two independent samples, got {n}.")
    step = max(1, block // max(1, x.shape[0]))
    for start in range(0, n, step):
        shape = (min(step, n - start), *x.shape)
        yield sigma * torch.randn(shape, generator=generator, device=x.device, dtype=x.dtype)


def _values(f: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    return f(at.flatten(0, 1)).double().unflatten(0, at.shape[:2])


def _summarize(first: Tensor, second: Tensor, n: int) -> SampleMean:
    mean = first / n
    variance = (second / n - mean.square()).clamp_min(0.0) * n / (n - 1)
    return SampleMean(mean, (variance / n).sqrt())
