"""Rounding errors of composed maps: what is stated is never below what happens, in any norm, at any scale."""

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit import Metric
from lipkit.bounds import DAG, LipLT
from lipkit.bounds.fold import liplt as _expansion
from lipkit.bounds.fold.block_norms import Meter
from lipkit.bounds.fold.linear_paths import Pulled, SweepPaths
from lipkit.bounds.fold.liplt import Expansion
from lipkit.errors import NonFiniteError
from lipkit.linops import Conv, ConvTranspose, Dense, LinearOperator, StatedRounding, materialize
from lipkit.rounding.float64 import gamma
from lipkit.trace import Network, chain
from lipkit.trace.nodes import Identity, Pointwise
from support.networks.random_graphs import LEAKY

SEEDS = st.integers(0, 10**9)
COPIES, STAGES, SCALES = 4, 9, 20


def spreading_chain(flip: bool) -> tuple[list[LinearOperator], list[float]]:
    """x -> 4^9 copies of it, each times twenty weights, all of which round the same way; or the transpose of that.

    Every stage has norm 1 (or its weight) in linf (transposed: in l1), but the copies have the spectral norm 512.
    """
    rng = np.random.default_rng(0)
    ops: list[LinearOperator] = []
    for k in range(STAGES):
        ones = torch.ones(1, 1, COPIES, dtype=torch.float64)
        if flip:
            ops.append(Conv(ones, (COPIES ** (k + 1),), (COPIES,), ((0, 0),), (1,)))
        else:
            ops.append(ConvTranspose(ones, (COPIES**k,), (COPIES,), (0,), (0,), (1,)))
    n, value, weights = COPIES**STAGES, 1.0, list[float]()
    for _ in range(SCALES):
        drawn = rng.uniform(1, 2, size=50)
        error = [Fraction(value * w) / (Fraction(value) * Fraction(w)) for w in drawn]
        weights.append(float(drawn[error.index(min(error))]))
        value *= weights[-1]
    scales = [Conv(torch.full((1, 1, 1), w, dtype=torch.float64), (n,), (1,), ((0, 0),), (1,)) for w in weights]
    return ([*reversed(scales), *reversed(ops)] if flip else [*ops, *scales]), weights


@pytest.mark.parametrize("p", [1.0, math.inf])
def test_errors_are_stated_in_the_spectral_norm(p: float):
    flip = p == 1
    ops, weights = spreading_chain(flip)
    network = chain(ops, Identity())
    pulled = {k: Pulled.of(node.split(p), network.device, p) for k, node in enumerate(network.nodes, start=1)}
    meter = Meter(Metric(p, p))
    places = sorted(network.blocks)
    norms = dict(zip(places, meter.many([network.blocks[at] for at in places], [False] * len(places)), strict=True))
    spectral = {at: meter.spectral_size(network.blocks[at], norms[at], False) for at in places}
    op = SweepPaths(network, pulled, spectral).operator(network.sink, 0, rest=False)
    assert isinstance(op, StatedRounding)
    one = torch.ones(op.out_shape if flip else op.in_shape, dtype=torch.float64)
    found = (op.adjoint(one) if flip else op.apply(one)).flatten()
    exact = math.prod(map(Fraction, weights))
    assert bool((found == found[0]).all())
    happened = float(abs(Fraction(float(found[0])) - exact)) * math.sqrt(len(found))
    assert happened <= gamma(op.roundings) * op.size
    # The norms of the network's own metric in their place give a statement that is false.
    mixed = SweepPaths(network, pulled, {at: float(bound.value) for at, bound in norms.items()})
    wrong = mixed.operator(network.sink, 0, rest=False)
    assert isinstance(wrong, StatedRounding)
    assert happened > gamma(wrong.roundings) * wrong.size


