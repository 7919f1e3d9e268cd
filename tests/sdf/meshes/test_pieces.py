"""Pieces of triangles cover them and become small."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.sdf.meshes.pieces import cut, edge_lengths, halve


def areas(corners: torch.Tensor) -> torch.Tensor:
    return torch.linalg.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]).norm(dim=1) / 2


@given(st.integers(0, 2**32))
def test_halves_share_the_area_and_cut_the_longest_edge(seed: int):
    corners = torch.randn(20, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    halves = halve(corners)
    for part in (halves[:20], halves[20:]):
        assert torch.allclose(areas(part), areas(corners) / 2, rtol=1e-9)
        assert bool((edge_lengths(part).amax(1) <= edge_lengths(corners).amax(1) * (1 + 1e-15)).all())
    # Three halvings bring the longest edge to half its length (Rosenberg, Stenger 1975: 2, with sqrt 3 / 2 first).
    for _ in range(3):
        halves = halve(halves)
    assert float(edge_lengths(halves).max()) <= float(edge_lengths(corners).max()) * 0.5**1.5 * 2


def test_pieces_are_short_and_of_their_triangle():
    corners = torch.tensor([[[0.0, 0, 0], [8, 0, 0], [0, 0.1, 0]], [[0, 0, 1], [0.5, 0, 1], [0, 0.5, 1]]]).double()
    pieces, source = cut(corners, 1.0, 1000)
    assert float(edge_lengths(pieces).max()) <= 1
    assert torch.equal(pieces[:, 0, 2], source.double())
    total = torch.zeros(2).double().index_add_(0, source, areas(pieces))
    assert torch.allclose(total, areas(corners), rtol=1e-12)
    assert len(cut(corners, 1e-9, 50)[0]) <= 100
