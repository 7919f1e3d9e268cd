"""Tables and progress on a terminal: the only file that knows rich."""

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

    console = Console(stderr=stderr)
    return console if console.is_terminal else Console(width=_WIDTH, stderr=stderr)


def table(title: str, *headers: str) -> "Table":
    """An empty table; `>` in front of a header aligns to the right, `+` keeps room for a sentence."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for header in headers:
        justify = "right" if header.startswith(">") else "left"
        made.add_column(header.strip(">+"), justify=justify, min_width=12 if header.startswith("+") else None)
    return made


def escaped(text: str) -> str:
    """Text that a table prints as it is, brackets included."""
    from rich.markup import escape

    return escape(text)


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """A line on standard error that says what is being done, and is gone afterwards; silent if nobody watches."""
    console = terminal(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("starting") as status:
        yield status.update
