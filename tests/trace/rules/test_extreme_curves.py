"""Activations with extreme parameters: what is bounded rises no faster than its bound, everything else is refused."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit.bounds import DAG
from lipkit.bounds.lipschitz import network_of
from lipkit.errors import CaptureError
from lipkit.nn.core.slopes import slopes_of
from lipkit.rounding.slacks import UNIT_OF

NUMBERS = (0.0, 1e-30, 1e-8, 0.5, 1.0, 2.0, 1e4, -1e-8, -1.0, -1e4)
CURVES: list[nn.Module] = [
    *(nn.ELU(a) for a in NUMBERS),
    *(nn.CELU(a) for a in NUMBERS if a > 0),
    *(nn.LeakyReLU(a) for a in NUMBERS),
    *(nn.PReLU(init=a) for a in NUMBERS),
    *(nn.Threshold(a, a) for a in NUMBERS),
    *(nn.Softshrink(a) for a in NUMBERS if a >= 0),
    *(nn.Hardtanh(a, b) for a in NUMBERS for b in (*NUMBERS, math.inf) if a < b),
    *(nn.Softplus(beta, threshold) for beta in (0.1, 1.0, 1e3, 1e8) for threshold in (20.0, 40.0, 88.0)),
    *(nn.Softplus(beta, 88.0) for beta in (1e-30, 1e-8)),
    *(nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.SELU(), nn.Hardswish(), nn.Hardsigmoid(), nn.LogSigmoid()),
]


def points(module: nn.Module) -> Tensor:
    """A fine grid at many scales, and the surroundings of the place where a softplus switches."""
    grid = [scale * torch.linspace(-1, 1, 4001, dtype=torch.float64) for scale in (1e-10, 1e-3, 1.0, 20.0, 1e4, 1e8)]
    if isinstance(module, nn.Softplus) and math.isfinite(module.threshold):
        near = torch.tensor([0.0, 1e-12, 1e-9, 1e-7, 1e-6, 1e-3], dtype=torch.float64)
        grid.append(module.threshold / module.beta * (1 + torch.cat([near, -near])))
    return torch.cat(grid).sort().values


def steepest(module: nn.Module, dtype: torch.dtype, bound: float) -> float:
    """The largest quotient of neighbours, without what roundings explain: some units of both ends, times the bound."""
    x = points(module).to(dtype).unique()
    y = module.to(dtype)(x).double()
    x = x.double()
    size = torch.maximum(x.abs() * max(1.0, bound), y.abs())
    explained = 8 * UNIT_OF[dtype] * torch.maximum(size[1:], size[:-1])
    if isinstance(module, nn.Softplus):
        # The step that is accepted, in float64 too.
        explained = explained + UNIT_OF[torch.float32]
    rise = (y[1:] - y[:-1]).abs() - explained
    return float((rise / (x[1:] - x[:-1])).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("module", CURVES, ids=str)
def test_no_curve_is_steeper_than_its_bound(module: nn.Module, dtype: torch.dtype):
    module = module.to(dtype).eval()
    example = torch.tensor([[0.5, -0.3, 2.0]], dtype=dtype)
    bound = float(DAG()(network_of(module, example)).value.detach())
    with torch.no_grad():
        found = steepest(module, dtype, bound)
    assert found <= bound
    table = slopes_of(module)
    assert table is None or found <= max(map(abs, table)) * (1 + 1e-12)


def hardtanh(low: float, high: float) -> nn.Module:
    module = nn.Hardtanh()
    module.min_val, module.max_val = low, high
    return module


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: nn.Softplus(1e-6), "more than float32 rounds"),
        (lambda: nn.Softplus(1e-6, 30.0), "more than float32 rounds"),
        (lambda: nn.Softplus(0.03), "more than float32 rounds"),
        (lambda: nn.Softplus(1.0, 16.0), "more than float32 rounds"),
        (lambda: nn.Softplus(1.0, math.nan), "more than float32 rounds"),
        (lambda: nn.Softplus(1.0, 100.0), "overflows before it"),
        (lambda: nn.Softplus(math.inf), "more than float32 rounds"),
        (lambda: nn.LeakyReLU(math.inf), "infinite or NaN"),
        (lambda: nn.LeakyReLU(math.nan), "infinite or NaN"),
        (lambda: nn.PReLU(init=-math.inf), "infinite or NaN"),
        (lambda: nn.PReLU(init=math.nan), "infinite or NaN"),
        (lambda: nn.ELU(math.nan), "needs finite numbers"),
        (lambda: nn.CELU(-1.0), "alpha > 0"),
        (lambda: hardtanh(math.nan, 1.0), "everything NaN"),
        (lambda: hardtanh(math.inf, math.nan), "everything NaN"),
        (lambda: nn.Threshold(0.5, 0.0), "jumps from 0 to 0.5"),
    ],
)
def test_curves_without_a_constant_are_refused(make: Callable[[], nn.Module], reason: str):
    for dtype in (torch.float32, torch.float64):
        with pytest.raises(CaptureError, match=reason):
            lipkit.lipschitz(make().to(dtype), torch.tensor([[0.5, -0.3, 2.0]], dtype=dtype), DAG())


def test_a_celu_that_loses_the_digits_of_its_input_is_refused():
    # What torch computes is steeper than the function, because the quotient by alpha is no normal number.
    x = torch.tensor([0.0, -0.75e-15])
    y = nn.CELU(1e30)(x)
    assert float((y[0] - y[1]) / (x[0] - x[1])) > 1.1
    example = torch.tensor([[0.5, -0.3, 2.0]])
    with pytest.raises(CaptureError, match=r"divides by alpha 1e\+30 first.*use the identity"):
        lipkit.lipschitz(nn.CELU(1e30), example, DAG())
    with pytest.raises(CaptureError, match=r"loses the digits of small inputs in torch\.float64"):
        lipkit.lipschitz(nn.CELU(1e16), example.double(), DAG())
    module = nn.CELU(8e6)
    assert steepest(module, torch.float32, 1.0) <= float(lipkit.lipschitz(module, example, DAG()).value)


@pytest.mark.parametrize(
    "module",
    [
        nn.ELU(math.nan),
        nn.ELU(math.inf),
        nn.LeakyReLU(math.nan),
        nn.Softplus(math.inf),
        nn.CELU(1e30),
        nn.CELU(math.nan),
    ],
)
def test_the_table_of_slopes_refuses_what_rules_refuse(module: nn.Module):
    with pytest.raises(lipkit.errors.UnsupportedError):
        slopes_of(module)
