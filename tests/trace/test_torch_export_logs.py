"""What torch says on the way to a failure is kept back; what a model prints on the way to a result is not."""

import logging
import sys
from collections.abc import Callable

import pytest

from lipkit.trace.torch_export import without_logs


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _fails(says: Callable[[], None]) -> None:
    with without_logs():
        says()
        raise KeyError


@pytest.fixture
def heard() -> _Heard:
    return _Heard()


@pytest.mark.parametrize("name", ["torch", "torch.lipkit_test"])
def test_loggers_of_torch_are_silent_inside_and_only_there(heard: _Heard, name: str) -> None:
    logger = logging.getLogger(name)
    logger.addHandler(heard)
    try:
        with without_logs():
            logger.error("inside")
        with pytest.raises(KeyError):
            _fails(lambda: logger.error("before a failure"))
        logger.error("outside")
    finally:
        logger.removeHandler(heard)
    assert heard.lines == ["outside"]


def test_other_loggers_are_heard(heard: _Heard) -> None:
    logger = logging.getLogger("torchlike")
    logger.addHandler(heard)
    try:
        with without_logs():
            logger.error("mine")
    finally:
        logger.removeHandler(heard)
    assert heard.lines == ["mine"]


def test_what_is_printed_comes_after_all_unless_something_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with without_logs():
        print("from a model", file=sys.stderr)
    assert capsys.readouterr().err == "from a model\n"
    with pytest.raises(KeyError):
        _fails(lambda: print("from torch", file=sys.stderr))
    assert capsys.readouterr().err == ""
