"""Log-determinants: against dense Jacobians, means of estimates within their spread, derivatives, refusals."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import Kind
from lipkit.errors import ArgumentError, TooLargeError, UnsupportedError

# Calls, and copies of each sample in a call: probes are drawn for each copy, numbers of terms for each call.
CALLS, COPIES = 150, 40


def block(contraction: float = 0.8) -> lnn.InvertibleResidual:
    torch.manual_seed(0)
    branch = nn.Sequential(lnn.Linear(3, 6), lnn.LipSwish(), lnn.Linear(6, 3))
    return lnn.InvertibleResidual(branch, contraction).double()


def flow() -> lnn.InvertibleSequential:
    return lnn.InvertibleSequential(block(0.9), block(0.5))


def dense(module: nn.Module, x: Tensor) -> Tensor:
    """By torch's Jacobian of the whole map, sample by sample, and its determinant."""
    jacobians = [torch.func.jacrev(lambda z: module(z[None])[0])(one) for one in x]
    return torch.stack(
        [torch.linalg.det(j.reshape(one.numel(), -1)).log() for j, one in zip(jacobians, x, strict=True)]
    )


def points(count: int = 5) -> Tensor:
    return torch.randn(count, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("build", [block, flow])
def test_the_dense_one_is_exact(build: Callable[[], Any]) -> None:
    module, x = build(), points()
    found = module.log_determinant(x)
    assert found.kind is Kind.EXACT
    assert found.truncation == 0
    torch.testing.assert_close(found.value, dense(module, x), rtol=0, atol=1e-12)
    torch.testing.assert_close(found.image, module(x), rtol=0, atol=1e-14)
    with torch.no_grad():
        silent = module.log_determinant(x)
    assert not silent.value.requires_grad
    assert not silent.image.requires_grad
    assert torch.equal(silent.value, found.value.detach())


def test_images_and_narrow_types() -> None:
    torch.manual_seed(0)
    module = lnn.InvertibleResidual(nn.Sequential(lnn.Conv2d(1, 2, 3, padding=1), nn.Tanh(), lnn.Conv2d(2, 1, 1)))
    x = torch.randn(2, 1, 4, 4)
    exact = dense(module.double(), x.double()).detach()
    # float32 has 24 digits, makes its weights smaller by 1e-6, and 16 entries add up; bfloat16 has 8 digits.
    for dtype, atol in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        found = module.to(dtype).log_determinant(x.to(dtype))
        assert found.value.dtype == torch.float32
        torch.testing.assert_close(found.value.detach().double(), exact, rtol=0, atol=atol)


def means(module: Any, x: Tensor, method: Any) -> tuple[Tensor, Tensor, float]:
    """The mean of many estimates for each sample, its standard error, and the bound of truncation."""
    torch.manual_seed(3)
    with torch.no_grad():
        found = [module.log_determinant(x.repeat(COPIES, 1), method) for _ in range(CALLS)]
    assert all(one.kind is Kind.ESTIMATE for one in found)
    values = torch.stack([one.value.reshape(COPIES, -1).mean(0) for one in found])
    return values.mean(0), values.std(0) / CALLS**0.5, found[0].truncation


@pytest.mark.parametrize("terms", [1, 2, 4])
def test_the_series_is_off_by_no_more_than_its_truncation(terms: int) -> None:
    module, x = block(), points()
    mean, error, truncation = means(module, x, lnn.PowerSeries(terms, probes=2))
    missed = (mean - dense(module, x).detach()).abs()
    # Five standard errors: once in a million.
    assert bool((missed <= truncation + 5 * error).all())
    c = module.contraction
    tail = 3 * (-math.log1p(-c) - math.fsum(c**k / k for k in range(1, terms + 1)))
    assert tail <= truncation <= 3 * tail
    # What is estimated is the truncated series, traces and all.
    jacobian = torch.stack([torch.func.jacrev(lambda z: module(z[None])[0] - z)(one) for one in x]).detach()
    series = torch.zeros(len(x), dtype=torch.float64)
    for k in range(1, terms + 1):
        powers = torch.linalg.matrix_power(jacobian, k)
        series += (-1) ** (k + 1) / k * torch.einsum("bii->b", powers)
    assert bool(((mean - series).abs() <= 5 * error + 1e-12).all())


@pytest.mark.parametrize("method", [lnn.RussianRoulette(sure=1, stop=0.3), lnn.RussianRoulette(2, 0.2, probes=2)])
def test_roulette_is_unbiased(method: lnn.RussianRoulette) -> None:
    module, x = block(), points()
    mean, error, truncation = means(module, x, method)
    assert truncation == 0
    assert bool(((mean - dense(module, x).detach()).abs() <= 5 * error).all())
    # Sharp enough to see the series that stops after the sure terms: its error is far above five standard errors.
    assert float(error.max()) < 0.01


@pytest.mark.parametrize("method", [lnn.PowerSeries(20, probes=2), lnn.RussianRoulette(2, 0.4)])
def test_derivatives_of_estimates_have_the_right_mean(method: Any) -> None:
    module, x = block(0.5), points(2).requires_grad_()
    inputs = [x, *module.parameters()]

    def derivative(value: Tensor) -> Tensor:
        found = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
        return torch.cat([one.flatten() for one in found])

    exact = derivative(dense(module, x).sum())
    torch.manual_seed(4)
    found = [derivative(module.log_determinant(x.repeat(COPIES, 1), method).value.sum() / COPIES) for _ in range(CALLS)]
    gathered = torch.stack(found)
    error = gathered.std(0) / CALLS**0.5
    # Five standard errors; the series is cut at 3 0.5^21; some derivatives are zero in every draw.
    assert bool(((gathered.mean(0) - exact).abs() <= 5 * error + 2e-6).all())
    assert float(exact.abs().max()) > 20 * float(error.max())


def test_derivatives_of_the_exact_one() -> None:
    module, x = block(), points(2).requires_grad_()

    def call(z: Tensor) -> Tensor:
        return module.log_determinant(z).value

    assert torch.autograd.gradcheck(call, x)
    assert torch.autograd.gradgradcheck(call, x)
    wanted = torch.autograd.grad(dense(module, x).sum(), list(module.parameters()), allow_unused=True)
    found = torch.autograd.grad(call(x).sum(), list(module.parameters()), allow_unused=True)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)


