"""The tree: levels are counted right, and degenerate clouds are no trouble. Distances: test_nearest.py."""

import math

import pytest
import torch

from lipkit.sdf.exact.nearest_tree import Tree


@pytest.mark.parametrize("n", [1, 10, 11, 1000])
def test_its_depth_is_that_of_a_balanced_tree(n: int) -> None:
    points = torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    # Leaves hold up to ten points, and halves are split at medians.
    assert Tree(points)._depth == 1 + max(0, math.ceil(math.log2(n / 10)))


def test_points_that_repeat_make_no_deep_tree() -> None:
    tree = Tree(torch.zeros(10_000, 3, dtype=torch.float64))
    assert tree._depth == 1
    found = tree(torch.ones(1, 3, dtype=torch.float64), 2)
    assert torch.allclose(found.distance, torch.full((1, 2), math.sqrt(3), dtype=torch.float64))
