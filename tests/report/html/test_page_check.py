"""A page and its data: what is claimed is read back, and every change of either is named."""

import re
from dataclasses import replace
from fractions import Fraction

import pytest

from lipkit import report
from lipkit.certify import Proportion
from lipkit.report.html.claims import read_claims
from lipkit.report.html.page import compare_page
from lipkit.report.results.contents import Contents


@pytest.fixture(scope="module")
def page(contents: Contents) -> str:
    return report.render_page(contents)


def test_a_page_says_what_its_data_say(contents: Contents, page: str):
    assert compare_page(page, contents) == []


def test_every_share_can_be_recounted_from_the_radii(contents: Contents, page: str):
    # The oracle counts the radii itself, by fractions, and never looks at a Proportion.
    found = contents.outcomes
    shares = {claim.name: Fraction(claim.value) for claim in read_claims(page) if claim.name.startswith("certified")}
    for eps in contents.eps:
        for k, name in enumerate(contents.classes):
            own = [r for r, label in zip(found.radii, found.labels, strict=True) if label == k]
            assert shares[f"certified at {eps} of class {name}"] == Fraction(sum(r > eps for r in own), len(own))
        assert shares[f"certified at {eps}"] == Fraction(sum(r > eps for r in found.radii), len(found.radii))
    assert len(shares) == 4 * 11


def test_a_value_reads_back_to_the_bit(contents: Contents, page: str):
    values = {claim.name: claim.value for claim in read_claims(page)}
    assert float(values["logarithm of the constant"]) == contents.constant.log_value
    assert float(values["mean radius"]) == contents.overall.mean_radius
    assert (float(values["smallest entry"]), float(values["largest entry"])) == (contents.data.low, contents.data.high)


def forge(page: str, old: str, new: str) -> str:
    assert old in page
    return page.replace(old, new, 1)


@pytest.mark.slow
def test_forged_pages_are_named(contents: Contents, page: str):
    sure = contents.overall.certified[0]
    words, value = sure.counted().replace(" %", "&nbsp;%"), f'value="{sure.count}/80"'
    named = re.escape("The page says certified at 0.05: 80 of 80, 100.0 %, expected ")
    assert re.match(named, compare_page(forge(page, f">{words}<", ">80 of 80, 100.0&nbsp;%<"), contents)[0])
    marked = compare_page(forge(page, f'"certified at 0.05" {value}', '"certified at 0.05" value="80/80"'), contents)
    assert marked[0] == f"The page marks certified at 0.05 with the value 80/80, expected {sure.count}/80."
    added = forge(page, "</main>", '<data data-claim="prize" value="1">first</data></main>')
    assert compare_page(added, contents) == ["The page claims prize: first, of which its data say nothing."]
    seed = f'<data data-claim="seed" value="{contents.about.seed}">{contents.about.seed}</data>'
    assert "The page does not say seed: 3." in compare_page(forge(page, seed, ""), contents)


@pytest.mark.slow
def test_text_and_drawings_that_were_changed_are_noticed(contents: Contents, page: str):
    changed = "of the page differ from what its data give; make it again."
    assert compare_page(forge(page, "The truth lies between the two.", "All is well."), contents) == [
        f"The text {changed}"
    ]
    moved = re.sub(r'( d="M )([\d.]+)', r"\g<1>7", page, count=1)
    assert moved != page
    assert compare_page(moved, contents) == [f"The drawings {changed}"]
    # Another version of the library that draws makes other bytes: only then drawings are left out.
    old = re.sub(r'content="matplotlib [^"]*"', 'content="matplotlib 1.0"', moved)
    assert compare_page(old, contents) == []
    assert compare_page(forge(old, "The truth lies between the two.", "All is well."), contents) != []


def test_data_that_were_changed_are_noticed(contents: Contents, page: str):
    clean = replace(contents.overall, clean=Proportion.of(1, 80, 0.95))
    said = compare_page(page, replace(contents, overall=clean))
    assert any(one.startswith("The page says correct: ") and one.endswith("expected 1 of 80, 1.2 %.") for one in said)
