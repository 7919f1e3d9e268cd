"""The line that says what is done: on a terminal only, with a bar where the time is known."""

import io
import math

import pytest
from rich.console import Console

from lipkit.cli import console


def watched(monkeypatch: pytest.MonkeyPatch, is_terminal: bool) -> io.StringIO:
    text = io.StringIO()
    made = Console(file=text, force_terminal=is_terminal, width=100)
    monkeypatch.setattr(console, "terminal", lambda **_: made)
    return text


@pytest.mark.parametrize("seconds", [math.inf, 5.0])
def test_nobody_watches_so_nothing_is_written(monkeypatch: pytest.MonkeyPatch, seconds: float):
    text = watched(monkeypatch, is_terminal=False)
    with console.progress(seconds) as doing:
        doing("bounding by LipLT")
    assert text.getvalue() == ""


@pytest.mark.parametrize("seconds", [math.inf, 5.0])
def test_a_terminal_shows_what_is_done_and_a_bar_where_time_is_limited(monkeypatch: pytest.MonkeyPatch, seconds: float):
    text = watched(monkeypatch, is_terminal=True)
    with console.progress(seconds) as doing:
        doing("bounding [by] LipLT")
    assert ("━" in text.getvalue()) == (seconds < math.inf)
    if seconds < math.inf:
        assert "bounding [by] LipLT" in text.getvalue()


def test_an_error_inside_passes(monkeypatch: pytest.MonkeyPatch):
    watched(monkeypatch, is_terminal=True)
    with pytest.raises(KeyError, match="mine"), console.progress(5.0):
        raise KeyError("mine")
