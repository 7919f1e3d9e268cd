"""Programs run beside the tests, with everything they start, and ended with everything they started."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent


def environment(**more: str) -> dict[str, str]:
    """That of this process, with one thread and the tests' modules beside those that can be imported here."""
    paths = [str(PROGRAMS.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths), **more}


def run_program(
    script: Path, arguments: Sequence[str], seconds: float = 600, *, variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Python script to its end, in `environment` with `variables`. One that takes longer than `seconds` is
    killed, its children too, and the test fails."""
    command = [sys.executable, str(script), *arguments]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables or {}),
        start_new_session=True,
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
