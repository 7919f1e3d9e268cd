"""How large a sum of linear images of bounded vectors can be: against such sums, and against the sum of the norms."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.bounds.local.sums_of_changes import Change, Sizes, group_gains, whole_gain


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


def test_large_matrices_are_measured_within_two_percent():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(400, 300, dtype=torch.float64, generator=generator)
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    exact = float(torch.linalg.matrix_norm(matrix, 2))
    assert exact <= float(whole_gain(Change({0: matrix}, zero, zero), {0: one})) <= 1.03 * exact
    # Two halves side by side, of which a guess of their sizes is enough: at most the sum of both.
    halves = {0: matrix[:, :150].repeat(1, 2), 1: matrix[:, 150:].repeat(1, 2)}
    both = float(whole_gain(Change(halves, zero, zero), {0: one, 1: one}))
    norms = [float(torch.linalg.matrix_norm(half, 2)) for half in halves.values()]
    along = [torch.linalg.svd(half)[0][:, 0] @ half for half in halves.values()]
    largest = max(float(torch.linalg.vector_norm(along[0] + sign * along[1])) for sign in (1, -1))
    assert largest <= both <= 1.03 * sum(norms)
    assert float(whole_gain(Change({0: matrix * torch.inf}, zero, zero), {0: one})) == torch.inf


@given(seed=st.integers(0, 2**16), small=st.floats(1e-9, 1e-4), error=st.floats(0, 1e-6))
def test_merged_terms_are_covered_by_the_term_in_their_place(seed: int, small: float, error: float):
    generator = torch.Generator().manual_seed(seed)
    parts = {s: torch.randn(n, 2, 2, dtype=torch.float64, generator=generator) for s, n in enumerate((4, 3, 5, 2))}
    tensors = torch.tensor([1.0, small, small, 1.0, 1e-3, 1e-7, 0.5, error], dtype=torch.float64).unbind()
    sizes = Sizes(dict(enumerate(tensors[:4])), {0: torch.zeros_like(tensors[0]), **dict(enumerate(tensors[4:7], 1))})
    merged = sizes.merge(Change(dict(parts), tensors[7], tensors[7]), -9)
    # The terms 1 and 2 have eight columns, the one in their place has four.
    assert sorted(merged.parts) == [-9, 0, 3]
    assert float(merged.error) == float(merged.drift) == 0
    for kind in (sizes.gains, sizes.drifts):
        for _ in range(10):
            aim = torch.randn(4, dtype=torch.float64, generator=generator)
            ways = {s: parts[s].flatten(1) @ aim for s in (1, 2)}
            total = error * aim / torch.linalg.vector_norm(aim)
            for s, way in ways.items():
                total = total + kind[s] * (way / torch.linalg.vector_norm(way)) @ parts[s].flatten(1)
            assert float(torch.linalg.vector_norm(total)) <= float(kind[-9])
        # As one term they are at most 4^(1/64) too large, and no more than their sum.
        norms = {s: float(torch.linalg.matrix_norm(parts[s].flatten(1), 2) * kind[s]) for s in (1, 2)}
        assert float(kind[-9]) <= 1.03 * (sum(norms.values()) + error)


def test_terms_that_save_no_columns_or_are_not_small_stay():
    one = torch.ones((), dtype=torch.float64)
    units = torch.eye(3, dtype=torch.float64)
    sizes = Sizes({0: one, 1: 1e-9 * one, 2: one}, dict.fromkeys(range(3), 0 * one))
    few = Change({0: units, 1: units}, 0 * one, 0 * one)
    assert sizes.merge(few, -1) is few
    large = Change({0: units, 2: torch.cat([units, units])}, 0 * one, 0 * one)
    assert sizes.merge(large, -1) is large
    empty = Change({}, one, one)
    assert sizes.merge(empty, -1) is empty
