"""The page of a spectral game: Shapley values of bands as bars with their errors, and scores."""

import hashlib
from html import escape
from pathlib import Path

from lipkit._files import write_whole
from lipkit.report.figure_style import INK, LOOKS, Paper, drawing, inline
from lipkit.report.html.charts import FLAT, drawing_id
from lipkit.report.html.frame import frame_page, section
from lipkit.report.html.markup import Cell, bullets, figure, paragraph, table
from lipkit.report.results.spectral_contents import SpectralContents


def write_spectral_page(contents: SpectralContents, folder: Path) -> Path:
    """Write `spectral.html` beside spectral.json; returns where it is."""
    path = folder / "spectral.html"
    write_whole(path, render_spectral_page(contents).encode())
    return path


def render_spectral_page(contents: SpectralContents) -> str:
    """The result of a spectral game as one HTML document; the same contents give the same text."""
    title = f"{Path(contents.model).name} on {contents.data}: which frequencies it uses"
    best = max(range(len(contents.shapley)), key=contents.shapley.__getitem__)
    lead = (
        f"Over {contents.images} images, band {best + 1} of {len(contents.shapley)} tells the model most about the "
        f"class: {contents.shapley[best]:.3g} ± {contents.error[best]:.2g} nats. "
        "These are estimates; nothing is certified."
    )
    caption = (
        "Shapley value of each band of frequencies, from low to high: the mean gain of log-likelihood of the true "
        "class when the band is added, over all orders of bands. Whiskers: two standard errors to each side."
    )
    main = (
        f'<section id="summary" aria-label="Summary">{paragraph(lead, "lead")}</section>'
        + section(
            "bands", "Shapley values of bands", figure(lambda paper: _bars(contents, paper), caption) + _table(contents)
        )
        + section("scores", "Scores", _scores(contents))
        + section("repeat", "How to repeat this", f'<pre tabindex="0"><code>{escape(contents.command)}</code></pre>')
    )
    digest = hashlib.sha256(contents.to_json()).hexdigest()
    return frame_page(title, "Spectral game", main, digest, "spectral.json")


def _bars(contents: SpectralContents, paper: Paper) -> str:
    with drawing(paper.inches, FLAT[paper]) as (drawn, axes):
        places = range(1, len(contents.shapley) + 1)
        axes.bar(places, contents.shapley, color=LOOKS[0][0], alpha=0.75, edgecolor=INK, lw=0.5, gid="shapley")
        twice = [2 * error for error in contents.error]
        axes.errorbar(places, contents.shapley, twice, color=INK, lw=0, elinewidth=1.0, capsize=3)
        axes.axhline(0, color=INK, lw=0.7)
        axes.locator_params(axis="x", integer=True)
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("band, from low to high frequencies")
        axes.set_ylabel("Shapley value, nats")
        said = ", ".join(f"{value:.3g}" for value in contents.shapley)
        return inline(drawn, drawing_id("shapley", paper), f"Shapley values from low to high frequencies: {said}.")


def _table(contents: SpectralContents) -> str:
    columns = (contents.shapley, contents.error, contents.sampling_error, contents.sid)
    rows: list[list[Cell]] = [
        [str(i + 1), f"{value:+.4f}", f"{error:.4f}", f"{drawn:.4f}", f"{share:.4f}"]
        for i, (value, error, drawn, share) in enumerate(zip(*columns, strict=True))
    ]
    head = (">band", ">Shapley value", ">standard error", ">of it by drawn orders", ">importance")
    return table("Bands from low to high frequencies", head, rows)


def _scores(contents: SpectralContents) -> str:
    rows: list[list[Cell]] = [
        [name, f"{value:.4f}", f"{low:.4f} to {high:.4f}"]
        for name, (value, low, high) in (("as printed", contents.printed), ("signed", contents.signed))
    ]
    return table(
        f"Spectral robustness scores, beta {contents.beta:g}", ("form", ">score", ">95 % interval"), rows
    ) + bullets(
        [
            "The printed form is how far the importance is from equal weights, to either side; the signed one is "
            "positive where low frequencies matter more, and 1 where only the lowest band counts.",
            "Intervals are from images drawn again with replacement; they say how much the score depends on which "
            "images were taken.",
        ],
        "soft",
    )
