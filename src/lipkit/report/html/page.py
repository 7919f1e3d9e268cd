"""One HTML file that needs nothing else: no network, no scripts, two themes, any width.

The text is a function of the `Contents` alone. What it claims, and how that is read back, is in claims.py."""

import hashlib
import html
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

from lipkit._files import write_whole
from lipkit.bound import Kind
from lipkit.errors import ArgumentError
from lipkit.report.figure_style import drawn_by
from lipkit.report.html import sections
from lipkit.report.html.claims import Claim, about_number, about_text, read_claims
from lipkit.report.html.frame import frame_page, section
from lipkit.report.html.gallery_section import pictures
from lipkit.report.html.markup import Cell, Markup, bullets, join, paragraph, table, text
from lipkit.report.html.numbers import constant, digits
from lipkit.report.html.privacy_section import privacy_section
from lipkit.report.html.profile_section import profile_section
from lipkit.report.html.summary import noun, summary
from lipkit.report.results.contents import Contents
from lipkit.report.results.gather import describe_error

# Id, heading, function, and the parts of the contents it needs.
_Section = tuple[str, str, Callable[[Contents], str], tuple[str, ...]]
_SECTIONS: tuple[_Section, ...] = (
    ("curve", "Accuracy against the size of the change", sections.curve, ()),
    ("radii", "How the certified radii are spread", sections.radii, ()),
    ("classes", "Class by class", sections.classes, ()),
    ("pictures", "Hardest and safest", pictures, ("gallery",)),
    ("plane", "The map", sections.plane, ("plane",)),
    ("layers", "Where the constant comes from", sections.layers, ("network", "layers")),
    ("spectra", "What each layer does to its input", sections.spectra, ("network", "spectra")),
    ("depth", "Gradients over depth", sections.depth, ("depth",)),
    ("privacy", "Privacy of the training records", privacy_section, ()),
    ("training", "Training", sections.training, ("training",)),
    ("profile", "How the constant came about", profile_section, ("profile",)),
)


def render_page(contents: Contents) -> str:
    """The report as one HTML document; the same contents give the same text.

    A part that could not be measured, or cannot be drawn, is replaced by a sentence that says so and why.
    """
    about = contents.about
    subject = about.recipe or Path(about.model).name
    title = f"{subject}{contents.data.name and f' on {contents.data.name}'}: what is proven"
    last = (
        ("environment", "Environment, and how to repeat this", _environment, ()),
        ("reading", "How to read this page", _reading, ()),
    )
    # A map of points in the plane, or images, never both. A model that was given as it is has no training to show, and
    # a private training keeps no losses.
    absent = {"pictures" if _in_the_plane(contents) else "plane", "" if about.recipe else "training"}
    absent |= {"privacy" if contents.privacy is None else "training"}
    absent |= set() if contents.profile is not None else {"profile"}
    shown = [one for one in (*_SECTIONS, *last) if one[0] not in absent]
    body = "".join(section(name, heading, _part(contents, make, needs)) for name, heading, make, needs in shown)
    top = f'<section id="summary" aria-label="Summary">{summary(contents)}</section>{_links(shown)}'
    return frame_page(title, f"Robustness report, {about.date}", top + body, _print(contents))


def _links(sections: Sequence[_Section]) -> str:
    """Where to find what, below the summary."""
    items = "".join(f'<li><a href="#{name}">{escape(heading)}</a></li>' for name, heading, _, _ in sections)
    return f'<nav aria-label="Sections"><ul>{items}</ul></nav>'


