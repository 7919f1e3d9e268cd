"""Records are moved and projected, and never end outside the ball."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from lipkit import privacy
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError


@settings(max_examples=60, deadline=None)
@given(
    st.floats(1e-3, 1e3),
    st.floats(-5, 5),
    st.sampled_from([torch.float32, torch.float64]),
    st.floats(-20, 20),
    st.integers(0, 100),
)
def test_norms_are_at_most_the_radius(radius: float, center: float, dtype: torch.dtype, size: float, seed: int):
    x = torch.randn(20, 3, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 10**size
    found = privacy.Inputs((3, 4), radius, center)(x.to(dtype))
    # Sums of squares of 12 float32 numbers in float64 are exact to 2^-50.
    assert float(torch.linalg.vector_norm(found.double().flatten(1), dim=1).max()) <= radius
    assert found.dtype == dtype


def test_records_inside_are_only_moved():
    x = torch.rand(5, 4)
    assert torch.equal(privacy.Inputs((4,), 10.0, 0.5)(x), x - 0.5)


def test_a_record_outside_keeps_its_direction():
    found = privacy.Inputs((2,), 1.0, torch.tensor([1.0, 0.0]))(torch.tensor([[4.0, 4.0]]))
    assert found[0].tolist() == pytest.approx([0.6, 0.8], rel=1e-5)


def test_bad_inputs_are_refused():
    for radius in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="finite radius > 0"):
            privacy.Inputs((4,), radius)
    with pytest.raises(NonFiniteError, match="Record 1"):
        privacy.Inputs((2,), 1.0)(torch.tensor([[0.0, 1.0], [float("nan"), 1.0]]))
    with pytest.raises(ShapeError, match=r"\(batch, 2\), got .*; give Inputs .* or write x\.reshape\(-1, 2\)"):
        privacy.Inputs((2,), 1.0)(torch.zeros(3, 5))
    with pytest.raises(ArgumentError, match=r"convert them with \.float"):
        privacy.Inputs((2,), 1.0)(torch.zeros(3, 2, dtype=torch.bfloat16))
    with pytest.raises(ArgumentError, match="finite"):
        privacy.Inputs((2,), 1.0, float("nan"))
    with pytest.raises(ShapeError, match="broadcast"):
        privacy.Inputs((2,), 1.0, torch.zeros(3, 2))
