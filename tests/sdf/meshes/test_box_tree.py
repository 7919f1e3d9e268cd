"""The tree of boxes finds what a look at all triangles finds."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.sdf.meshes.box_tree import BoxTree
from lipkit.sdf.meshes.nearest_faces import NearestFaces


@given(st.integers(0, 2**32), st.integers(1, 700), st.floats(-3, 3))
@settings(max_examples=30)
def test_no_triangle_is_missed(seed: int, count: int, spread: float):
    source = torch.Generator().manual_seed(seed)
    # Sizes from small to large beside each other.
    size = torch.exp(spread * torch.rand(count, 1, 1, generator=source, dtype=torch.float64))
    middle = torch.randn(count, 1, 3, generator=source, dtype=torch.float64)
    corners = middle + size * torch.randn(count, 3, 3, generator=source, dtype=torch.float64)
    # Points of triangles are in the box of a piece of them.
    weights = torch.rand(30, 3, generator=source, dtype=torch.float64)
    chosen = torch.randint(count, (30,), generator=source)
    points = ((weights / weights.sum(1, keepdim=True))[:, :, None] * corners[chosen]).sum(1)

    def near(index: Tensor, low: Tensor, high: Tensor) -> Tensor:
        q = points[index][:, :, None]
        return ((low <= q) & (q <= high)).all(1)

    pairs = [torch.stack(part, 1) for part in BoxTree(corners).search(30, near)]
    found = {tuple(pair) for pair in torch.cat(pairs).tolist()}
    assert {(i, int(face)) for i, face in enumerate(chosen)} <= found


@given(st.integers(0, 2**32), st.integers(1, 300))
@settings(max_examples=30)
def test_the_nearest_is_the_nearest_of_all(seed: int, count: int):
    source = torch.Generator().manual_seed(seed)
    corners = torch.randn(count, 1, 3, generator=source, dtype=torch.float64)
    corners = corners + 0.3 * torch.randn(count, 3, 3, generator=source, dtype=torch.float64)
    nearest = NearestFaces(corners)
    points = torch.randn(50, 3, generator=source, dtype=torch.float64) * 3
    every = nearest.flat.squares(points.repeat_interleave(count, 0), torch.arange(count).repeat(50)).reshape(50, count)
    distance, face = nearest(points)
    # The same operations on the same numbers, whose sums may be ordered otherwise.
    assert torch.allclose(distance, every.amin(1).sqrt(), rtol=1e-13, atol=0)
    assert torch.allclose(every[torch.arange(50), face].sqrt(), distance, rtol=1e-13, atol=0)
