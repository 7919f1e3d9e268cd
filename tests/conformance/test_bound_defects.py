"""The checks of the suite for bounds fail where they should: each is run on a method with a planted defect."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from lipkit import bounds
from lipkit.bound import L2, Bound, Kind
from lipkit.bounds import LinearPieces, LipLT, Local, Method, Pairwise, PairwiseDAG, Product, Sampling
from lipkit.norms import SVD
from lipkit.regions import Everywhere, Region
from lipkit.trace import Network
from support.networks.bound_checks import (
    check_affine,
    check_all_are_listed,
    check_estimate,
    check_gradient,
    check_pair_of_points,
    check_side,
    check_smaller_region,
    check_statement,
)
from support.networks.bound_methods import CLAIMS
from support.networks.bound_models import example
from support.networks.random_cases import drawn, wrong_side

CASE = example("residual")
BOX = CASE.regions["box"]


@dataclass(frozen=True)
class Scaled(Method):
    """A bound times a factor."""

    inner: Method
    factor: float

    def _bound(self, network: Network, region: Region) -> Bound:
        found = self.inner(network, region)
        return replace(found, log_value=found.log_value + torch.tensor(self.factor).log().double())


@dataclass(frozen=True)
class LastWeightOnly(Method):
    """Gradients of the last weight only, as if the others had been detached."""

    def _bound(self, network: Network, region: Region) -> Bound:
        last = network.blocks[network.sink, network.sink - 1]
        found, norm = Product()(network.detach(), region), SVD()(last)
        return replace(found, log_value=found.log_value + norm.log_value - norm.log_value.detach())


@dataclass(frozen=True)
class Forgetful(Method):
    """A local constant that is said to hold everywhere."""

    def _bound(self, network: Network, region: Region) -> Bound:
        return replace(Local(LipLT())(network, region), region=Everywhere())


@dataclass(frozen=True)
class OneSided(Pairwise):
    """The constants of z_a - z_b for a < b, and half of them for a > b."""

    def _bound(self, network: Network, region: Region) -> Bound:
        found = PairwiseDAG()(network, region)
        return replace(found, log_value=found.log_value - 0.7 * torch.ones_like(found.log_value).tril(-1))


def test_an_unlisted_method_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "Forgetful", Forgetful, raising=False)
    with pytest.raises(AssertionError):
        check_all_are_listed()


def test_a_bound_below_the_truth_is_found() -> None:
    exact = LinearPieces()(CASE.network, BOX)
    assert exact.kind is Kind.EXACT
    check_side(exact, CASE.steepest("box", L2))
    with pytest.raises(AssertionError, match="is below"):
        check_side(Scaled(LinearPieces(), 0.999)(CASE.network, BOX), CASE.steepest("box", L2))
    with pytest.raises(AssertionError, match="not symmetric"):
        check_side(OneSided()(CASE.network), CASE.steepest("everywhere", L2, pairs=True))


def test_a_lower_bound_above_the_truth_is_found() -> None:
    lower = Sampling(64)
    check_pair_of_points(lower(CASE.network, BOX), CASE.module, BOX)
    with pytest.raises(AssertionError, match="is above"):
        check_pair_of_points(Scaled(lower, 1.001)(CASE.network, BOX), CASE.module, BOX)
    with pytest.raises(AssertionError, match="outside"):
        check_pair_of_points(lower(CASE.network), CASE.module, BOX)
    unproven = replace(Product()(CASE.network), kind=Kind.EXACT)
    with pytest.raises(AssertionError, match="without a lower side"):
        check_pair_of_points(unproven, CASE.module, Everywhere())


@pytest.mark.parametrize(("method", "factor"), [(LipLT(), 0.2), (Sampling(64), 5.0)], ids=["too low", "too high"])
def test_random_graphs_find_both_sides(method: Method, factor: float) -> None:
    """Of few graphs, because a bound that is loose there hides a factor."""
    cases = [drawn(seed) for seed in range(6)]
    assert not any(wrong_side(method(case.network), case) for case in cases)
    assert any(wrong_side(Scaled(method, factor)(case.network), case) for case in cases)


def test_a_wrong_statement_is_found() -> None:
    with pytest.raises(AssertionError, match="speaks of everywhere"):
        check_statement(Forgetful()(CASE.network, BOX), Forgetful(), frozenset({Kind.UPPER}), BOX)
    found: Any = Sampling(64)(CASE.network)
    with pytest.raises(AssertionError, match=r"is Kind\.LOWER"):
        check_statement(found, Sampling(64), frozenset({Kind.UPPER}), Everywhere())


def test_a_wrong_gradient_is_found() -> None:
    check_gradient(Product(), CLAIMS[Product])
    with pytest.raises(AssertionError, match="has the derivative"):
        check_gradient(LastWeightOnly(), CLAIMS[Product])
    with pytest.raises(AssertionError, match="unlike its claim"):
        check_gradient(Sampling(4), CLAIMS[Product])


def test_a_region_that_makes_worse_or_is_not_read_is_found() -> None:
    everywhere, here = LipLT()(CASE.network), Local(LipLT())(CASE.network, BOX)
    check_smaller_region(here, everywhere, reads_region=True)
    with pytest.raises(AssertionError, match="without reading"):
        check_smaller_region(here, everywhere, reads_region=False)
    with pytest.raises(AssertionError, match="everywhere"):
        check_smaller_region(everywhere, here, reads_region=True)


def test_a_loose_affine_bound_and_a_wild_estimate_are_found() -> None:
    affine = example("affine")
    norm = affine.steepest("everywhere", L2)
    check_affine(LipLT()(affine.network), norm, 1e-9)
    with pytest.raises(AssertionError, match="is not"):
        check_affine(Product()(affine.network), norm, 1e-9)
    with pytest.raises(AssertionError, match="far from"):
        check_estimate(Scaled(Sampling(64), 1e3)(CASE.network), CASE.steepest("everywhere", L2))
