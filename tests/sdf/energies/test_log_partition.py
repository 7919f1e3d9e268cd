"""Enclosures of the normalising constant, against closed forms and quadrature."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import dblquad

from lipkit.errors import ArgumentError
from lipkit.sdf import Energy, Function, log_partition
from support.unchecked import unchecked


def stated(formula: Callable[[torch.Tensor], torch.Tensor], dim: int, constant: float) -> Function:
    """A formula of a few operations with a constant that these tests know."""
    return Function(formula, dim, constant, roundings=8)


@pytest.mark.parametrize("cells", [1, 2, 7, 1000, 200_000])
def test_the_line_has_its_closed_form(cells: int) -> None:
    energy = Energy(stated(lambda x: x[:, 0].abs(), 1, 1.0), -2.0, 3.0)
    found = log_partition(energy, cells)
    truth = math.log(2 - math.exp(-2) - math.exp(-3))
    assert found.cells == cells
    assert found.lower <= truth <= found.upper
    if cells >= 1000:
        # 2 K r / sqrt 3 with r = 2.5 / cells, and a few thousand roundings.
        assert found.upper - found.lower <= 1.16 * 2.5 / cells + 1e-9


@given(
    st.lists(st.floats(-6, 6), min_size=1, max_size=3),
    st.integers(1, 4000),
    st.floats(0.01, 3),
    st.floats(-2, 2),
)
def test_a_slope_has_its_closed_form(slope: list[float], cells: int, side: float, low: float) -> None:
    direction = torch.tensor(slope, dtype=torch.float64)
    constant = math.hypot(*slope) * (1 + 2**-50)
    energy = Energy(stated(lambda x: x @ direction, len(slope), constant), low, low + side)
    # The integral of exp(-s t) over [low, high], side by side; expm1 keeps it accurate for slopes near 0.
    high, truth = low + side, 0.0
    for s in slope:
        truth += math.log(high - low) if abs(s) < 1e-12 else -s * low + math.log(-math.expm1(-s * (high - low)) / s)
    found = log_partition(energy, cells)
    assert found.cells <= cells
    # The closed form itself carries a few roundings of numbers below 100.
    assert found.lower - 1e-11 <= truth <= found.upper + 1e-11


def test_a_cone_in_the_plane_agrees_with_quadrature() -> None:
    field = stated(lambda x: 3 * torch.linalg.vector_norm(x, dim=1), 2, 3.0)
    energy = Energy(field, torch.tensor([-1.0, -0.5]), torch.tensor([1.0, 2.0]))
    found = log_partition(energy, 40_000)
    parts = [
        dblquad(lambda y, x: math.exp(-3 * math.hypot(x, y)), *box)[0]
        for box in ((-1, 0, -0.5, 0), (0, 1, -0.5, 0), (-1, 0, 0, 2), (0, 1, 0, 2))
    ]
    assert found.lower <= math.log(sum(parts)) <= found.upper
    # Cells of about 0.011: half a diagonal is 0.008.
    assert found.upper - found.lower <= 1.16 * 3 * 0.0081


def test_a_constant_energy_has_the_volume_of_the_box() -> None:
    flat = stated(lambda x: torch.full_like(x[:, 0], -700.0), 2, 0.0)
    energy = Energy(flat, *torch.tensor([[1e-9, 0.0], [3e-9, 5e6]], dtype=torch.float64))
    found = log_partition(energy, 100)
    truth = 700 + math.log(3e-9 - 1e-9) + math.log(5e6)
    assert found.lower <= truth <= found.upper
    # Rounding alone: 1e-13 for sums of a thousand roundings, and a few times 2^-47 for numbers near 700.
    assert found.upper - found.lower <= 1e-10


def test_steep_energies_keep_finite_ends() -> None:
    energy = Energy(stated(lambda x: 5000 * x[:, 0].abs(), 1, 5000.0), -1.0, 1.0)
    found = log_partition(energy, 4)
    assert found.lower <= math.log(2 / 5000) <= found.upper < 2000


def test_more_dimensions_are_enclosed_too() -> None:
    energy = Energy(stated(lambda x: x.abs().sum(1), 6, math.sqrt(6)), -1.0, 1.0)
    found = log_partition(energy, 4**6)
    assert found.cells == 4**6
    assert found.lower <= 6 * math.log(2 * (1 - math.exp(-1))) <= found.upper


def test_a_grid_without_cells_is_refused() -> None:
    field = stated(lambda x: x[:, 0], 1, 1.0)
    with pytest.raises(ArgumentError, match="cells=0"):
        log_partition(Energy(field, 0.0, 1.0), 0)


def test_boxes_that_float64_cannot_divide_are_refused() -> None:
    # E = 0 on [0, 1e-310]: log Z = log 1e-310 = -713.80, which sides without all their digits missed.
    flat = stated(lambda x: 0 * x[:, 0], 1, 0.0)
    with pytest.raises(ArgumentError, match="side of length 1e-310"):
        log_partition(Energy(flat, 0.0, 1e-310))
    found = log_partition(Energy(flat, 0.0, 2.0**-940))
    assert found.lower <= -940 * math.log(2) <= found.upper
    assert found.upper - found.lower < 1e-9


def test_only_an_energy_and_whole_cells_are_taken() -> None:
    field = stated(lambda x: x[:, 0], 1, 1.0)
    with unchecked(), pytest.raises(ArgumentError, match=r"is of an sdf\.Energy, got Function"):
        log_partition(field)  # pyright: ignore[reportArgumentType]
    with unchecked(), pytest.raises(ArgumentError, match=r"whole number, got cells=2\.5"):
        log_partition(Energy(field, 0.0, 1.0), 2.5)  # pyright: ignore[reportArgumentType]
