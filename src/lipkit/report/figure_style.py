"""The house style of figures, and the one place that imports the library that draws them."""

import enum
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.figure import Figure as Figure

# Okabe and Ito's colours, told apart by the colour-blind; lines differ by dash and marker too, so grey print works.
LOOKS: tuple[tuple[str, Any, str], ...] = (
    ("#0072B2", "-", "o"),
    ("#D55E00", (0, (6, 2)), "s"),
    ("#009E73", (0, (6, 2, 1, 2)), "^"),
    ("#CC79A7", (0, (1, 1.2)), "D"),
    ("#000000", (0, (3, 1.2)), "v"),
)
INK, FAINT = "#1a1a2a", "#c9c9d1"
# Names of colours on a page, which has its own value for each in both themes.
_NAMES = {INK: "ink", FAINT: "faint", "#0072b2": "blue", "#d55e00": "orange", "#009e73": "green"}
_SALT = "lipkit"


class Paper(enum.Enum):
    """Where a drawing of a page is shown; a page hides the other one. The value is the page's word for it."""

    WIDE = "wide"
    NARROW = "narrow"

    @property
    def inches(self) -> float:
        """The width at which text has the size of the page's own: about 860 and 360 pixels."""
        return 8.0 if self is Paper.WIDE else 3.9


def style() -> dict[str, Any]:
    """The house style, as matplotlib settings: quiet axes, and in an SVG text that stays text and no random names."""
    return {
        "figure.dpi": 150,
        "savefig.dpi": 150,
        "font.family": "DejaVu Sans",
        "font.size": 9.0,
        "axes.titlesize": 10.0,
        "axes.titlelocation": "left",
        "axes.titlepad": 10.0,
        "axes.labelsize": 9.0,
        "axes.linewidth": 0.8,
        "axes.edgecolor": "#444444",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.color": "#dddddd",
        "grid.linewidth": 0.6,
        "lines.linewidth": 1.6,
        "lines.markersize": 5.0,
        "legend.frameon": False,
        "legend.fontsize": 8.5,
        "svg.fonttype": "none",
        "svg.hashsalt": _SALT,
    }


def page_style() -> dict[str, Any]:
    """The same for drawings inside a page: no background, and only colours that the page has names for."""
    ink = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor")
    return {
        **style(),
        **dict.fromkeys((*ink, "axes.edgecolor", "xtick.color", "ytick.color"), INK),
        "grid.color": FAINT,
        "axes.facecolor": "none",
        "figure.facecolor": "none",
        "savefig.facecolor": "none",
        "axes.axisbelow": True,
    }


@contextmanager
def sheet(width: float, height: float, settings: dict[str, Any] | None = None) -> Iterator["Figure"]:
    """An empty figure of so many inches under the house style, or under `settings`; nothing global stays changed.

    Needs the extra `plot` (matplotlib).
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(style() if settings is None else settings):  # pyright: ignore[reportArgumentType]
        yield Figure(figsize=(width, height))


@contextmanager
def drawing(width: float, height: float) -> Iterator[tuple["Figure", "Axes"]]:
    """A figure of so many inches for a page, with one pair of axes that fill it."""
    with sheet(width, height, page_style()) as figure:
        figure.set_layout_engine("constrained")
        yield figure, figure.subplots()


def drawn_by() -> str:
    """The library that draws, with its version: drawings of another version differ in their bytes."""
    import matplotlib as mpl

    return f"matplotlib {mpl.__version__}"


def inline(figure: "Figure", name: str, label: str) -> str:
    """The figure as an <svg> element to put into a page: the same bytes for the same figure.

    Colours are the page's variables, text is text in the page's font, ids begin with `name` (unique on the page), and
    `label` is what a screen reader says. Call it inside of `drawing`.
    """
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]+"', text)
    assert box is not None
    opening = f'<svg {box.group()} role="img" aria-label="{escape(label)}">'
    text = re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'\b(?:xlink:)?href="#', f'href="#{name}-', text)
    text = text.replace("url(#", f"url(#{name}-")
    # Its style sheet would speak for the whole page.
    text = re.sub(r"<style[^>]*>.*?</style>\s*", "", text, flags=re.DOTALL)
    text = text.replace("font-family: 'DejaVu Sans'; ", "")
    for colour, known in _NAMES.items():
        text = re.sub(rf": {colour}\b", f": var(--{known}, {colour})", text, flags=re.IGNORECASE)
    return text.strip()
