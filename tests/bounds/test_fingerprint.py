"""A bound knows what it was computed from: the same network by every way, another one after any change."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

import lipkit
import lipkit.nn as lnn
from lipkit import Ball, Bound, Kind
from lipkit.bounds import DAG, Auto, LipLT, PairwiseLipLT, _base
from lipkit.bounds._base import NetworkPrint, Snapshot
from lipkit.bounds.lipschitz import network_of
from lipkit.bounds.local.local import Local
from lipkit.certify import Forward
from lipkit.errors import ArgumentError
from support.zoo.models import NONLIPSCHITZ, ZOO


def plain() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


X = torch.zeros(1, 4)


def layer(model: nn.Sequential, at: int) -> nn.Linear:
    found = model[at]
    assert isinstance(found, nn.Linear)
    return found


def hash_of(bound: Bound) -> str:
    assert bound.subject is not None
    return bound.subject.network


CONSTRAINED = {
    "dense": lambda: (nn.Sequential(lnn.Linear(6, 6), lnn.MaxMin(), lnn.Linear(6, 4)), torch.randn(1, 6)),
    "convolutions": lambda: (
        nn.Sequential(lnn.Conv2d(3, 4, 3, padding=1), lnn.MaxMin(), nn.Flatten(), lnn.Linear(64, 4)),
        torch.randn(1, 3, 4, 4),
    ),
    "residual": lambda: (nn.Sequential(lnn.SLLConv(3, 3, 4), nn.Flatten(), lnn.Linear(48, 8)), torch.randn(1, 3, 4, 4)),
    "parametrized": lambda: (nn.utils.parametrizations.orthogonal(nn.Linear(6, 6)), torch.randn(1, 6)),
}


# Two seconds each: every model is traced at least three times.
LONG = {"cnn_batch_norm", "recurrent", "resnet"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in LONG else [])
        for name in (*CONSTRAINED, *sorted(set(ZOO) - NONLIPSCHITZ))
    ],
)
def test_every_way_to_a_network_gives_one_fingerprint(name: str):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, x = (CONSTRAINED.get(name) or ZOO[name])()
    traced = NetworkPrint.of(network_of(model, x))
    with torch.no_grad():
        held = NetworkPrint.of(network_of(model, x))
    assert traced == held
    assert traced.source == tuple(x.shape[1:])
    with lnn.frozen(model):
        assert NetworkPrint.of(network_of(model.train(), x)) == traced
    # The logits are computed by a copy in float64.
    network = network_of(model.eval(), x)
    if len(network.target) == 1:
        assert Forward(network).subject.network == traced.network
        # A model is captured once more for it, as above.
        assert name not in CONSTRAINED or Forward(model, x).subject.network == traced.network


def test_copies_with_the_same_numbers_are_the_same_and_others_are_not():
    model = plain()
    with torch.no_grad():
        one = hash_of(lipkit.lipschitz(model, X, DAG()))
        assert hash_of(lipkit.lipschitz(copy.deepcopy(model).double(), X.double(), DAG())) == one
        assert hash_of(lipkit.lipschitz(lnn.condense(copy.deepcopy(model)), X, DAG())) == one
        nudged = plain()
        layer(nudged, 0).weight[0, 0] = torch.nextafter(layer(nudged, 0).weight[0, 0], torch.tensor(9.0))
        assert hash_of(lipkit.lipschitz(nudged, X, DAG())) != one
        assert hash_of(lipkit.lipschitz(nn.Sequential(model[0], nn.Tanh(), model[2]), X, DAG())) != one
        shifted = plain()
        layer(shifted, 2).bias.add_(1)
        # A bias changes no constant. But the certificate is about a network, and this is another one.
        assert hash_of(lipkit.lipschitz(shifted, X, DAG())) != one


METHODS = [DAG(), LipLT(), Auto(budget=30.0), Local(DAG())]


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_bound_of_every_method_is_of_the_network_it_was_given(method: lipkit.bounds.Method):
    network = network_of(plain(), X)
    region = Ball(torch.zeros(4), 0.5)
    assert hash_of(method(network, region)) == NetworkPrint.of(network).network
    assert hash_of(lipkit.pairwise(network, method=PairwiseLipLT())) == NetworkPrint.of(network).network


def test_weights_that_change_after_the_bound_do_not_change_what_it_is_of():
    model = plain()
    before = NetworkPrint.of(network_of(model, X)).network
    front, late = lipkit.lipschitz(model, X, DAG()), DAG()(network_of(model, X))
    # Behind the back of torch, and before anybody asked for the hash.
    layer(model, 0).weight.data.mul_(0.5)
    assert hash_of(front) == before
    with torch.no_grad():
        layer(model, 0).weight.mul_(0.5)
    assert hash_of(front) == before
    with pytest.raises(ArgumentError, match="weights were changed after this bound was computed"):
        hash_of(late)


def test_steps_of_training_hash_nothing(monkeypatch: pytest.MonkeyPatch):
    calls: list[object] = []
    monkeypatch.setattr(_base, "network_hash", lambda network: calls.append(network) or "hash")
    model = plain().train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(2):
        loss = lipkit.lipschitz(model, X, DAG()).value + LipLT()(network_of(model, X)).value
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert not calls
    # Outside of training it is found at once, and once for a network that stays as it is.
    network = network_of(model.eval(), X)
    for _ in range(3):
        with torch.no_grad():
            assert hash_of(DAG()(network)) == "hash"
    assert len(calls) == 1


def test_what_is_combined_from_parts_is_of_nothing_that_is_known():
    with torch.no_grad():
        bound = lipkit.lipschitz(plain(), X, DAG())
    stated = Bound.from_value(1.0, Kind.UPPER, "because")
    assert stated.subject is None
    combined = [bound.compose(bound), bound.sum(bound), bound.max(bound), bound.scale(2.0), bound.best(stated)]
    assert all(one.subject is None for one in combined)
    assert bound.best(replace(bound)).subject == bound.subject
    with torch.no_grad():
        same, other = LipLT()(network_of(plain(), X)), lipkit.lipschitz(nn.Linear(4, 3), X, DAG())
    assert isinstance(same.subject, Snapshot)
    assert hash_of(bound.best(same)) == hash_of(bound)
    with pytest.raises(ArgumentError, match="of two networks, or of inputs of two shapes"):
        bound.best(other)


def test_a_number_added_to_a_single_entry_is_hashed():
    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sin(x - 100.0)

    # Its bias is one number with steps of 0, which torch takes for contiguous.
    found = lipkit.lipschitz(Shifted(), torch.zeros(1, 1), DAG())
    assert found.subject is not None
    assert found.subject.network == NetworkPrint.of(network_of(Shifted(), torch.zeros(1, 1))).sha256
