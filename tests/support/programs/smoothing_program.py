"""A smoothing run in processes of its own: python smoothing_program.py FOLDER PROCESSES [slowly]."""

import os
import sys
import tempfile
import time
import traceback
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from lipkit.certify import smoothing as rs
from support.programs.run import together

COUNT = 24


def smoothed() -> rs.Smoothed:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))
    return rs.Smoothed(model, 0.4, num_classes=3, simplex=[rs.Hardmax(), rs.Softmax(0.2), rs.Softmax(1.0)])


def data() -> TensorDataset:
    inputs = torch.randn(COUNT, 5, generator=torch.Generator().manual_seed(4))
    return TensorDataset(inputs, torch.arange(COUNT) % 3)


def settings() -> dict[str, Any]:
    return {"eps": [0.0, 0.2], "n0": 20, "n": 500, "block": 128, "seed": 7}


def work(rank: int, folder: str, count: int, slowly: bool, meeting: str) -> None:
    failed = 0
    try:
        torch.set_num_threads(1)
        if count > 1:
            where = f"file://{meeting}/meeting"
            dist.init_process_group("gloo", where, timedelta(seconds=60), rank=rank, world_size=count)
        pause = (lambda _done, _all: time.sleep(0.2)) if slowly else None
        found = rs.certify_data(smoothed(), data(), **settings(), records=folder, progress=pause)
        assert len(found.radii) == COUNT
        # Without a folder the samples travel between the processes instead.
        again = rs.certify_data(smoothed(), data(), **settings())
        assert torch.equal(again.radii.radius, found.radii.radius)
    except Exception:  # noqa: BLE001 - reported here, because the process does not end by itself
        failed = 1
        traceback.print_exc()
    sys.stderr.flush()
    # Leaving at once: torch's gloo group may wait in its destructor for a thread that waits for the interpreter.
    os._exit(failed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as meeting:
        together(work, (sys.argv[1], int(sys.argv[2]), "slowly" in sys.argv, meeting), int(sys.argv[2]))
