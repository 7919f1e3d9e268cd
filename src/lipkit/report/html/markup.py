"""Pieces of HTML: every text is escaped here, and nowhere else."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import final


@final
@dataclass(frozen=True)
class Markup:
    """Text that is HTML already."""

    text: str


Cell = str | Markup


def text(cell: Cell) -> str:
    """HTML for a cell: markup as it is, anything else escaped, and no line ends between a number and its %."""
    return cell.text if isinstance(cell, Markup) else escape(cell).replace(" %", "&nbsp;%")


def paragraph(words: Cell, look: str = "") -> str:
    """A paragraph, of a class if one is named."""
    return f'<p class="{look}">{text(words)}</p>' if look else f"<p>{text(words)}</p>"


def bullets(items: Iterable[Cell], look: str = "") -> str:
    """A list."""
    opening = f'<ul class="{look}">' if look else "<ul>"
    return opening + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]]) -> str:
    """A table in a box of its own that scrolls; columns whose heading begins with > hold numbers, set to the right."""
    right = [name.startswith(">") for name in head]
    titles = "".join(
        f'<th scope="col"{_number(side)}>{escape(name.removeprefix(">"))}</th>'
        for name, side in zip(head, right, strict=True)
    )
    body = "".join(f"<tr>{_row(row, right)}</tr>" for row in rows)
    return (
        f'<div class="box" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(svg: str, caption: str) -> str:
    """A drawing with its caption, in a box that scrolls on narrow screens."""
    return f'<figure><div class="box">{svg}</div><figcaption>{escape(caption)}</figcaption></figure>'


def _row(row: Sequence[Cell], right: Sequence[bool]) -> str:
    first, *others = (f"{_number(side)}>{text(cell)}" for cell, side in zip(row, right, strict=True))
    return f'<th scope="row"{first}</th>' + "".join(f"<td{other}</td>" for other in others)


def _number(side: bool) -> str:
    return ' class="number"' if side else ""
