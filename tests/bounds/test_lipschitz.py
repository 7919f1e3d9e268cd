"""The front door on torch models: what comes out, and what is said when nothing can."""

import sys
from types import FrameType

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import Ball, Bound, Everywhere, Kind
from lipkit.bounds import DAG, Auto, GradientAscent, LipLT, Method, PairwiseDAG, Product, Sampling
from lipkit.bounds.fold.pairwise import Pairwise
from lipkit.errors import ArgumentError, BrokenCertificateError, CaptureError, NeedsRegion
from lipkit.linops import Shape
from lipkit.regions import Region
from lipkit.trace import Network
from support.repository import ROOT

# A few steps are enough where the test is about something else.
QUICK = GradientAscent(steps=2, starts=2)


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def test_any_model_gets_both_sides():
    model = mlp()
    bound = lipkit.lipschitz(model, torch.randn(5, 6))
    assert bound.kind is Kind.UPPER
    assert bound.lower is not None
    assert bound.lower.kind is Kind.LOWER
    assert 0 < bound.lower.value.item() <= bound.value.item()
    # The product of the norms is what one would compute by hand.
    by_hand = 1.0
    for layer in (model[0], model[2], model[4]):
        by_hand *= torch.linalg.matrix_norm(layer.weight.double(), 2).item()
    assert bound.value.item() < by_hand
    assert [str(part.method).split(",")[0] for part in bound.parts] == ["fold over the network", "LipLT", "LipSDP"]


def test_a_plain_network_passes_few_files():
    source, seen = str(ROOT / "src" / "lipkit"), set[str]()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(source):
            seen.add(frame.f_code.co_filename)

    model, x = mlp(), torch.randn(5, 6)
    # The first call imports and prepares what later ones find.
    lipkit.lipschitz(model, x)
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        lipkit.lipschitz(model, x)
    finally:
        sys.setprofile(before)
    # Whoever reads how one number comes about reads these files: half of the 90 that they once were.
    assert 30 < len(seen) <= 45, sorted(seen)


def test_an_affine_model_is_exact_up_to_rounding():
    torch.manual_seed(0)
    first, second = nn.Linear(5, 7), nn.Linear(7, 4)
    model = nn.Sequential(first, second)
    truth = torch.linalg.matrix_norm(second.weight.double() @ first.weight.double(), 2)
    bound = lipkit.lipschitz(model, torch.randn(1, 5))
    assert bound.lower is not None
    # A decomposition of a 4 x 5 matrix; the lower side is a difference quotient, accurate to 1e-9 or better.
    assert bound.value.item() == pytest.approx(truth.item(), rel=1e-10)
    assert bound.lower.value.item() == pytest.approx(truth.item(), rel=1e-3)


def test_a_region_gives_a_smaller_number_and_keeps_its_name():
    model, x = mlp(1), torch.randn(6)
    everywhere = lipkit.lipschitz(model, x[None], method=Auto(budget=5), lower=QUICK)
    region = Ball(x.double(), 0.05)
    local = lipkit.lipschitz(model, x[None], method=Auto(budget=5), region=region)
    assert local.region == region
    assert everywhere.region == Everywhere()
    assert local.value.item() <= everywhere.value.item() * (1 + 1e-9)
    assert local.lower is not None
    assert local.lower.value.item() <= local.value.item()


def test_the_bound_is_differentiable_in_the_parameters():
    model = mlp(2)
    for method in (Product(), DAG(), LipLT(), Auto(budget=5)):
        model.zero_grad()
        lipkit.lipschitz(model, torch.randn(1, 6), method=method, lower=QUICK).value.backward()
        for name, parameter in model.named_parameters():
            moved = parameter.grad is not None and bool(parameter.grad.norm() > 0)
            # Biases do not enter a global constant.
            assert moved == name.endswith("weight"), (method, name)


