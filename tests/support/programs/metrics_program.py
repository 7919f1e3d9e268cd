"""Metrics of two processes, one of which sees nothing in the first round: python metrics_program.py."""

import os
import sys
import tempfile
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from lipkit import Bound, Kind
from lipkit.certify import AttackedAccuracy, CertifiedAccuracy, CleanAccuracy
from lipkit.certify.attacks import PGD
from support.programs.run import together


def work(rank: int, meeting: str) -> None:
    failed = 0
    try:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        model, x, y = nn.Linear(4, 3), torch.randn(30, 4), torch.arange(30) % 3
        bound = Bound.from_value(1.0, Kind.UPPER, "given")
        attack = PGD(0.2, steps=3, random_start=False)

        def made() -> tuple[CleanAccuracy, CertifiedAccuracy, AttackedAccuracy]:
            clean, certified = CleanAccuracy(classes=3), CertifiedAccuracy([0.1], bound, classes=3)
            return clean, certified, AttackedAccuracy(model, attack, [0.2], classes=3)

        def fed(rows: slice, metrics: tuple[CleanAccuracy, CertifiedAccuracy, AttackedAccuracy]) -> None:
            for metric in metrics[:2]:
                metric.update(model(x[rows]), y[rows])
            metrics[2].update(x[rows], y[rows])

        alone = made()
        fed(slice(0, 30), alone)
        expected = [(metric.compute(), metric.per_class()) for metric in alone]
        dist.init_process_group("gloo", f"file://{meeting}/meeting", timedelta(seconds=60), rank=rank, world_size=2)
        shared = made()
        if rank == 0:
            fed(slice(0, 30), shared)
        assert [(metric.compute(), metric.per_class()) for metric in shared] == expected
        for metric in shared:
            metric.reset()
        fed(slice(0, 11) if rank == 0 else slice(11, 30), shared)
        assert [(metric.compute(), metric.per_class()) for metric in shared] == expected
    except Exception:  # noqa: BLE001 - reported here, because the process does not end by itself
        failed = 1
        traceback.print_exc()
    sys.stderr.flush()
    # Leaving at once: torch's gloo group may wait in its destructor for a thread that waits for the interpreter.
    os._exit(failed)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        together(work, (folder,), 2)
