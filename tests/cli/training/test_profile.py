"""Profiles of trainings: they change nothing, survive every interruption, and say what dense arithmetic says."""

import os
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

from lipkit.analysis.dynamics.stored_history import StoredHistory
from lipkit.cli.training import checkpoint
from lipkit.cli.training.loop import train
from lipkit.cli.training.processes import Team
from lipkit.cli.training.profile import PROFILE, read_profile
from lipkit.errors import ArgumentError, InterruptedRun, RecordError
from support.programs.run import PROGRAMS, environment, run_program
from support.programs.training_program import Blobs, OneOptimizer

HERE = Team(torch.device("cpu"))
PROGRAM = PROGRAMS / "training_program.py"


def weights(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoint.safetensors")["model"]


def require_profile(folder: Path) -> StoredHistory:
    found = read_profile(folder)
    assert found is not None
    return found


def test_a_profile_changes_no_bit_of_the_weights(tmp_path: Path) -> None:
    train(OneOptimizer(), tmp_path / "with", HERE, profile=4)
    train(OneOptimizer(), tmp_path / "without", HERE)
    a, b = weights(tmp_path / "with"), weights(tmp_path / "without")
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not (tmp_path / "without" / PROFILE).exists()
    assert read_profile(tmp_path / "without") is None


def test_the_profile_says_what_the_weights_say(tmp_path: Path) -> None:
    train(OneOptimizer(), tmp_path, HERE, profile=4)
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
    train(OneOptimizer(), tmp_path / "whole", HERE, profile=4)
    # Interruptions at measurements (28) and between them (7, 14, ...).
    for _ in range(6):
        with pytest.raises(InterruptedRun):
            train(OneOptimizer(stop_every=7), tmp_path / "parts", HERE, profile=4)
    train(OneOptimizer(stop_every=7), tmp_path / "parts", HERE, profile=4)
    assert require_profile(tmp_path / "parts") == require_profile(tmp_path / "whole")
    # A finished run adds nothing.
    train(OneOptimizer(stop_every=7), tmp_path / "parts", HERE, profile=4)
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


def test_another_profile_does_not_continue_a_run(tmp_path: Path) -> None:
    with pytest.raises(InterruptedRun):
        train(OneOptimizer(stop_every=7), tmp_path, HERE, profile=4)
    with pytest.raises(ArgumentError, match="of a run with --profile 4; continue it so, or give another folder"):
        train(OneOptimizer(stop_every=7), tmp_path, HERE, profile=5)
    with pytest.raises(ArgumentError, match="of a run with --profile 4"):
        train(OneOptimizer(stop_every=7), tmp_path, HERE)
    train(OneOptimizer(epochs=1), tmp_path / "plain", HERE)
    with pytest.raises(ArgumentError, match="of a run without --profile"):
        train(OneOptimizer(epochs=1), tmp_path / "plain", HERE, profile=4)


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


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (Blobs(), "--profile follows one optimizer, and Blobs has 2"),
        (Recorded(), "give --graph=false"),
        (Nothing(), "cannot be profiled, so train without --profile: PReLU has no linear"),
    ],
)
def test_what_cannot_be_profiled_is_refused_before_a_step(tmp_path: Path, recipe: Blobs, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        train(recipe, tmp_path, HERE, profile=4)
    assert not (tmp_path / PROFILE).exists()


def test_whoever_watches_is_told_each_measurement_once(tmp_path: Path) -> None:
    told: list[Mapping[str, Any]] = []
    train(OneOptimizer(), tmp_path, HERE, None, told.append, profile=4)
    found = require_profile(tmp_path)
    steps = [entry["step"] for entry in told]
    assert steps == sorted(steps)
    profiled = [entry for entry in told if "profile/log constant" in entry]
    assert [entry["step"] for entry in profiled] == list(found.steps)
    assert [entry["profile/log constant"] for entry in profiled] == list(found.log_constant)


def test_a_damaged_profile_is_named(tmp_path: Path) -> None:
    train(OneOptimizer(epochs=1), tmp_path, HERE, profile=5)
    path = tmp_path / PROFILE
    path.write_bytes(path.read_bytes().replace(b'"every": 5', b'"every": 6'))
    with pytest.raises(RecordError, match=r"profile\.json does not fit its checksum"):
        read_profile(tmp_path)
