"""Holes are found, counted and capped."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import sdf
from lipkit.sdf.meshes.holes import boundary, boundary_loops
from support.meshes import box_mesh, icosphere, winding_number


def test_loops_follow_the_faces():
    vertices, faces = box_mesh((0, 0, 0), (1, 1, 1))
    # Without one triangle at the bottom and the square at the top.
    top = (vertices[faces][:, :, 2] == 1).all(1)
    kept = ~top
    kept[int((vertices[faces][:, :, 2] == 0).all(1).nonzero()[0])] = False
    surface = sdf.Triangles(vertices, faces[kept])
    assert sorted(len(loop) for loop in boundary_loops(surface)) == [3, 4]
    edges = {tuple(edge) for edge in boundary(surface).tolist()}
    passed = {(int(face[i]), int(face[(i + 1) % 3])) for face in faces[kept] for i in range(3)}
    assert len(edges) == 7
    assert edges <= passed
    assert boundary_loops(sdf.Triangles(vertices, faces)) == []


def test_holes_that_share_a_vertex_are_loops_of_their_own():
    vertices, faces = icosphere(1)
    around = (faces == 0).any(1).nonzero()[:, 0]
    first = around[0]
    opposite = next(i for i in around if len(set(faces[i].tolist()) & set(faces[first].tolist())) == 1)
    kept = torch.ones(len(faces), dtype=torch.bool)
    kept[[int(first), int(opposite)]] = False
    assert [len(loop) for loop in boundary_loops(sdf.Triangles(vertices, faces[kept]))] == [3, 3]


@given(st.lists(st.integers(0, 127), min_size=1, max_size=60, unique=True))
@settings(max_examples=50)
def test_every_surface_can_be_closed(removed: list[int]):
    vertices, faces = icosphere(2)
    kept = torch.ones(len(faces), dtype=torch.bool)
    kept[removed] = False
    closed = sdf.close_holes(vertices, faces[kept])
    assert len(boundary(closed)) == 0
    sdf.Mesh(closed.vertices, closed.faces)
    # The center is still inside: caps of holes in less than half of the sphere do not pass it often.
    assert abs(winding_number([0.0, 0.0, 0.0], closed.corners) % 1 - 0.5) > 0.49


def test_a_closed_surface_stays_what_it_is():
    vertices, faces = icosphere(1)
    assert torch.equal(sdf.close_holes(vertices, faces).faces, faces)


def test_a_capped_box_is_the_box():
    vertices, faces = box_mesh((0, 0, 0), (1, 1, 1))
    top = (vertices[faces][:, :, 2] == 1).all(1)
    closed = sdf.close_holes(vertices.numpy(), faces[~top].numpy())
    points = torch.rand(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 0.5
    # Flat caps are the same set; some roundings.
    expected = sdf.Mesh(vertices, faces)(points)
    assert torch.allclose(sdf.Mesh(closed.vertices, closed.faces)(points), expected, rtol=0, atol=1e-14)
