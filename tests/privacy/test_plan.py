"""Plans: what they compute, say and refuse."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from lipkit.errors import ArgumentError
from lipkit.privacy import RDP, Gaussian, Plan, Releases, Shuffled, Whole, epsilon, usual_delta
from support.unchecked import unchecked


def test_noise_from_epsilon_is_on_the_safe_side():
    plan = Plan(60_000, 4_096, 400, 1e-5, epsilon=2.93, accountant=RDP())
    assert plan.rate == 4_096 / 60_000
    assert epsilon(plan.rate, plan.sigma, 400, 1e-5, RDP()) <= 2.93 == plan.epsilon
    assert epsilon(plan.rate, plan.sigma * 0.9999, 400, 1e-5, RDP()) > 2.93


def test_epsilon_from_noise():
    plan = Plan(60_000, 1_000, 5_400, 1e-5, sigma=2.0, accountant=RDP())
    assert plan.epsilon == epsilon(1 / 60, 2.0, 5_400, 1e-5, RDP())
    said = str(plan)
    for part in ("(2.9621, 1e-05)", "adding or removing one record", "60000 records", "Poisson sampling", "Rényi"):
        assert part in said


def test_shuffled_epochs_are_billed_without_amplification():
    plan = Plan(1_000, 300, 7, 1e-4, sigma=2.0, accountant=Gaussian(), sampling=Shuffled())
    # Three full batches an epoch, so seven steps touch three epochs.
    assert plan.epsilon == epsilon(1.0, 2.0, 3, 1e-4, Gaussian())
    assert "null record" in str(plan)
    whole = Plan(1_000, 1_000, 3, 1e-4, sigma=2.0, accountant=Gaussian(), sampling=Whole())
    assert whole.epsilon == plan.epsilon


def test_the_usual_delta_is_below_one_over_the_records():
    for records, wanted in ((1_187, 1e-4), (60_000, 1e-5), (1_000, 1e-4), (999, 1e-3), (1, 1e-1)):
        assert usual_delta(records) == wanted < 1 / records


@pytest.mark.parametrize(
    "given",
    [{"records": 0}, {"batch": 0}, {"batch": 101}, {"steps": 0}, {"delta": 0.01}, {"delta": 0.0}, {"sigma": None},
     {"epsilon": 1.0}, {"sigma": -1.0}, {"sigma": math.inf}, {"sampling": Whole()}],
)  # fmt: skip
def test_plans_that_prove_nothing_are_refused(given: dict[str, object]):
    with pytest.raises(ArgumentError):
        Plan(**{"records": 100, "batch": 10, "steps": 5, "delta": 1e-3, "sigma": 1.0, **given})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("name", "given"),
    [("records", 1000.5), ("batch", 10.5), ("steps", 2.5), ("batch", math.nan), ("steps", math.inf), ("records", True),
     ("steps", 5.0)],
)  # fmt: skip
def test_fractions_of_records_and_steps_are_refused_by_name(name: str, given: float):
    # A batch of NaN passes every comparison, and one of 10.5 would be billed as what no sampler draws.
    with unchecked(), pytest.raises(ArgumentError, match=f"^{name} is a whole number, 1 or more, got {given}"):
        Plan(**{"records": 1000, "batch": 10, "steps": 5, "delta": 1e-4, "sigma": 1.0, name: given})  # pyright: ignore[reportArgumentType]
    with unchecked(), pytest.raises(ArgumentError, match="whole number, 0 or more"):
        Releases(0.1, 1.0, given)  # pyright: ignore[reportArgumentType]


def test_whole_numbers_of_other_libraries_are_taken_as_they_are():
    with unchecked():
        plan = Plan(np.int64(1000), np.int32(10), np.int64(5), 1e-4, sigma=1.0)  # pyright: ignore[reportArgumentType]
    assert plan.facts() == Plan(1000, 10, 5, 1e-4, sigma=1.0).facts()
    assert {type(one) for one in (plan.records, plan.batch, plan.steps)} == {int}


@pytest.mark.parametrize("given", [2, np.float32(2.0), np.int64(2), Fraction(2)])
def test_noise_may_be_any_type_of_number(given: float):
    # A ledger writes sigma down by its digits, which 2 and numpy.float32(2) have not.
    with unchecked():
        plan = Plan(1000, 10, 5, Fraction(1, 2**14), sigma=given, accountant=RDP())  # pyright: ignore[reportArgumentType]
    same = Plan(1000, 10, 5, 2.0**-14, sigma=2.0, accountant=RDP())
    assert plan.facts() == same.facts()
    assert Plan.from_facts(plan.facts(), RDP()).epsilon == same.epsilon
    with unchecked():
        assert Plan(1000, 10, 5, 1e-4, epsilon=given, accountant=RDP()).sigma == pytest.approx(  # pyright: ignore[reportArgumentType]
            Plan(1000, 10, 5, 1e-4, epsilon=2.0, accountant=RDP()).sigma
        )


@pytest.mark.parametrize("name", ["sigma", "epsilon", "delta"])
@pytest.mark.parametrize("given", ["3", [3], 1j, Decimal("0.00001"), torch.tensor(1e-5), np.array([1e-5]), 1e300])
def test_what_is_no_number_is_refused_in_a_sentence(name: str, given: object):
    numbers = {"sigma": 1.0, **({"sigma": None} if name == "epsilon" else {}), "delta": 1e-4, name: given}
    with unchecked(), pytest.raises(ArgumentError, match=f"{name} (is|lies)"):
        Plan(1000, 10, 5, **numbers)  # pyright: ignore[reportArgumentType]


def test_counts_beyond_whole_floats_are_refused():
    with pytest.raises(ArgumentError, match="steps is a whole number up to 2"):
        Plan(1000, 10, 10**400, 1e-4, sigma=1.0)
