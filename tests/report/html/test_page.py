"""The page: what it says is true, it is a sound document, and what fails takes nothing else along."""

import base64
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from lipkit import report
from lipkit.bound import Kind
from lipkit.bounds.fold.layer_table import LayerRow
from lipkit.certify import Proportion
from lipkit.errors import ArgumentError
from lipkit.report.html import charts, sections
from lipkit.report.html.claims import read_claims
from lipkit.report.html.gallery_section import pictures
from lipkit.report.html.numbers import constant, digits
from lipkit.report.html.pixels import Pixels
from lipkit.report.html.summary import radius_words, summary
from lipkit.report.results.about import Prints
from lipkit.report.results.contents import (
    Contents,
    CurvePoint,
    DepthRow,
    Entry,
    Failure,
    Histogram,
    Spectra,
    Spectrum,
)


@pytest.fixture(scope="module")
def text(contents: Contents) -> str:
    return report.render_page(contents)


class Checker(HTMLParser):
    """Well nested, unique ids, nothing from elsewhere, headings in order, cells with headers, images with words."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.levels: list[int] = []
        self.mute: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.ids += [known["id"] or ""] if "id" in known else []
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        self.levels += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        if (tag == "img" and not known.get("alt")) or (tag == "svg" and not known.get("aria-label")):
            self.mute.append(tag)
        if tag == "th" and known.get("scope") not in ("row", "col"):
            self.mute.append(tag)
        assert tag not in ("script", "iframe", "object", "embed")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_document_is_sound_and_closed(text: str):
    found = Checker(text)
    assert found.open == []
    assert len(found.ids) == len(set(found.ids))
    assert all(link.startswith(("data:", "#")) for link in found.links)
    assert not re.search(r"url\((?!#)|@import|https?:", text)
    assert found.levels[0] == 1
    assert all(b - a <= 1 for a, b in zip(found.levels, found.levels[1:], strict=False))
    assert found.mute == []
    assert set(re.findall(r"url\(#([^)]+)", text)) <= set(found.ids)


def test_text_of_others_is_escaped(text: str):
    assert "Digits&lt;1&gt; on digits &amp; co." in text
    assert "--out &lt;runs&gt; &amp;&amp;" in text
    assert "Digits<1>" not in text


def test_the_summary_shows_every_radius_that_was_asked_for(contents: Contents):
    words = summary(contents)
    claims = {claim.name: claim for claim in read_claims(words)}
    assert contents.overall.attacked is not None
    for i, eps in enumerate((0.05, 0.1, 0.2, 0.4)):
        for what, shares, kind in (
            ("certified", contents.overall.certified, Kind.LOWER),
            ("attacked", contents.overall.attacked, Kind.UPPER),
        ):
            share = shares[i]
            assert claims[f"{what} at {eps}"].words == f"{share.count} of 80, {share.percent(kind)}"
            assert claims[f"interval of {what} at {eps}"].words == share.interval
    assert claims["correct"].words.startswith(f"{contents.overall.clean.count} of 80, ")


def test_the_summary_tells_data_units_attack_constant_and_precision(contents: Contents):
    said = re.sub("<[^>]+>", "", summary(contents)).replace("&nbsp;", " ")
    assert "digits &amp; co.: 80 test images of 1 × 8 × 8, 10 classes" in said.replace("\N{NO-BREAK SPACE}", " ")
    assert "entries from 0 to 1" in said
    assert "l2, the square root of the sum of the squared changes of all pixels; pixels scaled to [0, 1]" in said
    assert "PGD: 10 halving steps, 1 restart, cross-entropy; pixels stay in [0, 1]" in said
    assert f"{constant(contents.constant.log_value, Kind.UPPER)}, upper bound, the largest of 90, for each pair" in said
    assert "weights in float32" in said
    assert "trained in 12.5 s on cpu" in said
    normalised = replace(contents, data=replace(contents.data, low=-2.5, high=3.0))
    units = "in the units of the inputs, whose pixels range from -2.5 to 3"
    assert units in summary(normalised)
    assert "SHA-256" not in said
    hashed = replace(contents, about=replace(contents.about, prints=Prints("a" * 64)))
    assert "a" * 64 in summary(hashed)


def test_a_fraction_has_its_decimal_value_beside_it():
    assert [radius_words(eps) for eps in (0.25, 36 / 255, 0.1 + 0.2)] == [
        "0.25", "36/255 ≈ 0.1412", "0.30000000000000004",
    ]  # fmt: skip


def test_a_randomised_constant_says_so(contents: Contents):
    assert "probability" not in summary(contents)
    said = re.sub("<[^>]+>", "", summary(replace(contents, failure=3.14e-7)))
    assert "with probability at most 3.2e-07 it is wrong" in said


def test_warnings_come_first(contents: Contents):
    assert 'class="warning"' not in summary(contents)
    page = report.render_page(replace(contents, warnings=("One <answer>.", "Two.")))
    assert page.index("One &lt;answer&gt;.") < page.index("Two.") < page.index("The model classifies")


# What Python says of its own objects, and torch of its operations.
INTERNALS = re.compile(
    r"Precision\.|\bNone\b|\bTrue\b|\bFalse\b|\.default\b|using_ints|aten|lipkit\.|object at 0x|<class"
)


def test_no_internals_are_shown(text: str):
    shown = re.sub(r"<style>.*?</style>|<[^>]+>", " ", text, flags=re.DOTALL)
    assert not INTERNALS.findall(shown)
    assert INTERNALS.findall("flatten.using_ints and Precision.FLOAT32 and None")


def test_numbers_are_rounded_to_their_side():
    assert [digits(0.123456, kind, 3) for kind in (Kind.LOWER, Kind.ESTIMATE, Kind.UPPER)] == [
        "0.123",
        "0.123",
        "0.124",
    ]
    assert digits(math.inf, Kind.LOWER) == "unlimited"
    assert (digits(0.0, Kind.UPPER), digits(12.0, Kind.EXACT)) == ("0", "12")
    assert constant(0.0, Kind.UPPER) == "1"
    # log10 is 2171.472409...: an upper bound is printed above it.
    assert constant(5000.0, Kind.UPPER) == "10^2171.4725"
    assert constant(-math.inf, Kind.UPPER) == "0"


def test_an_image_comes_back_to_the_bit_and_as_png():
    image = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0))
    found = Pixels.of(image)
    assert np.array_equal(found.array(), image.numpy())
    data = base64.b64decode(found.png(0.0, 1.0).removeprefix("data:image/png;base64,"))
    pixels = matplotlib.image.imread(io.BytesIO(data))
    # Eight bits: half a level of 255.
    assert pixels == pytest.approx(np.moveaxis(image.numpy(), 0, 2), abs=0.5 / 255 + 1e-6)


def ends(contents: Contents) -> dict[str, Contents]:
    """Contents at their ends: each must make a page without a failed part."""
    share = Proportion.of(1, 1, 0.95)
    none = Proportion.of(0, 1, 0.95)
    plain = replace(contents.overall, attacked=None)
    huge = LayerRow(1, 0, "a", "Linear 1->1", 5000.0, Kind.UPPER, "m", 1.0, None, None)
    rows = (DepthRow("input", "", 0.0, 0.0, 0.0, 0.0), DepthRow("0", "Linear", 1e200, 1e-200, 1.0, 1e200))
    return {
        "no attack": replace(contents, overall=plain),
        "one class": replace(contents, by_class=contents.by_class[:1]),
        "all radii zero": replace(
            contents,
            curve=(CurvePoint(0.0, none), CurvePoint(1.0, none)),
            histogram=Histogram((0.0, 1.0), (0,), 0, 80, 0),
        ),
        "radii without end": replace(
            contents, overall=replace(plain, mean_radius=math.inf), histogram=Histogram((0.0, 1.0), (0,), 0, 0, 80)
        ),
        "one sample": replace(
            contents,
            overall=replace(contents.overall, clean=share, certified=(share,) * 4, attacked=(none,) * 4),
            curve=(CurvePoint(0.0, share), CurvePoint(0.4, share)),
            histogram=Histogram((0.0, 0.4), (1,), 0, 0, 0),
        ),
        "no radius asked for": replace(contents, eps=(), overall=replace(plain, certified=()), by_class=()),
        "empty journal": replace(contents, training=()),
        "one entry": replace(contents, training=(Entry(1, 0.5, 1.0),)),
        "nothing recorded": replace(contents, training=(Entry(1, None, math.inf), Entry(2, None, None))),
        "huge constants": replace(
            contents, training=(Entry(1, 1e-300, 1.0), Entry(2, None, 1e300), Entry(3, 4.0, math.inf)), layers=(huge,)
        ),
        "gradients of all sizes": replace(contents, depth=rows),
        "one module": replace(contents, depth=rows[:1]),
        "no layers": replace(contents, layers=(), spectra=Spectra((), ())),
        "a spectrum of one zero": replace(
            contents, spectra=Spectra((Spectrum("0", "Linear 1->1", (0.0,), 1, Kind.EXACT),), ("1: too large.",))
        ),
        "nobody right": replace(
            contents, gallery=replace(contents.gallery, hardest=(), safest=()) if contents.gallery else None
        ),
    }


# Which sections show a part of the contents.
FIELDS: dict[str, tuple[Callable[[Contents], str], ...]] = {
    "overall": (sections.curve, sections.classes),
    "by_class": (sections.classes,),
    "histogram": (sections.radii,),
    "training": (sections.training,),
    "layers": (sections.layers,),
    "spectra": (sections.spectra,),
    "depth": (sections.depth,),
    "gallery": (pictures,),
    "curve": (sections.curve,),
}


@pytest.mark.parametrize("name", [
    "no attack", "one class", "all radii zero", "radii without end", "one sample", "no radius asked for",
    "empty journal", "one entry", "nothing recorded", "huge constants", "gradients of all sizes", "one module",
    "no layers", "a spectrum of one zero", "nobody right",
])  # fmt: skip
def test_ends_make_a_page(contents: Contents, name: str):
    odd = ends(contents)[name]
    whole = dict.fromkeys(field for field in FIELDS if getattr(odd, field) is not getattr(contents, field))
    text = "".join(make(odd) for field in whole for make in FIELDS[field]) + summary(odd)
    assert text.startswith("<")
    assert "nan" not in re.sub(r"<style>.*?</style>|base64,[^\"]*", "", text, flags=re.DOTALL).lower().split()
    assert Contents.from_json(odd.to_json()) == odd


def test_what_was_not_drawn_is_said(contents: Contents):
    text = sections.training(ends(contents)["huge constants"])
    assert text.count("<svg") == 4
    assert "1 entries have no finite value and are not drawn." in text
    assert "10³⁰⁰" in text
    assert "10^2171.4725" in sections.layers(ends(contents)["huge constants"])
    assert "The loss was not recorded" in sections.training(ends(contents)["nothing recorded"])
    assert "1: too large." in sections.spectra(ends(contents)["a spectrum of one zero"])


def test_an_exact_norm_of_one_is_one(contents: Contents):
    row = LayerRow(1, 0, "a", "Linear 1->1", 4e-15, Kind.EXACT, "m", 1.0, None, None)
    text = sections.layers(replace(contents, layers=(row, replace(row, kind=Kind.UPPER))))
    said = [("1", "exact"), ("1 + 4.1e-15", "upper\N{NO-BREAK SPACE}bound")]
    assert re.findall(r">([^<>]+)</data></td><td>(exact|upper\N{NO-BREAK SPACE}bound)", text) == said


@pytest.mark.parametrize("log", [0.0, -0.7])
def test_layers_that_stretch_nothing_are_not_blamed(contents: Contents, log: float):
    # Also where a layer stretches that the constant does not depend on.
    row = LayerRow(1, 0, "a", "Linear 1->1", log, Kind.UPPER, "m", 1.0, None, None)
    aside = replace(row, origin="b", log_norm=0.7, elasticity=0.0)
    text = sections.layers(replace(contents, layers=(row, aside)))
    assert "No layer by itself raises the constant of the network by more than about a tenth of a percent" in text
    assert "No layer stretches" not in text
    assert "gains most" not in text


def test_the_environment_tells_what_the_page_is_about(contents: Contents):
    prints = Prints("a" * 64, "b" * 64, "", "d" * 64)
    text = report.render_page(replace(contents, about=replace(contents.about, prints=prints)))
    found = [claim for claim in read_claims(text) if claim.name.startswith("SHA-256")]
    assert [(one.name, one.value) for one in found] == [
        ("SHA-256 of weights", "a" * 64), ("SHA-256 of test inputs", "b" * 64), ("SHA-256 of recipe code", "d" * 64),
    ]  # fmt: skip
    assert '<th scope="row">training</th><td>12.5 s</td>' in text
    assert "wall clock" not in text


def test_data_without_a_name_are_said_to_have_none(contents: Contents):
    text = report.render_page(replace(contents, data=replace(contents.data, name="")))
    assert "<h1>Digits&lt;1&gt;: what is proven</h1>" in text
    assert "without a name</data>: " in text


def test_a_model_that_was_given_has_no_recipe(contents: Contents):
    given = replace(contents.about, recipe="", model="mine.py:<f>", seconds=None, prints=Prints("", "", "", "d" * 64))
    text = report.render_page(replace(contents, about=given, training=()))
    assert "<h1>mine.py:&lt;f&gt; on digits &amp; co.: what is proven</h1>" in text
    assert '<th scope="row">model</th><td>mine.py:&lt;f&gt;</td>' in text
    assert '<th scope="row">training</th><td>not here: the model was given as it is</td>' in text
    assert ("SHA-256 of model code", "d" * 64) in [(claim.name, claim.value) for claim in read_claims(text)]
    assert '<h2 id="training">' not in text
    assert '<h2 id="training">' in report.render_page(contents)
    assert "<caption>Settings of the evaluation</caption>" in text
    # No trace of what such a model does not have; the command is the caller's.
    assert "recipe" not in text.replace("recipes/digits.py", "").lower()


def test_a_failing_drawing_takes_no_other_along(contents: Contents, text: str, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> str:
        raise ZeroDivisionError("by <nothing>")

    monkeypatch.setattr(charts, "radii", broken)
    rest = report.render_page(contents)
    failed = "This part could not be drawn: ZeroDivisionError: by &lt;nothing&gt;"
    assert rest.count(failed) == 1
    # Each figure is drawn for a wide window and for a phone.
    assert rest.count("<svg") == text.count("<svg") - 2 > 6


def test_a_part_that_was_not_measured_says_why(contents: Contents):
    text = report.render_page(
        replace(contents, layers=None, spectra=None, failures=(Failure("network", "No rule for op."),))
    )
    assert text.count("Network could not be measured: No rule for op.") == 2
    assert "Some parts could not be measured: network" in text


def test_both_files_are_written(contents: Contents, text: str, tmp_path: Path):
    # From the data alone, and byte by byte the same page as from the model.
    page, data = report.write_report(Contents.from_json(contents.to_json()), tmp_path / "new" / "folder")
    assert Contents.from_json(data.read_text()) == contents
    assert page.read_text() == text
    assert hashlib.sha256(data.read_bytes()).hexdigest() in page.read_text()
    assert json.loads(data.read_text())["is"] == "report.Contents"


def test_a_failing_write_leaves_what_was_there(contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("report.html", "report.json"):
        (tmp_path / name).write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.setattr("lipkit.report.html.page.render_page", lambda _: "new")
    with pytest.raises(ArgumentError, match=r"report.json cannot be written \(No space left on device\)"):
        report.write_report(contents, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "report.json"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"old"}


def test_an_interrupt_leaves_what_was_there(contents: Contents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "report.html").write_text("old")

    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(charts, "depth", interrupted)
    with pytest.raises(KeyboardInterrupt):
        report.write_report(contents, tmp_path)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_a_folder_that_cannot_be_made_is_named(contents: Contents, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"file/x cannot be made a folder for the report \(Not a directory\)"):
        report.write_report(contents, tmp_path / "file" / "x")
