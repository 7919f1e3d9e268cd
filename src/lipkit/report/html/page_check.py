"""Whether a page says what its data say."""

import html
import re
from collections.abc import Sequence

from lipkit.report.figure_style import drawn_by
from lipkit.report.html.claims import Claim, read_claims
from lipkit.report.html.page import render_page
from lipkit.report.results.contents import Contents

_DRAWING = re.compile(r"<svg.*?</svg>", re.DOTALL)
# What drawings of any version may consist of beside what those of this version do.
_SHAPES = frozenset(("path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan"))
_GENERATOR = re.compile(r'<meta name="generator" content="([^"]*)">')


def compare_page(page: str, contents: Contents) -> list[str]:
    """A sentence for each thing that a page says otherwise than `render_page(contents)`; [] if it says the same.

    Claims are compared by value and by words, all other text as a whole. Drawings are compared to the byte if the same
    version of the library that draws them made the page (`has_same_drawer`), and left out otherwise, as far as they
    only draw. Cost: `render_page`.
    """
    expected = render_page(contents)
    if not has_same_drawer(page):
        if strange := sorted(_parts(page) - _parts(expected) - _SHAPES):
            return [f"The drawings of the page have parts that draw nothing: {', '.join(strange)}; make it again."]
        page, expected = (_GENERATOR.sub("", _DRAWING.sub("", text)) for text in (page, expected))
    if page == expected:
        return []
    said, known = read_claims(page), read_claims(expected)
    found = [_describe(claim, known) for claim in said if claim not in known]
    found += [f"The page does not say {claim.name}: {claim.words}." for claim in known if claim not in said]
    if found:
        return list(dict.fromkeys(found))
    drawn = _DRAWING.sub("", page) == _DRAWING.sub("", expected)
    return [f"The {'drawings' if drawn else 'text'} of the page differ from what its data give; make it again."]


def has_same_drawer(page: str) -> bool:
    """Whether the page says that the library which draws here, in this version, made its drawings."""
    return [html.unescape(name) for name in _GENERATOR.findall(page)] == [drawn_by()]


def _parts(page: str) -> set[str]:
    """The names of elements in the drawings of a page, and of attributes that run a program."""
    drawings = "".join(_DRAWING.findall(page))
    return set(re.findall(r"<([a-zA-Z][\w:-]*)", drawings)) | set(re.findall(r"[\s\"'/](on\w+)\s*=", drawings))


def _describe(claim: Claim, known: Sequence[Claim]) -> str:
    """What is wrong with a claim that is not among the known ones."""
    same = [one for one in known if one.name == claim.name]
    if not same:
        return f"The page claims {claim.name}: {claim.words}, of which its data say nothing."
    if claim.words in [one.words for one in same]:
        return f"The page marks {claim.name} with the value {claim.value}, expected {same[0].value}."
    return f"The page says {claim.name}: {claim.words}, expected {same[0].words}."
