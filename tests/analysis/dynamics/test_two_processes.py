"""A profiler in each of two processes: both book the common step, and hear the noise of the joined batch."""

import json
import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lipkit import analysis
from support.programs.run import run_program

PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from torch import distributed, nn
from support.programs.run import together
from analysis.dynamics.test_two_processes import CASES, TOTAL, as_numbers, joined_inputs, make, profiled

def work(rank, place):
    distributed.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    found = {}
    for name, case in CASES.items():
        model, x = make(case["model"]), joined_inputs(case)
        both = nn.parallel.DistributedDataParallel(model, **case.get("wrapped", {}))
        half = TOTAL // 2
        cut = case.get("first", half)
        rows = slice(0, cut) if rank == 0 else slice(cut, TOTAL)
        found[name] = as_numbers(profiled(model, both, x[:, rows], case, rank))
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    # Leaving at once: torch's gloo group may wait in its destructor for a thread that waits for the interpreter.
    os._exit(0)

together(work, json.loads(sys.argv[1]), 2)
"""
TOTAL, STEPS, RATE = 8, 4, 0.1


class Attention(nn.Module):
    """Projections and a weight that is used twice, which are heard by signs."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.twice = nn.MultiheadAttention(4, 2, batch_first=True), nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.twice(self.twice(x).tanh())
        return self.head((x + self.inside(x, x, x, need_weights=False)[0]).mean(1))


CASES: dict[str, dict[str, Any]] = {
    "each alone": {"model": "plain", "synchronise": False},
    "sums": {"model": "plain"},
    "split": {"model": "plain", "split": True},
    "split images": {"model": "images", "split": True},
    "signs": {"model": "attention", "probes": 3},
    "signs in buckets": {"model": "attention", "probes": 3, "wrapped": {"gradient_as_bucket_view": True}},
    "operators": {"model": "images", "reading": analysis.AsOperator()},
    "one sample each": {"model": "plain", "used": 2},
    "other sizes": {"model": "plain", "first": 3},
    "one clips": {"model": "plain", "clips": 1},
    "one refuses": {"model": "plain", "keyword": 1},
}
SHAPES = {"plain": (5,), "images": (2, 5, 5), "attention": (3, 4)}


def make(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "attention":
        return Attention().double()
    if kind == "images":
        conv = nn.Conv2d(2, 3, 3, stride=2)
        return nn.Sequential(conv, nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).double()
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def joined_inputs(case: dict[str, Any]) -> Tensor:
    """A batch for each step; a process takes some rows of it."""
    draws = torch.Generator().manual_seed(1)
    return torch.randn(STEPS, TOTAL, *SHAPES[case["model"]], dtype=torch.float64, generator=draws)


def profiled(model: nn.Module, forward: nn.Module, x: Tensor, case: dict[str, Any], rank: int) -> analysis.History:
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    settings = {name: case[name] for name in ("split", "probes") if name in case}
    with analysis.Profiler(
        *(model, optimizer, x[0, :1], 2),
        convolutions=case.get("reading"),
        synchronise=case.get("synchronise", True),
        **settings,
    ) as profile:
        for step, batch in enumerate(x):
            optimizer.zero_grad()
            given = batch[: case.get("used", TOTAL) // 2] if rank >= 0 else batch
            if case.get("keyword") == rank and step == 2:
                # What only this process knows, while all wait for a backward pass.
                profile._listener.refuse("Process 1 has a reason of its own.")
            forward(given).square().mean().backward()
            if case.get("clips") == rank:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad *= 0.5
            optimizer.step()
    return profile.history


def as_numbers(history: analysis.History) -> dict[str, Any]:
    def numbers(row: Tensor | None) -> list[float] | None:
        return None if row is None else row.tolist()

    names = ("norm", "drift", "rest", "kappa", "diffusion", "kappa_variance", "diffusion_scalar")
    trackers = ("log_constant", "realised", "expected", "sampled")
    return {
        "refused": dict(history.refused),
        "history": {name: numbers(getattr(history, name)) for name in trackers},
        "layers": [{name: numbers(getattr(layer, name)) for name in names} for layer in history.layers],
    }


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    place = tmp_path_factory.mktemp("processes")
    (place / "program.py").write_text(PROGRAM)
    ran = run_program(place / "program.py", [json.dumps([str(place)])], 120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads((place / f"{rank}.json").read_text()) for rank in (0, 1)]


def alone(case: dict[str, Any]) -> dict[str, Any]:
    """One process with all records of both."""
    model, x = make(case["model"]), joined_inputs(case)
    if "used" in case:
        x = x[:, [0, TOTAL // 2]]
    return as_numbers(profiled(model, model, x, case, -1))


@pytest.mark.process
@pytest.mark.parametrize(
    "name", ["sums", "split", "split images", "signs", "signs in buckets", "operators", "one sample each"]
)
def test_noise_terms_of_two_processes_are_those_of_the_joined_batch(found: list[dict[str, Any]], name: str):
    expected = alone(CASES[name])
    assert "expected" not in expected["refused"]
    assert all(layer["kappa"] and min(layer["kappa"]) > 0 for layer in expected["layers"])
    for process in found:
        one = process[name]
        assert one["refused"] == expected["refused"]
        for key, row in expected["history"].items():
            assert one["history"][key] == pytest.approx(row, abs=1e-10), key
        for layer, other in zip(one["layers"], expected["layers"], strict=True):
            for key, row in other.items():
                # Sums in another order; vectors of operators have ten digits.
                assert layer[key] == (None if row is None else pytest.approx(row, rel=1e-8, abs=1e-12)), key
    assert found[0][name]["layers"] == found[1][name]["layers"]
    if name.startswith("split"):
        assert expected["layers"][0]["kappa_variance"] is not None


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("each alone", "there are 2 processes, and without synchronise=True each hears its own samples only"),
        ("other sizes", "process 0 heard inputs and output gradients of 3 samples, process 1 .* of 4 samples"),
        ("one clips", "or it is not the mean over the 2 processes"),
        ("one refuses", "Process 1 has a reason of its own."),
    ],
)
def test_all_give_up_together(found: list[dict[str, Any]], name: str, said: str):
    for process in found:
        one = process[name]
        assert all(layer["kappa"] is None for layer in one["layers"])
        assert one["history"]["expected"] is None
    reasons = [process[name]["refused"]["expected"] for process in found]
    for reason in reasons:
        assert re.search(said, reason)


@pytest.mark.process
def test_both_processes_book_the_step_of_the_joined_batch(found: list[dict[str, Any]]):
    expected = alone(CASES["each alone"])
    log_constants = expected["history"]["log_constant"]
    assert abs(log_constants[-1] - log_constants[0]) > 1e-4
    for process in found:
        # The mean of two means is that of all, up to roundings.
        for key in ("log_constant", "realised"):
            assert process["each alone"]["history"][key] == pytest.approx(expected["history"][key], abs=1e-12)
    assert found[0]["each alone"]["history"] == found[1]["each alone"]["history"]
