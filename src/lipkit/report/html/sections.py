"""The sections of a page: contents in, HTML out. Each stands alone, so that one that fails takes no other along."""

import math
from collections.abc import Sequence
from dataclasses import replace

from lipkit.bound import Kind
from lipkit.bounds.fold.layer_table import LayerRow
from lipkit.certify import Accuracies
from lipkit.certify.evaluate.evaluation import said_radius, said_unproven
from lipkit.certify.evaluate.proportion import percent
from lipkit.report.html import charts
from lipkit.report.html.claims import Claim, ShareClaims, about_number
from lipkit.report.html.markup import Cell, Markup, bullets, figure, join, paragraph, table, text
from lipkit.report.html.numbers import digits, layer_norm
from lipkit.report.html.summary import noun
from lipkit.report.results.contents import Contents, Entry
from lipkit.report.results.gradient_lengths import QUANTILES

# Below this part of the logarithm of the constant no layer is worth a share: a tenth of a percent.
_STRETCH = 1e-3
_CALM = (
    "No layer by itself raises the constant of the network by more than about a tenth of a percent, so none stands out "
    "as the one to work on. What the certified radii lack to the distances of an attack may come from layers and "
    "branches that are not at their worst all at once, and from an attack that could be stronger."
)


def curve(contents: Contents) -> str:
    """Certified and attacked accuracy over radii."""
    attacked = contents.overall.attacked is not None
    caption = (
        "The solid line is proven: no attack, however strong, gets below it. "
        + ("The dashed line is what our attack left; the truth lies between the two. " if attacked else "")
        + f"Shaded band{' and bars' if attacked else ''}: {100 * contents.level:g} % confidence, each radius by itself."
    )
    note = "" if attacked else paragraph("No attack was run; only the proven side is known.", "note")
    note += paragraph(said_unproven(contents.unproven), "note") if contents.unproven else ""
    return figure(lambda paper: charts.accuracy(contents, paper), caption) + note


def radii(contents: Contents) -> str:
    """The histogram of radii."""
    found, kind = contents.histogram, noun(contents)
    counts = {
        "samples in the bars": sum(found.counts), "samples classified wrongly": found.wrong,
        "samples with radius 0": found.uncertain, "samples with an unlimited radius": found.endless,
    }  # fmt: skip
    bars, wrong, uncertain, endless = (about_number(name, count, str(count)) for name, count in counts.items())
    caption = join(
        bars, f" correctly classified {kind}s by their certified radius. Not in the bars: ", wrong,
        " classified wrongly, ", uncertain, " classified correctly with a radius of 0, ", endless,
        " with an unlimited one.",
    )  # fmt: skip
    return figure(lambda paper: charts.radii(found, contents.p, paper), caption)


def classes(contents: Contents) -> str:
    """A row for each class: exact counts; where an attack was run, a cell holds both sides of the truth."""
    attacked = contents.overall.attacked is not None
    radii = [f">{said_radius(eps)}" for eps in contents.eps]
    head = ["class", f">{noun(contents)}s", ">correct", *radii, ">mean radius"]

    def row(name: str, shares: Accuracies, of: str) -> list[Cell]:
        claims = ShareClaims(shares, contents.eps, of)
        sides = [_sides(claims, i) for i in range(len(contents.eps))]
        mean = about_number(f"mean radius{of}", shares.mean_radius, digits(shares.mean_radius, Kind.LOWER, 3))
        return [name, str(shares.clean.total), _counted(claims.clean, shares.clean.percent()), *sides, mean]

    rows = [row(one.name, one.shares, f" of class {one.name}") for one in contents.by_class]
    what = "from proven to left by the attack, between which the truth lies" if attacked else "proven"
    note = paragraph(
        f"How many are classified correctly as they are, and under changes of each size in l{contents.p:g}: {what}.",
        "note",
    )
    return note + table("Results by class", head, [*rows, row("all", contents.overall, "")], "counts")


def _sides(claims: ShareClaims, i: int) -> Markup:
    """The proven count, and that of the attack where there is one, above their percentages."""
    sure = claims.shares.certified[i]
    left = None if claims.shares.attacked is None else claims.shares.attacked[i]
    low, high = claims.certified(i), claims.attacked(i)
    if left is None or high is None:
        return _counted(low, sure.percent())
    both = f"{sure.percent().removesuffix(' %')}–{left.percent(Kind.UPPER)}"
    both = sure.percent() if sure.count == left.count else both
    return join(_count(low), "–", _count(high), _small(both))


def _counted(claim: Claim, percent: str) -> Markup:
    return join(_count(claim), _small(percent))


def _count(claim: Claim) -> Claim:
    """The same claim in the words of a table that has the total in a column of its own."""
    return replace(claim, words=claim.value.partition("/")[0])


def _small(words: str) -> Markup:
    return Markup(f"<small>{text(words)}</small>")


def layers(contents: Contents) -> str:
    """The constants of the layers, and how much of the bound stands in each."""
    rows = contents.layers or ()
    if not rows:
        return paragraph("The network has no linear layer.")
    stretch = any(row.elasticity * row.log_norm > _STRETCH for row in rows if row.elasticity)
    head = ("layer", "operation", ">norm", "kind", ">share", "", ">falls by", ">fusing saved")
    body = table("Layer by layer, in the order of the network", head, [_layer(row, stretch) for row in rows])
    note = (
        "Norm: by how much the layer can stretch a change at most; exact ones are rounded to nearest, upper bounds up. "
        "Share: how much of the constant of the network, in orders of magnitude, stands in this line. Falls by: how "
        "many percent the constant falls if this norm falls by one percent. Fusing saved: how much larger the constant "
        "would be had its operations been measured one by one. Nonlinearities that stretch nothing are not listed."
    )
    return paragraph(_lost(rows) if stretch else _CALM) + body + paragraph(note, "note")


