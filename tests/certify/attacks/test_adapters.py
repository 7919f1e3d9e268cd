"""Attacks of other packages, held to our ball; skipped where the package is not installed."""

import sys
from typing import Any

import pytest
import torch
from torch import nn

from lipkit.certify.attacks import PGD, Attack, Foolbox, TorchAttacks, margins
from lipkit.errors import ArgumentError


@pytest.fixture
def task() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(27, 4), nn.Dropout(0.5)).train()
    x = 2 * torch.rand(8, 3, 3, 3) - 1
    with torch.no_grad():
        return model, x, model[1](x.flatten(1)).argmax(1)


def check(attack: Attack, task: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> None:
    model, x, labels = task
    radii = torch.tensor([0.5, 1.0] * 4, dtype=torch.float64)
    torch.manual_seed(0)
    found = attack.within(model, x, labels, radii)
    assert model.training
    assert all(p.grad is None for p in model.parameters())
    moved = torch.linalg.vector_norm((found.double() - x.double()).flatten(1), dim=1)
    assert bool((moved <= radii).all())
    assert float(found.abs().max()) <= 1.0
    # It does attack: it breaks what our own finds to be breakable, but for one at most.
    ours = PGD(1.0, low=-1.0, high=1.0).within(model, x, labels, radii)
    model.eval()
    broken, reference = ((margins(model(z), labels) < 0).sum() for z in (found, ours))
    assert int(reference) >= 3
    assert int(broken) >= int(reference) - 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_foolbox(task: tuple[nn.Module, torch.Tensor, torch.Tensor]):
    foolbox = pytest.importorskip("foolbox", reason="foolbox is not installed")
    check(Foolbox(1.0, low=-1.0, high=1.0, attack=foolbox.attacks.L2PGD(steps=40)), task)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchattacks(task: tuple[nn.Module, torch.Tensor, torch.Tensor]):
    torchattacks = pytest.importorskip("torchattacks", reason="torchattacks is not installed")
    check(
        TorchAttacks(
            1.0,
            low=-1.0,
            high=1.0,
            build=lambda model, eps: torchattacks.PGDL2(model, eps=eps, alpha=eps / 10, steps=40),
        ),
        task,
    )


def test_a_foreign_attack_that_leaves_the_ball_is_brought_back(task: tuple[nn.Module, torch.Tensor, torch.Tensor]):
    model, x, labels = task
    wild = TorchAttacks(0.5, low=-1.0, high=1.0, build=lambda _model, _eps: lambda u, _labels: torch.ones_like(u))
    found = wild(model, x, labels)
    moved = torch.linalg.vector_norm((found.double() - x.double()).flatten(1), dim=1)
    assert bool((moved <= 0.5).all())
    assert float(moved.min()) > 0.49


def test_what_is_missing_is_named(task: tuple[nn.Module, torch.Tensor, torch.Tensor]):
    for kind in (Foolbox, TorchAttacks):
        with pytest.raises(ArgumentError, match="finite box"):
            kind(1.0)
    with pytest.raises(ArgumentError, match="builds an attack"):
        TorchAttacks(1.0, low=-1.0, high=1.0)(*task)


def _torchattacks(_model: nn.Module, _eps: float) -> Any:
    import torchattacks  # pyright: ignore[reportMissingImports]

    return torchattacks


def _unknown(_model: nn.Module, _eps: float) -> Any:
    import a_package_that_nobody_has  # pyright: ignore[reportMissingImports]

    return a_package_that_nobody_has


def test_a_missing_package_is_named_with_how_to_install_it(
    task: tuple[nn.Module, torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
):
    # As if they were not installed.
    for package in ("foolbox", "torchattacks"):
        monkeypatch.setitem(sys.modules, package, None)
    attacks = (
        Foolbox(1.0, low=-1.0, high=1.0, attack=lambda *_, **__: None),
        TorchAttacks(1.0, low=-1.0, high=1.0, build=_torchattacks),
    )
    remedies = (r"foolbox; pip install 'lipkit\[attacks\]'", "torchattacks; `pip install torchattacks`")
    for attack, remedy in zip(attacks, remedies, strict=True):
        with pytest.raises(ArgumentError, match=f"needs {remedy} brings it"):
            attack(*task)
    # A missing package inside a user's own function is the user's error, and stays as it is.
    with pytest.raises(ImportError, match="a_package_that_nobody_has"):
        TorchAttacks(1.0, low=-1.0, high=1.0, build=_unknown)(*task)
