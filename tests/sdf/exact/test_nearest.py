"""Nearest points: against sorting all distances in exact arithmetic, where rounding makes candidates hard to tell."""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.errors import NonFiniteError
from lipkit.sdf.exact import nearest
from lipkit.sdf.exact.nearest import Neighbors, Products, Search
from lipkit.sdf.exact.nearest_tree import Tree

Make = Callable[[torch.Tensor], Search]
searches = pytest.mark.parametrize("search", [Products, Tree])


def exact_squares(query: torch.Tensor, points: torch.Tensor) -> list[Fraction]:
    """Squared distances without any rounding, ascending."""
    q = [Fraction(v) for v in query.tolist()]
    return sorted(
        sum(((a - Fraction(b)) ** 2 for a, b in zip(q, p, strict=True)), Fraction(0)) for p in points.tolist()
    )


def is_right(found: Neighbors, queries: torch.Tensor, points: torch.Tensor, count: int) -> bool:
    """Whether every distance is within its error of the exact one of its rank, by squares of fractions."""
    for i, query in enumerate(queries):
        for truth, distance, error in zip(
            exact_squares(query, points), found.distance[i], found.error[i], strict=False
        ):
            low = max(Fraction(0), Fraction(float(distance)) - Fraction(float(error)))
            high = Fraction(float(distance)) + Fraction(float(error))
            if not low**2 <= truth <= high**2:
                return False
    return found.distance.shape == (len(queries), count)


# Offsets that cost digits; points on a grid, which tie; points that repeat.
CLOUDS = ("normal", "grid", "repeated", "line", "alike")


def cloud(kind: str, seed: int, n: int, d: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=random, dtype=torch.float64)
    match kind:
        case "grid":
            return x.round()
        case "repeated":
            return x[:5].repeat(n // 5 + 1, 1)[:n]
        case "line":
            return x[:, :1] * torch.ones(d, dtype=torch.float64)
        case "alike":
            return 1 + 1e-9 * x
        case _:
            return x


@searches
@settings(max_examples=20)
@given(
    kind=st.sampled_from(CLOUDS),
    seed=st.integers(0, 2**31),
    n=st.integers(1, 70),
    d=st.integers(1, 6),
    k=st.integers(1, 6),
    offset=st.sampled_from([0.0, 1.0, 1e5, 1e9]),
)
def test_distances_are_those_of_exact_arithmetic(
    search: Make, kind: str, seed: int, n: int, d: int, k: int, offset: float
) -> None:
    points = cloud(kind, seed, n, d) + offset
    queries = torch.cat([points[:3], cloud("normal", seed + 1, 3, d) + offset, points[:2] + 1e-9])
    count = min(k, n)
    found = search(points)(queries, count)
    assert is_right(found, queries, points, count)
    # Whatever cannot be told apart is computed again, so errors stay relative; 1e-11 is ten times the promise.
    assert bool((found.error <= 1e-11 * found.distance + 1e-150).all())


@pytest.mark.parametrize("n", [15, 16, 17, 1000, 9000])
def test_blocks_and_groups_lose_nothing(n: int) -> None:
    random = torch.Generator().manual_seed(n)
    points, queries = (torch.randn(m, 10, generator=random, dtype=torch.float64) for m in (n, 40))
    every = torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")
    for k in (1, 5, 15):
        found = Products(points)(queries, k)
        truth = every.topk(k, dim=1, largest=False)
        assert torch.equal(found.index, truth.indices)
        # Both round a few dozen times.
        assert torch.allclose(found.distance, truth.values, rtol=1e-14)


def test_it_falls_back_where_products_cannot_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    # A thousand points within 1e-9 of each other, at a distance of 1e4 from another: squares are off by 1e-7.
    points = torch.cat([1e-9 * cloud("normal", 0, 1000, 5), torch.full((1, 5), 1e4, dtype=torch.float64)])
    queries = points[:5] + 1e-10
    calls: list[int] = []
    plain = Products._by_differences

    def counted(self: Products, rows: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        calls.append(len(rows))
        return plain(self, rows, count)

    monkeypatch.setattr(nearest.Products, "_by_differences", counted)
    found = Products(points)(queries, 3)
    assert sum(calls) == 5
    assert is_right(found, queries, points, 3)
    # Well apart nothing has to be computed again.
    calls.clear()
    Products(cloud("normal", 1, 1000, 5))(cloud("normal", 2, 50, 5), 3)
    assert calls == []


@pytest.mark.parametrize("scale", [0.0, 1e-320, 1e-200, 1e-100, 1e100, 1e140])
@pytest.mark.parametrize("far", [1e-300, 1e-30, 1.0, 1e30, 1e150])
def test_clouds_and_queries_of_any_size(scale: float, far: float) -> None:
    points, queries = scale * cloud("normal", 0, 40, 3), far * cloud("normal", 1, 10, 3)
    for search in (Products(points), Tree(points)):
        assert is_right(search(queries, 4), queries, points, 4)


def test_reduced_precision_of_torch_changes_nothing() -> None:
    points, queries = cloud("normal", 0, 500, 64), cloud("normal", 1, 50, 64)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = Products(points)(queries, 3)
    finally:
        torch.set_float32_matmul_precision(before)
    truth = torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist").topk(3, largest=False)
    assert torch.equal(found.index, truth.indices)


@searches
def test_no_queries_no_neighbours(search: Make) -> None:
    found = search(cloud("normal", 0, 20, 3))(torch.zeros(0, 3, dtype=torch.float64), 4)
    assert found.index.shape == found.distance.shape == found.error.shape == (0, 4)


def test_points_too_far_out_for_squares_are_refused() -> None:
    for size in (1e160, 1e200, 1e308):
        with pytest.raises(NonFiniteError, match="1e150"):
            Products(torch.tensor([[size, 0.0], [-size, 0.0]], dtype=torch.float64))
