"""Trained networks with published constants: product, LipLT and lower bounds beside them."""

import pytest
import torch

from lipkit.bounds import DAG, GradientAscent, LipLT, Product
from lipkit.linops import Conv, Dense, Reshape, product
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU
from support.networks.lipschitz_nets import arrays, published, trained

SEEDS = range(5)


def convolutional(name: str) -> Network:
    """Logit 7: 3 x 3 kernels, zero padding 1 on 8 x 8 images, flattened channel first."""
    found = arrays(name)
    ops, channels = [], 1
    for key in sorted(k for k in found if k.startswith("conv") and k.endswith("weight")):
        weight = torch.from_numpy(found[key])
        ops.append(Conv(weight, (8, 8), (1, 1), ((1, 1), (1, 1)), (1, 1)))
        channels = weight.shape[0]
    last = Dense(torch.from_numpy(found["fc1_weight"][7:8]))
    return chain([*ops, product(last, Reshape((channels, 8, 8), (channels * 64,)))], RELU)


@pytest.mark.parametrize("name", [f"{kind}_seed{seed}" for kind in ("fnn2", "fnn3") for seed in SEEDS])
def test_fully_connected_networks(name: str):
    network, known = trained(name, 7), published(name)
    # Published to 16 digits from float32 weights by a library whose norms are good to 1e-5 or better.
    assert Product()(network).value.item() == pytest.approx(known["MP"], rel=1e-4)
    assert LipLT()(network).value.item() == pytest.approx(known["LT"], rel=1e-4)
    assert known["lb"] <= LipLT(refine=True)(network).value.item() <= known["LT"] * (1 + 1e-4)


def test_climbing_stays_below_what_is_proven():
    known = published("fnn2_seed0")
    lower = GradientAscent()(trained("fnn2_seed0", 7)).value.item()
    # The semidefinite value is published to 1e-6 or better; the sampled one is what climbing should come near to.
    assert 0.9 * known["lb"] <= lower <= known["LipSDP"] * (1 + 1e-6)


@pytest.mark.parametrize("name", [f"{kind}_seed{seed}" for kind in ("cnn2", "cnn3") for seed in SEEDS])
def test_convolutional_networks(name: str):
    network, known = convolutional(name), published(name)
    # The published product takes exact norms of the unrolled convolutions.
    assert Product()(network).value.item() == pytest.approx(known["MP"], rel=1e-4)
    for method in (DAG(), LipLT()):
        assert known["lb"] <= method(network).value.item() <= known["MP"] * (1 + 1e-4)


@pytest.mark.parametrize(
    ("name", "product_", "liplt"),
    [("fnn2_seed0", 9.34681, 8.58571), ("fnn3_seed0", 20.24336, 17.90195)],
)
def test_all_ten_logits(name: str, product_: float, liplt: float):
    network = trained(name)
    # Five decimals are given.
    assert Product()(network).value.item() == pytest.approx(product_, abs=6e-6)
    assert LipLT()(network).value.item() == pytest.approx(liplt, abs=6e-6)


@pytest.mark.parametrize(
    ("name", "product_", "liplt"), [("lipsdp_mnist", 31.50351, 27.76498), ("lipsdp_random", 43.30557, 39.86092)]
)
def test_the_example_networks_of_lipsdp(name: str, product_: float, liplt: float):
    network = trained(name)
    assert Product()(network).value.item() == pytest.approx(product_, abs=6e-6)
    assert LipLT()(network).value.item() == pytest.approx(liplt, abs=6e-6)
