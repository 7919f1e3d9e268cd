"""Programs run beside the tests, with everything they start, and ended with everything they started."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def run_program(
    script: Path, arguments: Sequence[str], environment: dict[str, str], seconds: float = 600
) -> subprocess.CompletedProcess[str]:
    """Run a Python script to its end. One that takes longer is killed, its children too, and the test fails."""
    command = [sys.executable, str(script), *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            # Children hold the pipes open; killing the parent alone would leave us waiting for them.
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"{command} did not end within {seconds} s\n{out[-2000:]}\n{err[-4000:]}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def together(work: Callable[..., None], arguments: tuple[Any, ...], count: int) -> None:
    """Call work(rank, *arguments) in `count` processes, until all have ended or one has failed.

    They are copies of this one, which has loaded everything: fresh ones would take longer to import torch than to do
    what they are started for.
    """
    from torch.multiprocessing.spawn import start_processes

    start_processes(work, args=arguments, nprocs=count, start_method="fork")