def write_report(contents: Contents, folder: str | Path) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` to a folder, made if need be; returns their paths, the page first.

    Both are made before anything is written, and each takes its place in one step: an interrupted or failing run leaves
    what was there. The data go first, and the page names their hash, so that a page of other data shows.
    """
    folder = Path(folder)
    data, shown = contents.to_json().encode(), render_page(contents).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be made a folder for the report ({error.strerror}).") from error
    paths = folder / "report.html", folder / "report.json"
    write_whole(paths[1], data)
    write_whole(paths[0], shown)
    return paths


def _in_the_plane(contents: Contents) -> bool:
    """Whether the page has a map, or says why it could not be made."""
    return contents.plane is not None or any(failure.part == "plane" for failure in contents.failures)


def _part(contents: Contents, make: Callable[[Contents], str], needs: tuple[str, ...]) -> str:
    failed = [failure for failure in contents.failures if failure.part in needs]
    if failed:
        return _failure_note(f"{failed[0].part} could not be measured", failed[0].reason)
    try:
        return make(contents)
    except Exception as error:  # noqa: BLE001 - whatever one part raises, the others are worth having
        return _failure_note("This part could not be drawn", describe_error(error))


def _failure_note(what: str, why: str) -> str:
    return paragraph(f"{what[0].upper()}{what[1:]}: {why} The numbers of the other parts are not affected.", "failed")


def _environment(contents: Contents) -> str:
    about, one, known = contents.about, contents.constant, contents.about.prints
    failure = f"at most {digits(contents.failure, Kind.UPPER, 2)}" if contents.failure else "none: deterministic"
    smallest = about_number(
        "logarithm of the smallest constant", one.log_smallest, constant(one.log_smallest, one.kind)
    )
    lower = (
        "not known"
        if one.log_lower is None
        else about_number("logarithm of its lower bound", one.log_lower, constant(one.log_lower, Kind.LOWER))
    )
    hashes = {
        "test inputs": known.inputs, "test labels": known.labels,
        "recipe code" if about.recipe else "model code": known.code,
    }  # fmt: skip
    rows: list[list[Cell]] = [
        ["recipe", about.recipe] if about.recipe else ["model", about.model],
        ["training", _training_time(contents)],
        ["device", about.device],
        ["platform", about.software.platform],
        ["constants", join(f"{one.entries}, for {one.of}; the smallest is ", smallest)],
        ["lower bound of the largest", lower],
        ["probability of failure", failure],
        *(
            [f"SHA-256 of {what}", Markup(f"<code>{text(about_text(f'SHA-256 of {what}', found))}</code>")]
            for what, found in hashes.items()
            if found
        ),
    ]
    caption = "Fields of the recipe" if about.recipe else "Settings of the evaluation"
    fields = table(caption, ("field", "value"), about.fields) if about.fields else ""
    return (
        paragraph("This command makes the page again:")
        + f'<pre tabindex="0" aria-label="command"><code>{escape(about.command)}</code></pre>'
        + table("Environment", ("what", "value"), rows)
        + fields
    )


def _training_time(contents: Contents) -> str:
    if contents.about.seconds is not None:
        return f"{contents.about.seconds:.1f} s"
    if contents.privacy is not None:
        return "not recorded: the time of a private step tells how many records it had"
    return "not here: the model was given as it is"


def _reading(contents: Contents) -> str:
    kind = noun(contents)
    return bullets(
        [
            f"A certified radius belongs to one {kind}: whatever is changed about it, by less than this length in all, "
            "its class stays the same. It holds for every change, also for those nobody has thought of.",
            "It is computed from the gap between the two highest scores, divided by how fast that gap can change: the "
            "Lipschitz constant. A small constant and wide gaps make large radii.",
            "Exact and upper bound mean proven, rounding included; lower bound means that the true number is not "
            "smaller; an estimate proves nothing. Certified numbers are rounded down on this page, attacked ones up.",
            "The proof is about the model as it is stored, evaluated in float64, and about single inputs in the units "
            "it takes; it says nothing about inputs that are wrong to begin with or come from elsewhere.",
            "Intervals tell how much the shares depend on which test data were drawn, and nothing about the proof.",
        ]
    )


def _print(contents: Contents) -> str:
    return hashlib.sha256(contents.to_json().encode()).hexdigest()


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
    """A sentence about a claim that is not among the known ones."""
    same = [one for one in known if one.name == claim.name]
    if not same:
        return f"The page claims {claim.name}: {claim.words}, of which its data say nothing."
    if claim.words in [one.words for one in same]:
        return f"The page marks {claim.name} with the value {claim.value}, expected {same[0].value}."
    return f"The page says {claim.name}: {claim.words}, expected {same[0].words}."
