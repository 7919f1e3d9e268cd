"""Running constants: they meet the proven ones from below, follow the weights, and have their gradient."""

import pytest
import torch
from torch import nn

import lipkit
from lipkit import nn as lnn
from lipkit.bounds import PairwiseLipLT
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.losses import RunningLipLT
from lipkit.norms import SVD


def convolutional() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 4, 4, 2, 1), nn.LeakyReLU(0.1), nn.Flatten()),
        *(nn.Linear(64, 9), nn.Softplus(), nn.Linear(9, 4)),
    )


def sorting() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), lnn.MaxMin(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))
    return nn.Sequential(*layers)


CASES = [(convolutional, (1, 8, 8)), (sorting, (6,))]


def proven(model: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    example = torch.zeros(1, *shape, dtype=torch.float64)
    return lipkit.pairwise(model, example, PairwiseLipLT(SVD(), negligible=0.0)).value


@pytest.mark.parametrize(("build", "shape"), CASES)
def test_meets_the_proven_constants_from_below(build, shape: tuple[int, ...]) -> None:
    model = build().double()
    running = RunningLipLT(model, torch.zeros(1, *shape, dtype=torch.float64))
    with torch.no_grad():
        early = found = running()
        for _ in range(100):
            found = running()
    exact = proven(model, shape).detach()
    # The gap closes like (sigma_2 / sigma_1)^(4 steps): 1.3e-3 after 100 steps and 2e-5 after 600 in the first case.
    assert bool((found <= exact * (1 + 1e-12)).all())
    torch.testing.assert_close(found, exact, rtol=5e-3, atol=0.0)
    assert bool((early <= found * (1 + 1e-9)).all())
    assert float(found.diagonal().abs().max()) == 0


@pytest.mark.parametrize(("build", "shape"), CASES)
def test_has_the_gradient_of_the_proven_constants(build, shape: tuple[int, ...]) -> None:
    model = build().double()
    running = RunningLipLT(model, torch.zeros(1, *shape, dtype=torch.float64))
    with torch.no_grad():
        for _ in range(300):
            running()
    weights = [p for p in model.parameters() if p.ndim > 1]
    found = torch.autograd.grad(running().sum(), weights)
    exact = torch.autograd.grad(proven(model, shape).sum(), weights)
    for ours, theirs in zip(found, exact, strict=True):
        # Directions converge half as fast as values: the root of their 1e-4.
        assert float((ours - theirs).norm()) < 0.02 * float(theirs.norm())


def test_several_steps_are_several_calls_and_the_last_counts() -> None:
    model = convolutional()
    single, several = (RunningLipLT(model, torch.zeros(1, 1, 8, 8), steps) for steps in (1, 4))
    with torch.no_grad():
        # Ten rounds of four were made before the first use.
        for _ in range(30):
            single()
        calls = [single() for _ in range(4)]
        torch.testing.assert_close(several(), calls[-1])
        assert not torch.allclose(calls[0], calls[-1], rtol=1e-5)
    for wrong in (0, True):
        with pytest.raises(ArgumentError, match="number of power steps"):
            RunningLipLT(model, torch.zeros(1, 1, 8, 8), wrong)


def test_follows_the_weights_and_rests_in_evaluation() -> None:
    model = convolutional()
    running = RunningLipLT(model, torch.zeros(1, 1, 8, 8))
    with torch.no_grad():
        before = running()
        for p in model.parameters():
            p.mul_(2.0)
        # Four linear layers, each twice as large.
        torch.testing.assert_close(running(), before * 16, rtol=0.05, atol=1e-6)
        running.eval()
        kept = {name: value.clone() for name, value in running.state_dict().items()}
        assert torch.equal(running(), running())
    assert all(torch.equal(value, kept[name]) for name, value in running.state_dict().items())
    other = RunningLipLT(model, torch.zeros(1, 1, 8, 8)).eval()
    other.load_state_dict(kept)
    assert torch.equal(other(), running())


def test_looking_changes_nothing_and_moves_with_its_model() -> None:
    model = convolutional()
    both = nn.ModuleList([model, RunningLipLT(model, torch.zeros(1, 1, 8, 8))])
    running = both[1]
    assert isinstance(running, RunningLipLT)
    before = {name: value.clone() for name, value in running.state_dict().items()}
    with torch.no_grad():
        seen = running.now()
        assert torch.equal(running.now(), seen)
        assert all(torch.equal(value, before[name]) for name, value in running.state_dict().items())
        assert torch.equal(running(), seen)
        assert not torch.equal(running.now(), seen)
        narrow = running.now()
        both.double()
        found = running.now()
    assert found.dtype == torch.float64
    # The same weights and directions: sums of at most 200 float32 products.
    torch.testing.assert_close(found, narrow.double(), rtol=200 * 2.0**-24, atol=0.0)


def test_directions_stay_in_the_memory_that_a_recorded_step_reads() -> None:
    running = RunningLipLT(convolutional(), torch.zeros(1, 1, 8, 8))
    before = {name: (value.data_ptr(), value.clone()) for name, value in running.named_buffers()}
    # The gradient needs the directions from before the step.
    running().sum().backward()
    for name, value in running.named_buffers():
        place, old = before[name]
        assert value.data_ptr() == place
        assert not torch.equal(value, old)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x).relu()


@pytest.mark.parametrize(
    ("model", "shape", "error", "words"),
    [
        (Residual(), (4,), UnsupportedError, "branches"),
        (nn.Sequential(lnn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)), (4,), UnsupportedError, "computed"),
        (nn.Conv2d(1, 2, 3), (1, 5, 5), ShapeError, "one axis"),
    ],
)
def test_refuses(model: nn.Module, shape: tuple[int, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        RunningLipLT(model, torch.zeros(1, *shape))
