"""Trainings that were stopped and resumed end like those that were not, to the bit; other trainings are refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from lipkit import sdf
from lipkit.cli.training import checkpoint
from lipkit.errors import RecordError
from lipkit.sdf.one_class import Alternating, Health, Lazy, OneClass, orthogonal_mlp
from support.meshes import icosphere

MESH = sdf.Triangles(*icosphere(1))
# Twelve batches are in the points, so they are shuffled three times.
SURFACE = sdf.Surface(width=8, depth=2, steps=30, batch=16, samples=200)
ONE_CLASS = OneClass(steps=30, batch=32, walk_steps=2)


class Stopped(Exception):
    """A training was stopped."""


class OnDisk:
    """Keeps one state in a file, and stops the training there; told of `calls` updates."""

    def __init__(self, file: Path, stop: int = 0) -> None:
        self.file, self.stop = file, stop
        self.calls: list[tuple[int, int]] = []

    def load(self) -> Mapping[str, Any] | None:
        return checkpoint.load(self.file) if self.file.exists() else None

    def after_update(self, done: int, steps: int, state: Callable[[], Mapping[str, Any]]) -> None:
        self.calls.append((done, steps))
        if done == self.stop:
            checkpoint.save(self.file, state())
            raise Stopped


def rows(seed: int = 0) -> Tensor:
    return torch.randn(40, 2, generator=torch.Generator().manual_seed(seed))


def one_class(recipe: OneClass, kept: OnDisk | None, seed: int = 0) -> tuple[list[Tensor], tuple[Health, ...]]:
    model = orthogonal_mlp(2, (8, 8), torch.Generator().manual_seed(seed))
    journal = recipe(model, rows(), seed, kept)
    return [p.detach() for p in model.parameters()], journal


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return len(a) == len(b) > 0 and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# Matrices move at every second update; 12 and 13 are the ends of the first batches; 30 is the end of all.
@pytest.mark.parametrize("stop", [1, 12, 13, 30])
def test_a_surface_that_was_stopped_is_that_of_an_undisturbed_training(stop: int, tmp_path: Path):
    whole, file = SURFACE(MESH), tmp_path / "state"
    with pytest.raises(Stopped):
        SURFACE(MESH, checkpoints=OnDisk(file, stop))
    torch.manual_seed(stop)
    told: list[tuple[int, int]] = []
    kept = OnDisk(file)
    again = SURFACE(MESH, progress=lambda done, steps: told.append((done, steps)), checkpoints=kept)
    assert same(list(again.model.parameters()), list(whole.model.parameters()))
    assert kept.calls == told == [(done, 30) for done in range(stop + 1, 31)]


@pytest.mark.parametrize("normals", [True, False])
def test_surfaces_of_points_and_labels_go_on_too(normals: bool, tmp_path: Path):
    cloud = torch.nn.functional.normalize(
        torch.randn(300, 3, generator=torch.Generator().manual_seed(1)).double(), dim=1
    )
    inside = torch.arange(300) % 2 == 0

    def train(kept: OnDisk | None) -> sdf.Network:
        if normals:
            return SURFACE.of_points(cloud, cloud, checkpoints=kept)
        return SURFACE.of_labels(cloud * torch.where(inside, 0.9, 1.1)[:, None], inside, checkpoints=kept)

    with pytest.raises(Stopped):
        train(OnDisk(tmp_path / "state", 17))
    again, whole = train(OnDisk(tmp_path / "state")), train(None)
    assert same(list(again.model.parameters()), list(whole.model.parameters()))


# Lazy samples are drawn at every eighth update here, those of alternating training with weights of the tenth.
@pytest.mark.parametrize("renewal", [Lazy(8), Alternating(10)], ids=str)
@pytest.mark.parametrize("stop", [1, 8, 19, 30])
def test_a_one_class_training_that_was_stopped_ends_as_an_undisturbed_one(
    renewal: Lazy | Alternating, stop: int, tmp_path: Path
):
    recipe, file = replace(ONE_CLASS, renewal=renewal), tmp_path / "state"
    weights, journal = one_class(recipe, None)
    with pytest.raises(Stopped):
        one_class(recipe, OnDisk(file, stop))
    torch.manual_seed(stop)
    found, said = one_class(recipe, OnDisk(file))
    assert same(found, weights)
    assert said == journal


def test_a_training_can_be_stopped_at_every_update(tmp_path: Path):
    weights, journal = one_class(ONE_CLASS, None)
    for stop in range(1, 31):
        with pytest.raises(Stopped):
            one_class(ONE_CLASS, OnDisk(tmp_path / "state", stop))
    found, said = one_class(ONE_CLASS, OnDisk(tmp_path / "state"))
    assert same(found, weights)
    assert said == journal


def test_who_keeps_states_changes_nothing(tmp_path: Path):
    whole, kept = one_class(ONE_CLASS, None), OnDisk(tmp_path / "state", 99)
    watched = one_class(ONE_CLASS, kept)
    assert same(watched[0], whole[0])
    assert kept.calls == [(done, 30) for done in range(1, 31)]
    assert not kept.file.exists()


def test_states_of_other_trainings_are_refused(tmp_path: Path):
    file = tmp_path / "state"
    with pytest.raises(Stopped):
        SURFACE(MESH, checkpoints=OnDisk(file, 3))
    with pytest.raises(RecordError, match=r"another training \(steps was 30\); give the settings and the data"):
        replace(SURFACE, steps=31)(MESH, checkpoints=OnDisk(file))
    moved = sdf.Triangles(MESH.vertices * torch.tensor([1.0, 1.0, 1.1]), MESH.faces)
    with pytest.raises(RecordError, match=r"another training \(the data were others\)"):
        SURFACE(moved, checkpoints=OnDisk(file))
    with pytest.raises(RecordError, match=r"another training \(.*width was 8.*remove it to start anew"):
        one_class(ONE_CLASS, OnDisk(file))
    checkpoint.save(file, {"step": 3})
    with pytest.raises(RecordError, match=r"does not fit to the network .* remove it to start anew"):
        SURFACE(MESH, checkpoints=OnDisk(file))


def test_another_seed_or_another_network_is_refused(tmp_path: Path):
    file = tmp_path / "state"
    with pytest.raises(Stopped):
        one_class(ONE_CLASS, OnDisk(file, 3))
    with pytest.raises(RecordError, match=r"another training \(seed was 0\)"):
        one_class(ONE_CLASS, OnDisk(file), seed=1)
    wider = orthogonal_mlp(2, (16, 16), torch.Generator().manual_seed(0))
    with pytest.raises(RecordError, match=r"does not fit to the network .* remove it to start anew"):
        ONE_CLASS(wider, rows(), checkpoints=OnDisk(file))
