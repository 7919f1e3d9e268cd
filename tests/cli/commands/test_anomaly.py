"""`lipkit anomaly`: the numbers of the library, files that continue, audits that find forgeries, clear errors."""

import json
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lipkit.cli.commands.anomaly_request import AnomalyRequest
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.exit_codes import Code
from lipkit.cli.inputs.safetensors_file import tensors_from, tensors_to
from lipkit.cli.main import main
from lipkit.cli.runs.anomaly_files import gather_anomalies, read_detector
from lipkit.cli.runs.kept_training import KeptTraining
from lipkit.estimators import OneClassSDF
from lipkit.report.html.fields.anomaly_page import render_anomaly_page
from lipkit.report.results.anomaly_contents import AnomalyContents
from support.programs.run import PROGRAMS, run_program
from support.sealed_files import read_claims, read_object, write_claims, write_object

KILLED = PROGRAMS / "killed_command.py"
# Small enough for a run in a second.
TINY = ("--steps", "20", "--widths", "8,8", "--contamination", "0.2", "--calibration", "0.4", "--eps", "0.01")


def table() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    normal, strange = random.normal(size=(60, 3)), random.normal(size=(9, 3)) + 3
    return np.concatenate([normal, strange]) * [1.0, 0.2, 5.0], np.repeat([0, 1], [60, 9])


def detect(data: Path, out: Path, *words: str) -> int:
    with torch.random.fork_rng(devices=[]):
        return main(["anomaly", str(data), "--out", str(out), *(words or TINY)])


def read(run: Path) -> AnomalyContents:
    return AnomalyContents.from_json((run / "anomaly.json").read_bytes(), "anomaly.json")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "table.npz"
    rows, labels = table()
    np.savez(path, X=rows, y=labels)
    return path


