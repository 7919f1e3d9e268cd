"""Labels that another network softens: what the teacher learns, what it says, and that a run keeps it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.cli.training import Goal, Recipe, Sets, Teacher, checkpoint
from lipkit.cli.training.loop import train
from lipkit.cli.training.processes import Team
from lipkit.data import Examples
from lipkit.errors import InterruptedRun
from lipkit.losses import Progress

HERE = Team(torch.device("cpu"))


def stripes(count: int) -> Examples:
    """Noise with a brighter upper half, or a brighter lower one."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    images = torch.rand(count, 1, 8, 8, generator=generator)
    images[labels == 0, :, :4] += 0.5
    images[labels == 1, :, 4:] += 0.5
    return Examples(images, labels, ("up", "down"))


def test_a_teacher_learns_and_its_normalisation_is_folded_in(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    teacher, examples = Teacher(1, 2, 4), stripes(256)
    monkeypatch.setattr("lipkit.cli.training.teacher._BATCH", 32)
    taken: list[nn.Module] = []
    take = Teacher._take
    monkeypatch.setattr(Teacher, "_take", lambda self, net: (taken.append(net), take(self, net)))
    teacher.teach(examples, lambda x: x, 6, None)
    found = teacher.probabilities(examples.inputs)
    assert torch.allclose(found.sum(1), torch.ones(256))
    # Halves differ by 0.5 with a deviation of 0.29 / sqrt(32) each: no image is ambiguous.
    assert float((found.argmax(1) == examples.labels).double().mean()) > 0.97
    (net,) = taken
    assert any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    assert not any(isinstance(module, nn.BatchNorm2d) for module in teacher.modules())
    # The same function; float32 rounds about nine layers.
    assert torch.allclose(teacher.train()(examples.inputs), net(examples.inputs), atol=1e-4)


def test_probabilities_are_those_of_ten_views() -> None:
    torch.manual_seed(0)
    teacher, image = Teacher(1, 3, 4), torch.rand(1, 1, 8, 8)
    logits = []
    for up, left in ((0, 0), (2, 0), (-2, 0), (0, 2), (0, -2)):
        moved = torch.zeros_like(image)
        for y in range(8):
            for x in range(8):
                if 0 <= y - up < 8 and 0 <= x - left < 8:
                    moved[0, 0, y, x] = image[0, 0, y - up, x - left]
        logits += [teacher(moved), teacher(moved.flip(3))]
    # Sums of ten logits in another order.
    assert torch.allclose(teacher.probabilities(image), torch.stack(logits).mean(0).softmax(1), atol=1e-6)


@dataclass(frozen=True)
class Softened(Recipe):
    """Labels that are drawn anew whenever they are asked for."""

    epochs: int = 2
    batch: int = 16
    stops: bool = False

    def sets(self) -> Sets:
        return Sets(stripes(64), stripes(8))

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 2))

    def targets(self, examples: Examples) -> Tensor:
        return torch.lerp(functional.one_hot(examples.labels, 2).float(), torch.rand(64, 2).softmax(1), 0.5)

    def loss(self, model: nn.Module, inputs: Tensor, labels: Tensor, progress: Progress) -> Tensor:
        del progress
        assert labels.shape == (16, 2)
        return functional.cross_entropy(model(inputs), labels)

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.Adam(model.parameters(), lr=0.01)]

    @property
    def goal(self) -> Goal:
        return Goal((0.1,))


def test_a_continued_run_keeps_its_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(Softened(), tmp_path / "whole", HERE)
    steps = iter([False, False, False, True])

    class Stopping:
        def __enter__(self):
            return lambda: next(steps)

        def __exit__(self, *_: object):
            return None

    with monkeypatch.context() as patch:
        patch.setattr("lipkit.cli.training.loop.interrupts", Stopping)
        with pytest.raises(InterruptedRun):
            train(Softened(), tmp_path / "stopped", HERE)
    train(Softened(), tmp_path / "stopped", HERE)
    whole, stopped = (checkpoint.load(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "stopped"))
    assert torch.equal(whole["targets"], stopped["targets"])
    for name, value in whole["model"].items():
        assert torch.equal(stopped["model"][name], value)
