"""Pieces of HTML: every text is escaped here, and nowhere else."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import final

from lipkit.report.figure_style import Paper
from lipkit.report.html.claims import Claim


@final
@dataclass(frozen=True)
class Markup:
    """Text that is HTML already."""

    text: str


Cell = str | Markup | Claim


def text(cell: Cell) -> str:
    """HTML for a cell: markup as it is, anything else escaped, and no line ends between a number and its %.

    A claim becomes a <data> element with its name and exact value.
    """
    if isinstance(cell, Markup):
        return cell.text
    if isinstance(cell, Claim):
        return f'<data data-claim="{escape(cell.name)}" value="{escape(cell.value)}">{text(cell.words)}</data>'
    return escape(cell).replace(" %", "&nbsp;%")


def join(*cells: Cell) -> Markup:
    """Several cells one after the other, as in a sentence with claims."""
    return Markup("".join(map(text, cells)))


def paragraph(words: Cell, look: str = "") -> str:
    """A paragraph, of a class if one is named."""
    return f'<p class="{look}">{text(words)}</p>' if look else f"<p>{text(words)}</p>"


def bullets(items: Iterable[Cell], look: str = "") -> str:
    """A list."""
    opening = f'<ul class="{look}">' if look else "<ul>"
    return opening + "".join(f"<li>{text(item)}</li>" for item in items) + "</ul>"


def facts(rows: Iterable[tuple[str, Cell]]) -> str:
    """Names with what is to be said of each, side by side where there is room."""
    return (
        '<dl class="facts">' + "".join(f"<div><dt>{escape(a)}</dt><dd>{text(b)}</dd></div>" for a, b in rows) + "</dl>"
    )


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[Cell]], look: str = "") -> str:
    """A table in a box of its own that scrolls; columns whose heading begins with > hold numbers, set to the right."""
    right = [name.startswith(">") for name in head]
    titles = "".join(
        f'<th scope="col"{_number(side)}>{escape(name.removeprefix(">"))}</th>'
        for name, side in zip(head, right, strict=True)
    )
    body = "".join(f"<tr>{_row(row, right)}</tr>" for row in rows)
    return (
        f'<div class="box" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f"<table{f' class={chr(34)}{look}{chr(34)}' if look else ''}>"
        f"<caption>{escape(caption)}</caption><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def figure(draw: Callable[[Paper], str], caption: Cell) -> str:
    """A drawing with its caption, drawn twice: for a wide window and for a phone, which shows one of them each."""
    sheets = "".join(f'<div class="{paper.value}">{draw(paper)}</div>' for paper in Paper)
    return f"<figure>{sheets}<figcaption>{text(caption)}</figcaption></figure>"


def _row(row: Sequence[Cell], right: Sequence[bool]) -> str:
    first, *others = (f"{_number(side)}>{text(cell)}" for cell, side in zip(row, right, strict=True))
    return f'<th scope="row"{first}</th>' + "".join(f"<td{other}</td>" for other in others)


def _number(side: bool) -> str:
    return ' class="number"' if side else ""
