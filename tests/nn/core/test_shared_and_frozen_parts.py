"""Copies, condensed models, projections, conversions and optimizers, where parts are shared, frozen or rounded."""

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from lipkit import nn as lnn
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.optim import PolarRetraction, RiemannianSGD, StiefelMuon


def norm(weight: Tensor) -> float:
    return float(torch.linalg.matrix_norm(weight.detach().double(), 2))


def raw_of(layer: nn.Module) -> nn.Parameter:
    return layer.get_parameter("parametrizations.weight.original")


@pytest.mark.parametrize("chain", [nn.Sequential, lnn.Sequential], ids=["torch", "lipkit"])
def test_a_part_that_stands_twice_is_condensed_in_both_places(chain: type[nn.Sequential]) -> None:
    shared = lnn.Linear(4, 4)
    model = chain(shared, lnn.MaxMin(), shared).eval()
    plain = lnn.condense(model)
    x = torch.randn(3, 4)
    torch.testing.assert_close(plain(x), model(x), rtol=0, atol=0)
    assert isinstance(plain, nn.Sequential)
    assert len(plain) == 3
    assert plain[0] is plain[2]
    assert type(plain[2]) is nn.Linear


def test_condensing_keeps_the_mode_and_what_is_trained() -> None:
    model = lnn.Sequential(lnn.Linear(4, 4), lnn.SLL(4), lnn.SqrtRho(4, 1.0)).eval().requires_grad_(False)
    plain = lnn.condense(model)
    assert not any(part.training for part in plain.modules())
    assert not any(parameter.requires_grad for parameter in plain.parameters())
    assert all(parameter.requires_grad for parameter in lnn.condense(model.requires_grad_()).parameters())


@pytest.mark.parametrize("method", [lnn.Bjorck(), lnn.Cayley(), lnn.Spectral(), lnn.AOL(), lnn.SingularClip()], ids=str)
def test_float64_weights_are_proven_after_rounding_to_float32(method: lnn.WeightMethod) -> None:
    for seed in range(6):
        torch.manual_seed(seed)
        layer = lnn.Linear(3 + seed, 3 + seed, dtype=torch.float64, method=method)
        weight = lnn.condense(layer, torch.float32).weight
        assert isinstance(weight, Tensor)
        # The reference may be high by the size times 2^-53.
        assert norm(weight) <= 1 + 8 * 2.0**-53


@pytest.mark.parametrize("block", [lnn.frozen, lnn.batched], ids=["frozen", "batched"])
def test_copies_made_inside_a_block_are_free(block: Callable[[nn.Module], AbstractContextManager[nn.Module]]) -> None:
    layer = lnn.Linear(4, 4)
    with block(layer):
        _ = layer.weight
        copied = copy.deepcopy(layer)
    before = copied.weight.detach().clone()
    with torch.no_grad():
        raw_of(copied).copy_(torch.randn(4, 4))
    assert not torch.equal(copied.weight, before)


def test_steps_condensed_inside_a_block_belong_to_the_rounded_weights() -> None:
    torch.manual_seed(0)
    layer = lnn.CPL(16, bias=False)
    with lnn.frozen(layer):
        layer(torch.randn(2, 16))
        plain = lnn.condense(layer, torch.bfloat16)
    weight, c = (plain.get_parameter(name).detach().double() for name in ("weight", "coefficient"))
    # W' C W <= 2 I with the numbers as stored.
    assert norm(weight.mT @ (c[:, None] * weight)) <= 2


def test_projection_refuses_what_it_cannot_keep() -> None:
    scaled = parametrizations.weight_norm(nn.Linear(4, 4))
    circular = nn.Conv1d(1, 1, 3, stride=2, padding=1, padding_mode="circular", bias=False)
    first = nn.Linear(4, 4)
    before = first.weight.detach().clone()
    for module in (scaled, circular):
        with pytest.raises(UnsupportedError):
            lnn.project(nn.Sequential(first, module), linear=lnn.Bjorck(), conv=lnn.Spectral())
        # Nothing is changed before it is refused.
        assert torch.equal(first.weight, before)
    # The layer refuses this: on a circle of five the windows (4, 0), (1, 2), (3, 4) of norm one share an entry.
    with torch.no_grad():
        circular.weight.copy_(torch.tensor([[[1.0, 1.0, 0.0]]]) / 2**0.5)
        assert norm(circular(torch.eye(5)[:, None]).flatten(1)) > 1.2


