"""The images of a page."""

from collections.abc import Sequence
from html import escape

import numpy as np

from lipkit.bound import Kind
from lipkit.report.html.claims import about_number
from lipkit.report.html.markup import paragraph, text
from lipkit.report.html.numbers import digits
from lipkit.report.html.pixels import png
from lipkit.report.results.contents import Contents, Gallery, Picture


def pictures(contents: Contents) -> str:
    """The hardest and the safest images with their neighbours; a sentence for data without images."""
    found = contents.gallery
    if contents.no_gallery or found is None:
        return paragraph(contents.no_gallery or "There are no images.")
    if not found.hardest:
        return paragraph("No test image is classified correctly.")
    words = (
        "Each card shows a test image, the nearest image of another class that we found, and what was changed (grey: "
        "nothing; each scaled to its own largest change). No image nearer than the certified radius has another class; "
        f"the neighbour, found by {found.search}, shows that the true limit is no farther than its distance."
    )
    rows = [
        "<h3>Hardest: the smallest certified radii</h3>",
        _cards(found.hardest, found, contents.classes),
        "<h3>Safest: the largest certified radii</h3>" if found.safest else "",
        _cards(found.safest, found, contents.classes) if found.safest else "",
    ]
    return paragraph(words) + paragraph(_gap(found), "note") + "".join(rows)


def _gap(found: Gallery) -> str:
    """How much the certificates can be missing on these images."""
    ratios = [
        picture.distance / picture.radius
        for picture in (*found.hardest, *found.safest)
        if picture.distance is not None and picture.radius > 0
    ]
    if not ratios:
        return "For none of these images both a radius above 0 and a neighbour are known."
    return (
        f"On these images the neighbour is {min(ratios):.3g} to {max(ratios):.3g} times as far away as the certified "
        "radius: no better proof could extend a radius by more than that."
    )


def _cards(pictures: Sequence[Picture], found: Gallery, classes: Sequence[str]) -> str:
    return f'<ul class="cards">{"".join(_card(one, found, classes) for one in pictures)}</ul>'


def _card(picture: Picture, found: Gallery, classes: Sequence[str]) -> str:
    label = escape(classes[picture.label])
    radius = about_number(f"radius of image {picture.index}", picture.radius, digits(picture.radius, Kind.LOWER))
    images = [_image(picture.image.png(found.low, found.high), f"Test image {picture.index}, class {label}")]
    lines = [f"<b>{label}</b>, test image {picture.index}", f"certified radius {text(radius)}"]
    if picture.neighbour is None or picture.became is None or picture.distance is None:
        lines.append("no neighbour of another class found")
    else:
        became = escape(classes[picture.became])
        images.append(_image(picture.neighbour.png(found.low, found.high), f"Its neighbour, classified as {became}"))
        change = picture.neighbour.array().astype(np.float64) - picture.image.array()
        size = float(np.abs(change).max()) or 1.0
        images.append(_image(png(change, -size, size), f"The change, at most {size:.3g} in one pixel"))
        far = about_number(
            f"distance from image {picture.index}", picture.distance, digits(picture.distance, Kind.UPPER)
        )
        lines += [f"becomes <b>{became}</b>", f"at distance {text(far)}"]
    return f'<li><div class="trio">{"".join(images)}</div>{"<br>".join(lines)}</li>'


def _image(source: str, alt: str) -> str:
    return f'<img src="{source}" alt="{alt}">'
