"""The part of a page about a profile: drawn for any history, with the numbers of the history."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lipkit.analysis.dynamics.stored_history import StoredHistory, StoredLayer, StoredSpectra
from lipkit.report.figure_style import Paper
from lipkit.report.html import profile_charts as charts
from lipkit.report.html.page import compare_page, render_page
from lipkit.report.html.profile_section import render_profile, write_profile_page
from lipkit.report.results.contents import Contents


def layer(name: str, times: int, growth: float, spectra: bool = True) -> StoredLayer:
    """A layer whose log norm grows by `growth` a step: thrice by drift, once by curvature, thrice down by decay."""
    norm = tuple(math.exp(growth * t) for t in range(times))
    row = tuple
    return StoredLayer(
        name, norm, row(0.5 * n for n in norm), None, row([3 * growth] * (times - 1)), row([growth] * (times - 1)),
        row([-3 * growth] * (times - 1)), row([0.0] * (times - 1)), row([1, *[0] * (times - 2)]),
        row([0.2] * (times - 1)), None, None,
        StoredSpectra(6, 4, tuple((n, n / 2, n / 4) for n in norm), tuple(n * n * 1.3125 for n in norm))
        if spectra else None,
    )  # fmt: skip


def history(layers: Sequence[StoredLayer], times: int = 6) -> StoredHistory:
    logs = tuple(sum(math.log(one.norm[t]) for one in layers) for t in range(times))
    refused = (("decay", "Adam <scales> decay."), ("expected", "No plain SGD."), ("sampled", "No plain SGD."))
    return StoredHistory(
        2, "sum of logs", tuple(range(0, 2 * times, 2)), logs, logs, None, None, tuple(layers), refused
    )


@pytest.mark.slow
def test_the_numbers_are_those_of_the_history() -> None:
    found = render_profile(history([layer("first", 6, 0.1), layer("second", 6, 0.3)]))
    assert "In 10 steps log K went from 0 to 2, by +2: drift (gradient) +6, curvature +2, weight decay -6" in found
    assert "Layer second added most: +1.5." in found
    assert "Adam &lt;scales&gt; decay." in found
    assert found.count("No plain SGD.") == 1
    # Stable rank 1.3125 of values 1, 1/2, 1/4, all times.
    assert "1.31 → 1.31" in found
    assert "nothing here bounds or certifies" in found


def test_causes_stack_to_the_change() -> None:
    one = history([layer("a", 6, 0.1), layer("b", 6, -0.2)])
    total = np.sum([charts.cumulative(one, name) for name, _, _ in charts.CAUSES], axis=0)
    assert total.tolist() == pytest.approx(list(one.log_constant), abs=1e-12)


def test_branches_count_by_their_shares() -> None:
    # log K = log(1 + a) of a residual block around a layer of norm a, whose share is a / (1 + a).
    one = layer("a", 6, 0.1)
    shares = tuple(n / (1 + n) for n in one.norm)
    logs = tuple(math.log1p(n) for n in one.norm)
    branch = replace(history([replace(one, share=shares)]), log_constant=logs, realised=logs)
    total = np.sum([charts.cumulative(branch, name) for name, _, _ in charts.CAUSES], axis=0)
    assert total.tolist() == pytest.approx([v - logs[0] for v in logs], abs=1e-12)
    # The mean of both ends is the trapezoidal rule: off by the cube of a step of 0.1 over 12, at most.
    assert charts.growth(replace(one, share=shares)) == pytest.approx(logs[-1] - logs[0], abs=5 * 0.1**3 / 12)
    assert abs(charts.cumulative(branch, "rest")[-1]) < 5 * 0.1**3 / 12


@pytest.mark.slow
@pytest.mark.parametrize("paper", list(Paper))
@pytest.mark.parametrize("count", [1, 7])
def test_drawings_exist_for_any_number_of_layers(count: int, paper: Paper) -> None:
    one = history([layer(f"layer {i}", 6, 0.01 * i - 0.03) for i in range(count)])
    drawn = [draw(one, paper) for draw in (charts.log_norms, charts.log_constant, charts.causes, charts.gaps)]
    drawn.append(charts.spectra(one, paper))
    for svg in drawn:
        assert svg.startswith("<svg")
    names = [name for svg in drawn for name in re.findall(r'\bid="([^"]+)"', svg)]
    assert len(names) == len(set(names))


@pytest.mark.slow
def test_phases_are_drawn_where_there_are_noise_terms_and_a_chain() -> None:
    one = replace(
        layer("a", 6, 0.1), share=(1.0,) * 6, kappa=(0.5, 0.4, 0.3, 0.2, 0.1), diffusion=(0.0, 1e-3, 1e-3, 1e-4, 1e-4)
    )
    known = history([one])
    known = replace(known, refused=(), expected=known.realised, sampled=known.realised)
    page = render_profile(known)
    # Two steps an interval, so a window of one step is one interval: drift and decay cancel, kappa * time / 2.
    assert "drift 0, curvature of noise 0.01, diffusion 1e-05" in page
    branch = replace(known, layers=(replace(one, share=(0.5,) * 6),))
    assert "There is no plot of phases: The model is of chains" in render_profile(branch)
    assert "phases" not in render_profile(history([one]))


@pytest.mark.slow
def test_a_history_without_gaps_spectra_or_steps_is_shown_all_the_same() -> None:
    bare = replace(layer("a", 6, 0.1, spectra=False), gap=None)
    found = render_profile(history([bare]))
    assert "Gaps are not known" in found
    assert "No layer is small enough" in found
    nothing = StoredLayer("a", (2.0,), (1.0,), None, (), (), (), (), (), (), None, None, None)
    assert "No step was profiled" in render_profile(history([nothing], times=1))


def test_a_gap_of_zero_is_drawn() -> None:
    one = layer("a", 6, 0.1)
    assert charts.gaps(history([replace(one, gap=(0.0,) * 6)])).startswith("<svg")


@pytest.mark.slow
def test_only_profiled_trainings_have_the_section(contents: Contents) -> None:
    assert "How the constant came about" not in render_page(contents)
    shown = replace(contents, profile=history([layer("a", 6, 0.1)]))
    page = render_page(shown)
    assert page.count("How the constant came about") == 2
    assert "could not be drawn" not in page
    assert Contents.from_json(shown.to_json()) == shown
    other = replace(contents, profile=history([layer("a", 6, 0.2)]))
    assert compare_page(page, shown) == []
    assert compare_page(page, other) != []


@pytest.mark.slow
def test_reports_keep_a_part_of_long_histories(trained: Any) -> None:
    from lipkit.report import gather_contents

    long = history([layer("a", 1001, 0.001)], times=1001)
    kept = gather_contents(*trained, profile=long).profile
    assert kept is not None
    assert len(kept.steps) <= 201
    assert (kept.steps[0], kept.steps[-1]) == (0, 2000)


@pytest.mark.slow
def test_a_page_of_the_profile_alone(tmp_path: Path) -> None:
    path = write_profile_page(history([layer("a", 6, 0.1)]), "My<recipe>", tmp_path)
    text = path.read_text()
    assert "certifies nothing" in text
    assert "My&lt;recipe&gt;" in text
    assert "<script" not in text
