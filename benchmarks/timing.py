"""Timing that waits for the device: best of several runs after a warm-up."""

import time
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def best_of(run: Callable[[], T], repeats: int = 3) -> tuple[float, T]:
    """Seconds of the fastest of `repeats` runs, after one that does not count, and the last result."""
    result = run()
    fastest = float("inf")
    for _ in range(repeats):
        _wait()
        start = time.perf_counter()
        result = run()
        _wait()
        fastest = min(fastest, time.perf_counter() - start)
    return fastest, result


def machine() -> str:
    """The machine on which the figures were measured."""
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {torch.get_num_threads()} threads"
    return f"torch {torch.__version__}, {where}"


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