def test_it_can_be_trained():
    model = mlp(3)
    before = lipkit.lipschitz(model, torch.randn(1, 6), method=LipLT(), lower=QUICK).value.item()
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        step.zero_grad()
        lipkit.lipschitz(model, torch.randn(1, 6), method=LipLT(), lower=QUICK).value.backward()
        step.step()
    assert lipkit.lipschitz(model, torch.randn(1, 6), method=LipLT(), lower=QUICK).value.item() < 0.8 * before


def test_networks_and_mappings_are_taken_too():
    model = mlp(4)
    network = lipkit.capture(model, torch.randn(1, 6))
    from_network = lipkit.lipschitz(network, method=DAG(), lower=QUICK)
    by_name = lipkit.lipschitz(model, {"input": torch.randn(1, 6)}, method=DAG(), lower=QUICK)
    assert from_network.value.item() == by_name.value.item()


def test_pairs_of_a_model():
    model = mlp(5)
    direct = lipkit.pairwise(model, torch.randn(1, 6)).value
    loose = lipkit.pairwise(model, torch.randn(1, 6), method=PairwiseDAG()).value
    assert direct.shape == (3, 3)
    # Up to the rounding of a handful of sums.
    assert bool((direct <= loose * (1 + 1e-10)).all())


def test_what_cannot_be_bounded_is_refused_with_its_place():
    class Square(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.square()

    with pytest.raises(NeedsRegion, match="bounded region"):
        lipkit.lipschitz(nn.Sequential(nn.Linear(3, 3), Square()), torch.randn(1, 3))
    with pytest.raises(CaptureError, match="floor"):
        lipkit.lipschitz(_Floor(), torch.randn(1, 3))
    with pytest.raises(ArgumentError, match="seconds > 0, got 0"):
        Auto(budget=0)
    with pytest.raises(ArgumentError, match="lower bounds"):
        lipkit.lipschitz(mlp(), torch.randn(1, 6), method=DAG(), lower=DAG())


class _Floor(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.floor(x)


class Liar(nn.Module):
    """Twice its input, and the promise that it is not."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        return Bound.from_value(1.0, Kind.UPPER, f"a lie about {in_shape}")


def test_a_bound_that_is_disproven_at_once_is_refused():
    with pytest.raises(BrokenCertificateError, match="A lower bound of 2 disproves"):
        lipkit.lipschitz(nn.Sequential(nn.Flatten(), Liar()), torch.zeros(1, 4))


@pytest.mark.parametrize("method", [Auto(), DAG(), LipLT(), Sampling(), GradientAscent()], ids=str)
def test_a_single_number_without_an_axis_is_bounded_like_one_with(method: Method) -> None:
    torch.manual_seed(0)
    with_axis = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(1, 3)
    alone = lipkit.lipschitz(nn.Sequential(with_axis, nn.Flatten(0)), x, method)
    beside = lipkit.lipschitz(with_axis, x, method)
    # Methods that stop at a tolerance stop at slightly different places.
    assert float(alone.value.detach()) == pytest.approx(float(beside.value.detach()), rel=1e-6)


class OneForAll(Pairwise):
    """Says that it is pairwise, and is not."""

    def _bound(self, network: Network, region: Region) -> Bound:
        return DAG()(network, region)


def test_one_constant_is_none_for_each_pair() -> None:
    with pytest.raises(ArgumentError, match="gives one constant, not one for each pair; give a method like Pairwise"):
        lipkit.pairwise(nn.Linear(3, 4), torch.randn(1, 3), OneForAll())


def test_a_network_without_activations_is_one_linear_map() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(5, 4), nn.Linear(4, 3)
    bound = lipkit.lipschitz(nn.Sequential(first, second), torch.randn(1, 5))
    truth = float(torch.linalg.matrix_norm((second.weight.double() @ first.weight.double()).detach(), 2))
    assert bound.lower is not None
    below, above = float(bound.lower.value.detach()), float(bound.value.detach())
    assert below * (1 - 1e-6) <= truth <= above <= truth * (1 + 1e-3)
    assert below == pytest.approx(truth, rel=1e-5)
