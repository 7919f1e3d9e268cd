"""The page of a smoothing run: one HTML file that needs nothing else."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from lipkit._files import write_whole
from lipkit.bound import Kind
from lipkit.certify.evaluate.evaluation import said_radius
from lipkit.errors import ArgumentError
from lipkit.report.figure_style import Paper, drawing, inline
from lipkit.report.html.claims import about_number, about_share
from lipkit.report.html.frame import frame_page, section
from lipkit.report.html.markup import Cell, Markup, bullets, facts, figure, join, paragraph, table, text
from lipkit.report.html.numbers import digits
from lipkit.report.results.smoothing_contents import MethodCurve, SmoothingContents
from lipkit.report.smoothing_figure import plot_curves


def render_smoothing_page(contents: SmoothingContents) -> str:
    """The report as one HTML document; the same contents give the same text."""
    title = "A smoothed classifier: what is proven"
    found = hashlib.sha256(contents.to_json().encode()).hexdigest()
    main = (
        f'<section id="summary" aria-label="Summary">{_summary(contents)}</section>'
        f"{section('curves', 'Certified accuracy against the size of the change', _curves(contents))}"
        f"{section('methods', 'Method by method', _methods(contents))}"
        f"{section('reading', 'How to read this page', _reading(contents))}"
    )
    return frame_page(title, "Robustness report", main, found)


def write_smoothing_report(contents: SmoothingContents, folder: str | Path) -> tuple[Path, Path]:
    """Write `report.json` and `report.html` to a folder, made if need be; returns their paths, the page first."""
    folder = Path(folder)
    data, shown = contents.to_json().encode(), render_smoothing_page(contents).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be made a folder for the report ({error.strerror}).") from error
    paths = folder / "report.html", folder / "report.json"
    write_whole(paths[1], data)
    write_whole(paths[0], shown)
    return paths


def _summary(contents: SmoothingContents) -> str:
    first = contents.methods[0]
    said = join(
        "Under noise, the classifier keeps the right class of ", about_share("certified at 0", first.shares.clean),
        f" test images, each with probability {1 - contents.alpha:g}; the average certified radius is ",
        about_number("mean radius", first.shares.mean_radius, digits(first.shares.mean_radius, Kind.LOWER, 3)),
        f" in l{contents.p:g} ({first.name}).",
    )  # fmt: skip
    known: list[tuple[str, Cell]] = [
        ("noise", contents.noise),
        ("samples of an image", f"{contents.samples:,} that prove, {contents.choosing:,} that choose the class"),
        ("probability that a radius is wrong", f"at most {contents.alpha:g} for each image by itself"),
        ("seed", str(contents.seed)),
        ("evaluated in", f"{contents.precision}, on {contents.device}"),
    ]
    return paragraph(said) + facts(known)


def _curves(contents: SmoothingContents) -> str:
    caption = (
        f"All methods use the same votes. Shaded bands: {100 * contents.level:g} % confidence about the population "
        "that the images were drawn from, each radius by itself. Each curve is a certificate; choose the method before "
        "you see them."
    )
    return figure(lambda paper: _draw(contents, paper), caption)


def _draw(contents: SmoothingContents, paper: Paper) -> str:
    with drawing(paper.inches, 4.2 if paper is Paper.WIDE else 3.9) as (drawn, axes):
        plot_curves(axes, contents.methods, contents.eps, f"length of the change in l{contents.p:g}")
        # Above the curves, so that none is hidden by its own explanation.
        columns = 3 if paper is Paper.WIDE else 1
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=columns, columnspacing=1.2, borderaxespad=0.0)
        name = "curves" if paper is Paper.WIDE else f"curves-{paper.value}"
        return inline(drawn, name, "Certified accuracy against the length of the change. " + _said(contents))


def _said(contents: SmoothingContents) -> str:
    """What a screen reader says of the curves: the table of the first method."""
    first = contents.methods[0]
    shares = zip(contents.eps, first.shares.certified, strict=True)
    return f"{first.name}: " + "; ".join(f"at {said_radius(eps)} {share.counted()}" for eps, share in shares) + "."


def _methods(contents: SmoothingContents) -> str:
    head = ["method", ">undecided", *(f">{said_radius(eps)}" for eps in contents.eps), ">mean radius"]
    return table(
        f"Certified at each radius in l{contents.p:g}, of {contents.images} images",
        head,
        [_row(one, contents.eps) for one in contents.methods],
        "counts",
    )


def _row(one: MethodCurve, eps: Sequence[float]) -> list[Cell]:
    mean = one.shares.mean_radius
    cells: list[Cell] = [one.name, str(one.undecided)]
    for radius, share in zip(eps, one.shares.certified, strict=True):
        claim = about_share(f"certified at {said_radius(radius)} by {one.name}", share)
        cells.append(join(claim, Markup(f"<small>{text(share.interval)}</small>")))
    return [*cells, about_number(f"mean radius by {one.name}", mean, digits(mean, Kind.LOWER, 3))]


def _reading(contents: SmoothingContents) -> str:
    return bullets(
        [
            "The smoothed classifier gives an image the class that wins most votes of noisy copies of it. A certified "
            "radius says how far the image may move, in all, before another class can win.",
            f"Votes are counted, so a radius holds with a probability: {1 - contents.alpha:g} or more for each image "
            f"by itself. Of {contents.images} images, {contents.alpha * contents.images:g} at most are expected to "
            "have a radius that is too large.",
            "Undecided images have no proven class; they count as wrong, as images of a wrong class do.",
            "What is certified is the smoothed classifier as it was evaluated, in its own precision. The network alone "
            "has no such guarantee.",
            "Methods differ in how they spend the probability of error. All of them are valid; taking the best one for "
            "each image, or the best curve, is not.",
            "Intervals tell how much the shares depend on which test images were drawn, and nothing about the proof.",
        ]
    )
