"""The page of a learned surface: one HTML file that needs nothing else."""

import hashlib
from html import escape
from pathlib import Path

from lipkit._files import write_whole
from lipkit.bound import Kind
from lipkit.errors import ArgumentError
from lipkit.report.html.claims import Claim, about_number, about_text
from lipkit.report.html.fields.level_sets import level_sets
from lipkit.report.html.frame import frame_page, section
from lipkit.report.html.markup import Cell, bullets, facts, figure, join, paragraph, table
from lipkit.report.html.numbers import digits
from lipkit.report.results.surface_contents import SURFACE, Render, SurfaceContents


def write_surface_page(contents: SurfaceContents, folder: Path) -> Path:
    """Write `surface.html` to a folder, made if need be; returns where it is."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"{folder} cannot be made a folder for the page ({error.strerror}).") from error
    path = folder / "surface.html"
    write_whole(path, render_surface_page(contents).encode())
    return path


def render_surface_page(contents: SurfaceContents) -> str:
    """The result of a surface as one HTML document; the same contents give the same text."""
    main = f'<section id="summary" aria-label="Summary">{_summary(contents)}</section>'
    main += section("picture", "The surface of the field", _picture(contents.picture))
    main += section("accuracy", "How far it is off", _accuracy(contents))
    main += section("slice", "Level sets of a slice", _slice(contents))
    main += section("use", "What the field proves", _use(contents))
    main += section("repeat", "How to repeat this", _repeat(contents))
    digest = hashlib.sha256(contents.to_json()).hexdigest()
    return frame_page(f"The surface of {contents.mesh}", "A signed distance that is proven", main, digest, SURFACE)


def _about_length(name: str, contents: SurfaceContents, length: float, kind: Kind, count: int = 3) -> Claim:
    """A length, in percent of the diagonal."""
    share = 100 * length / contents.diagonal
    return about_number(name, length, f"{digits(share, kind, count)} %")


def _summary(contents: SurfaceContents) -> str:
    lead = join(
        "Everywhere on the mesh the field is within ",
        _about_length("largest |f|, at most", contents, contents.deviation.upper, Kind.UPPER),
        " of the diagonal from zero, proven; its mean there is ",
        _about_length("mean |f|", contents, contents.mean.mean, Kind.ESTIMATE), ".",
    )  # fmt: skip
    constant = about_number("constant", contents.constant, digits(contents.constant, Kind.UPPER, 8))
    holes = ", closed"
    if contents.holes:
        holes = ", one hole capped" if contents.holes == 1 else f", {contents.holes} holes capped"
    rows: list[tuple[str, Cell]] = [
        ("constant", join(constant, f", {contents.kind}, in l2 for all points of space")),
        ("mesh", f"{contents.faces} triangles and {contents.vertices} vertices{holes}"),
        ("diagonal", about_number("diagonal", contents.diagonal, f"{contents.diagonal:.6g}")),
        ("extracted", f"{contents.extracted_faces} triangles, in surface.ply"),
    ]
    return paragraph(lead, "lead") + facts(rows)


def _picture(found: Render) -> str:
    """The picture, in the space that a phone has too."""
    said = "The solid where the field is positive, seen from in front, from the right and from above."
    image = (
        f'<img src="data:image/png;base64,{found.png}" width="{found.side}" height="{found.side}" alt="{escape(said)}" '
        'style="width: min(24rem, 100%); height: auto; border-radius: .5rem">'
    )
    caption = (
        "Drawn from the network alone, ray by ray. A ray steps by |f| over the constant, so it is proven to meet "
        "nothing before what it shows."
    )
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _accuracy(contents: SurfaceContents) -> str:
    off, found = contents.deviation, contents.distances
    rows: list[list[Cell]] = []

    def add(what: str, length: float, kind: Kind, said: str) -> None:
        share = _about_length(what, contents, length, kind)
        # The same value, in the units of the mesh.
        rows.append([what, share, digits(length, kind), said])

    add("largest |f|, at least", off.lower, Kind.LOWER, "proven: the value at a point of the mesh")
    add("largest |f|, at most", off.upper, Kind.UPPER, f"proven, by {off.evaluations} evaluations")
    error = digits(100 * contents.mean.standard_error / contents.diagonal, Kind.UPPER, 2)
    add("mean |f|", contents.mean.mean, Kind.ESTIMATE, f"estimated; standard error {error} %")
    add("Chamfer distance", found.chamfer, Kind.ESTIMATE, "estimated, from the surface to the mesh and back")
    add("Hausdorff distance, at least", found.hausdorff, Kind.LOWER, "the largest distance of a sample")
    words = (
        "|f| on the mesh says how far the field is from the truth there, whatever is extracted. The two distances are "
        "between the mesh and surface.ply, whose cells add an error of their own."
    )
    head = ("what", ">of the diagonal", ">in units of the mesh", "how it is known")
    return paragraph(words) + table("Differences between the field and the mesh", head, rows)


def _slice(contents: SurfaceContents) -> str:
    cut = contents.cut
    caption = (
        f"The plane {cut.axes[2]} = {cut.at:.4g}. Blue: the solid, where f > 0, with its edge drawn thick. Thin lines: "
        "f at whole multiples of a twentieth of the diagonal. Orange, dashed: the mesh itself. Where f is a distance, "
        "lines are equally far from each other."
    )
    return figure(lambda paper: level_sets(contents, paper), caption)


def _use(contents: SurfaceContents) -> str:
    upper = _about_length("largest |f|, at most", contents, contents.deviation.upper, Kind.UPPER)
    return bullets(
        [
            "No zero of f lies within |f(x)| over the constant of x. This holds in all of space, for the weights as "
            "they are, rounding included, and is what rays and collision tests of lipkit.sdf rest on.",
            join(
                "That is a statement about the surface of f. The mesh itself is at least as far away as |f(x)| minus "
                "the deviation, ", upper, " of the diagonal, over the constant: pass the deviation to "
                "sdf.clearance and sdf.sweep.",
            ),
            "f is positive inside. Where |f| is smaller than the distance to the surface, rays take more steps than "
            "they need, and no harm is done.",
            "Estimates are from points drawn at random, and prove nothing.",
        ]
    )  # fmt: skip


def _repeat(contents: SurfaceContents) -> str:
    rows: list[list[Cell]] = [[name, about_text(f"setting {name}", value)] for name, value in contents.settings]
    return (
        f'<pre tabindex="0" aria-label="command"><code>{escape(contents.command)}</code></pre>'
        + paragraph(f"Made with {contents.software}.", "soft")
        + table("Settings, and the hash of the mesh", ("what", "value"), rows)
    )
