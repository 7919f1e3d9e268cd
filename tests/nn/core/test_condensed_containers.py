"""Constants of containers whose parts are plain, or others than they were built with."""

import copy
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from torch import nn

import lipkit
from lipkit import nn as lnn
from lipkit.bounds import DAG
from lipkit.errors import MetricError, UnsupportedError
from lipkit.nn.core.known_constants import SAFE, at_least_one


def twin() -> nn.Module:
    made, _ = lnn.lipschitzify(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 6)))
    return made.eval()


CONTAINERS: dict[str, Callable[[], nn.Module]] = {
    "twin": twin,
    "convex residual": lambda: lnn.ConvexResidual(lnn.Linear(6, 6)),
    "scaled residual": lambda: lnn.ScaledResidual(lnn.Linear(6, 6)),
    "rescaled": lambda: lnn.Rescaled(nn.Sequential(lnn.Linear(6, 6), nn.SELU())),
    "branch": lambda: lnn.Branch(lnn.Linear(6, 6), lnn.Linear(6, 6)),
    "parallel": lambda: lnn.Parallel(lnn.Linear(2, 2), lnn.Linear(4, 4), sizes=(2, 4)),
    "nested": lambda: lnn.Sequential(lnn.ConvexResidual(lnn.Sequential(lnn.Linear(6, 6), lnn.MaxMin())), K=2.0),
}
containers = pytest.mark.parametrize("build", CONTAINERS.values(), ids=CONTAINERS)


def steepest(model: nn.Module, x: torch.Tensor) -> float:
    """The largest norm of a Jacobian, in float64, whose rounding is made up for by a bit."""
    wide = copy.deepcopy(model).double().requires_grad_(False)
    jacobians = torch.func.vmap(torch.func.jacrev(lambda row: wide(row[None])[0]))(x.double())
    return float(torch.linalg.matrix_norm(jacobians, 2).max()) * (1 - 1e-13)


@containers
def test_plain_weights_are_measured_and_not_believed(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    plain, x = lnn.condense(build()).eval().double(), torch.randn(5, 6, dtype=torch.float64)
    before = lipkit.lipschitz(plain, x[:1], DAG()).value.item()
    # The constant of constrained weights is proven again, for the numbers as they are.
    assert steepest(plain, x) <= before <= 2 * (1 + 1e-5)
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.mul_(50)
    after = lipkit.lipschitz(plain, x[:1], DAG()).value.item()
    assert after >= steepest(plain, x) > 5 * before


@pytest.mark.parametrize("name", ["twin", "convex residual", "scaled residual", "rescaled"])
def test_a_part_that_is_exchanged_is_noticed(name: str) -> None:
    torch.manual_seed(0)
    model, x = CONTAINERS[name]().eval(), torch.randn(5, 6)
    assert model.gain == 1.0
    assert lipkit.lipschitz(model, x[:1], DAG()).value.item() <= 1.0 + 1e-12
    for path, part in list(model.named_modules()):
        if isinstance(part, nn.Linear):
            free = nn.Linear(part.in_features, part.out_features)
            free.weight.data *= 30
            parent, _, last = path.rpartition(".")
            setattr(model.get_submodule(parent), last, free)
    with pytest.raises(UnsupportedError, match="not known"):
        _ = model.gain
    assert lipkit.lipschitz(model, x[:1], DAG()).value.item() >= steepest(model, x) > 1.5


def wider(model: nn.Module, method: lnn.WeightMethod) -> nn.Module:
    """The twin with another last layer that is constrained too, in a way that is none in l2, and used to the full."""
    body = model.get_submodule("body")
    other = lnn.Linear(8, 6, method=method)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(1.0)
    setattr(body, "2", other)
    return model


@pytest.mark.parametrize("method", [lnn.UnitRows(), lnn.LpBall(math.inf)], ids=str)
def test_constraints_that_are_none_in_l2_are_noticed(method: lnn.WeightMethod) -> None:
    torch.manual_seed(0)
    model = wider(twin(), method)
    with pytest.raises((UnsupportedError, MetricError)):
        _ = model.gain
    x = torch.randn(5, 6)
    assert lipkit.lipschitz(model, x[:1], DAG()).value.item() >= steepest(model, x)


def test_fewer_digits_are_measured_too() -> None:
    torch.manual_seed(0)
    model = twin().bfloat16()
    with pytest.raises(UnsupportedError, match="not as it was converted"):
        _ = model.gain


@pytest.mark.parametrize("gain", [0.3, 1.0, 1.0 + 2.0**-52, 3.7, 1e9])
def test_products_of_gains_are_rounded_up(gain: float) -> None:
    for factor in (1.0, 0.5, 1 / gain, SAFE / gain, 0.1):
        found = Fraction(at_least_one(gain, factor))
        assert found >= max(1, Fraction(gain) * Fraction(factor))
        assert found <= max(1, Fraction(gain) * Fraction(factor)) * (1 + Fraction(1, 2**39))
    assert at_least_one(1.0, 1.0) == at_least_one(gain, SAFE / gain) == 1.0


@containers
def test_what_is_condensed_can_be_saved_and_verified(build: Callable[[], nn.Module], tmp_path: Path) -> None:
    file = pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    plain, x = lnn.condense(build()).eval(), torch.randn(1, 6)
    found = lipkit.certificate(plain, x, DAG())
    file.save_file(plain.state_dict(), tmp_path / "weights.safetensors")
    again = copy.deepcopy(plain)
    again.load_state_dict(file.load_file(tmp_path / "weights.safetensors"))
    lipkit.verify(found, again)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_rounded_kernels_are_shrunk_until_they_are_proven(dtype: torch.dtype) -> None:
    for seed in range(12):
        torch.manual_seed(seed)
        converted, _ = lnn.lipschitzify(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1)))
        (kernel,) = (p for p in lnn.condense(converted, dtype).parameters() if p.ndim == 4)
        symbol = torch.fft.fft2(kernel.detach().double(), s=(32, 32)).permute(2, 3, 0, 1)
        assert float(torch.linalg.matrix_norm(symbol, 2).max()) <= 1
