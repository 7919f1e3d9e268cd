"""Whether a page says what its data say."""

import re
from collections.abc import Sequence

from lipkit.report.html.claims import Claim, read_claims
from lipkit.report.html.page import render_page
from lipkit.report.results.contents import Contents

_DRAWING = re.compile(r"<svg.*?</svg>", re.DOTALL)
_GENERATOR = re.compile(r'<meta name="generator" content="([^"]*)">')


def compare_page(page: str, contents: Contents) -> list[str]:
    """A sentence for each thing that a page says otherwise than `render_page(contents)`; [] if it says the same.

    Claims are compared by value and by words, all other text as a whole. Drawings are compared to the byte if the same
    version of the library that draws them made the page, and left out otherwise. Cost: `render_page`.
    """
    expected = render_page(contents)
    if _GENERATOR.findall(page) != _GENERATOR.findall(expected):
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


def _describe(claim: Claim, known: Sequence[Claim]) -> str:
    """What is wrong with a claim that is not among the known ones."""
    same = [one for one in known if one.name == claim.name]
    if not same:
        return f"The page claims {claim.name}: {claim.words}, of which its data say nothing."
    if claim.words in [one.words for one in same]:
        return f"The page marks {claim.name} with the value {claim.value}, expected {same[0].value}."
    return f"The page says {claim.name}: {claim.words}, expected {same[0].words}."
