"""Certified accuracy, average radius and envelope: by hand, by brute force, and from logs of published runs."""

import math
import os
from pathlib import Path

import pytest
import scipy
import torch
from hypothesis import given
from hypothesis import strategies as st

from lipkit.certify.smoothing import CertifiedSet, envelope, read_published_log
from lipkit.errors import ArgumentError, RecordError, ShapeError
from support.repository import ROOT
from support.unchecked import unchecked

LOGS = Path(os.environ.get("LIPKIT_DATA", ROOT.parent / "shared" / "data")) / "smoothing-logs"
# Made by hand: right, wrong, abstained, right at the very radius 0.25, and a time in each of both published formats.
OURS = """idx\tlabel\tpredict\tradius\tcorrect\ttime
0\t3\t3\t0.378\t1\t15.4
20\t7\t-1\t0.0\t0\t0:00:13.736080
40\t4\t6\t0.341\t0\t15.7
60\t7\t7\t0.25\t1\t15.8
"""


def make_set(radii: list[float], correct: list[bool] | None = None, name: str = "one") -> CertifiedSet:
    right = torch.tensor([True] * len(radii) if correct is None else correct)
    return CertifiedSet(name, right, torch.tensor(radii, dtype=torch.float64))


def test_a_log_of_our_own_making(tmp_path: Path):
    file = tmp_path / "sigma_0.25.tsv"
    file.write_text(OURS)
    found = read_published_log(file)
    assert found.name == "sigma_0.25"
    assert [found.accuracy(e).count for e in (0.0, 0.1, 0.25, 0.3, 0.4)] == [2, 2, 1, 1, 0]
    assert found.accuracy(0.0).total == 4
    assert found.average_radius().value == pytest.approx((0.378 + 0.25) / 4, rel=1e-14)


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=1, max_size=30), st.floats(0, 3))
def test_shares_are_those_of_a_loop(rows: list[tuple[float, bool]], eps: float):
    found = make_set([r for r, _ in rows], [right for _, right in rows])
    share = found.accuracy(eps)
    assert share.count == sum(right and r > eps for r, right in rows)
    assert share.low <= share.value <= share.high
    # A sum of 30 numbers up to 3 in float64.
    assert found.average_radius().value == pytest.approx(sum(r * right for r, right in rows) / len(rows), abs=1e-13)


def test_the_interval_of_the_average_radius_covers_its_mean():
    # Radii uniform in [0, 2], half of them wrong: the mean is 0.5.
    generator, inside = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        radii = 2 * torch.rand(100, generator=generator, dtype=torch.float64)
        mean = CertifiedSet("drawn", torch.rand(100, generator=generator) < 0.5, radii).average_radius(0.9)
        inside += mean.low <= 0.5 <= mean.high
    # 360 expected, standard deviation 6.
    assert 335 <= inside <= 385


def test_an_envelope_is_the_best_at_each_radius():
    small, large = make_set([0.3, 0.3, 0.3, 0.0], name="0.12"), make_set([1.0, 1.0, 0.0, 0.0], name="0.5")
    assert [envelope([small, large], e).count for e in (0.0, 0.2, 0.5, 1.0)] == [3, 3, 2, 0]
    alone, both = envelope([small], 0.2), envelope([small, large], 0.2)
    assert alone == small.accuracy(0.2)
    # Two intervals must hold at once, so each is wider.
    assert both.low < alone.low
    assert both.high > alone.high


def test_the_interval_of_an_envelope_covers_the_largest_share():
    generator, shares, missed = torch.Generator().manual_seed(1), (0.5, 0.52, 0.48), 0
    for _ in range(300):
        sets = [
            make_set((torch.rand(60, generator=generator) < share).double().tolist(), name=str(share))
            for share in shares
        ]
        found = envelope(sets, 0.5, 0.8)
        missed += not found.low <= max(shares) <= found.high
    # At most 60 expected; Clopper and Pearson are wider than they need be.
    assert missed <= 60


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("idx\t", "index\t", "does not begin with the columns"),
        ("0.378\t1", "0.378\t0", "Line 2 .* contradicts itself"),
        ("0.378", "-0.378", "Line 2 .* contradicts itself"),
        ("0.378", "nan", "Line 2 .* contradicts itself"),
        ("20\t7\t-1\t0.0\t0\t", "20\t7\t-1\t0.0\t", "Line 3 .* is no entry"),
        ("0.341", "far", "Line 4 .* is no entry"),
        (OURS[OURS.index("\n") :], "\n", "has no line"),
    ],
)
def test_a_damaged_log_is_refused(tmp_path: Path, old: str, new: str, complaint: str):
    file = tmp_path / "log.tsv"
    file.write_text(OURS.replace(old, new, 1))
    with pytest.raises(RecordError, match=complaint):
        read_published_log(file)


@unchecked()
def test_what_makes_no_sense_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="cannot be read as a log"):
        read_published_log(tmp_path / "nothing.tsv")
    with pytest.raises(ShapeError, match="one radius for each image"):
        make_set([])
    with pytest.raises(ShapeError, match="one radius for each image"):
        make_set([1.0, 2.0], [True])
    for wrong in (-1.0, math.nan):
        with pytest.raises(ArgumentError, match="Radii of one are at least 0"):
            make_set([0.5, wrong])
    with pytest.raises(ArgumentError, match="A radius is at least 0, got -1"):
        make_set([0.5]).accuracy(-1.0)
    with pytest.raises(ArgumentError, match="at least one test set"):
        envelope([], 0.5)


@pytest.fixture(scope="module")
def published() -> dict[str, CertifiedSet]:
    if not LOGS.is_dir():
        pytest.skip(f"{LOGS} is missing; LIPKIT_DATA names the folder that has smoothing-logs/")
    names = {sigma: LOGS / f"cifar10_resnet110_sigma_{sigma}.tsv" for sigma in ("0.12", "0.25", "0.50", "1.00")}
    return {sigma: read_published_log(file, f"sigma {sigma}") for sigma, file in names.items()}


def test_published_logs_have_their_published_figures(published: dict[str, CertifiedSet]):
    shares = [published["0.25"].accuracy(e) for e in (0.0, 0.25, 0.5, 0.75)]
    assert [share.total for share in shares] == [500] * 4
    assert [share.value for share in shares] == [0.748, 0.600, 0.428, 0.266]
    means = [round(published[sigma].average_radius().value, 3) for sigma in ("0.25", "0.50", "1.00")]
    # 0.5375 is .538 or .537: the sum of printed radii is a decimal fraction, and its rounding is not.
    assert means[0] == 0.429
    assert means[1] in (0.537, 0.538)
    assert means[2] == 0.542
    best = [envelope(list(published.values()), e).count for e in (0.0, 0.25, 0.5, 1.0, 1.5, 2.0)]
    assert best == [407, 300, 214, 116, 70, 49]


def test_some_published_radii_are_above_the_largest_that_their_settings_allow(published: dict[str, CertifiedSet]):
    # All 100,000 samples for one class prove sigma ndtri(alpha^(1/n)); what is printed has three digits.
    def largest(sigma: float, alpha: float) -> float:
        return sigma * float(scipy.special.ndtri(alpha ** (1 / 100_000)))

    at_most = {sigma: float(one.radius.max()) for sigma, one in published.items()}
    assert at_most["0.12"] <= largest(0.12, 0.001) + 5e-4
    for sigma in ("0.25", "0.50"):
        assert at_most[sigma] > 1.02 * largest(float(sigma), 0.001)
        # They are those of alpha = 0.01.
        assert at_most[sigma] == pytest.approx(largest(float(sigma), 0.01), abs=5e-3)
