"""What a page says of a private training: both epsilons, and the audit beside the claim."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from lipkit.privacy import RDP, Plan, RandomRuns, Spent, audit, tuned_epsilon
from lipkit.report.html.claims import read_claims
from lipkit.report.html.privacy_section import privacy_section
from lipkit.report.results.contents import Contents
from lipkit.report.results.privacy_claim import PrivacyClaim

SPENT = Spent(40, Plan(1_000, 100, 40, 1e-4, sigma=2.0, accountant=RDP()))
needs_library = pytest.mark.skipif(
    importlib.util.find_spec("dp_accounting") is None, reason="dp-accounting is not installed"
)


def section(contents: Contents, claim: PrivacyClaim) -> str:
    return privacy_section(replace(contents, privacy=claim))


@needs_library
def test_both_epsilons_stand_beside_each_other(contents: Contents):
    runs = RandomRuns(10.0, 1.0)
    said = section(contents, PrivacyClaim.of(SPENT, "paid", runs))
    found = {one.name: one for one in read_claims(said)}
    expected = tuned_epsilon([SPENT.plan.releases(40)], 1e-4, runs)
    assert float(found["epsilon with the choice paid for"].value) == expected
    # Rounded up for the reader; and the best of ten runs costs more than one.
    assert float(found["epsilon with the choice paid for"].words) >= expected > SPENT.epsilon
    assert float(found["epsilon"].value) == SPENT.epsilon
    assert "best of" in said
    assert float(found["runs tried"].value) == 10.0


def test_a_claim_without_tuning_and_canaries_says_neither(contents: Contents):
    said = section(contents, PrivacyClaim.of(SPENT, "free"))
    assert "runs on average" not in said
    assert "No attack on the training was part of this run" in said


@pytest.mark.parametrize(("shift", "verdict"), [(0.1, "do not contradict it"), (20.0, "refute the claim")])
def test_canaries_stand_beside_the_claim(contents: Contents, shift: float, verdict: str):
    inside, outside = torch.randn(2, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    said = section(contents, PrivacyClaim.of(SPENT, "free", scores=(inside + shift, outside)))
    (found,) = (one for one in read_claims(said) if one.name == "epsilon by canaries")
    assert float(found.value) == audit(inside + shift, outside, 1e-4, 0.95)
    # A lower bound is rounded down.
    assert float(found.words) <= float(found.value)
    assert verdict in said
    assert "500 canaries inside, 500 outside" in said
