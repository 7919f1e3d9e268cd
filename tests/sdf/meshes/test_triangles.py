"""Triangles as data, and vertices merged."""

import pytest
import torch

from lipkit import sdf
from lipkit.errors import ArgumentError, NonFiniteError, ShapeError
from support.meshes import box_mesh, icosphere

VERTICES, FACES = box_mesh((0, 0, 0), (1, 2, 2))


def test_what_is_no_mesh_is_refused():
    nan = VERTICES.clone()
    nan[3, 1] = torch.nan
    for vertices, faces, error, words in (
        (VERTICES[:0], FACES, ShapeError, "v > 0"),
        (VERTICES, FACES[:0], ShapeError, "at least one triangle"),
        (VERTICES[:, :2], FACES, ShapeError, r"\(8, 2\)"),
        (VERTICES, FACES[:, :2], ShapeError, r"\(12, 2\)"),
        (nan, FACES, NonFiniteError, "1 of 8 vertices"),
        (VERTICES, FACES + 1, ArgumentError, "0 to 7, got 1 to 8"),
        (VERTICES, FACES - 1, ArgumentError, "got -1 to 6"),
        (VERTICES, FACES.double(), ArgumentError, "whole numbers"),
        (VERTICES * 0, FACES, ArgumentError, "all the same"),
        (VERTICES * 1e70, FACES, ArgumentError, "scale it"),
    ):
        with pytest.raises(error, match=words):
            sdf.Mesh(vertices, faces)


def test_the_data_are_copies():
    vertices = VERTICES.clone()
    found = sdf.Triangles(vertices, FACES)
    vertices.zero_()
    assert torch.equal(found.vertices, VERTICES)
    assert found.diagonal == 3


def test_seams_are_welded():
    vertices, faces = icosphere(2)
    # Every face with vertices of its own, a zero with a sign, and a vertex that no face has.
    apart = torch.cat([vertices[faces].reshape(-1, 3), torch.full((1, 3), 9.0).double()])
    apart[apart == 0] *= -1
    found = sdf.weld(sdf.Triangles(apart, torch.arange(3 * len(faces)).reshape(-1, 3)))
    assert len(found.vertices) == len(vertices)
    assert torch.equal(found.corners, vertices[faces])
    sdf.Mesh(found.vertices, found.faces)


def test_faces_without_three_corners_go():
    vertices = torch.cat([VERTICES, VERTICES[:1]])
    found = sdf.weld(sdf.Triangles(vertices, torch.cat([FACES, torch.tensor([[0, 8, 1]])])))
    assert len(found.faces) == 12
