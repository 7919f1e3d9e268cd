"""Claims: what a page says in words, tied to the exact value that it says it about.

The page is a function of its `Contents` alone (`render_page`), and these are saved beside it as report.json. So every
claim has two machine-readable forms: a field of report.json, and on the page itself a `<data>` element whose `value` is
exact and whose visible text was made from that value, for example

    <data data-claim="certified at 0.5" value="255/397">255 of 397, 64.2 %</data>.

`read_claims` reads them back from a page, text and value. `compare_page` (page_check.py) renders the contents again and
names every claim in which a page differs from them; all text that is no claim is compared too. Values: shares are
written count/total, and floats by `repr`, which reads back to the bit.
"""

from dataclasses import dataclass
from html.parser import HTMLParser
from typing import final

from lipkit.bound import Kind
from lipkit.certify import Accuracies, Proportion
from lipkit.certify.evaluate.evaluation import said_radius


@final
@dataclass(frozen=True)
class Claim:
    """One statement: what it is about, the exact value as text, and the words on the page.

    A claim about one class has a name that ends in " of class " and the class.
    """

    name: str
    value: str
    words: str


def about_share(name: str, share: Proportion, kind: Kind = Kind.LOWER) -> Claim:
    """A share with its counts: "255 of 397, 64.2 %"."""
    return Claim(name, f"{share.count}/{share.total}", share.counted(kind))


def about_interval(name: str, share: Proportion) -> Claim:
    """The confidence interval of the share of that name."""
    return Claim(f"interval of {name}", f"{share.low!r} to {share.high!r}", share.interval)


def about_number(name: str, value: float, words: str) -> Claim:
    """A number, and how it is rounded."""
    return Claim(name, repr(value), words)


def about_text(name: str, text: str) -> Claim:
    """A text that is its own value."""
    return Claim(name, text, text)


@final
@dataclass(frozen=True)
class ShareClaims:
    """The names of the shares of all samples, or of one class: those of `Accuracies`, in its order."""

    shares: Accuracies
    eps: tuple[float, ...]
    of: str = ""

    @property
    def clean(self) -> Claim:
        """Samples that are classified correctly as they are."""
        return about_share(f"correct{self.of}", self.shares.clean)

    def certified(self, i: int) -> Claim:
        """Samples that are proven at the radius of place i."""
        return about_share(self._at("certified", i), self.shares.certified[i])

    def attacked(self, i: int) -> Claim | None:
        """Samples that the attack left at the radius of place i; None where none was run."""
        left = self.shares.attacked
        return None if left is None else about_share(self._at("attacked", i), left[i], Kind.UPPER)

    def _at(self, what: str, i: int) -> str:
        return f"{what} at {said_radius(self.eps[i])}{self.of}"


class _Reader(HTMLParser):
    """Collects the <data> elements that are claims, with their visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Claim] = []
        self._open: tuple[str, str] | None = None
        self._words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "data" and "data-claim" in known:
            self._open, self._words = (known["data-claim"] or "", known.get("value") or ""), []

    def handle_data(self, data: str) -> None:
        self._words.append(data)

    def handle_endtag(self, tag: str) -> None:
        if tag == "data" and self._open is not None:
            self.found.append(Claim(*self._open, "".join(self._words).replace("\N{NO-BREAK SPACE}", " ")))
            self._open = None


def read_claims(page: str) -> tuple[Claim, ...]:
    """The claims of a page, in its order; one that is made several times is there several times."""
    reader = _Reader()
    reader.feed(page)
    return tuple(reader.found)
