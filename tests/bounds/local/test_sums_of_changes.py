"""How large a sum of linear images of bounded vectors can be: against such sums, and against the sum of the norms."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.bounds.local.sums_of_changes import Change, group_gains, whole_gain


def drawn(count: int, rows: int, size: int, seed: int) -> tuple[Change, dict[int, torch.Tensor], torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    widths = torch.randint(1, 9, (count,), generator=generator).tolist()
    parts = {s: torch.randn(n, rows, size, dtype=torch.float64, generator=generator) for s, n in enumerate(widths)}
    gains = {s: torch.rand((), dtype=torch.float64, generator=generator) + 0.01 for s in parts}
    error = torch.tensor(1e-3, dtype=torch.float64)
    return Change(parts, error, error), gains, generator


@given(count=st.integers(1, 5), rows=st.integers(1, 4), size=st.integers(1, 6), seed=st.integers(0, 2**16))
def test_gains_are_above_every_sum_and_never_above_the_sum_of_the_norms(count: int, rows: int, size: int, seed: int):
    change, gains, generator = drawn(count, rows, size, seed)
    whole, groups = whole_gain(change, gains), group_gains(change, gains, rows)
    apart = sum(float(torch.linalg.matrix_norm(t.flatten(1), 2)) * float(gains[s]) for s, t in change.parts.items())
    # Norms are at most 24^(1/64) too large each.
    assert float(whole) <= (apart + 1e-3) * 1.06
    for trial in range(20):
        total = torch.zeros(rows, size, dtype=torch.float64)
        aim = torch.randn(rows, size, dtype=torch.float64, generator=generator)
        for s, t in change.parts.items():
            # The vector that moves the sum farthest along `aim`, or any one.
            w = t.flatten(1) @ aim.flatten() if trial % 2 else torch.randn(len(t), dtype=torch.float64)
            total += torch.einsum("n,nrs->rs", w / torch.linalg.vector_norm(w) * gains[s], t)
        assert float(torch.linalg.vector_norm(total)) <= float(whole)
        assert bool((torch.linalg.vector_norm(total, dim=1) <= groups).all())


def test_terms_that_move_different_directions_count_less_than_their_sum():
    units = torch.eye(2, dtype=torch.float64)
    change = Change({0: units[:1], 1: units[1:]}, *torch.zeros(2, dtype=torch.float64))
    gains = {s: torch.ones((), dtype=torch.float64) for s in (0, 1)}
    # (1, 1) has length sqrt(2); the norms are found within 2^(1/64).
    assert 2**0.5 <= float(whole_gain(change, gains)) <= 1.012 * 2**0.5


def test_a_part_without_gain_adds_nothing():
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    change = Change({0: torch.eye(3, dtype=torch.float64), 1: 5 * torch.eye(3, dtype=torch.float64)}, zero, zero)
    assert 1 <= float(whole_gain(change, {0: one, 1: zero})) <= 1.02
    assert float(group_gains(change, {0: zero, 1: zero}, 3).max()) == 0