def cancelling_network(seed: int, dtype: torch.dtype, exponent: int) -> Network:
    """Two paths that cancel up to the last digits, a third row behind them, and a skip: convolutions of 2 channels."""
    rng = np.random.default_rng(seed)

    def conv(scale: float) -> Conv:
        weight = torch.from_numpy(rng.normal(size=(2, 2, 3)) * 10.0 ** rng.uniform(-2, 2, size=(2, 2, 3)) * scale)
        return Conv(weight.to(dtype), (3,), (1,), ((1, 1),), (1,))

    def moved(op: Conv, sign: float) -> Conv:
        # One unit in the last place, or nothing at all: then the paths cancel exactly.
        unit = torch.finfo(dtype).eps * float(rng.integers(0, 2))
        return Conv(sign * op.weight * (1 + unit), op.spatial, op.stride, op.padding, op.dilation)

    first, second = conv(2.0**exponent), conv(2.0**-exponent)
    blocks: dict[tuple[int, int], LinearOperator] = {
        (1, 0): first,
        (2, 0): moved(first, 1.0),
        (3, 1): second,
        (3, 2): moved(second, -1.0),
        (4, 3): conv(2.0 ** (exponent // 2)),
        (5, 4): conv(1.0),
        (5, 1): conv(2.0 ** -(exponent + 60)),
    }
    activation = LEAKY if rng.random() < 0.7 else Identity()
    return Network((2, 3), tuple(Pointwise(activation, (2, 3)) for _ in range(4)), blocks, target=(2, 3))


def exact_jacobian(network: Network, rng: np.random.Generator) -> np.ndarray:
    """The Jacobian of one random activation pattern, in rational numbers."""
    size = math.prod(network.source)
    values = [np.array([[Fraction(int(i == j)) for j in range(size)] for i in range(size)])]
    for k, row in network.rows().items():
        z = np.sum([_rational(op) @ values[j] for j, op in row.items()], axis=0)
        if k < network.sink:
            node: Any = network.nodes[k - 1]
            alpha, beta = node.slopes()
            slopes = [Fraction(float(end)) for end in (alpha.flatten()[0], beta.flatten()[0])]
            chosen = rng.integers(0, 2, size)
            z = np.array([[slopes[c] * entry for entry in line] for c, line in zip(chosen, z, strict=True)])
        values.append(z)
    return values[-1]


def _rational(op: LinearOperator) -> np.ndarray:
    return np.array([[Fraction(entry) for entry in row] for row in materialize(op.to(torch.float64)).tolist()])


def exact_log_norm(matrix: np.ndarray, p: float) -> Any:
    """log of the l_p norm, from rational entries; of the largest singular value with 120 digits."""
    with mpmath.workdps(120):
        if p == 2:
            entries = mpmath.matrix([[mpmath.mpf(e.numerator) / e.denominator for e in row] for row in matrix])
            largest = max(mpmath.eigsy(entries.T * entries, eigvals_only=True))
            return mpmath.log(largest) / 2 if largest > 0 else -mpmath.inf
        sums = np.abs(matrix).sum(0 if p == 1 else 1)
        largest = max(sums)
        return mpmath.log(mpmath.mpf(largest.numerator) / largest.denominator) if largest > 0 else -mpmath.inf


@settings(max_examples=15)
@given(
    SEEDS,
    st.sampled_from([1.0, 2.0, math.inf]),
    st.sampled_from([torch.float32, torch.float64]),
    st.sampled_from([0, 20, -20, 100, -100]),
    st.booleans(),
)
def test_cancelling_paths_never_fall_below_the_truth(
    seed: int, p: float, dtype: torch.dtype, exponent: int, dense: bool
):
    network = cancelling_network(seed, dtype, max(-40, min(40, exponent)) if dtype == torch.float32 else exponent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_expansion, "fits_as_matrices", lambda *_: dense)
        run = Expansion(network, Meter(Metric(p, p)), None)
        found = [float(run.into(s).detach()) for s in (3, 5)]
    rng = np.random.default_rng(seed)
    for s, log_value in zip((3, 5), found, strict=True):
        part = Network(
            (2, 3), network.nodes[: s - 1], {at: op for at, op in network.blocks.items() if at[0] <= s}, target=(2, 3)
        )
        for _ in range(2):
            assert log_value >= exact_log_norm(exact_jacobian(part, rng), p)


@settings(max_examples=15)
@given(SEEDS, st.sampled_from([1.0, 2.0, 3.0, math.inf]), st.sampled_from([1.0, 2.0, math.inf]), st.booleans())
def test_spectral_sizes_follow_from_other_norms(seed: int, p_in: float, p_out: float, first: bool):
    if not (p_in == 1 or p_out == math.inf or p_in == p_out):
        return
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=rng.integers(1, 9, size=2)) ** 3
    meter, op = Meter(Metric(p_in, p_out)), Dense(torch.from_numpy(matrix))
    size = meter.spectral_size(op, meter.many([op], [first])[0], first)
    # The decomposition of at most 64 entries is within a few units in the last place.
    assert size >= np.linalg.norm(matrix, 2) * (1 - 1e-14)


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("scale", [1e-60, 1e-46, 1e-44, 1e-30, 1e44, 1e60])
def test_maps_beyond_the_range_of_floats_are_bounded_by_shorter_ones(dense: bool, scale: float):
    kernel = torch.full((1, 1, 1), scale, dtype=torch.float64)
    network = chain([Conv(kernel, (3,), (1,), ((0, 0),), (1,)) for _ in range(7)], LEAKY)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_expansion, "fits_as_matrices", lambda *_: dense)
        log_value = float(LipLT()(network).log_value)
    # All neurons active: the product of the weights. Logarithms of this size are within 1e-12, and LipLT is rounded up.
    assert 0 <= log_value - 7 * math.log(scale) < 1e-9


@pytest.mark.parametrize("scale", [1e-60, 1e-46])
def test_products_that_underflow_are_not_taken_for_zero(scale: float):
    """Seven factors would be multiplied out to zero, or to a number of few digits."""
    affine = chain([Dense(scale * torch.eye(3, dtype=torch.float64)) for _ in range(7)], Identity())
    for method in (DAG(), LipLT()):
        with pytest.raises(NonFiniteError, match="rescale"):
            method(affine)
    for within in (1e-40, 1e-30):
        found = DAG()(chain([Dense(within * torch.eye(3, dtype=torch.float64)) for _ in range(7)], Identity()))
        assert 0 <= float(found.log_value) - 7 * math.log(within) < 1e-9
