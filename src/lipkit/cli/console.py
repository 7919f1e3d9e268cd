"""Tables and progress on a terminal: the only file that knows rich."""

import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console as Console
    from rich.table import Table as Table

# Wide enough for the tables, where nobody looks at a window of some size.
_WIDTH = 132


def terminal(stderr: bool = False) -> "Console":
    """The terminal, or for files and pipes one of 132 columns without colours."""
    from rich.console import Console

    class Patient(Console):
        def on_broken_pipe(self) -> None:
            # The reader has seen enough (`| head`). What is still printed is dropped; files are written all the same.
            self.quiet = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    console = Patient(stderr=stderr)
    return console if console.is_terminal else Patient(width=_WIDTH, stderr=stderr)


def table(title: str, *headers: str) -> "Table":
    """An empty table; `>` in front of a header aligns to the right, `+` keeps room for a sentence."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in headers:
        justify = "right" if header.startswith(">") else "left"
        made.add_column(header.strip(">+"), justify=justify, min_width=12 if header.startswith("+") else None)
    return made


def escape_markup(text: str) -> str:
    """Text that a table prints as it is, brackets included."""
    from rich.markup import escape

    return escape(text)


@contextmanager
def progress(seconds: float = math.inf) -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being done, and is gone afterwards; silent if nobody watches.

    Where there are so many `seconds` for all of it, a bar beside it shows how many are spent.
    """
    console = terminal(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    if seconds == math.inf:
        with console.status("starting") as status:
            yield status.update
        return
    from rich import progress as parts
    from rich.progress_bar import ProgressBar

    class Spent(parts.ProgressColumn):
        def render(self, task: parts.Task) -> ProgressBar:
            return ProgressBar(total=seconds, completed=min(task.elapsed or 0.0, seconds), width=30)

    columns = (Spent(), parts.TimeElapsedColumn(), parts.TextColumn("{task.description}", markup=False))
    with parts.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("starting", total=None)
        yield lambda what: shown.update(task, description=what)


@contextmanager
def bar(what: str) -> Iterator[Callable[[int, int | None, str], None]]:
    """A bar on standard error with the rate and the time left, fed with (done, all or None, remark).

    Where nobody watches it becomes a line every tenth of the way.
    """
    console = terminal(stderr=True)
    if not console.is_terminal:
        tenths = -1

        def line(done: int, total: int | None, remark: str) -> None:
            nonlocal tenths
            if total and (now := 10 * done // total) > tenths:
                tenths = now
                console.print(f"{what}: {done} of {total}{remark and ', ' + remark}", highlight=False, markup=False)

        yield line
        return
    from rich import progress as parts

    columns = (
        parts.TextColumn("{task.description}"), parts.BarColumn(), parts.MofNCompleteColumn(),
        parts.TextColumn("{task.fields[rate]}"), parts.TimeRemainingColumn(), parts.TextColumn("{task.fields[remark]}"),
    )  # fmt: skip
    with parts.Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task(what, total=None, remark="", rate="")

        def update(done: int, total: int | None, remark: str) -> None:
            speed = shown.tasks[task].speed
            rate = f"{speed:.1f}/s" if speed else ""
            shown.update(task, completed=done, total=total, remark=remark, rate=rate)

        yield update
