"""What a report measures agrees with what is computed another way."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lipkit import certify, report
from lipkit._checksums import to_sealed_json
from lipkit.bound import Bound, Kind, Scope
from lipkit.bounds import DAG
from lipkit.certify import Evaluation, SampleResult
from lipkit.data import Examples
from lipkit.errors import ArgumentError, BrokenCertificateError, RecordError
from lipkit.report.results import gather
from lipkit.report.results.about import About
from lipkit.report.results.contents import Contents
from lipkit.report.results.gradient_lengths import gradient_norms
from lipkit.report.results.recount import curve, histogram
from lipkit.report.results.spectra import spectra
from lipkit.trace.capture import capture


def evaluation(radii: list[float], eps: tuple[float, ...] = (0.1, 0.5), right: list[bool] | None = None) -> Evaluation:
    known = [True] * len(radii) if right is None else right
    samples = [SampleResult(i, 0, 0 if ok else 1, r) for i, (r, ok) in enumerate(zip(radii, known, strict=True))]
    return Evaluation.of(samples, eps, 2.0, 0.95, 0.0)


def test_nothing_fails_on_an_ordinary_model(contents: Contents):
    assert contents.failures == ()
    assert contents.no_gallery == ""


def test_the_table_is_the_evaluation(trained: Any, contents: Contents):
    assert contents.overall == trained.evaluation.overall
    assert [row.shares for row in contents.by_class] == list(trained.evaluation.classes.values())
    assert contents.outcomes.radii == tuple(s.radius for s in trained.evaluation.samples)
    assert [entry.loss for entry in contents.training or ()] == [line["loss"] for line in trained.journal]


def test_json_is_exact_both_ways(contents: Contents):
    assert Contents.from_json(contents.to_json()) == contents
    endless = replace(contents, outcomes=replace(contents.outcomes, radii=(math.inf,) * 80))
    assert Contents.from_json(endless.to_json()) == endless


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"is": "report.Contents"}', "null", "[" * 100000])
def test_what_is_no_report_is_refused(text: str):
    with pytest.raises(RecordError, match="The report has no checksum"):
        Contents.from_json(text)


def test_a_sealed_text_that_is_no_report_is_refused():
    with pytest.raises(RecordError, match="no report of lipkit"):
        Contents.from_json(to_sealed_json({"is": "report.Contents"}).decode())


def test_the_curve_counts_samples(contents: Contents):
    radii = np.array(contents.outcomes.radii)
    for point in contents.curve:
        assert point.share.count == int((radii > point.radius).sum())
        assert point.share.low <= point.share.value <= point.share.high
    known = {point.radius: point.share for point in contents.curve}
    assert [known[eps] for eps in contents.eps] == list(contents.overall.certified)


@pytest.mark.parametrize(
    ("radii", "eps", "last"),
    [([0.0, 0.0], (0.1,), 0.1), ([math.inf] * 3, (0.25,), 0.25), ([0.7], (0.1,), 0.7), ([0.0], (0.0,), 1.0)],
)
def test_the_curve_ends_where_the_data_do(radii: list[float], eps: tuple[float, ...], last: float):
    points = curve(evaluation(radii, eps))
    assert points[0].radius == 0.0
    assert points[-1].radius == last


def test_every_sample_is_in_the_histogram_once():
    radii = [0.0, 0.0, 0.2, 0.4, 0.4, 1.0, math.inf, 0.3]
    found = histogram(evaluation(radii, right=[True, False, True, True, True, True, True, True]))
    assert (found.wrong, found.uncertain, found.endless) == (1, 1, 1)
    assert sum(found.counts) + found.wrong + found.uncertain + found.endless == len(radii)
    # numpy's bars are closed on the left, so the mirror image is compared.
    finite = [-r for r in radii if 0 < r < math.inf]
    assert found.counts[::-1] == tuple(np.histogram(finite, [-e for e in reversed(found.edges)])[0])


@pytest.mark.slow
def test_the_layers_multiply_to_the_bound(trained: Any, contents: Contents):
    rows = contents.layers or ()
    assert [row.origin for row in rows] == ["0", "3", "5"]
    network = capture(trained.model, trained.test.inputs[:1])
    whole = float(DAG()(network).log_value.detach())
    # A chain: its bound is the product of its norms, up to a rounding of the logarithms.
    assert math.fsum(row.log_norm for row in rows) == pytest.approx(whole, abs=1e-9)
    assert math.fsum(row.share or 0.0 for row in rows) == pytest.approx(1.0, abs=1e-9)


def test_spectra_are_those_of_the_matrices(trained: Any, contents: Contents):
    found = {one.name: one for one in (contents.spectra.shown if contents.spectra else ())}
    for name in ("3", "5"):
        weight = trained.model[int(name)].weight.detach().double()
        # numpy's decomposition against torch's: both within n eps of the largest value.
        assert found[name].values == pytest.approx(np.linalg.svd(weight.numpy(), compute_uv=False), rel=1e-12)
        assert (found[name].kind, found[name].total) == (Kind.EXACT, min(weight.shape))
    units = torch.eye(64, dtype=torch.float64).reshape(64, 1, 8, 8)
    columns = functional.conv2d(units, trained.model[0].weight.detach().double(), padding=1).flatten(1)
    values = np.linalg.svd(columns.numpy(), compute_uv=False)
    assert found["0"].values == pytest.approx(values, rel=1e-12, abs=1e-12)


def test_a_large_convolution_is_given_by_its_symbol(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("lipkit.report.results.spectra._EACH", 8000.0)
    torch.manual_seed(0)
    model = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular", bias=False)
    found = spectra(capture(model, torch.randn(1, 2, 4, 4)))
    (one,) = found.shown
    units = torch.eye(32, dtype=torch.float64).reshape(32, 2, 4, 4)
    columns = model.double()(units).detach().flatten(1)
    assert one.kind is Kind.ESTIMATE
    # Circular padding: the symbol's values are those of the map itself.
    assert one.values == pytest.approx(np.linalg.svd(columns.numpy(), compute_uv=False), rel=1e-9)


def test_what_is_too_large_or_too_much_is_said(monkeypatch: pytest.MonkeyPatch):
    deep = nn.Sequential(*[nn.Linear(3, 3) for _ in range(14)], nn.Linear(3, 40), nn.Linear(40, 40))
    monkeypatch.setattr("lipkit.report.results.spectra._EACH", 1000.0)
    found = spectra(capture(deep, torch.randn(1, 3)))
    assert [one.name for one in found.shown] == [*map(str, range(10)), "14"]
    assert [line.partition(" ")[0] for line in found.left_out] == ["10", "11", "12", "13", "15"]
    assert found.left_out[-1] == "15 (Linear 40->40): too large to decompose in seconds."
    assert "only the 12 largest layers are shown" in found.left_out[0]


def test_gradient_norms_are_those_of_autograd(trained: Any):
    x, y = trained.test.inputs[:5], trained.test.labels[:5]
    model = trained.model
    rows = {row.name: row for row in gradient_norms(model, x, y)}
    assert list(rows) == ["input", *map(str, range(6))]
    # Sample by sample, and without hooks: the rest of the model as a function of what one module gives out.
    for depth, name in enumerate(rows):
        lengths = []
        for i in range(5):
            start = x[i : i + 1] if depth == 0 else model[:depth](x[i : i + 1])
            start = start.detach().clone().requires_grad_()
            # An in-place module must not write into a leaf.
            functional.cross_entropy(model[depth:](start * 1), y[i : i + 1]).backward()
            assert start.grad is not None
            lengths.append(float(start.grad.double().norm()))
        # float32 gradients of a batch against those of single samples.
        assert rows[name].mean == pytest.approx(np.mean(lengths), rel=1e-4)
        expected = np.quantile(lengths, [0.1, 0.5, 0.9])
        assert (rows[name].low, rows[name].median, rows[name].high) == pytest.approx(expected, rel=1e-4)


def test_a_module_called_twice_is_there_twice():
    shared = nn.Linear(3, 3)
    rows = gradient_norms(nn.Sequential(shared, nn.ReLU(), shared), torch.randn(4, 3), torch.tensor([0, 1, 2, 0]))
    assert [(row.name, row.module) for row in rows] == [
        ("input", ""),
        ("0", "Linear"),
        ("1", "ReLU"),
        ("0@1", "Linear"),
    ]


def test_hardest_and_safest_are_the_ends_of_the_order(trained: Any, contents: Contents):
    assert contents.gallery is not None
    right = sorted(s.radius for s in trained.evaluation.samples if s.predicted == s.label)
    assert [one.radius for one in contents.gallery.hardest] == right[:8]
    assert [one.radius for one in contents.gallery.safest] == right[:-9:-1]


def test_neighbours_are_what_they_are_said_to_be(trained: Any, contents: Contents):
    assert contents.gallery is not None
    for one in (*contents.gallery.hardest, *contents.gallery.safest):
        image, moved = one.image.array(), one.neighbour.array() if one.neighbour else None
        assert np.array_equal(image, trained.test.inputs[one.index].numpy())
        assert moved is not None
        assert one.distance is not None
        assert one.distance == pytest.approx(np.linalg.norm(moved.astype(float) - image), rel=1e-12)
        assert one.radius <= one.distance
        assert moved.min() >= 0
        assert moved.max() <= 1
        with torch.no_grad():
            assert int(trained.model(torch.from_numpy(moved)[None]).argmax()) == one.became != one.label


def test_a_certificate_that_a_neighbour_disproves_stops_the_report(
    trained: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    wide = [replace(s, radius=50.0 * s.radius) for s in trained.evaluation.samples[:3]]
    lie = Evaluation.of(wide, trained.evaluation.eps, 2.0, 0.95, 0.0)
    with pytest.raises(BrokenCertificateError, match="the constant, or one that a module declared, is wrong"):
        report.gather_contents(*trained._replace(evaluation=lie))


def test_other_data_than_the_evaluated_are_refused(trained: Any):
    with pytest.raises(ArgumentError, match="The evaluation is of other data"):
        report.gather_contents(*trained._replace(test=trained.test.at(range(20, 80))))


def test_a_part_that_fails_takes_no_other_along(trained: Any, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise RuntimeError("no memory\nand more")

    monkeypatch.setattr(gather, "spectra", broken)
    monkeypatch.setattr(gather, "gallery", lambda *_: None)
    found = report.gather_contents(*trained._replace(journal=[{"loss": 1.0}]))
    assert [(one.part, one.reason) for one in found.failures] == [
        ("spectra", "RuntimeError: no memory"),
        ("training", "KeyError: 'step'"),
    ]
    assert found.spectra is None
    assert found.layers
    assert found.depth


@pytest.fixture(scope="module")
def points() -> Contents:
    """Tabular data, one class only, a constant function: everything at its end."""
    model = nn.Linear(3, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([1.0, 0.0]))
    data = Examples(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(3).long(), ("a", "b"))
    bound = certify.head_pairwise(model, data.inputs[:1], DAG())
    found = certify.accuracy(model, [(data.inputs, data.labels)], bound, (0.5,))
    about = About.here(command="c", date="d", seconds=0.0, seed=0, device="cpu", recipe="r", fields={})
    return report.gather_contents(model, data, found, bound, [], about, None)


def test_tabular_data_have_no_gallery(points: Contents):
    assert points.gallery is None
    assert points.no_gallery == "The inputs have shape (3,); only images of 1 or 3 channels are shown."
    assert points.failures == ()


def test_a_constant_function_has_radii_without_end(points: Contents):
    assert points.outcomes.radii == (math.inf,) * 3
    assert (points.histogram.endless, points.histogram.counts) == (3, (0,))
    assert points.overall.certified[0].count == 3
    assert Contents.from_json(points.to_json()) == points
    page = report.render_page(points)
    assert 'class="failed"' not in page
    assert "only images of 1 or 3 channels are shown" in page
    assert "There is no journal of the training run." in page
    assert "No attack was run" in page


def test_the_constant_of_pairs_leaves_out_a_class_against_itself():
    from lipkit.report.results.contents import Constant

    logs = torch.tensor([[-math.inf, 1.0], [1.0, -math.inf]], dtype=torch.float64)
    found = Constant.of_bound(Bound(logs, Kind.UPPER, "m", of=Scope.PAIR))
    assert (found.log_value, found.log_smallest, found.entries) == (1.0, 1.0, 2)
