"""How the constant came about: the section of a page about the profile of a training, and the page of one alone."""

import hashlib
import math
from pathlib import Path

from lipkit._files import write_whole
from lipkit.analysis import phases
from lipkit.analysis.dynamics.stored_history import StoredHistory, StoredLayer
from lipkit.errors import UnsupportedError
from lipkit.report.html import profile_charts as charts
from lipkit.report.html.frame import frame_page, section
from lipkit.report.html.markup import Cell, bullets, figure, paragraph, table
from lipkit.report.results.contents import Contents

# A page of 200 steps is read as well as one of all.
_TIMES = 200
# Moving averages are over one part in so many of a training.
_PARTS = 20


def profile_section(contents: Contents) -> str:
    """The profile of the training that made the model."""
    assert contents.profile is not None
    averaged = dict(contents.about.fields).get("ema", "0.0") not in ("0.0", "0")
    note = "The profile is of the weights that the optimizer moved; the model has their average." if averaged else ""
    return render_profile(contents.profile) + (paragraph(note, "note") if note else "")


def render_profile(history: StoredHistory) -> str:
    """A lead, the drawings with their captions, and a row for each layer."""
    parts = [
        paragraph(_lead(history)),
        paragraph(
            f"What is measured: {history.label}. These are estimates that explain; nothing here bounds or certifies.",
            "note",
        ),
    ]
    if len(history.steps) < 2:
        return "".join(parts) + paragraph("No step was profiled.", "note")
    parts += [
        figure(lambda paper: charts.log_constant(history, paper), _constant_caption(history)),
        figure(lambda paper: charts.causes(history, paper), _causes_caption(history)),
        _phases(history),
        figure(lambda paper: charts.log_norms(history, paper), _norms_caption(history)),
        _gaps(history),
        _spectra(history),
        _table(history),
    ]
    return "".join(parts)


def render_profile_page(history: StoredHistory, title: str, digest: str) -> str:
    """A page about a training that certifies nothing; the same history gives the same text."""
    said = paragraph("This run trained a model and certifies nothing. The page says how its norms moved.", "lead")
    main = f'<section id="summary" aria-label="Summary">{said}</section>'
    main += section("profile", "How the constant came about", render_profile(history.thinned(_TIMES)))
    return frame_page(f"{title}: how its constant came about", "Profile of a training", main, digest, "profile.json")


def write_profile_page(history: StoredHistory, title: str, folder: Path) -> Path:
    """Write `profile.html` beside profile.json; returns where it is."""
    digest = hashlib.sha256(history.to_json()).hexdigest()
    path = folder / "profile.html"
    write_whole(path, render_profile_page(history, title, digest).encode())
    return path


def _lead(history: StoredHistory) -> str:
    first, last = history.log_constant[0], history.log_constant[-1]
    if len(history.steps) < 2:
        return f"Before the first step log K was {first:.4g}."
    parts = [f"{words} {charts.cumulative(history, name)[-1]:+.3g}" for name, words, _ in charts.CAUSES]
    most = max(history.layers, key=charts.growth)
    added = charts.growth(most)
    grown = f" Layer {most.name} added most: {added:+.3g}." if added > 0 and len(history.layers) > 1 else ""
    return (
        f"In {history.steps[-1]} steps log K went from {first:.4g} to {last:.4g}, by {last - first:+.3g}: "
        f"{', '.join(parts)}.{grown}"
    )


def _constant_caption(history: StoredHistory) -> str:
    reasons = {reason for name, reason in history.refused if name in ("expected", "sampled")}
    why = "".join(f" There is no model of the noise here: {reason}" for reason in sorted(reasons))
    said = "" if reasons else " The model of SGD adds expected curvature and diffusion instead, from noise terms."
    return (
        f"log K, measured every {history.every} steps. The tracked line starts with it and adds the series to second "
        f"order of each step that was made; where both part, higher orders matter.{said}{why}"
    )


