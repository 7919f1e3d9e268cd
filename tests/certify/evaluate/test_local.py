"""`accuracy` with radii near each sample: more is certified, results are kept, and a wrong proof is found out."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lipkit import Bound
from lipkit.bounds.local.label_margins import LabelMargins, MarginsOnBall
from lipkit.certify import Evaluation, Forward, LocalProof, LocalRadii, accuracy, head_pairwise
from lipkit.certify.attacks import PGD
from lipkit.errors import ArgumentError, BrokenCertificateError, RecordError
from support.sealed_files import read_lines, write_lines
from support.unchecked import unchecked

EPS = (0.02, 0.1)
Made = tuple[nn.Module, list[tuple[Tensor, Tensor]], Bound]


@pytest.fixture(scope="module")
def made() -> Made:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 3)).eval()
        x = 3 * torch.randn(24, 6)
        y = model(x).argmax(1)
        y[0] = (y[0] + 1) % 3
        with torch.no_grad():
            return model, [(x[:8], y[:8]), (x[8:], y[8:])], head_pairwise(model, x[:1])


def found_with(made: Made, folder: Path | None = None, local: LocalRadii | None = None) -> Evaluation:
    return accuracy(*made, EPS, local=LocalRadii() if local is None else local, records=folder)


def test_more_is_certified_and_every_sample_says_by_what(made: Made):
    before, after = accuracy(*made, EPS, attack=PGD(0.1)), accuracy(*made, EPS, attack=PGD(0.1), local=LocalRadii())
    assert after.overall.certified[1].count > before.overall.certified[1].count
    assert after.overall.certified[1].count <= after.overall.attacked[1].count  # pyright: ignore[reportOptionalSubscript]
    for old, new in zip(before.samples, after.samples, strict=True):
        assert new.radius >= old.radius
        assert (new.radius > old.radius) == bool(new.proof) == (new.ball > 0)
        assert not new.proof or new.proof in {proof.value for proof in LocalProof}
    assert after.samples[0].radius == 0
    assert after.local == sum(bool(sample.proof) for sample in after.samples) > 0
    assert f"{after.local} of 24 samples are proven by what holds near them" in str(after)
    assert before.local == 0
    assert "near them" not in str(before)


def test_a_stopped_run_continues_and_other_settings_are_refused(made: Made, tmp_path: Path):
    whole = found_with(made, tmp_path)
    file = tmp_path / "samples-0000.jsonl"
    write_lines(file, read_lines(file)[:5])
    assert found_with(made, tmp_path) == whole
    with pytest.raises(RecordError, match=r"other settings .*local"):
        found_with(made, tmp_path, LocalRadii(bisections=3))
    with pytest.raises(RecordError, match=r"other settings .*local"):
        accuracy(*made, EPS, records=tmp_path)


@pytest.mark.parametrize("change", [{"ball": 0.0}, {"ball": 1e-3}, {"proof": ""}, {"ball": math.inf}])
def test_a_line_whose_radius_does_not_fit_its_ball_is_refused(made: Made, tmp_path: Path, change: dict[str, object]):
    found_with(made, tmp_path)
    file = tmp_path / "samples-0000.jsonl"
    lines = read_lines(file)
    at = next(i for i, line in enumerate(lines) if line["proof"])
    lines[at] |= {name: str(value) if value == math.inf else value for name, value in change.items()}
    write_lines(file, lines)
    with pytest.raises(RecordError, match="is no result of a sample"):
        found_with(made, tmp_path)


def test_an_attack_finds_a_wrong_proof_out(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    honest = LabelMargins.on
    monkeypatch.setattr(LabelMargins, "on", lambda self, ball, label: _lying(honest(self, ball, label)))
    with pytest.raises(BrokenCertificateError, match="is certified as class"):
        accuracy(*made, (5.0,), attack=PGD(5.0), local=LocalRadii(), records=tmp_path)


def _lying(near: MarginsOnBall) -> MarginsOnBall:
    return replace(near, least=near.least.abs() + 1)


def test_progress_is_told_after_each_sample(made: Made):
    told: list[tuple[int, int | None]] = []
    data = torch.utils.data.TensorDataset(*made[1][0])
    accuracy(made[0], data, made[2], EPS, local=LocalRadii(), progress=lambda *now: told.append(now))
    assert told == [*((i, 8) for i in range(1, 9)), (8, 8)]


def test_a_radius_near_a_sample_does_not_rest_on_a_statement(made: Made):
    stated = replace(made[2], subject=None)
    samples = accuracy(made[0], made[1], stated, EPS, local=LocalRadii()).samples
    assert all(sample.stated != bool(sample.proof) for sample in samples)


def test_given_logits_and_other_things_are_refused(made: Made):
    model, data, bound = made
    with pytest.raises(ArgumentError, match="leave out `logits`"):
        accuracy(model, data, bound, EPS, local=LocalRadii(), logits=Forward(model, data[0][0][:1]))
    with unchecked(), pytest.raises(ArgumentError, match="`local` is LocalRadii"):
        accuracy(model, data, bound, EPS, local=True)  # pyright: ignore[reportArgumentType]
