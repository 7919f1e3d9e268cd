"""Counts of a report that its radii do not give are refused, by name."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from lipkit.certify import Proportion
from lipkit.cli.main import Code, main
from lipkit.errors import RecordError
from lipkit.report.results.contents import ClassRow, Contents
from lipkit.report.results.recount import find_miscounts, read_report, recount


def raised(share: Proportion) -> Proportion:
    return Proportion(share.count + 1, share.total, share.low, share.high)


def forged(contents: Contents) -> dict[str, Contents]:
    """Reports that say more than their radii, and a word of the sentence about each."""
    whole, out = contents.overall, contents.outcomes
    assert whole.attacked is not None
    rows = contents.by_class
    wrong = next(i for i, (a, b) in enumerate(zip(out.labels, out.predicted, strict=True)) if a != b)
    return {
        "classified correctly in all": replace(contents, overall=replace(whole, clean=raised(whole.clean))),
        "certified up to 0.1 in all": replace(
            contents,
            overall=replace(whole, certified=(whole.certified[0], raised(whole.certified[1]), *whole.certified[2:])),
        ),
        "left by the attack at 0.05 in all": replace(
            contents, overall=replace(whole, attacked=(raised(whole.attacked[0]), *whole.attacked[1:]))
        ),
        "the mean radius in all": replace(contents, overall=replace(whole, mean_radius=2 * whole.mean_radius)),
        f"of class {rows[3].name}": replace(
            contents,
            by_class=(
                *rows[:3],
                ClassRow(rows[3].name, replace(rows[3].shares, clean=raised(rows[3].shares.clean))),
                *rows[4:],
            ),
        ),
        "rows for the classes": replace(contents, by_class=rows[:-1]),
        "on the curve": replace(
            contents,
            curve=(replace(contents.curve[0], share=raised(contents.curve[0].share)), *contents.curve[1:]),
        ),
        "a curve of": replace(contents, curve=contents.curve[:-1]),
        "a histogram": replace(contents, histogram=replace(contents.histogram, wrong=0)),
        "attacks are not proven": replace(contents, unproven=contents.unproven + 1),
        "more than once": replace(contents, outcomes=replace(out, indices=(out.indices[1], *out.indices[1:]))),
        "is certified up to": replace(
            contents, outcomes=replace(out, radii=(*out.radii[:wrong], 0.5, *out.radii[wrong + 1 :]))
        ),
        "certified up to -1": replace(contents, outcomes=replace(out, radii=(-1.0, *out.radii[1:]))),
        "columns of": replace(contents, outcomes=replace(out, radii=out.radii[1:])),
        "attacks on sample": replace(contents, outcomes=replace(out, broken=((True,), *out.broken[1:]))),
    }


def test_an_honest_report_counts_right(contents: Contents, tmp_path: Path):
    assert list(find_miscounts(contents)) == []
    (tmp_path / "report.json").write_text(contents.to_json())
    assert read_report(tmp_path / "report.json") == contents
    again = recount(contents)
    # Counted by hand, from the columns.
    right = sum(a == b for a, b in zip(contents.outcomes.labels, contents.outcomes.predicted, strict=True))
    assert again.overall.clean.count == right
    assert [s.count for s in again.overall.certified] == [
        sum(r > eps for r in contents.outcomes.radii) for eps in contents.eps
    ]
    assert again.overall == contents.overall


@pytest.mark.slow
def test_every_count_that_the_radii_do_not_give_is_named(contents: Contents, tmp_path: Path):
    for words, forgery in forged(contents).items():
        path = tmp_path / "report.json"
        path.write_text(forgery.to_json())
        with pytest.raises(RecordError, match=f"report.json (says|has) .*{words}.*: it was changed; make it again"):
            read_report(path)


def test_more_than_all_is_never_printed(contents: Contents, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # 500 of 397 was drawn as "125.9 % proven".
    too_many = Proportion(contents.overall.clean.total + 20, contents.overall.clean.total, 0.5, 1.0)
    shares = replace(contents.overall, certified=(too_many,) * 4)
    (tmp_path / "report.json").write_text(replace(contents, overall=shares).to_json())
    assert main(["report", str(tmp_path)]) == Code.OTHER
    assert "100 of 80 are certified up to 0.05 in all, and its radii give" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_a_changed_byte_is_refused_with_the_file(contents: Contents, tmp_path: Path):
    path = tmp_path / "report.json"
    path.write_text(contents.to_json().replace('"count": ', '"count": 1', 1))
    with pytest.raises(RecordError, match=r"report\.json: The report does not fit its checksum.*make it again"):
        read_report(path)


def test_radii_without_end_are_counted(contents: Contents):
    endless = replace(contents.outcomes, radii=(math.inf,) * 80, predicted=contents.outcomes.labels)
    assert recount(replace(contents, outcomes=endless)).overall.certified[3].count == 80
