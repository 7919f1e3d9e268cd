"""Tests that start processes carry a mark: the guard notices those that do not."""

import multiprocessing
import os
import subprocess
import sys

import pytest

_NOTHING = [sys.executable, "-c", ""]


def test_a_test_without_a_mark_may_not_start_python():
    with pytest.raises(pytest.fail.Exception, match=r"test_a_test_without_a_mark.* starts a process and has no mark"):
        subprocess.run(_NOTHING, check=True)
    with pytest.raises(pytest.fail.Exception, match="mark it with one of process, compile, train, browser"):
        os.fork()
    for context in (multiprocessing.get_context("fork"), multiprocessing.get_context("spawn")):
        with pytest.raises(pytest.fail.Exception, match="has no mark"):
            context.Process(target=print).start()


def test_other_programs_need_no_mark():
    subprocess.run(["true"], check=True)


@pytest.mark.process
def test_a_test_with_the_mark_may():
    subprocess.run(_NOTHING, check=True)