class Wave(nn.Module):
    """A module that states its own constant."""

    @property
    def gain(self) -> float:
        return 2.0

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(2 * x)


class Calls(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.dense = nn.Linear(6, 6)
        self.wave = Wave()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.wave(self.dense(x)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.softmax(x, dim=1),
        lambda x: functional.softplus(x, 1.0, -1.0),
        lambda x: x,
    ],
    ids=["softmax", "softplus", "stated gain"],
)
def test_conversions_have_the_constant(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    twin, _ = lnn.lipschitzify(Calls(function))
    twin = twin.double().eval()
    # Pairs across the place where torch's softplus with threshold -1 jumps by 1.3.
    x = torch.linspace(-4, 4, 4001, dtype=torch.float64)[:, None] * torch.ones(6, dtype=torch.float64)
    y = twin(x).detach()
    slopes = (y[1:] - y[:-1]).norm(dim=1) / (x[1:] - x[:-1]).norm(dim=1)
    # 1e-9: rounding of differences of size 1e-3.
    assert float(slopes.max()) <= 1 + 1e-9


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (100 * x).to(torch.int64).to(torch.float32),
        lambda x: x.view(torch.int32).to(torch.float32),
        lambda x: functional.celu(x, -1.0),
    ],
    ids=["whole numbers", "bits", "celu"],
)
def test_conversions_refuse_what_has_no_constant(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(UnsupportedError):
        lnn.lipschitzify(Calls(function))


def test_norm_pooling_is_divided_by_what_it_does_to_cut_windows() -> None:
    twin, _ = lnn.lipschitzify(nn.Sequential(nn.Flatten(), nn.LPPool1d(2, 3, ceil_mode=True)))
    x = torch.zeros(1, 4)
    x[0, 3] = 1
    assert float(twin(x).detach().norm()) <= 1


def orthonormal(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.orthogonal_(torch.empty(shape)))


@pytest.mark.parametrize("build", [StiefelMuon, RiemannianSGD], ids=["muon", "sgd"])
def test_further_groups_are_checked_too(build: Callable[..., torch.optim.Optimizer]) -> None:
    optimizer = build([orthonormal(4, 4)], lr=0.1)
    for group in ({"params": [nn.Parameter(2 * torch.eye(3))]}, {"params": [orthonormal(3, 3)], "lr": -1.0}):
        with pytest.raises(ArgumentError):
            optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": [orthonormal(3, 3)], "lr": 0.5})
    assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize(
    "build",
    [lambda p: StiefelMuon(p, lr=1.0), lambda p: RiemannianSGD(p, lr=1.0, retraction=PolarRetraction())],
    ids=["muon", "polar"],
)
def test_long_steps_stay_finite_and_return(build: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
    torch.manual_seed(0)
    weight = orthonormal(64, 64)
    optimizer = build([weight])
    for _ in range(20):
        weight.grad = torch.randn(64, 64)
        optimizer.step()
        # Björck steps never leave norm one upwards by more than rounding.
        assert norm(weight) <= 1 + 1e-5


def test_factorisations_of_bfloat16_parameters() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(orthonormal(6, 6).detach().to(torch.bfloat16))
    optimizer = RiemannianSGD([weight], lr=0.1, momentum=0.9)
    for _ in range(3):
        weight.grad = torch.randn(6, 6).to(torch.bfloat16)
        optimizer.step()
    # Rounding to bfloat16 changes singular values by a few 2^-9.
    assert abs(norm(weight) - 1) < 0.02
