"""Class means over two processes: the average of their losses and gradients is that of the whole batch."""

import json
from pathlib import Path

import pytest
import torch

from lipkit.losses import HKR, KR, MulticlassHKR, MulticlassKR
from support.programs.run import run_program

# The first process has no positive sample and misses a class: without global counts the means would differ.
SCORES = [0.3, -1.2, 0.8, 2.0, 1.1, -0.4, 0.9, -2.2]
BINARY = [0, 0, 0, 0, 1, 0, 1, 1]
CLASSES = [0, 1, 1, 0, 2, 0, 2, 1]

PROGRAM = """
import json, os, sys
from pathlib import Path
import torch
from torch import distributed
from lipkit import losses
from support.programs.run import together

def work(rank, place, scores, binary, classes):
    distributed.init_process_group("gloo", init_method=f"file://{place}/meet", rank=rank, world_size=2)
    part = slice(4 * rank, 4 * rank + 4)
    f = torch.tensor(scores[part], dtype=torch.float64)
    z = torch.stack([f, f.square(), -f], 1)
    found = []
    for loss in (losses.KR, losses.HKR):
        x = f.clone().requires_grad_()
        value = loss(synchronise=True)(x, torch.tensor(binary[part]))
        value.backward()
        found.append((value.item(), x.grad.tolist()))
    for loss in (losses.MulticlassKR, losses.MulticlassHKR):
        x = z.clone().requires_grad_()
        value = loss(synchronise=True)(x, torch.tensor(classes[part]))
        value.backward()
        found.append((value.item(), x.grad.tolist()))
    found.append((losses.KR()(f, torch.tensor(binary[part])).item(), []))
    Path(place, f"{rank}.json").write_text(json.dumps(found))
    distributed.barrier()
    # Leaving at once: torch's gloo group may wait in its destructor for a thread that waits for the interpreter.
    os._exit(0)

together(work, json.loads(sys.argv[1]), 2)
"""


@pytest.mark.process
def test_two_processes_count_together(tmp_path: Path):
    (tmp_path / "program.py").write_text(PROGRAM)
    given = json.dumps([str(tmp_path), SCORES, BINARY, CLASSES])
    ran = run_program(tmp_path / "program.py", [given], 120)
    assert ran.returncode == 0, ran.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    f = torch.tensor(SCORES, dtype=torch.float64)
    z = torch.stack([f, f.square(), -f], 1)
    whole = [(loss, f, BINARY) for loss in (KR(), HKR())] + [
        (loss, z, CLASSES) for loss in (MulticlassKR(), MulticlassHKR())
    ]
    for (loss, x, labels), (value_a, grad_a), (value_b, grad_b) in zip(whole, first, second, strict=False):
        x = x.clone().requires_grad_()
        value = loss(x, torch.tensor(labels))
        (gradient,) = torch.autograd.grad(value, x)
        torch.testing.assert_close(torch.tensor((value_a + value_b) / 2, dtype=torch.float64), value)
        # Averaging gradients over processes halves them.
        torch.testing.assert_close(torch.tensor(grad_a + grad_b, dtype=torch.float64) / 2, gradient)
    # Without counting together the average is another number: the first process has one class only.
    apart = (first[-1][0] + second[-1][0]) / 2
    assert abs(apart - KR()(f, torch.tensor(BINARY)).item()) > 0.1
