"""Objectives against torch's cross-entropy and loops."""

import pytest
import torch

from lipkit.certify.attacks import CrossEntropy, EveryClass, Margin, Objective, margins


def gradient(logits: torch.Tensor, labels: torch.Tensor, objective: Objective, round: int = 0) -> torch.Tensor:
    z = logits.clone().requires_grad_()
    return torch.autograd.grad(objective(z, labels, round).sum(), z)[0]


@pytest.fixture
def task() -> tuple[torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    return torch.randn(20, 4, generator=source, dtype=torch.float64), torch.randint(4, (20,), generator=source)


def test_cross_entropy_points_where_torchs_does(task: tuple[torch.Tensor, torch.Tensor]):
    logits, labels = task
    z = logits.clone().requires_grad_()
    loss = torch.nn.functional.cross_entropy(z, labels, reduction="none")
    theirs = torch.autograd.grad(loss.sum(), z)[0]
    ours = gradient(logits, labels, CrossEntropy())
    cosine = torch.nn.functional.cosine_similarity(theirs, ours)
    assert torch.allclose(cosine, torch.ones(20, dtype=torch.float64), atol=1e-12)
    assert torch.allclose(torch.nn.functional.softplus(CrossEntropy()(logits, labels, 0)), loss.detach(), atol=1e-12)


def test_it_does_not_vanish_where_the_model_is_sure():
    logits, labels = torch.tensor([[300.0, 0.0, -1.0]]), torch.zeros(1).long()
    found = gradient(logits, labels, CrossEntropy())
    # softmax of the rivals (0, -1), and -1 for the label.
    assert found[0].tolist() == pytest.approx([-1.0, 0.731058, 0.268941], abs=1e-6)
    half = CrossEntropy()(logits.bfloat16(), labels, 0)
    assert half.dtype == torch.float32


def test_margins_and_targets_against_loops(task: tuple[torch.Tensor, torch.Tensor]):
    logits, labels = task
    rows = list(zip(logits.tolist(), labels.tolist(), strict=True))
    expected = [r[y] - max(r[j] for j in range(4) if j != y) for r, y in rows]
    assert margins(logits, labels).tolist() == expected
    assert Margin()(logits, labels, 0).tolist() == [-m for m in expected]
    assert EveryClass().rounds(4) == 3
    rounds = torch.stack([EveryClass()(logits, labels, r) for r in range(3)])
    assert rounds.amax(0).tolist() == [-m for m in expected]
    assert sorted(rounds[:, 0].tolist()) == sorted(
        rows[0][0][j] - rows[0][0][rows[0][1]] for j in range(4) if j != rows[0][1]
    )
