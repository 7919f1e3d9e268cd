"""A single score as two classes: the same radii, in every norm, on every way to them."""

import math

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import Metric, bounds
from lipkit.certify import Forward, accuracy, binary_radius, head_pairwise, radius
from lipkit.certify.attacks import PGD, TwoClasses


class OneAxis(nn.Module):
    """A score of shape (batch,)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)[:, 0]


def network() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).double(), torch.randn(60, 4).double()


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_radii_are_those_of_the_score(p: float) -> None:
    score, x = network()
    f = score(x)[:, 0].detach()
    labels = (f > 0).long()
    method = bounds.DAG(metric=Metric(p, p))
    alone = binary_radius(f, 2 * labels - 1, lipkit.lipschitz(score, x[:1], method)).value
    assert 0 < int(labels.sum()) < 60
    assert float(alone.min()) > 0
    for two in (TwoClasses(score), TwoClasses(OneAxis(score))):
        for bound in (lipkit.lipschitz(two, x[:1], method), head_pairwise(two, x[:1], method)):
            found = radius(two(x).detach(), labels, bound)
            assert found.p == p
            # Constants are rounded up once more on the way through the two logits.
            torch.testing.assert_close(found.value, alone, rtol=1e-12, atol=0)
        whole = accuracy(two, [(x, labels)], head_pairwise(two, x[:1], method), [0.05], p=p, attack=PGD(0.05, p=p))
        stored = torch.tensor([sample.radius for sample in whole.samples], dtype=torch.float64)
        # Forward takes its own rounding error off each margin.
        torch.testing.assert_close(stored, alone, rtol=1e-6, atol=1e-12)
        assert bool((stored <= alone * (1 + 1e-12)).all())
        assert whole.overall.attacked is not None
        assert whole.overall.certified[0].count <= whole.overall.attacked[0].count <= whole.overall.clean.count == 60


def test_the_logits_are_half_the_score_each_way() -> None:
    score, x = network()
    found = Forward(TwoClasses(score), x[:1])(x).value
    expected = torch.cat([-score(x) / 2, score(x) / 2], 1).detach()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


def test_the_score_is_a_part_of_it() -> None:
    score, x = network()
    dropped = nn.Sequential(score, nn.Dropout(0.5))
    two = TwoClasses(dropped).train()
    moved = PGD(0.1)(two, x, (score(x)[:, 0] > 0).long())
    # It was attacked in evaluation mode, and its mode is back.
    assert dropped.training
    assert moved.shape == x.shape
    assert sum(p.numel() for p in two.parameters()) == sum(p.numel() for p in score.parameters())