def _lost(rows: Sequence[LayerRow]) -> str:
    known = sorted((row for row in rows if row.share is not None), key=lambda row: -abs(row.share or 0.0))
    worst = [
        f"“{row.origin}” ({percent(row.share or 0.0, Kind.ESTIMATE)})"
        for row in known[:3]
        if abs(row.share or 0.0) > 0.05
    ]
    if not worst:
        return "What some layers stretch others shrink, to about 1 in all: shares would mean nothing here."
    return (
        "The constant of the network is made from the norms of its layers, so it is larger than what they do together. "
        f"Most of it comes from {', '.join(worst)}: a smaller norm there gains most."
    )


def _layer(row: LayerRow, stretch: bool) -> list[Cell]:
    part = row.share if stretch else None
    share = "–" if part is None else percent(part, Kind.ESTIMATE)
    width = min(6.0, 6.0 * abs(part or 0.0))
    look = "bar less" if (part or 0.0) < 0 else "bar"
    bar = f'<span class="{look}" style="width:{width:.2f}rem" aria-hidden="true"></span>' if width > 0.05 else ""
    saved = "–" if row.saved is None else f"× {row.saved:.4g}"
    place = f"row {row.row}, column {row.column}"
    norm = about_number(f"logarithm of the norm in {place}", row.log_norm, layer_norm(row.log_norm, row.kind))
    return [
        row.origin,
        row.operator.replace("->", "→"),
        norm,
        row.kind.value.replace(" ", "\N{NO-BREAK SPACE}"),
        share,
        Markup(bar),
        f"{row.elasticity:.3g} %",
        saved,
    ]


def spectra(contents: Contents) -> str:
    """Singular values, a small drawing for each layer."""
    known = contents.spectra
    if known is None or not (known.shown or known.left_out):
        return paragraph(
            "No dense or convolutional layer of the network stands by itself; those inside a block that promises a "
            "constant of its own are not shown."
        )
    top = max((one.values[0] for one in known.shown), default=1.0) or 1.0
    parts = [
        f"<figure>{charts.spectrum(one, i, top)}<figcaption>{_caption(one.name, one.operator)}: {one.total} values, "
        f"{_ends(one.values)}{'' if one.kind.certifies else ' (estimate: circular padding)'}."
        "</figcaption></figure>"
        for i, one in enumerate(known.shown)
    ]
    words = (
        "How much each layer stretches the directions of its input, the most stretched first. A level line at the "
        "largest value passes every signal on; a line that falls at once has one direction that sets the constant "
        "while the others shrink."
    )
    left = paragraph("Left out:", "note") + bullets(known.left_out, "note") if known.left_out else ""
    return paragraph(words) + f'<div class="grid">{"".join(parts)}</div>' + left


def _caption(name: str, operator: str) -> str:
    return f"{text(name)}, {text(operator.replace('->', '→'))}"


def _ends(values: Sequence[float]) -> str:
    first, last = f"{values[0]:.4g}", f"{values[-1]:.4g}"
    return f"all {first}" if first == last else f"{first} to {last}"


def plane(contents: Contents) -> str:
    """The map of a classifier of the plane."""
    found = contents.plane
    assert found is not None
    levels = ", ".join(map(said_radius, contents.eps)) or "none"
    caption = (
        "What the model says of each point: one shade for each class, the thick line between them the decision. Thin "
        f"lines: where the certified radius reaches {levels} (l{contents.p:g}); beyond them the class stays under "
        "every such move. Marks are test points, by their true class."
    )
    return figure(lambda paper: charts.plane(found, contents.eps, contents.classes, paper), caption)


def depth(contents: Contents) -> str:
    """Gradient norms by module."""
    rows = contents.depth or ()
    low, _, high = (100 * q for q in QUANTILES)
    caption = (
        "Length of the gradient of the loss (cross-entropy of the logits) with respect to what each module gives out, "
        f"over test {noun(contents)}s: median, mean, and the band from {low:g} % to {high:g} % of them. Level: signals "
        "pass through. Falling to the left: they vanish on their way back."
    )
    head = ("module", "type", ">mean", f">{low:g} %", ">median", f">{high:g} %")
    body = [[r.name, r.module or "–", *(f"{v:.4g}" for v in (r.mean, r.low, r.median, r.high))] for r in rows]
    return figure(lambda paper: charts.depth(rows, paper), caption) + table(
        "Length of the gradient, module by module", head, body
    )


def training(contents: Contents) -> str:
    """Loss and constant over the steps."""
    entries = contents.training or ()
    if not entries:
        return paragraph("There is no journal of the training run.")
    parts = [
        _history(entries, "loss", "loss", [entry.loss for entry in entries]),
        _history(entries, "constant", contents.about.watched, [entry.constant for entry in entries]),
    ]
    return "".join(parts)


def _history(entries: Sequence[Entry], name: str, label: str, values: Sequence[float | None]) -> str:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return paragraph(f"The {label} was not recorded during training.", "note")
    missing = len(values) - len(finite)
    last = f"The {label} at {len(finite)} of {entries[-1].step} steps; it ends at {finite[-1]:.5g}."
    gap = f" {missing} entries have no finite value and are not drawn." if missing else ""
    of = (lambda entry: entry.loss) if name == "loss" else (lambda entry: entry.constant)
    return figure(lambda paper: charts.training(entries, name, label, of, paper), last + gap)