@pytest.fixture(scope="module")
def honest(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    assert detect(data, run, *TINY, "--json", str(run.parent / "shares.json")) == Code.OK
    return run


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A copy that a forger may change."""
    return Path(shutil.copytree(honest, tmp_path / "forged"))


def assert_same_detector(run: Path, other: Path) -> None:
    (one, about), (two, known) = (tensors_from(folder / "model.safetensors", sealed=True) for folder in (run, other))
    assert about == known
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (run / "scores.json").read_bytes() == (other / "scores.json").read_bytes()


def worst_auroc(normal: np.ndarray, strange: np.ndarray, shift: float) -> float:
    gaps = normal[:, None] - strange[None] - shift
    return float((gaps > 0).mean() + (gaps == 0).mean() / 2)


def test_options_that_are_left_out_are_those_of_the_estimator(tmp_path: Path):
    given = AnomalyRequest(data="rows.npz", out=tmp_path).detector().get_params()
    plain = OneClassSDF(random_state=0).get_params()
    assert given == plain


@pytest.mark.train
def test_scores_and_bounds_are_those_of_the_library_on_rows_it_did_not_see(honest: Path):
    rows, _ = table()
    found, detector = read(honest), read_detector(honest)
    assert found.labelled is not None
    scores = np.array(read_object(honest / "scores.json")["score"])
    assert (scores == detector.score_samples(rows)).all()
    # The protocol, written again: half of the normal rows learn, drawn by the seed.
    learned = np.random.default_rng(0).permutation(60)[:30]
    other = np.setdiff1d(np.arange(60), learned)
    again = OneClassSDF(
        steps=20, widths=(8, 8), contamination=0.2, calibration=0.4, eps=0.01, random_state=0
    ).fit(rows[learned])  # fmt: skip
    assert (again.score_samples(rows) == scores).all()
    assert again.offset_ == found.threshold
    assert (found.learned, found.held, found.labelled.normals, found.labelled.anomalies) == (30, 12, 30, 9)
    for one in (*found.labelled.table, *found.labelled.curve):
        for shift, bound in ((2, one.both), (1, one.anomalies), (1, one.normals)):
            brute = worst_auroc(scores[other], scores[60:], shift * found.constant * one.radius)
            # Pairs within rounding of the shift may be lost: none here.
            assert bound == pytest.approx(brute, abs=1e-12)
    assert found.below == (scores < found.threshold).sum()
    assert [row.row for row in found.strangest] == np.argsort(scores)[:10].tolist()
    assert sum(sum(kind.counts) for kind in found.bars) == 69


@pytest.mark.train
def test_rows_within_their_radius_keep_their_decision(honest: Path):
    rows, _ = table()
    detector, stored = read_detector(honest), read_object(honest / "scores.json")
    radius, before = np.array(stored["radius"]), detector.predict(rows)
    assert radius.max() > 0
    random = np.random.default_rng(1)
    gradient = detector.field_.gradient(torch.from_numpy(rows)).numpy()
    for way in (*random.normal(size=(20, *rows.shape)), gradient, -gradient):
        step = way / np.linalg.norm(way, axis=1, keepdims=True) * radius[:, None] * 0.999
        assert (detector.predict(rows + step) == before).all()
    # The radius is the distance to the threshold over the constant, up to the proven rounding of the score (1e-8).
    known = np.abs(detector.decision_function(rows)) / float(detector.bound_.value)
    assert radius == pytest.approx(known, rel=1e-9, abs=1e-7)


@pytest.mark.train
def test_a_run_continues_where_it_was_stopped(run: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    whole = {one.name: one.read_bytes() for one in run.iterdir()}
    kept = (run / "model.safetensors").stat().st_mtime_ns
    for name in ("anomaly.json", "anomaly.html"):
        (run / name).unlink()
    scores = (run / "scores.json").stat().st_mtime_ns
    assert main(["anomaly", str(data), "--out", str(run), *TINY]) == Code.OK
    assert (run / "model.safetensors").stat().st_mtime_ns == kept
    assert (run / "scores.json").stat().st_mtime_ns == scores
    assert (run / "scores.json").read_bytes() == whole["scores.json"]
    # Only the folder's name in the command is another.
    assert read(run).labelled is not None
    assert main(["anomaly", str(data), "--out", str(run), *TINY, "--seed", "5"]) == Code.OTHER
    assert "holds another run (seed was 0)" in capsys.readouterr().err


@pytest.mark.train
def test_control_c_in_the_training_keeps_what_was_done(
    data: Path, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run, after_update = tmp_path / "run", KeptTraining.after_update

    def interrupt(kept: KeptTraining, done: int, steps: int, state: Any) -> None:
        if done in (7, 20):
            os.kill(os.getpid(), signal.SIGINT)
        after_update(kept, done, steps, state)

    monkeypatch.setattr(KeptTraining, "after_update", interrupt)
    for done in (7, 20):
        assert detect(data, run) == Code.INTERRUPTED
        assert f"Interrupted after step {done} of 20; run the same command again" in capsys.readouterr().err
        assert sorted(one.name for one in run.iterdir()) == ["checkpoint.safetensors", "run.json"]
    # Other settings are not what the folder was begun with.
    assert detect(data, run, *TINY, "--margin", "0.1") == Code.OTHER
    assert "holds another run (margin was 0.05)" in capsys.readouterr().err
    assert detect(data, run) == Code.OK
    assert not (run / "checkpoint.safetensors").exists()
    assert_same_detector(run, honest)


@pytest.mark.train
def test_a_damaged_checkpoint_and_one_of_another_run_are_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("lipkit.cli.runs.kept_training._SAVE", -1.0)
    monkeypatch.setattr("lipkit.cli.runs.kept_training._SHARE", 0)
    run, file = tmp_path / "run", tmp_path / "run" / "checkpoint.safetensors"
    with monkeypatch.context() as during:
        # What fails after the training leaves its last checkpoint.
        during.setattr("lipkit.cli.commands.anomaly.store_detector", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            detect(data, run)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert detect(data, run) == Code.OTHER
    assert "checkpoint.safetensors does not fit its checksum" in capsys.readouterr().err
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / file.name).write_bytes(whole)
    assert detect(data, tmp_path / "other", *TINY, "--margin", "0.1") == Code.OTHER
    assert "The checkpoint is of another training (margin was 0.05)" in capsys.readouterr().err


@pytest.mark.process
@pytest.mark.train
def test_a_killed_run_ends_like_one_that_was_not(data: Path, honest: Path, tmp_path: Path):
    run = tmp_path / "run"
    killed = run_program(KILLED, ["6", "anomaly", str(data), "--out", str(run), *TINY], 300)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    assert sorted(one.name for one in run.iterdir()) == ["checkpoint.safetensors", "run.json"]
    assert detect(data, run) == Code.OK
    assert_same_detector(run, honest)


@pytest.mark.train
def test_the_training_says_how_far_it_is(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert detect(data, tmp_path / "run") == Code.OK
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("learning from 30 rows: ")]
    # A line every tenth of 20 updates; two optimizers make each of them.
    assert said == [f"learning from 30 rows: {done} of 20" for done in (1, *range(2, 21, 2))]
    # Nothing is told of trainings that come later.
    weight = torch.zeros(1, requires_grad=True)
    weight.grad = torch.ones(1)
    torch.optim.SGD([weight]).step()
    assert not capsys.readouterr().err


@pytest.mark.train
def test_a_report_draws_the_same_page_and_json_says_its_numbers(run: Path, honest: Path, tmp_path: Path):
    page = (run / "anomaly.html").read_bytes()
    (run / "anomaly.html").unlink()
    assert main(["report", str(run), "--json", str(tmp_path / "again.json")]) == Code.OK
    assert (run / "anomaly.html").read_bytes() == page
    shares = json.loads((honest.parent / "shares.json").read_text())
    assert json.loads((tmp_path / "again.json").read_text()) == shares
    found = read(run)
    assert found.labelled is not None
    assert [one["auroc"]["both"] for one in shares["radii"]] == [one.both for one in found.labelled.table]


@pytest.mark.train
def test_an_honest_run_holds(honest: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["audit", str(honest), "--retrain", "--shares", str(honest.parent / "shares.json")]) == Code.OK
    said = capsys.readouterr().out
    for what in ("threshold:", "scores:", "training:", "constant:", "result:", "page:", "shares:", "holds."):
        assert what in said
    assert main(["audit", str(honest), "--only", "5"]) == Code.AUDIT_PARTIAL


# Forgeries. A forger computes every checksum anew, and lets the page follow.


def change_threshold(run: Path) -> None:
    tensors, about = tensors_from(run / "model.safetensors", sealed=True)
    tensors["offset"] = tensors["offset"] + 0.01
    (run / "model.safetensors").write_bytes(tensors_to(tensors, about))


def change_weight(run: Path) -> None:
    tensors, about = tensors_from(run / "model.safetensors", sealed=True)
    name = next(name for name in tensors if name.endswith("weight"))
    tensors[name] = tensors[name] * 1.01
    (run / "model.safetensors").write_bytes(tensors_to(tensors, about))


def change_setting(run: Path) -> None:
    tensors, about = tensors_from(run / "model.safetensors", sealed=True)
    settings = json.loads(about["settings"])
    settings["contamination"] = 0.05
    (run / "model.safetensors").write_bytes(tensors_to(tensors, {**about, "settings": json.dumps(settings)}))


def edit(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def forge(run: Path) -> None:
        content = read_claims(run / "anomaly.json")
        change(content)
        write_claims(run / "anomaly.json", content)
        (run / "anomaly.html").write_text(render_anomaly_page(read(run)))

    return forge


def change_page(run: Path) -> None:
    page = run / "anomaly.html"
    page.write_text(page.read_text() + " ")


def change_claim(run: Path) -> None:
    page = run / "anomaly.html"
    text, count = re.subn(r'(data-claim="constant" value="[^"]*">)[^<]*', r"\g<1>0.5", page.read_text())
    assert count
    page.write_text(text)


def change_scores_and_a_radius(run: Path) -> None:
    content = read_object(run / "scores.json")
    content["score"][64] -= 0.5
    content["radius"][3] *= 2
    write_object(run / "scores.json", content)


@edit
def change_numbers(content: dict[str, Any]) -> None:
    content["threshold"] = 0.0
    content["labelled"]["table"][1]["both"] = 0.999
    content["labelled"]["curve"][9]["normals"] = 1.0
    content["strangest"][0]["row"] = 1
    content["health"][-1]["recall"] = 0.125


NUMBERS = (
    "threshold is 0.0", "labelled.table[1].both is 0.999", "labelled.curve[9].normals", "strangest[0].row",
    "].recall is 0.125",
)  # fmt: skip
FORGERIES: dict[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    "scores": (change_scores_and_a_radius, "scores.json", ("the score of row 64", "the radius of row 3")),
    "the threshold": (change_threshold, "model.safetensors", ("the threshold",)),
    "a weight": (change_weight, "scores.json", ("the score of row 0",)),
    "a setting of the model": (change_setting, "model.safetensors", ("the setting contamination",)),
    "the constant": (edit(lambda c: c.update(constant=c["constant"] / 2)), "anomaly.json", ("the constant",)),
    "numbers of the result": (change_numbers, "anomaly.json", NUMBERS),
    "the command": (edit(lambda c: c.update(command=c["command"] + " --steps 90")), "anomaly.json", ("the command",)),
    "a claim of the page": (change_claim, "anomaly.html", ("constant: 0.5",)),
    "the end of the page": (change_page, "anomaly.html", ("is not what its data give",)),
}


@pytest.mark.train
@pytest.mark.parametrize("name", FORGERIES)
def test_forgeries_are_named(name: str, run: Path, capsys: pytest.CaptureFixture[str]):
    forge, file, what = FORGERIES[name]
    forge(run)
    assert main(["audit", str(run)]) == Code.AUDIT_FAILED
    said = capsys.readouterr().err
    for one in what:
        assert any(file in line and one in line for line in said.splitlines()), said


@pytest.mark.train
def test_no_number_rests_on_a_constant_below_the_proven_one(run: Path, monkeypatch: pytest.MonkeyPatch):
    proven = read(run).constant
    # Within what another machine may round otherwise, so the claim alone is no finding.
    edit(lambda c: c.update(constant=c["constant"] * (1 - 5e-10)))(run)
    used: list[float] = []

    def gather(*given: Any) -> AnomalyContents:
        used.append(given[-1])
        return gather_anomalies(*given)

    monkeypatch.setattr("lipkit.cli.audit.scores_check.gather_anomalies", gather)
    main(["audit", str(run)])
    assert used == [proven]


@pytest.mark.train
def test_other_data_are_named(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows, labels = table()
    rows[0, 0] += 1
    np.savez(tmp_path / "other.npz", X=rows, y=labels)
    assert main(["audit", str(run), "--data", str(tmp_path / "other.npz")]) == Code.AUDIT_FAILED
    assert "the setting SHA-256 of the rows" in capsys.readouterr().err


@pytest.mark.train
def test_a_table_of_text_gives_the_scores_of_its_numbers(honest: Path, tmp_path: Path):
    rows, labels = table()
    lines = [",".join([*map(repr, row.tolist()), str(label)]) for row, label in zip(rows, labels, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["a,b,c,bad", *lines]))
    assert detect(tmp_path / "table.csv", tmp_path / "run", *TINY, "--label", "bad") == Code.OK
    same = (one / "scores.json" for one in (tmp_path / "run", honest))
    assert len({one.read_bytes() for one in same}) == 1


@pytest.mark.train
def test_without_labels_all_rows_are_learned_from(tmp_path: Path):
    rows, _ = table()
    np.savez(tmp_path / "rows.npz", X=rows)
    run = tmp_path / "run"
    assert detect(tmp_path / "rows.npz", run, "--steps", "20", "--widths", "8,8") == Code.OK
    found = read(run)
    assert found.labelled is None
    assert (found.learned, found.held) == (69, 0)
    # A tenth of the rows learned from are below a percentile of them.
    assert found.below == 7
    page = (run / "anomaly.html").read_text()
    assert "Without labels there is no AUROC" in page
    assert "none: a share 0.1" in page
    assert main(["audit", str(run)]) == Code.OK


@pytest.mark.train
def test_the_length_of_eps_is_in_the_table_and_in_the_lead(honest: Path, data: Path, tmp_path: Path):
    found = read(honest)
    assert found.labelled is not None
    radii = [one.radius for one in found.labelled.table]
    assert radii == sorted(radii)
    assert (radii[0], radii[1]) == (0.0, 0.01)
    assert [one.radius for one in found.labelled.alarms] == radii
    assert "whatever moves of length 0.01 are made" in (honest / "anomaly.html").read_text()
    # Who lists radii gets those.
    assert detect(data, tmp_path / "run", *TINY, "--radii", "0.5,1") == Code.OK
    listed = read(tmp_path / "run").labelled
    assert listed is not None
    assert [one.radius for one in listed.table] == [0.5, 1.0]


@pytest.mark.train
@pytest.mark.parametrize("name", ["rows.csv", "rows.npz"])
def test_a_column_that_looks_like_labels_is_asked_about(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows, labels = table()
    both, path = np.c_[rows, labels], tmp_path / name
    if name.endswith("csv"):
        np.savetxt(path, both, delimiter=",", header="a,b,c,bad", comments="")
        remedy = "give --label 3 and another --out"
    else:
        np.savez(path, X=both)
        remedy = "save it as y, not in X"
    words = ("--nearest", "1")
    assert detect(path, tmp_path / "run", *words) == Code.OK
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith(f"Column 3 of {path} (the first is 0) holds only 0 and 1 and is learned from")
    assert first.endswith(f"{remedy}.")
    # Nothing to ask where labels are named, or no column is like them.
    if name.endswith("csv"):
        assert detect(path, tmp_path / "named", *words, "--label", "3") == Code.OK
    np.savez(tmp_path / "plain.npz", X=rows)
    assert detect(tmp_path / "plain.npz", tmp_path / "plain", *words) == Code.OK
    assert "holds only 0 and 1" not in capsys.readouterr().err


DISTANCE = ("--nearest", "1", "--no-standardise", "--calibration", "0.4", "--contamination", "0.2")


@pytest.mark.train
def test_the_exact_distance_alone_is_computed_again_here(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
):
    rows, _ = table()
    run = tmp_path / "run"
    assert detect(data, run, *DISTANCE) == Code.OK
    found, scores = read(run), np.array(read_object(run / "scores.json")["score"])
    # The protocol, written again: half of the normal rows, of which some are held out; columns as they are.
    learned = rows[np.random.default_rng(0).permutation(60)[:30]]
    draws = np.random.RandomState(0)
    draws.randint(2**31 - 1)
    kept = learned[draws.permutation(30)[12:]]
    nearest = np.linalg.norm(rows[:, None] - kept[None], axis=2).min(1)
    assert scores == pytest.approx(0.05 - nearest, abs=1e-12)
    assert (found.constant, found.health) == (1.0, ())
    assert "No network was trained" in (run / "anomaly.html").read_text()
    assert main(["audit", str(run), "--retrain"]) == Code.OK
    # The folder knows the settings, and its command spells them.
    assert detect(data, run, *DISTANCE) == Code.OK
    assert detect(data, run, *DISTANCE, "--nearest", "0.5") == Code.OTHER
    assert "holds another run (nearest was 1.0)" in capsys.readouterr().err
    asked = read_command(read_object(run / "run.json")["command"])
    assert isinstance(asked, AnomalyRequest)
    assert (asked.nearest, asked.standardise) == (1.0, False)


@pytest.mark.train
def test_flats_are_those_of_the_library_and_are_audited(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]):
    rows, _ = table()
    words = ("--steps", "20", "--widths", "8,8", "--nearest", "0.7", "--flats", "3", "--flat-dim", "1")
    run = tmp_path / "run"
    assert detect(data, run, *words) == Code.OK
    learned = np.random.default_rng(0).permutation(60)[:30]
    again = OneClassSDF(
        steps=20, widths=(8, 8), nearest=0.7, flats=3, flat_dim=1, random_state=0
    ).fit(rows[learned])  # fmt: skip
    assert (np.array(read_object(run / "scores.json")["score"]) == again.score_samples(rows)).all()
    assert main(["audit", str(run), "--retrain"]) == Code.OK
    tensors, about = tensors_from(run / "model.safetensors", sealed=True)
    tensors["origins"] = tensors["origins"] + 0.01
    (run / "model.safetensors").write_bytes(tensors_to(tensors, about))
    assert main(["audit", str(run)]) == Code.AUDIT_FAILED
    assert "the score of row 0" in capsys.readouterr().err


BAD: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "NaN": ({"X": np.where(np.arange(207).reshape(69, 3) == 7, np.nan, 1.0)}, (), "NaN or infinite in row 2, column 1"),
    "a constant column": ({"X": table()[0] * [1, 0, 1]}, (), "Column 1 of"),
    "two rows": ({"X": table()[0][:2]}, (), "has 2 rows of 3 numbers; give 3 rows at least"),
    "no X": ({"x": table()[0]}, (), "no .npz file with an array X"),
    "one axis": ({"X": table()[0][:, 0]}, (), "X of shape (69,), expected (rows, columns)"),
    "text": ({"X": np.array([["a"]])}, (), "expected numbers"),
    "only normal rows": ({"X": table()[0], "y": np.zeros(69, int)}, (), "is labelled normal; add anomalies"),
    "only anomalies": ({"X": table()[0], "y": np.ones(69, int)}, (), "is labelled an anomaly; add normal rows"),
    "labels of sklearn": ({"X": table()[0], "y": 1 - 2 * table()[1]}, (), "has the labels -1, 1; 0 is for normal rows"),
    "too few labels": ({"X": table()[0], "y": table()[1][:5]}, (), "y of shape (5,) for 69 rows"),
    "few normal rows": ({"X": table()[0][56:], "y": table()[1][56:]}, (), "leaves 2 to learn from"),
    "too few rows held out": (
        {"X": table()[0]}, ("--calibration", "0.1", "--contamination", "0.05"), "needs 19 rows held out"
    ),
    "moves without calibration": ({"X": table()[0]}, ("--eps", "0.1"), "set calibration, such as 0.3"),
    "a column of an npz": ({"X": table()[0]}, ("--label", "a"), "--label names a column of a .csv file"),
    "odd widths": ({"X": table()[0]}, ("--widths", "8,7"), "--widths lists even numbers of neurons"),
    "no widths": ({"X": table()[0]}, ("--widths", "wide"), "--widths lists even numbers of neurons"),
    "a large seed": ({"X": table()[0]}, ("--seed", str(2**32)), "--seed lies in [0, 2^32)"),
    "a share above 1": ({"X": table()[0]}, ("--train", "1.5"), "--train is a share in (0, 1), got 1.5"),
    "a calibration of NaN": ({"X": table()[0]}, ("--calibration", "nan"), "calibration is a finite number, got nan"),
    "a negative contamination": ({"X": table()[0]}, ("--contamination", "-1"), "contamination lies in (0, 0.5]"),
    "a share of the distance above 1": ({"X": table()[0]}, ("--nearest", "1.5"), "nearest is the share of the exact"),
    "more flats than rows": ({"X": table()[0]}, ("--flats", "100"), "rows of 3 columns have no 100 flats of dimension"),
    "unordered radii": ({"X": table()[0]}, ("--radii", "1,0.5"), "--radii lists lengths >= 0 in increasing order"),
    "radii of words": ({"X": table()[0]}, ("--radii", "far"), "--radii lists radii such as"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_no_detector_can_learn_from_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    arrays, words, said = BAD[name]
    np.savez(tmp_path / "data.npz", **arrays)
    assert detect(tmp_path / "data.npz", tmp_path / "run", "--steps", "2", *words) in (Code.USAGE, Code.OTHER)
    # Flats are made after the training, which says how far it is.
    error = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("learning from ")]
    assert said in error[0]
    assert len(error) == 1
    # The folder stays free for better settings.
    assert not list((tmp_path / "run").glob("*"))


@pytest.mark.parametrize(
    ("name", "content", "words", "said"),
    [
        ("data.txt", "1,2\n3,4\n", (), "DATA is a .npz file with X"),
        ("data.npz", "no archive", (), "is no .npz file with an array X"),
        ("data.csv", "a,b\n1,2\n3,x\n5,6\n", (), "'x' in column 1 (b) of sample 1"),
        ("data.csv", "a,b\n1,2\n3,5\n5,6\n", ("--label", "c"), "no column 'c' for the labels"),
        (
            "data.csv",
            "a,b\n1,good\n3,bad\n5,bad\n",
            ("--label", "b"),
            "0 is for normal rows and 1 for anomalies, so write those",
        ),
        ("data.csv", "1,2\n3\n", (), "has 1 cells for sample 1, expected 2"),
        ("data.csv", "a;b\n1;2\n3;4\n5;6\n", (), "separated by ';', so save it with commas"),
        ("data.csv", "a;b\n1;2\n3;4\n5;6\n", ("--label", "b"), "separated by ';', so save it with commas"),
        ("data.csv", "a\tb\n1\t2\n3\t4\n5\t6\n", (), "separated by '\\t', so save it with commas"),
        # Commas of decimals.
        ("data.csv", "a;b\n1,5;2\n3,5;4\n5,5;6\n", (), "separated by ';', so save it with commas"),
        ("data.csv", "1,5;2\n3,5;4\n5,5;6\n", (), "separated by ';', so save it with commas"),
        ("data.csv", "a,b\n1,red\n3,red\n5,blue\n", (), "or name it if it holds the labels (`label`, --label)"),
        ("data.csv", "a,b\n1,red\n3,red\n5,blue\n", (), "'red' in column 1 (b) of sample 0, expected a finite number"),
        ("data.csv", "a,b\n1,\n3,2\n5,3\n", (), "'' in column 1 (b) of sample 0, expected a finite number of float64;"),
        ("data.csv", "a,b\n1,\n3,2\n5,3\n", (), "fill such cells, or leave their rows out"),
    ],
)
def test_files_that_are_no_table_are_one_sentence(
    name: str, content: str, words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / name).write_text(content)
    assert detect(tmp_path / name, tmp_path / "run", "--steps", "2", *words) in (Code.USAGE, Code.OTHER)
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert detect(tmp_path / "none.npz", tmp_path / "run", "--steps", "2") == Code.USAGE
    assert "There is no file" in capsys.readouterr().err