def _causes_caption(history: StoredHistory) -> str:
    refused = dict(history.refused).get("decay")
    return (
        "The change of log K since the start, by cause. Drift is the first order of the gradient's step, curvature its "
        "second order, weight decay the step towards zero; the rest is what the series does not explain."
        + (f" {refused}" if refused else "")
    )


def _phases(history: StoredHistory) -> str:
    if history.expected is None:
        # The first caption says why there are no noise terms.
        return ""
    try:
        found = phases(history.to_history(), max(1, history.steps[-1] // _PARTS))
    except UnsupportedError as error:
        return paragraph(f"There is no plot of phases: {error}", "note")
    caption = (
        f"Growth of log K a step, mean of {found.window} steps or of one measured interval: by drift, and by the "
        "noise of batches as the model of plain SGD has it. Where drift is near zero and the curvature of noise is "
        "not, noise alone makes norms grow. A model's terms, no bounds."
    )
    return figure(lambda paper: charts.growth_by_phase(found, paper), caption)


def _norms_caption(history: StoredHistory) -> str:
    shown = len(charts.moved_most(history.layers, 5))
    grey = f" {len(history.layers) - shown} layers that moved less are grey." if len(history.layers) > shown else ""
    return "Natural logarithm of the largest singular value of each layer; in a chain their sum is log K." + grey


def _gaps(history: StoredHistory) -> str:
    if all(layer.gap is None for layer in history.layers):
        return paragraph("Gaps are not known for convolutions that are read as maps of images.", "note")
    caption = (
        "The distance from the largest singular value to the next one, as a part of the largest. Marks: measurements "
        "after which a step was longer than half of this distance, so that values may have crossed and the series is "
        "not proven. Gaps below a millionth are drawn as one."
    )
    return figure(lambda paper: charts.gaps(history, paper), caption)


def _spectra(history: StoredHistory) -> str:
    shown = charts.with_spectra(history)
    if not shown:
        return paragraph("No layer is small enough to record all its singular values.", "note")
    left = len(history.layers) - len(shown)
    caption = (
        "Singular values of the layer's matrix over training: the darker, the more of them. The dashed line is the "
        "edge of Marchenko and Pastur, where the values of a large random matrix of the same size and mean square end; "
        "values above it stand out of noise. Below: the stable rank, the sum of all squares over the largest one."
        + (f" {left} further layers are not drawn." if left else "")
    )
    return figure(lambda paper: charts.spectra(history, paper), caption)


def _table(history: StoredHistory) -> str:
    head = ("layer", ">norm before", ">after", ">change of log", *(f">{words}" for _, words, _ in charts.CAUSES))
    rows = [_row(layer) for layer in history.layers]
    caption = "Why each norm changed: causes add up to the change of its logarithm"
    notes = [
        "A norm that curvature drives grows even where the gradient is noise alone; weight decay is what holds it."
    ]
    if any(layer.amplification is not None for layer in history.layers):
        notes.append(
            "Amplification, before and after: the norm of the second derivative of the largest singular value, the "
            "most that a step of size 1 bends it. Of a matrix it is 1 / gap."
        )
    return table(caption, (*head, ">crossings", ">amplification", ">stable rank"), rows) + bullets(notes, "soft")


def _row(layer: StoredLayer) -> list[Cell]:
    sums = [sum(getattr(layer, name)) for name, _, _ in charts.CAUSES]
    found = layer.spectra
    rank = "–" if found is None else f"{found.stable_rank(0):.3g} → {found.stable_rank(-1):.3g}"
    change = math.log(layer.norm[-1] / layer.norm[0])
    numbers = [f"{layer.norm[0]:.4g}", f"{layer.norm[-1]:.4g}", *(f"{v:+.3g}" for v in (change, *sums))]
    bend = "–" if layer.amplification is None else f"{layer.amplification[0]:.3g} → {layer.amplification[-1]:.3g}"
    return [layer.name, *numbers, str(sum(layer.crossings)), bend, rank]
