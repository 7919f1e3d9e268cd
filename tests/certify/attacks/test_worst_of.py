"""The worst of several attacks: as bad as each of them, and none is run on what another has broken."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from lipkit.certify import accuracy, head_pairwise
from lipkit.certify.attacks import PGD, Attack, BoundaryStep, EveryClass, WorstOf, margins, usual_attacks
from lipkit.certify.attacks.attacked_model import Victim
from lipkit.certify.attacks.neighbourhood import Neighbourhood
from lipkit.errors import ArgumentError


@dataclass(frozen=True)
class Push(Attack):
    """Moves one coordinate up, and notes which samples it was given."""

    axis: int = 0
    seen: tuple[list[int], ...] = ()

    def _search(self, victim: Victim, near: Neighbourhood, labels: Tensor, seed: int) -> Tensor:
        self.seen[0].extend(near.center[:, 2].int().tolist())
        moved = near.center.clone()
        moved[:, self.axis] += near.radius.to(moved)
        return moved


def corners() -> tuple[nn.Module, Tensor, Tensor]:
    """Four points in the plane, numbered by a third entry; class 1 where the first or the second entry is above 1."""

    class Corner(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            top = x[:, :2].amax(1) - 1
            return torch.stack([-top, top], 1)

    x = torch.tensor([[0.9, 0.0, 0], [0.0, 0.9, 1], [0.9, 0.9, 2], [0.0, 0.0, 3]])
    return Corner(), x, torch.zeros(4, dtype=torch.long)


def test_each_sample_gets_the_attack_that_breaks_it_and_no_other_afterwards():
    model, x, y = corners()
    first, second = Push(0.0, axis=0, seen=([],)), Push(0.0, axis=1, seen=([],))
    moved = WorstOf(0.2, attacks=(first, second))(model, x, y)
    assert first.seen[0] == [0, 1, 2, 3]
    assert second.seen[0] == [1, 3]
    assert model(moved).argmax(1).tolist() == [1, 1, 1, 0]
    # The last one stands, at the point with the smallest margin of the two.
    assert float(margins(model(moved), y)[3]) < float(margins(model(x), y)[3])


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_nothing_that_a_part_breaks_is_left_standing(p: float):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    x = torch.randn(60, 6)
    y = model(x).argmax(1)
    radius = {1.0: 0.6, 2.0: 0.35, math.inf: 0.15}[p]
    worst = WorstOf(radius, p)(model, x, y, generator=torch.Generator().manual_seed(0))
    broken = model(worst).argmax(1) != y
    assert 0 < int(broken.sum()) < 60
    for attack in (BoundaryStep(radius, p), PGD(radius, p), PGD(radius, p, objective=EveryClass())):
        alone = model(attack(model, x, y, generator=torch.Generator().manual_seed(0))).argmax(1) != y
        # Random starts are drawn for those that stand, so one that is hardly broken may differ.
        assert int((alone & ~broken).sum()) <= 1
    assert float(torch.linalg.vector_norm(worst.double() - x.double(), p, dim=1).max()) <= radius


def test_its_name_and_settings_say_what_is_in_it():
    attack = WorstOf(0.5, attacks=usual_attacks(steps=7, restarts=2))
    assert attack.name == "the worst of 5 attacks"
    assert "one step to the boundary; PGD: 7 " in attack.settings
    assert "2 restarts, margin" in attack.settings
    assert "margin to every class" in attack.settings


def test_an_evaluation_takes_it_at_every_radius():
    torch.manual_seed(0)
    model = nn.Linear(3, 3).eval()
    x = torch.randn(20, 3)
    data = [(x, model(x).argmax(1))]
    found = accuracy(model, data, head_pairwise(model, x[:1]), [0.1, 0.4], attack=WorstOf(0.4))
    assert found.overall.attacked is not None
    # The certificate of a linear map is exact, and so is a step to its boundary.
    assert [one.count for one in found.overall.attacked] == [one.count for one in found.overall.certified]


def test_no_attacks_are_refused():
    with pytest.raises(ArgumentError, match="at least one attack"):
        WorstOf(0.5, attacks=())
