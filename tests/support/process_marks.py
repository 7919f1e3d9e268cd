"""A guard: a test that starts a process of Python must carry a mark that says so, because it takes seconds."""

import multiprocessing.process
import os
import sys
from pathlib import Path
from typing import Any

import pytest

MARKS = ("process", "compile", "train", "browser")
# Raised by the wrapper below: Python itself reports no event where multiprocessing spawns.
_SPAWN = "tests.spawn"
# The test that runs; empty between tests.
running: list[pytest.Item] = []


def install() -> None:
    """Watch for processes from here on. Hooks of Python cannot be removed, so this is done once for a session."""
    start = multiprocessing.process.BaseProcess.start

    def reported(self: multiprocessing.process.BaseProcess) -> None:
        sys.audit(_SPAWN)
        start(self)

    multiprocessing.process.BaseProcess.start = reported
    sys.addaudithook(_refuse_unmarked)


def _refuse_unmarked(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in ("os.fork", "subprocess.Popen", "os.posix_spawn", _SPAWN) or not running:
        return
    # Programs such as git take milliseconds; an interpreter that imports torch takes seconds.
    if event in ("subprocess.Popen", "os.posix_spawn") and not _is_python(arguments[0], arguments[1]):
        return
    if not any(running[-1].get_closest_marker(mark) for mark in MARKS):
        pytest.fail(f"{running[-1].nodeid} starts a process and has no mark; mark it with one of {', '.join(MARKS)}.")


def _is_python(program: Any, words: Any) -> bool:
    first = program or (words if isinstance(words, str | bytes) else words[0])
    return Path(os.fsdecode(first)).name.startswith("python")
