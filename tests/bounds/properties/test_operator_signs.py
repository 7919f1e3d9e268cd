"""Signs of operators: no influence may be missed, none invented where entries are weights."""

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from lipkit.bounds.properties.operator_signs import carried, reached
from lipkit.linops import Dense, Diagonal, Index, LinearFunction, LinearOperator, Permute, Reshape, materialize
from lipkit.linops.sweep import sweep
from support.operators.geometries import operators


def by_hand(matrix: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    rising, falling = (matrix > 0).double(), (matrix < 0).double()
    u, d = up.flatten().double(), down.flatten().double()
    return rising @ u + falling @ d > 0, falling @ u + rising @ d > 0


@given(operators(), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60)
def test_no_influence_is_missed(op: LinearOperator, seed: int, turned: bool) -> None:
    op = op.T if turned else op
    generator = torch.Generator().manual_seed(seed)
    up, down = (torch.rand(op.in_shape, generator=generator) < 0.5 for _ in range(2))
    found = carried(op, up, down)
    matrix = materialize(op)
    # Entries that are zero up to rounding have no sign of their own.
    clear = torch.where(matrix.abs() > 1e-12 * matrix.abs().max(), matrix, 0.0)
    for mine, wanted in zip(found, by_hand(clear, up, down), strict=True):
        assert mine.shape == op.out_shape
        assert bool((mine.flatten() | ~wanted).all())
    if isinstance(op, Dense | Diagonal | Index | Permute | Reshape):
        for mine, wanted in zip(found, by_hand(matrix, up, down), strict=True):
            assert torch.equal(mine.flatten(), wanted)


@given(operators(), st.integers(0, 2**32 - 1))
@settings(max_examples=40)
def test_positive_entries_send_up_only_up(op: LinearOperator, seed: int) -> None:
    weights = op.map(lambda t: t.abs() + 0.1 if t.is_floating_point() else t)
    # The divisor of a pool, or what a callable does, may still be negative.
    assume(bool((materialize(weights) >= 0).all()))
    up = torch.rand(op.in_shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    nothing = torch.zeros_like(up)
    above, below = carried(weights, up, nothing)
    assert not bool(below.any())
    assert torch.equal(above.flatten(), by_hand(materialize(weights), up, nothing)[0])


def test_what_cancels_in_a_product_is_seen_and_tiny_products_keep_their_sign() -> None:
    mixed = Dense(torch.tensor([[1.0, -0.5], [1.0, -2.0]], dtype=torch.float64))
    ones = Dense(torch.ones(2, 1, dtype=torch.float64))
    up, nothing = torch.ones(1, dtype=torch.bool), torch.zeros(1, dtype=torch.bool)
    above, below = carried(mixed @ ones, up, nothing)
    assert above.tolist() == [True, False]
    assert below.tolist() == [False, True]
    tiny = Dense(torch.full((1, 1), 1e-200, dtype=torch.float64))
    above, _ = carried(tiny @ tiny, up, nothing)
    assert above.tolist() == [True]
    # 0.5 + 1 and -1 + 1: the second is zero up to rounding, so that either sign is possible, but not for the first.
    path = sweep([(1, 0, ones), (2, 1, mixed), (2, 0, ones @ ones.T @ ones * 0.5)], 0, 2)
    assert path is not None
    assert carried(path, up, nothing)[1].tolist() == [False, True]


def test_a_callable_is_written_out() -> None:
    op = LinearFunction(
        lambda x, w: x @ w.mT, (3,), (2,), (torch.tensor([[1.0, 0.0, 2.0], [0.0, -1.0, 0.0]]).double(),)
    )
    up = torch.tensor([True, False, False])
    assert carried(op, up, ~up & False)[0].tolist() == [True, False]
    assert reached(op, torch.tensor([False, True, False])).tolist() == [False, True]
