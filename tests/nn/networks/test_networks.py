"""Ready networks: their constant is the one asked for, by construction and by every check from outside."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipkit
from lipkit import nn as lnn
from lipkit.bound import L2
from lipkit.bounds import DAG, Sampling
from lipkit.bounds.lipschitz import default_search, network_of
from lipkit.errors import ArgumentError
from lipkit.linops import Shape
from lipkit.nn import networks
from support.proven import proven
from support.unchecked import unchecked

IMAGE = (3, 8, 8)
SMALL: dict[str, tuple[Callable[[float], nn.Module], Shape]] = {
    "mlp": (lambda K: networks.mlp((6, 8, 8, 3), K=K), (6,)),
    "residual_net of SLL": (
        lambda K: networks.residual_net(IMAGE, 3, channels=4, depth=2, stages=2, width=8, dense=1, K=K),
        IMAGE,
    ),
    "residual_net of CPL": (
        lambda K: networks.residual_net(
            IMAGE, 3, channels=4, depth=2, stages=1, width=8, block=networks.ResidualBlock.CPL, K=K
        ),
        IMAGE,
    ),
    "li_resnet": (lambda K: networks.li_resnet(IMAGE, 3, channels=4, depth=2, width=8, dense=1, K=K), IMAGE),
    "shift_net": (lambda K: networks.shift_net(IMAGE, 3, channels=(8, 16), depth=(1, 2), width=8, K=K), IMAGE),
    "lip_conv_net": (lambda K: networks.lip_conv_net(IMAGE, 3, channels=4, depth=4, stages=2, K=K), IMAGE),
    "mixer": (lambda K: networks.mixer(IMAGE, 3, patch=4, channels=8, depth=2, width=8, K=K), IMAGE),
    "vit": (lambda K: networks.vit(IMAGE, 3, patch=4, channels=8, heads=2, depth=2, width=8, K=K), IMAGE),
}
every = pytest.mark.parametrize("name", SMALL)


def steepest(model: nn.Module, x: Tensor) -> float:
    """The largest singular value of the Jacobians at some points: no code of the library is involved."""
    jacobians = torch.func.vmap(torch.func.jacrev(lambda z: model(z[None])[0]))(x)
    return float(torch.linalg.svdvals(jacobians.detach().flatten(2)).max())


def test_every_network_is_in_the_suite() -> None:
    public = {name for name, value in vars(networks).items() if callable(value) and not isinstance(value, type)}
    assert public == {name.partition(" of ")[0] for name in SMALL}


# The constant is a factor at the end of every network, and 1 is the one that the next test trains with.
@pytest.mark.parametrize(("name", "constant"), [*((name, 2.5) for name in SMALL), ("mlp", 1.0), ("vit", 1.0)])
def test_the_constant_is_proven_and_no_jacobian_exceeds_it(name: str, constant: float) -> None:
    torch.manual_seed(0)
    build, shape = SMALL[name]
    model = build(constant)
    bound = proven(model, torch.zeros(1, *shape), method=DAG())
    # The factor of the whole is rounded down, the product of the layers' norms up: some units of float64 in all.
    assert constant * (1 - 1e-6) <= bound <= constant * (1 + 1e-9)
    wide = lnn.condense(model).double().eval()
    assert steepest(wide, torch.randn(8, *shape, dtype=torch.float64)) <= constant * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("build", [networks.shift_net, networks.mixer], ids=lambda build: build.__name__)
def test_a_search_of_a_whole_network_takes_as_many_products_as_some_seconds_pay_for(build: Any) -> None:
    """The default call on networks of the default size: proven, and with a lower bound from some points."""
    torch.manual_seed(0)
    network = network_of(build((3, 32, 32), 10).eval(), torch.zeros(1, 3, 32, 32))
    search = default_search(network, L2)
    assert isinstance(search, Sampling)
    # 1024 points, as for small networks, took half a minute.
    assert 8 <= search.count <= 256
    bound = lipkit.lipschitz(network, method=DAG())
    assert 1 - 1e-6 <= float(bound.value.detach()) <= 1 + 1e-9
    assert bound.lower is not None
    assert 0 < float(bound.lower.value) <= 1


@every
def test_it_trains_and_stays_within_its_constant(name: str) -> None:
    torch.manual_seed(0)
    build, shape = SMALL[name]
    model = build(1.0)
    x, labels = torch.randn(32, *shape), torch.arange(32) % 3
    x[torch.arange(32), ...] += labels.reshape(-1, *(1,) * len(shape)) - 1.0
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(15):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(20 * model(x), labels)
        loss.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    wide = lnn.condense(model).double().eval()
    assert steepest(wide, x[:8].double()) <= 1 + 1e-9


@every
def test_it_saves_and_loads(name: str) -> None:
    build, shape = SMALL[name]
    one, other = build(1.0).eval(), build(1.0).eval()
    other.load_state_dict(one.state_dict())
    x = torch.randn(2, *shape)
    assert torch.equal(one(x), other(x))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: networks.mlp((4,)), r"got \(4,\)"),
        (lambda: networks.mlp((4, 3, 2)), "hidden ones even"),
        (lambda: networks.residual_net((3, 10, 8), 3), r"sides that 4 divides, got in_shape=\(3, 10, 8\)"),
        (lambda: networks.residual_net((3, 8), 3), r"got in_shape=\(3, 8\)"),
        (lambda: networks.residual_net(IMAGE, 0), "classes of at least 1, got 0"),
        (lambda: networks.li_resnet((3, 6, 6), 3), "sides that 4 divides"),
        (lambda: networks.li_resnet(IMAGE, 3, width=7), "even number of width"),
        (lambda: networks.shift_net(IMAGE, 3, channels=(8,), depth=(1, 1)), "one number for each stage"),
        (lambda: networks.shift_net(IMAGE, 3, channels=(12,), depth=(1,)), "multiple of 8"),
        (lambda: networks.lip_conv_net(IMAGE, 3, depth=5, stages=2), "depth=5 for 2 stages; take depth=4"),
        (lambda: networks.mixer(IMAGE, 3, patch=3), "sides that 3 divides"),
        (
            lambda: networks.li_resnet(IMAGE, 3, channels=7),
            "even number of channels, because MaxMin sorts pairs, got 7",
        ),
        (lambda: networks.mixer(IMAGE, 3, channels=7), "even number of channels"),
        (lambda: networks.lip_conv_net(IMAGE, 3, channels=7, depth=2, stages=2), "even number of channels"),
        (lambda: networks.li_resnet(IMAGE, 3, dense=-1), "0 or more, got -1"),
        (lambda: networks.mixer((1, 3, 8, 8), 3), "without batch axis"),
        (lambda: networks.vit(IMAGE, 3, patch=3), "sides that 3 divides"),
        (lambda: networks.vit(IMAGE, 3, channels=8, heads=3), "embed_dim=8 and num_heads=3"),
        (lambda: networks.vit(IMAGE, 3, channels=7, heads=7), "even number of channels"),
        (lambda: networks.mlp((4, 2), K=0.0), "K must be a positive number, got 0.0"),
    ],
)
def test_bad_input(build: Callable[[], nn.Module], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        build()


WRONG_TYPE: Any = 3
WRONG_NAME: Any = "sll"


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: networks.mlp(WRONG_TYPE), "got 3; for example"),
        (lambda: networks.mixer(WRONG_TYPE, 3), "in_shape=3"),
        (lambda: networks.shift_net(IMAGE, 3, depth=WRONG_TYPE), "one number for each stage"),
        (lambda: networks.residual_net(IMAGE, 3, block=WRONG_NAME), "ResidualBlock.SLL, got 'sll'"),
    ],
)
def test_input_of_another_type(build: Callable[[], nn.Module], words: str) -> None:
    with unchecked(), pytest.raises(ArgumentError, match=words):
        build()


def test_networks_are_found_from_the_package_of_layers() -> None:
    assert lnn.networks is networks
