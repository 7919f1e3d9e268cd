"""Captures in several threads; in a process of their own, because torch's export stays broken once it is."""

import subprocess
import sys

import pytest

PROGRAM = """
import threading
import torch
from torch import nn
import lipkit
from lipkit.bounds import DAG

torch.manual_seed(0)
models = [nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(4)]
found = {}

def bound(i):
    found[i] = lipkit.lipschitz(models[i], torch.zeros(1, 6), DAG()).value.item()

threads = [threading.Thread(target=bound, args=(i,)) for i in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
together = dict(found)
for i in range(4): bound(i)
assert len(together) == 4 and together == found, (together, found)
print("same")
"""


@pytest.mark.process
def test_threads_that_capture_at_once_get_what_each_gets_alone() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.strip() == "same"
