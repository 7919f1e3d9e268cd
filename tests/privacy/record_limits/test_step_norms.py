"""Norms for steps: never below the truth, close to it, and no eigenvalue of a library is trusted."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipkit.nn as lnn
from lipkit import linops
from lipkit.bound import Kind
from lipkit.errors import NonFiniteError, NotProvenError
from lipkit.linops import Dense
from lipkit.norms import Auto
from lipkit.privacy.record_limits.step_norms import StepNorm


def matrix(rows: int, cols: int, decay: float = 0.0) -> Tensor:
    """Singular values between 1 and exp(-decay)."""
    generator = torch.Generator().manual_seed(rows + cols)
    drawn = torch.randn(rows, cols, generator=generator, dtype=torch.float64)
    u, _, v = torch.linalg.svd(drawn, full_matrices=False)
    return u * torch.linspace(0, -decay, min(rows, cols), dtype=torch.float64).exp() @ v


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("decay", [0.0, 1e-3, 30.0])
@pytest.mark.parametrize(("rows", "cols"), [(1, 1), (1, 9), (9, 1), (30, 70), (70, 30), (40, 40)])
def test_matrices_are_bounded_closely(rows: int, cols: int, decay: float, scale: float):
    found = StepNorm()(Dense(scale * matrix(rows, cols, decay)))
    assert found.kind is Kind.UPPER
    # The truth is 1 but for the rounding of the product above; the margin is 2^-21 and the logarithm costs little.
    assert -1e-13 <= float(found.value) / scale - 1 <= 2.0**-20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_as_they_are_stored_are_bounded(dtype: torch.dtype):
    torch.manual_seed(0)
    weight = nn.Linear(200, 60).weight.detach().to(dtype)
    truth = float(torch.linalg.svdvals(weight.double())[0])
    assert truth <= float(StepNorm()(Dense(weight)).value) <= truth * (1 + 1e-6)


def test_zero_and_broken_matrices():
    assert float(StepNorm()(Dense(torch.zeros(3, 4, dtype=torch.float64))).value) == 0.0
    with pytest.raises(NonFiniteError, match="NaN or infinite"):
        StepNorm()(Dense(torch.full((3, 4), math.nan)))


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.9999])
def test_a_wrong_eigenvalue_is_found_out(share: float, monkeypatch: pytest.MonkeyPatch):
    op, right = Dense(matrix(30, 70, 1.0)), torch.linalg.eigvalsh
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda gram: share * right(gram))
    try:
        found = float(StepNorm()(op).value)
    except NotProvenError:
        assert share < 0.5
    else:
        assert found >= 1 - 1e-13


KERNELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "small": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 6, 6)),
    "a step of two": (lambda: nn.Conv2d(4, 8, 3, 2, padding=1), (4, 16, 16)),
    "circular": (lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), (4, 16, 16)),
    "one tap": (lambda: nn.Conv2d(6, 8, 1), (6, 16, 16)),
    "reflected": (lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), (3, 16, 16)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 4, 2, padding=1), (6, 10, 10)),
    "orthogonal": (
        lambda: lnn.condense(lnn.Conv2d(4, 4, 3, padding=1, padding_mode="circular", method=lnn.BCOP())),
        (4, 16, 16),
    ),
}


@pytest.mark.parametrize("name", KERNELS)
def test_convolutions_are_bounded_closely(name: str):
    torch.manual_seed(0)
    make, shape = KERNELS[name]
    op = linops.of(make().double().requires_grad_(False), shape)
    truth = float(torch.linalg.svdvals(linops.materialize(op).reshape(op.out_size, op.in_size))[0])
    # The torus is above zero padding by a few percent on images of 16 x 16; the iteration and the grid add one.
    assert truth * (1 - 1e-12) <= float(StepNorm()(op).value) <= 1.06 * truth


def test_what_is_large_and_has_no_symbol_is_left_to_the_automatic_choice():
    op = Dense(matrix(300, 310))
    assert float(StepNorm()(op).value) == float(Auto(failure=0)(op).value)
