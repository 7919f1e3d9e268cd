"""Sequential: its constant by dense Jacobians and by tracing, nesting, refusals, compilation, export."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import lipkit
from lipkit.bounds import Product, Sampling
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.nn import (
    GELU,
    Absolute,
    Branch,
    ConvexResidual,
    GroupSort,
    HouseholderActivation,
    MaxMin,
    Normalize,
    Scale,
    Spline,
)
from lipkit.nn.core.gain import gain_of
from lipkit.nn.layers.linear import Linear
from lipkit.nn.layers.sequential import Sequential
from lipkit.nn.normalization.batch_norm import LayerCentering
from support.jacobians import norm_at, steepest

# A dense decomposition in float64 is off by some units of 2^-53.
ROUNDING = 1 + 1e-13


def chain(K: float) -> Sequential:
    torch.manual_seed(0)
    return Sequential(Linear(4, 8), MaxMin(), nn.SiLU(), Scale(3.0), Linear(8, 4), K=K).double()


@pytest.mark.parametrize("K", [0.01, 1.0, 2.5, 300.0])
def test_a_container_with_constant_k_has_constant_k(K: float):
    module = chain(K)
    assert module.gain == K
    assert steepest(module, (1, 4)) <= K * ROUNDING
    assert float(module.declared_lipschitz((4,)).value) == pytest.approx(K, rel=1e-12)


@pytest.mark.parametrize("K", [0.5, 1.0, 7.0])
def test_isometries_attain_it(K: float):
    module = Sequential(Linear(4, 4), MaxMin(), Linear(4, 4), Absolute(), K=K).double()
    # The factor is smaller by 2^-22, weights made in float64 by less.
    assert norm_at(module, torch.randn(1, 4).double()) == pytest.approx(K, rel=1e-6)


def test_tracing_believes_it_and_proves_it_from_its_parts():
    module = chain(2.0)
    example = torch.randn(1, 4).double()
    believed = lipkit.lipschitz(module, example, Product(), lower=Sampling(4))
    assert float(believed.value) == pytest.approx(2, rel=1e-12)
    # The same layers without the container's own declaration: each part declares, the fold multiplies.
    plain = nn.Sequential(*module, Scale(module.factor))
    proven = float(lipkit.lipschitz(plain, example, Product(), lower=Sampling(4)).value.detach())
    assert proven == pytest.approx(2, rel=1e-5)


def test_containers_in_containers():
    inner = chain(5.0)
    outer = Sequential(inner, nn.Flatten(), Sequential(nn.ReLU(), K=0.1), K=3.0)
    assert outer.factor == pytest.approx(3.0 / (5.0 * 0.1), rel=1e-6)
    assert steepest(outer, (1, 4)) <= 3 * ROUNDING


def test_nothing_is_multiplied_where_nothing_is_to_be_done():
    module = Sequential(Linear(4, 4), MaxMin())
    assert module.factor == 1.0
    x = torch.randn(2, 4)
    assert torch.equal(module(x), module[1](module[0](x)))


def test_parts_added_later_count():
    module = Sequential(Absolute(), K=1.0)
    module.append(Scale(4.0))
    assert norm_at(module, torch.randn(1, 3).double()) == pytest.approx(1, rel=1e-6)


def test_unknown_parts_are_refused_when_built_and_when_added():
    with pytest.raises(UnsupportedError, match="Linear is not known"):
        Sequential(nn.Linear(2, 2))
    with pytest.raises(UnsupportedError, match="draws its slopes"):
        Sequential(Absolute(), nn.RReLU())
    module = Sequential(Absolute())
    module.append(nn.BatchNorm1d(2))
    with pytest.raises(UnsupportedError, match="running variance"):
        module(torch.ones(2, 2))
    with pytest.raises(ArgumentError, match="positive"):
        Sequential(K=0.0)


@pytest.mark.parametrize("dropout", [nn.Dropout(0.5), nn.AlphaDropout(0.5)], ids=str)
def test_dropout_trains_and_k_is_that_of_evaluation(dropout: nn.Module):
    module = Sequential(Linear(4, 4), MaxMin(), dropout, Linear(4, 4), K=2.0).double()
    assert module.training
    x = torch.randn(64, 4).double()
    assert not torch.equal(module(x), module(x))
    module(x).square().sum().backward()
    assert all(p.grad is not None for p in module.parameters())
    module.eval()
    assert torch.equal(module(x), module(x))
    assert steepest(module, (1, 4)) <= 2 * ROUNDING
    # Isometries throughout: K is attained, so it is not too large either.
    assert norm_at(module, torch.randn(1, 4).double()) == pytest.approx(2, rel=1e-6)


def test_a_slice_is_the_chain_of_its_parts_and_promises_no_more():
    module = chain(2.0)
    x = torch.randn(3, 4).double()
    part = module[1:4]
    assert type(part) is nn.Sequential
    torch.testing.assert_close(module[4](part(module[0](x))) * module.factor, module(x))
    # MaxMin, SiLU with slopes up to 1.0998, and a factor of 3.
    assert gain_of(part) == pytest.approx(3 * 1.0998, rel=1e-4)
    assert steepest(part, (1, 8)) <= gain_of(part) * ROUNDING
    # The factor that makes K of the whole is not in any slice.
    torch.testing.assert_close(module[:](x) * module.factor, module(x))
    assert module[-1] is module[4]
    assert [name for name, _ in part.named_children()] == ["1", "2", "3"]


PARTS = [
    MaxMin,
    lambda: GroupSort(4),
    GELU,
    nn.GELU,
    nn.Hardswish,
    lambda: Spline(4),
    lambda: HouseholderActivation(4),
    lambda: Scale(0.3),
    lambda: ConvexResidual(nn.Sequential(Linear(4, 4), nn.Mish())),
    LayerCentering,
    lambda: Normalize((0.1,), (0.2,)),
    lambda: Sequential(Branch(Linear(4, 2), Linear(4, 2)), K=0.7),
]


@settings(max_examples=25)
@given(st.lists(st.sampled_from(range(len(PARTS))), max_size=5), st.floats(0.1, 10), st.integers(0, 99))
def test_any_chain_keeps_its_constant(which: list[int], K: float, seed: int):
    torch.manual_seed(seed)
    module = Sequential(*(PARTS[i]() for i in which), K=K).double()
    assert steepest(module, (1, 4), points=2, seed=seed) <= K * ROUNDING


def test_state_is_that_of_the_parts():
    module, other = chain(2.0), chain(2.0)
    other.load_state_dict(module.state_dict())
    x = torch.randn(3, 4).double()
    assert torch.equal(module(x), other(x))
    assert torch.equal(module(x), copy.deepcopy(module)(x))
    assert module.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_an_exported_program_gives_the_same_numbers():
    module = chain(2.0).eval()
    x = torch.randn(2, 4).double()
    exported = torch.export.export(module, (x,)).module()
    assert torch.equal(exported(x), module(x))
