"""Certified accuracy, average radius and envelope: by hand, by brute force, and from logs of published runs."""

import os
import re
from pathlib import Path

import pytest
import scipy
import torch

from lipkit.certify import Evaluation, SampleResult
from lipkit.certify import smoothing as rs
from lipkit.certify.smoothing import envelope, mean_radius_interval, read_published_log
from lipkit.errors import ArgumentError, RecordError
from support.repository import ROOT

LOGS = Path(os.environ.get("LIPKIT_DATA", ROOT.parent / "shared" / "data")) / "smoothing-logs"
# Made by hand: right, wrong, abstained, right at the very radius 0.25, and a time in each of both published formats.
OURS = """idx\tlabel\tpredict\tradius\tcorrect\ttime
0\t3\t3\t0.378\t1\t15.4
20\t7\t-1\t0.0\t0\t0:00:13.736080
40\t4\t6\t0.341\t0\t15.7
60\t7\t7\t0.25\t1\t15.8
"""


def evaluate(radii: list[float], eps: tuple[float, ...], level: float = 0.95) -> Evaluation:
    samples = [SampleResult(i, 0, 0 if radius > 0 else 1, radius) for i, radius in enumerate(radii)]
    return Evaluation.of(samples, eps, 2.0, level, 0.0)


def test_a_log_of_our_own_making(tmp_path: Path):
    file = tmp_path / "sigma_0.25.tsv"
    file.write_text(OURS)
    found = read_published_log(file, (0.0, 0.1, 0.25, 0.3, 0.4))
    assert [share.count for share in found.overall.certified] == [2, 2, 1, 1, 0]
    assert found.overall.clean.count == 2
    assert [sample.index for sample in found.samples] == [0, 20, 40, 60]
    # A wrong class has a radius, which does not count.
    assert [sample.radius for sample in found.samples] == [0.378, 0.0, 0.0, 0.25]
    assert found.overall.mean_radius == pytest.approx((0.378 + 0.25) / 4, rel=1e-14)
    assert found.failure == pytest.approx(4e-3)


def test_the_interval_of_the_average_radius_covers_its_mean():
    # Radii uniform in [0, 2], half of them 0: the mean is 0.5.
    generator, inside = torch.Generator().manual_seed(0), 0
    for _ in range(400):
        drawn = 2 * torch.rand(100, generator=generator) * (torch.rand(100, generator=generator) < 0.5)
        low, high = mean_radius_interval(evaluate(drawn.tolist(), (0.5,), 0.9))
        inside += low <= 0.5 <= high
    # 360 expected, standard deviation 6.
    assert 335 <= inside <= 385
    assert mean_radius_interval(evaluate([0.3], (0.5,))) == (0.0, float("inf"))


def test_an_envelope_is_the_best_at_each_radius():
    eps = (0.0, 0.2, 0.5, 1.0)
    small, large = evaluate([0.3, 0.3, 0.3, 0.0], eps), evaluate([1.0, 1.0, 0.0, 0.0], eps)
    assert [share.count for share in envelope([small, large])] == [3, 3, 2, 0]
    assert envelope([small]) == small.overall.certified
    # Two intervals must hold at once, so each is wider.
    alone, both = small.overall.certified[1], envelope([small, large])[1]
    assert both.low < alone.low
    assert both.high > alone.high
    for wrong in ([], [small, evaluate([0.5], (0.1,))]):
        with pytest.raises(ArgumentError, match="at the same radii in the same norm"):
            envelope(wrong)


def test_the_interval_of_an_envelope_covers_the_largest_share():
    generator, shares, missed = torch.Generator().manual_seed(1), (0.5, 0.52, 0.48), 0
    for _ in range(300):
        drawn = [(torch.rand(60, generator=generator) < share).double().tolist() for share in shares]
        (found,) = envelope([evaluate(one, (0.5,), 0.8) for one in drawn])
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
        ("20\t7\t-1\t0.0\t0\t", "20\t-1\t-1\t0.9\t1\t", "Line 3 .* contradicts itself"),
        ("20\t7\t-1\t0.0\t0\t", "20\t7\t-1\t0.0\t", "Line 3 .* is no entry"),
        ("0.341", "far", "Line 4 .* is no entry"),
        (OURS[OURS.index("\n") :], "\n", "has no line"),
    ],
)
def test_a_damaged_log_is_refused(tmp_path: Path, old: str, new: str, complaint: str):
    file = tmp_path / "log.tsv"
    file.write_text(OURS.replace(old, new, 1))
    with pytest.raises(RecordError, match=complaint):
        read_published_log(file, (0.25,))


def test_a_missing_log_is_refused(tmp_path: Path):
    with pytest.raises(ArgumentError, match="cannot be read as a log"):
        read_published_log(tmp_path / "nothing.tsv", (0.25,))


EPS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)


@pytest.fixture(scope="module")
def published() -> dict[str, Evaluation]:
    if not LOGS.is_dir():
        pytest.skip(f"{LOGS} is missing; LIPKIT_DATA names the folder that has smoothing-logs/")
    sigmas = ("0.12", "0.25", "0.50", "1.00")
    return {sigma: read_published_log(LOGS / f"cifar10_resnet110_sigma_{sigma}.tsv", EPS) for sigma in sigmas}


def test_published_logs_have_their_published_figures(published: dict[str, Evaluation]):
    shares = published["0.25"].overall.certified[:4]
    assert [share.total for share in shares] == [500] * 4
    assert [share.value for share in shares] == [0.748, 0.600, 0.428, 0.266]
    means = {sigma: one.overall.mean_radius for sigma, one in published.items()}
    # Published as .429, .538 and .542; the mean of printed radii is exactly between two of these once.
    assert means["0.25"] == pytest.approx(0.429, abs=5e-4)
    assert means["0.50"] == pytest.approx(0.538, abs=6e-4)
    assert means["1.00"] == pytest.approx(0.542, abs=5e-4)
    best = [share.count for share in envelope(list(published.values()))]
    assert best == [407, 300, 214, 160, 116, 70, 49]


def test_some_published_radii_are_above_the_largest_that_their_settings_allow(published: dict[str, Evaluation]):
    # All 100,000 samples for one class prove sigma ndtri(alpha^(1/n)); what is printed has three digits.
    def largest(sigma: float, alpha: float) -> float:
        return sigma * float(scipy.special.ndtri(alpha ** (1 / 100_000)))

    found = {sigma: max(sample.radius for sample in one.samples) for sigma, one in published.items()}
    assert found["0.12"] <= largest(0.12, 0.001) + 5e-4
    for sigma in ("0.25", "0.50"):
        assert found[sigma] > 1.02 * largest(float(sigma), 0.001)
        # They are those of alpha = 0.01.
        assert found[sigma] == pytest.approx(largest(float(sigma), 0.01), abs=5e-3)


def test_the_guide_states_the_largest_radii_that_n_samples_can_prove():
    guide = (ROOT / "docs" / "guides" / "smoothing.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d,]+) \| (\d\.\d\d) \|$", guide, flags=re.MULTILINE)
    assert len(rows) == 4
    model = rs.Smoothed(torch.nn.Identity(), 1.0, num_classes=2)
    for n, stated in rows:
        # All votes for class 0.
        spent = torch.tensor([int(n.replace(",", ""))])
        chosen, counts = torch.tensor([[[1.0, 0.0]]]), torch.stack([spent, 0 * spent], 1)
        votes = rs.Samples(chosen, counts, spent, torch.arange(2)[None], (), model.maps)
        assert f"{float(model.radii(votes, 0.001, rs.Cohen()).radius):.2f}" == stated
