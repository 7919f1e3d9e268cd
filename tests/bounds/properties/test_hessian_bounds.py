"""Proofs of convexity by a lower bound of the Hessian, against the Hessians of autograd."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lipkit.bounds.lower.search_lines import CounterexampleSearch
from lipkit.bounds.properties.convexity import is_convex
from lipkit.bounds.properties.verdict import ProofAnswer
from lipkit.linops import Dense
from lipkit.regions import Ball, Box
from lipkit.trace import Network, chain
from lipkit.trace.nodes import Pointwise
from lipkit.trace.nodes.activations.powers import SQUARE
from lipkit.trace.nodes.activations.sigmoids import TANH


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def bowl(dent: float, seed: int = 0) -> Network:
    """sum of squares of 6 directions less `dent` times a sum of tanh of 5 others, in 4 variables."""
    nodes = (Pointwise(SQUARE, (6,)), Pointwise(TANH, (5,)))
    blocks = {
        (1, 0): Dense(noise(seed, 6, 4)),
        (2, 0): Dense(noise(seed + 1, 5, 4)),
        (3, 1): Dense(torch.ones(1, 6).double()),
        (3, 2): Dense(torch.full((1, 5), -dent).double()),
    }
    return Network((4,), nodes, blocks, target=(1,))


def least_eigenvalue(network: Network, points: Tensor) -> float:
    def scalar(x: Tensor) -> Tensor:
        return network(x[None]).sum()

    hessians = torch.stack([torch.autograd.functional.hessian(scalar, x) for x in points])  # pyright: ignore[reportArgumentType]
    return float(torch.linalg.eigvalsh(hessians).min())


@pytest.mark.parametrize("seed", range(2))
def test_the_hessian_proves_what_composition_cannot(seed: int) -> None:
    region = Box(torch.full((4,), -0.5).double(), torch.full((4,), 0.5).double())
    points = noise(5, 20, 4).clamp(-0.5, 0.5)
    answers: list[ProofAnswer] = []
    for dent in (0.05, 0.2, 0.8, 3.0, 12.0):
        network = bowl(dent, seed)
        verdict = is_convex(network, region)
        answers.append(verdict.answer)
        # Autograd's Hessian is accurate to far better than this.
        if verdict.proven:
            assert "Hessian" in verdict.reason
            assert least_eigenvalue(network, points) >= -1e-9
    assert answers[0] is ProofAnswer.PROVEN
    assert answers[-1] is ProofAnswer.DISPROVEN
    assert not is_convex(
        bowl(0.05, seed), search=CounterexampleSearch(lines=0)
    ).proven  # tanh has no bounded curvature sign everywhere


@given(st.integers(0, 10**6), st.sampled_from([0.02, 0.2]))
@settings(max_examples=8)
def test_hessian_proofs_of_deep_networks_hold(seed: int, radius: float) -> None:
    """A quadratic bowl plus a deep tanh network: where a proof is found, sampled Hessians agree."""
    operators = [Dense(noise(seed + i, *shape)) for i, shape in enumerate([(8, 3), (8, 8), (1, 8)])]
    deep = chain(operators, TANH, [noise(seed + 10, 8), noise(seed + 11, 8), None])
    nodes = (*deep.nodes, Pointwise(SQUARE, (3,)))
    blocks = {at: op for at, op in deep.blocks.items() if at[0] < 3}
    blocks[3, 0] = Dense(torch.eye(3).double())
    blocks[4, 2] = deep.blocks[3, 2]
    size = 10.0 ** (seed % 4)
    blocks[4, 3] = Dense(torch.full((1, 3), size).double())
    network = Network((3,), nodes, blocks, deep.biases, target=(1,))
    center = noise(seed + 5, 3)
    verdict = is_convex(network, Ball(center, radius, p=float("inf")))
    points = center + radius * (2 * torch.rand(10, 3, dtype=torch.float64) - 1)
    least = least_eigenvalue(network, points)
    assert not verdict.proven or least >= -1e-9 * size
    # 2 * 1000 on the diagonal outweighs 8 neurons with weights of order 1.
    assert verdict.proven or size < 1000
