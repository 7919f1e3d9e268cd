"""An evaluation in processes of its own: python certify_program.py FOLDER PROCESSES [slowly]."""

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
from torch.utils.data import DataLoader, TensorDataset

from lipkit.certify import CleanAccuracy, accuracy, head_pairwise
from lipkit.certify.attacks import PGD
from support.programs.run import together

COUNT = 90


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))


def data() -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(4)
    inputs = torch.randn(COUNT, 5, generator=generator)
    return DataLoader(TensorDataset(inputs, torch.arange(COUNT) % 3), batch_size=8)


def settings() -> dict[str, Any]:
    bound = head_pairwise(model(), torch.zeros(1, 5))
    return {"bound": bound, "eps": [0.05, 0.3], "attack": PGD(eps=0.3, steps=5, restarts=2), "seed": 7}


def work(rank: int, folder: str, count: int, slowly: bool, meeting: str) -> None:
    failed = 0
    try:
        torch.set_num_threads(1)
        if count > 1:
            where = f"file://{meeting}/meeting"
            dist.init_process_group("gloo", where, timedelta(seconds=60), rank=rank, world_size=count)
        pause = (lambda _done, _all: time.sleep(0.5)) if slowly else None
        found = accuracy(model(), data(), **settings(), records=folder, progress=pause)
        assert found.overall.clean.total == COUNT
        metric = CleanAccuracy()
        for number, (inputs, labels) in enumerate(data()):
            if number % count == rank:
                metric.update(model()(inputs), labels)
        assert metric.compute() == found.overall.clean
        # Without a folder the samples travel between the processes instead.
        assert accuracy(model(), data(), **settings()).samples == found.samples
    except Exception:  # noqa: BLE001 - reported here, because the process does not end by itself
        failed = 1
        traceback.print_exc()
    sys.stderr.flush()
    # Leaving at once: torch's gloo group may wait in its destructor for a thread that waits for the interpreter.
    os._exit(failed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as meeting:
        together(work, (sys.argv[1], int(sys.argv[2]), "slowly" in sys.argv, meeting), int(sys.argv[2]))
