"""Profiles of trainings: they change nothing, survive every interruption, and say what dense arithmetic says."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lipkit.analysis import Forecast, NoiseModel, forecast, read_history
from lipkit.analysis.dynamics.stored_history import StoredHistory
from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.runs.run import Order
from lipkit.cli.training import checkpoint
from lipkit.cli.training.loop import train
from lipkit.cli.training.overrides import make_recipe
from lipkit.cli.training.processes import Team
from lipkit.cli.training.profile import PROFILE, ProfileSettings, read_profile
from lipkit.errors import ArgumentError, InterruptedRun, RecordError
from support.programs.run import PROGRAMS, environment, run_program
from support.programs.training_program import Blobs, OneOptimizer
from support.repository import ROOT
from test_readme import run

HERE = Team(torch.device("cpu"))
EACH = ProfileSettings(4)
PROGRAM = PROGRAMS / "training_program.py"


def weights(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoint.safetensors")["model"]


def require_profile(folder: Path) -> StoredHistory:
    found = read_profile(folder)
    assert found is not None
    return found


def test_a_profile_changes_no_bit_of_the_weights(tmp_path: Path) -> None:
    train(OneOptimizer(), tmp_path / "with", HERE, profile=EACH)
    train(OneOptimizer(), tmp_path / "without", HERE)
    a, b = weights(tmp_path / "with"), weights(tmp_path / "without")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not (tmp_path / "without" / PROFILE).exists()
    assert read_profile(tmp_path / "without") is None


def test_the_profile_says_what_the_weights_say(tmp_path: Path) -> None:
    train(OneOptimizer(), tmp_path, HERE, profile=EACH)
    found = require_profile(tmp_path)
    # 45 steps, measured every 4 and at the end.
    assert found.steps == (*range(0, 45, 4), 45)
    assert found.every == 4
    state = weights(tmp_path)
    torch.manual_seed(0)
    first = OneOptimizer().model().state_dict()
    for at, known in ((0, first), (-1, state)):
        for layer in found.layers:
            matrix = known[f"{layer.name}.weight"].double()
            values = torch.linalg.svdvals(matrix)
            # Eigenvalues of a Gram matrix of a few entries in float64.
            assert layer.norm[at] == pytest.approx(float(values[0]), rel=1e-10)
            assert layer.spectra is not None
            assert (layer.spectra.rows, layer.spectra.columns) == tuple(matrix.shape)
            # Six digits are stored.
            assert layer.spectra.values[at] == pytest.approx(values.tolist(), rel=1e-5)
            assert layer.spectra.energy[at] == pytest.approx(float(matrix.square().sum()), rel=1e-10)
            rank = float(matrix.square().sum() / values[0] ** 2)
            assert layer.spectra.stable_rank(at) == pytest.approx(rank, rel=1e-5)


def test_an_interrupted_profile_is_that_of_the_whole_run(tmp_path: Path) -> None:
    train(OneOptimizer(), tmp_path / "whole", HERE, profile=EACH)
    # Interruptions at measurements (28) and between them (7, 14, ...).
    for _ in range(6):
        with pytest.raises(InterruptedRun):
            train(OneOptimizer(stop_every=7), tmp_path / "parts", HERE, profile=EACH)
    train(OneOptimizer(stop_every=7), tmp_path / "parts", HERE, profile=EACH)
    assert require_profile(tmp_path / "parts") == require_profile(tmp_path / "whole")
    # A finished run adds nothing.
    train(OneOptimizer(stop_every=7), tmp_path / "parts", HERE, profile=EACH)
    assert require_profile(tmp_path / "parts") == require_profile(tmp_path / "whole")


@pytest.mark.process
@pytest.mark.train
@pytest.mark.parametrize("processes", [1, 2])
def test_a_killed_profile_is_that_of_the_whole_run(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "killed"
    command = [sys.executable, str(PROGRAM), str(folder), str(processes), "slowly", "profile"]
    with subprocess.Popen(command, env=environment(), start_new_session=True) as process:
        deadline = time.monotonic() + 120
        while not (folder / "checkpoint.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.3)
        os.killpg(process.pid, signal.SIGKILL)
    assert not (folder / "done").exists()
    for one in (folder, tmp_path / "whole"):
        ran = run_program(PROGRAM, [str(one), str(processes), "profile"], 300)
        assert ran.returncode == 0, ran.stderr[-3000:]
    assert require_profile(folder) == require_profile(tmp_path / "whole")
    assert require_profile(folder).steps[-1] == 45


@pytest.mark.process
@pytest.mark.train
def test_noise_is_summed_over_processes(tmp_path: Path) -> None:
    found: list[StoredHistory] = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        ran = run_program(PROGRAM, [str(folder), str(processes), "plainly", "profile"], 300)
        assert ran.returncode == 0, ran.stderr[-3000:]
        found.append(require_profile(folder))
    one, two = found
    assert one.refused == two.refused == ()
    assert two.expected == pytest.approx(one.expected, abs=1e-10)
    for a, b in zip(one.layers, two.layers, strict=True):
        assert a.kappa is not None
        assert min(a.kappa) > 0
        # The same records in another order, and means of means, in float64.
        assert b.kappa == pytest.approx(a.kappa, rel=1e-8)
        assert b.diffusion == pytest.approx(a.diffusion, rel=1e-8)


def test_another_profile_does_not_continue_a_run(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRun):
        train(OneOptimizer(stop_every=7), tmp_path, HERE, profile=EACH)
    with pytest.raises(ArgumentError, match="of a run with --profile 4; continue it so, or give another folder"):
        train(OneOptimizer(stop_every=7), tmp_path, HERE, profile=ProfileSettings(5))
    with pytest.raises(ArgumentError, match="of a run with --profile 4"):
        train(OneOptimizer(stop_every=7), tmp_path, HERE)
    train(OneOptimizer(epochs=1), tmp_path / "plain", HERE)
    with pytest.raises(ArgumentError, match="of a run without --profile"):
        train(OneOptimizer(epochs=1), tmp_path / "plain", HERE, profile=EACH)


@dataclass(frozen=True)
class Recorded(OneOptimizer):
    """A recipe that wants a CUDA graph."""

    graph: bool = True


@dataclass(frozen=True)
class Nothing(OneOptimizer):
    """A model without linear layers."""

    def model(self) -> nn.Module:
        return nn.PReLU()

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.1)]


@dataclass(frozen=True)
class Plain(OneOptimizer):
    """Plain SGD at a rate that falls, whose noise terms are known."""

    stop_every: int = 0

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.1)]

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (Blobs(), "--profile follows one optimizer, and Blobs has 2"),
        (Recorded(), "give --graph=false"),
        (Nothing(), "cannot be profiled, so train without --profile: .* PReLU has no linear"),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_a_step(tmp_path: Path, recipe: Blobs, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        train(recipe, tmp_path, HERE, profile=EACH)
    assert not (tmp_path / PROFILE).exists()


def test_whoever_watches_is_told_each_measurement_once(tmp_path: Path) -> None:
    told: list[Mapping[str, Any]] = []
    train(OneOptimizer(), tmp_path, HERE, None, told.append, profile=EACH)
    found = require_profile(tmp_path)
    steps = [entry["step"] for entry in told]
    assert steps == sorted(steps)
    profiled = [entry for entry in told if "profile/log constant" in entry]
    assert [entry["step"] for entry in profiled] == list(found.steps)
    assert [entry["profile/log constant"] for entry in profiled] == list(found.log_constant)
    layer = found.layers[0]
    assert layer.gap is not None
    assert [entry["profile/gap of 0"] for entry in profiled] == list(layer.gap)
    for cause in ("drift", "curvature", "decay", "rest", "crossings"):
        assert f"profile/{cause} of 0" not in profiled[0]
        assert [entry[f"profile/{cause} of 0"] for entry in profiled[1:]] == list(getattr(layer, cause))
    # Momentum has no model.
    assert "profile/log constant, expected" not in profiled[0]
    told.clear()
    train(Plain(), tmp_path / "plain", HERE, None, told.append, profile=EACH)
    expected = require_profile(tmp_path / "plain").expected
    assert expected is not None
    assert [e["profile/log constant, expected"] for e in told if "profile/log constant" in e] == list(expected)


@dataclass(frozen=True)
class Images(OneOptimizer):
    """Convolutions with and without groups, by plain SGD at a rate that falls."""

    epochs: int = 1

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Unflatten(1, (2, 1, 1)), nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1, groups=2),
            nn.Flatten(), nn.Linear(4, 3),
        )  # fmt: skip

    def optimizers(self, model: nn.Module) -> Sequence[torch.optim.Optimizer]:
        return [torch.optim.SGD(model.parameters(), lr=0.1)]


def test_readings_splits_and_probes_are_those_that_were_asked_for(tmp_path: Path) -> None:
    train(Images(), tmp_path / "operator", HERE, profile=ProfileSettings(3, "operator", probes=2))
    operator = require_profile(tmp_path / "operator")
    assert "maps of images" in operator.label
    assert all(layer.gap is None for layer in operator.layers if layer.name != "5")
    train(Images(), tmp_path / "matrix", HERE, profile=ProfileSettings(3, split=True))
    matrix = require_profile(tmp_path / "matrix")
    assert all(layer.gap is not None for layer in matrix.layers)
    assert "'3' is heard by random signs" in dict(matrix.refused)["split"]
    kernel = weights(tmp_path / "matrix")["3.weight"].double().flatten(1)
    values = torch.cat([torch.linalg.svdvals(part) for part in kernel.chunk(2)]).sort(descending=True).values
    spectra = matrix.layers[1].spectra
    assert spectra is not None
    assert (spectra.blocks, spectra.rows, spectra.columns) == (2, 2, 18)
    # Six digits are stored.
    assert spectra.values[-1] == pytest.approx(values.tolist(), rel=1e-5)


def test_a_split_profile_survives_interruptions_and_can_be_read_for_forecasts(tmp_path: Path) -> None:
    asked = ProfileSettings(4, split=True)
    train(Plain(), tmp_path / "whole", HERE, profile=asked)
    for _ in range(6):
        with pytest.raises(InterruptedRun):
            train(Plain(stop_every=7), tmp_path / "parts", HERE, profile=asked)
    train(Plain(stop_every=7), tmp_path / "parts", HERE, profile=asked)
    found = require_profile(tmp_path / "parts")
    assert found == require_profile(tmp_path / "whole")
    assert all(layer.kappa_variance is not None for layer in found.layers)
    history = read_history(tmp_path / "parts" / PROFILE)
    assert history.expected is not None
    predicted = forecast(history)
    # The rate falls in every step, and the forecast has the same sums as the tracker.
    assert predicted.mean_log == pytest.approx(float(history.expected[-1]), abs=1e-12)
    assert forecast(history, NoiseModel.SCALAR).curvature > 0


@pytest.mark.train
def test_the_guide_reads_what_its_run_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/guides/watch-the-constant.md").read_text()
    found = re.findall(r"^```(?:python|py)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    (recipe,) = [code for code in found if "class Plain(Recipe)" in code]
    (reader,) = [code for code in found if "read_history(" in code]
    (tmp_path / "plain.py").write_text(recipe)
    made = make_recipe(recipe_class(tmp_path / "plain.py"), ("--epochs=2", "--decay=0.005"))
    train(made, tmp_path / "decayed", HERE, profile=ProfileSettings(10))
    monkeypatch.chdir(tmp_path)
    names = run(reader)
    assert isinstance(names["found"], Forecast)
    assert names["found"].curvature > 0
    assert (tmp_path / "decayed/phases.png").stat().st_size > 1000


def test_options_are_words_that_ask_for_the_same_again() -> None:
    order = Order(Path("r.py"), Path("o"), profile=7)
    assert order.profiled == ProfileSettings(7)
    assert "--profile 7" in order.command
    full = Order(
        Path("r.py"), Path("o"), profile=7, profile_convolutions="operator", profile_split=True, profile_probes=3,
        profile_wrt=("words", "x"),
    )  # fmt: skip
    assert full.profiled == ProfileSettings(7, "operator", True, 3, ("words", "x"))
    said = "--profile 7 --profile-convolutions operator --profile-split --profile-probes 3 --profile-wrt words"
    assert f"{said} --profile-wrt x" in full.command
    with pytest.raises(ArgumentError, match="--profile-convolutions is matrix or operator, got 'maps'"):
        Order(Path("r.py"), Path("o"), profile=7, profile_convolutions="maps")
    with pytest.raises(ArgumentError, match="Options of a profile need one; give --profile 10"):
        Order(Path("r.py"), Path("o"), profile_split=True)


def test_a_run_is_not_continued_with_other_options(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRun):
        train(OneOptimizer(stop_every=7), tmp_path, HERE, profile=EACH)
    with pytest.raises(ArgumentError, match="of a run with --profile 4; continue it so"):
        train(OneOptimizer(stop_every=7), tmp_path, HERE, profile=ProfileSettings(4, probes=2))


def test_a_damaged_profile_is_named(tmp_path: Path) -> None:
    train(OneOptimizer(epochs=1), tmp_path, HERE, profile=ProfileSettings(5))
    path = tmp_path / PROFILE
    path.write_bytes(path.read_bytes().replace(b'"every": 5', b'"every": 6'))
    with pytest.raises(RecordError, match=r"profile\.json does not fit its checksum"):
        read_profile(tmp_path)
