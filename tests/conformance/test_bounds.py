"""One suite for every whole-network method: what it claims, against brute force on models and on random graphs."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lipkit.bound import L2, Bound, Kind, Scope
from lipkit.bounds import Method, Pairwise
from lipkit.errors import LipkitError, NeedsRegion, UnsupportedError
from lipkit.regions import Box, Everywhere, Region
from support.naming import naming
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
from support.networks.bound_methods import BRANCHES, CLAIMS, METRICS, Claims, instances, reads_region
from support.networks.bound_models import MODELS, UNBOUNDED, Example, example
from support.networks.random_cases import drawn, wrong_side

# Every method on every kind of network: half a minute of two cores.
pytestmark = pytest.mark.slow

AnyMethod = Method | Pairwise
SETTINGS = [(method, claims, metric) for metric in METRICS for method, claims in instances(metric)]


def test_every_exported_method_is_listed() -> None:
    check_all_are_listed()
    assert {type(method) for method, *_ in SETTINGS} == set(CLAIMS)


def test_methods_are_frozen_values_that_print() -> None:
    for setting, *_ in SETTINGS:
        method: Any = setting
        with naming(repr(method)):
            assert repr(dataclasses.replace(method)) == repr(method)
            assert str(method) != repr(method)
            with pytest.raises(dataclasses.FrozenInstanceError):
                method.metric = L2


def answers(method: AnyMethod, claims: Claims, name: str, region: Region) -> bool:
    """Whether the method has to answer; where it has not, it has to refuse."""
    if name in claims.refuses or not isinstance(region, claims.regions):
        return False
    from_below = not claims.kinds & {Kind.UPPER, Kind.EXACT}
    return name not in UNBOUNDED or from_below or (reads_region(method) and region != Everywhere())


@pytest.mark.parametrize("metric", METRICS, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_bounds_hold_on_models(name: str, metric: Any) -> None:
    case = example(name)
    lower, upper = dict[str, float](), dict[str, float]()
    for method, claims in instances(metric):
        found: dict[str, Bound] = {}
        for place, region in case.regions.items():
            if place == "ball" and (metric != L2 or not reads_region(method)):
                continue  # The box does: in other norms, and for what does not read the region.
            with naming(repr(method), name, place):
                if not answers(method, claims, name, region):
                    check_refusal(method, case, region)
                    continue
                found[place] = bound = method(case.network, region)
                check_statement(bound, method, claims.kinds, region)
                pairs = isinstance(method, Pairwise)
                check_side(bound, case.steepest(place, metric, pairs))
                check_pair_of_points(bound, case.module, region)
                if bound.kind is Kind.ESTIMATE:
                    check_estimate(bound, case.steepest(place if reads_region(method) else "everywhere", metric))
                if "everywhere" in found:
                    check_smaller_region(bound, found["everywhere"], reads_region(method))
                if name.startswith("affine") and claims.affine is not None and method in claims.instances(metric)[:1]:
                    check_affine(bound, case.steepest(place, metric, pairs), claims.affine)
                if bound.of is Scope.WHOLE and bound.kind.certifies:
                    upper[place] = min(upper.get(place, np.inf), float(bound.value))
                if bound.kind is Kind.LOWER:
                    lower[place] = max(lower.get(place, 0.0), float(bound.value))
    assert all(lower[place] <= upper.get(place, np.inf) for place in lower), f"{lower} is above {upper}"


def check_refusal(method: AnyMethod, case: Example, region: Region) -> None:
    try:
        bound = method(case.network, region)
    except LipkitError as refusal:
        if case.name not in UNBOUNDED and isinstance(refusal, NeedsRegion):
            raise AssertionError("refuses what has a constant on the whole space") from refusal
    else:
        raise AssertionError(f"should refuse, and gives {bound}")


def check_on_a_random_graph(seed: int, slow: bool) -> None:
    case = drawn(seed)
    for method, claims in instances(METRICS[seed % 3], slow):
        kinds = claims.kinds | ({Kind.ESTIMATE} if Kind.LOWER in claims.kinds else set())
        places = (Everywhere(), case.first) if reads_region(method) else (Everywhere(),)
        for region in (place for place in places if isinstance(place, claims.regions)):
            with naming(repr(method), f"seed {seed}", region):
                try:
                    bound = method(case.network, region)
                except UnsupportedError as refusal:
                    assert claims.refuses & BRANCHES, str(refusal)  # noqa: PT017
                    continue
                check_statement(bound, method, kinds, region)
                assert not wrong_side(bound, case), wrong_side(bound, case)


@settings(max_examples=12)
@given(st.integers(0, 10**9))
def test_fast_methods_hold_on_random_graphs(seed: int) -> None:
    check_on_a_random_graph(seed, slow=False)


@settings(max_examples=6)
@given(st.integers(0, 10**9))
def test_slow_methods_hold_on_random_graphs(seed: int) -> None:
    check_on_a_random_graph(seed, slow=True)


def test_gradients_are_what_is_claimed() -> None:
    for method, claims, metric in SETTINGS:
        with naming(repr(method), metric):
            check_gradient(method, claims)


def test_a_region_of_two_samples_is_two_regions() -> None:
    case = example("ReLU")
    box = case.regions["box"]
    assert isinstance(box, Box)
    shift = torch.tensor([[0.0, 0.0, 0.0], [2.0, -1.0, 0.5]], dtype=torch.float64)
    both = Box(box.low + shift, box.high + shift)
    alone = [Box(low, high) for low, high in zip(both.low, both.high, strict=True)]
    for method, claims, metric in SETTINGS:
        if not reads_region(method):
            continue
        with naming(repr(method), metric):
            if not claims.batched:
                with pytest.raises(LipkitError):
                    method(case.network, both)
                continue
            together = method(case.network, both)
            assert together.of is Scope.SAMPLE
            # Solvers stop within 1e-6.
            expected = [float(method(case.network, one).value) for one in alone]
            assert together.value.tolist() == pytest.approx(expected, rel=1e-6)
