"""The page of a smoothing run: what it says is what the log proves, and it can be drawn again from its data."""

import math
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from lipkit.bound import Bound, Kind
from lipkit.certify import smoothing as rs
from lipkit.errors import ArgumentError, RecordError
from lipkit.report.html.claims import read_claims
from lipkit.report.html.smoothing_page import render_smoothing_page, write_smoothing_report
from lipkit.report.results.smoothing_contents import SmoothingContents, gather_smoothing
from lipkit.report.smoothing_figure import draw_curves

EPS = (0.0, 0.2, 0.5)
SOFT = (rs.Hardmax(), rs.Softmax(1.0))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    net = nn.Linear(2, 3, bias=False)
    net.weight.data = torch.tensor([[4.0, 0.0], [-2.0, 3.0], [-2.0, -3.0]])
    return net


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory, model: nn.Module) -> dict[bool, Path]:
    """A log with hard votes alone, and one with soft votes beside them."""
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    data = [(x, model(x).argmax(1).roll(1))]
    where = {soft: tmp_path_factory.mktemp("log") for soft in (False, True)}
    for soft, folder in where.items():
        smoothed = rs.Smoothed(model, 0.5, num_classes=3, simplex=SOFT if soft else SOFT[:1])
        rs.certify_data(smoothed, data, EPS, n0=20, n=400, records=folder, block=400)
    return where


def test_every_number_of_the_table_is_that_of_the_log(logs: dict[bool, Path]):
    contents = gather_smoothing(logs[True], EPS, alpha=0.01)
    claims = {claim.name: claim.value for claim in read_claims(render_smoothing_page(contents))}
    for name, method in (("intersection-union", rs.IntersectionUnion()), ("Cohen", rs.Cohen())):
        found = rs.recertify(logs[True], EPS, alpha=0.01, method=method).evaluation.overall
        for eps, share in zip(EPS, found.certified, strict=True):
            assert claims[f"certified at {eps:g} by {name}"] == f"{share.count}/{share.total}"
        assert claims[f"mean radius by {name}"] == repr(found.mean_radius)
    assert contents.images == 12
    assert (contents.samples, contents.choosing) == (400, 20)


def test_low_variance_is_shown_where_there_are_soft_votes(logs: dict[bool, Path]):
    shown = {soft: [one.name for one in gather_smoothing(log, EPS).methods] for soft, log in logs.items()}
    assert [name for name in shown[True] if name not in shown[False]] == ["low variance (LVM-RS)"]
    only = gather_smoothing(logs[False], EPS, methods={"mine": rs.LowVariance()})
    assert [one.name for one in only.methods] == ["mine"]


def test_a_constant_has_a_curve_of_its_own_which_comes_first(logs: dict[bool, Path]):
    bound = Bound.from_value(6.0, Kind.UPPER, "stated")
    methods = gather_smoothing(logs[True], EPS, bound=bound).methods
    assert methods[0].name == "low variance (LVM-RS), with the constant"
    expected = rs.recertify(logs[True], EPS, method=rs.LowVariance(), bound=bound).evaluation.overall
    assert methods[0].shares == expected


def test_data_and_page_come_back_to_the_bit(logs: dict[bool, Path], tmp_path: Path):
    contents = gather_smoothing(logs[True], EPS)
    assert SmoothingContents.from_json(contents.to_json()) == contents
    page, data = write_smoothing_report(contents, tmp_path / "new")
    assert page.read_text(encoding="utf-8") == render_smoothing_page(contents)
    # No picture, script or style from elsewhere.
    assert re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page.read_text(encoding="utf-8")) == []
    with pytest.raises(RecordError):
        SmoothingContents.from_json(data.read_text(encoding="utf-8").replace('"alpha"', '"beta"'))


def test_curves_of_the_figure_are_those_of_the_data(logs: dict[bool, Path], tmp_path: Path):
    contents = gather_smoothing(logs[True], EPS)
    svg = draw_curves(contents.methods, EPS, "digits", tmp_path / "curves.svg").read_text(encoding="utf-8")
    for place, one in enumerate(contents.methods):
        assert f'id="curve-{place}"' in svg
        assert f'id="band-{place}"' in svg
        assert one.name in svg
        # The curve falls, and passes through its table.
        values = [point.share.value for point in one.curve]
        assert values == sorted(values, reverse=True)
        at = {point.radius: point.share for point in one.curve}
        assert [at[eps] for eps in EPS] == list(one.shares.certified)


def test_too_many_or_no_methods_are_refused(logs: dict[bool, Path], tmp_path: Path):
    contents = gather_smoothing(logs[True], EPS)
    for curves in ((), contents.methods * 2):
        with pytest.raises(ArgumentError, match=r"tells 1 to 7 methods apart"):
            draw_curves(curves, EPS, "none", tmp_path / "none.png")
    with pytest.raises(ArgumentError, match="at least"):
        gather_smoothing(logs[True], EPS, methods={})
    with pytest.raises(RecordError, match="no log of a smoothing run"):
        gather_smoothing(tmp_path, EPS)
    assert math.isfinite(contents.methods[0].shares.mean_radius)