def test_a_flow_is_a_density() -> None:
    """exp(log p) integrates to one over the plane: a sum over a fine grid."""
    torch.manual_seed(5)
    branches = (nn.Sequential(lnn.Linear(2, 8), lnn.LipSwish(), lnn.Linear(8, 2)) for _ in range(3))
    module = lnn.InvertibleSequential(*(lnn.InvertibleResidual(branch) for branch in branches)).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        # F expands by (1 - c)^3 at least, so that the tails beyond the grid need not be looked at twice.
        axis = torch.linspace(-12, 12, 161, dtype=torch.float64)
        grid = torch.cartesian_prod(axis, axis)
        found = module.log_determinant(grid)
        log_density = found.value - found.image.square().sum(1) / 2 - math.log(2 * math.pi)
        total = float(log_density.exp().sum()) * float(axis[1] - axis[0]) ** 2
    # Smooth densities: sums over a grid of width 0.15 are good to far more than this.
    assert total == pytest.approx(1, abs=1e-3)


def test_refusals() -> None:
    module = block(0.95)
    wide = lnn.InvertibleResidual(nn.Tanh())
    with pytest.raises(TooLargeError, match="PowerSeries"):
        wide.log_determinant(torch.ones(1, 300))
    with pytest.raises(ArgumentError, match=r"variance .* take stop below 1 - c\^2 = 0.0975"):
        module.log_determinant(points(), lnn.RussianRoulette(stop=0.2))
    with pytest.raises(UnsupportedError, match="no_grad"), torch.inference_mode():
        wide.log_determinant(torch.ones(1, 3))
    x = points().requires_grad_()
    value = module.log_determinant(x, lnn.PowerSeries()).value.sum()
    with pytest.raises(UnsupportedError, match="first derivatives only"):
        torch.autograd.grad(value, x, create_graph=True)
    for wrong in ({"terms": 0}, {"probes": 0}):
        with pytest.raises(ArgumentError, match="at least 1"):
            lnn.PowerSeries(**wrong)
    with pytest.raises(ArgumentError, match="probability"):
        lnn.RussianRoulette(stop=1.0)
