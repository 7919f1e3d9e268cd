"""A profiler in each of two processes: both book the common step, which is that of the joined batch."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from lipkit import analysis
from support.programs.run import run_program

PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from torch import distributed, nn
from lipkit import analysis
from support.programs.run import together

def work(rank, place):
    distributed.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(8, 5, dtype=torch.float64)[4 * rank : 4 * rank + 4]
    both = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with analysis.Profiler(model, optimizer, x[:1], every=2) as profile:
        for _ in range(4):
            optimizer.zero_grad()
            both(x).square().mean().backward()
            optimizer.step()
    history = profile.history
    found = [history.log_constant.tolist(), history.realised.tolist(), history.refused.get("expected", "")]
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    # Leaving at once: torch's gloo group may wait in its destructor for a thread that waits for the interpreter.
    os._exit(0)

together(work, json.loads(sys.argv[1]), 2)
"""


@pytest.mark.process
def test_both_processes_book_the_step_of_the_joined_batch(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = run_program(tmp_path / "program.py", [json.dumps([str(tmp_path)])], 120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x = torch.randn(8, 5, dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with analysis.Profiler(model, optimizer, x[:1], every=2) as profile:
        for _ in range(4):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert abs(float(profile.history.log_constant[-1] - profile.history.log_constant[0])) > 1e-4
    for log_constant, realised, reason in (first, second):
        # The mean of two means is that of all, up to roundings.
        assert log_constant == pytest.approx(profile.history.log_constant.tolist(), abs=1e-12)
        assert realised == pytest.approx(profile.history.realised.tolist(), abs=1e-12)
        assert "2 processes" in reason
    assert first[:2] == second[:2]
