"""Figures of dynamics: complete, reproducible, and moved by the numbers they show."""

from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch

from lipkit.analysis import Landscape, Phases
from lipkit.bound import Kind
from lipkit.errors import ArgumentError
from lipkit.report.dynamics_figures import draw_batch_sizes, draw_landscape, draw_phases

STEPS = torch.linspace(-1, 1, 5, dtype=torch.float64)
BOWL = STEPS[:, None] ** 2 + 2 * STEPS**2
LAND = Landscape(STEPS, STEPS, BOWL, BOWL + STEPS[:, None], Kind.UPPER)
PATH = torch.tensor([[-0.8, -0.5], [-0.2, 0.1], [0.0, 0.0]], dtype=torch.float64)
TIMES = torch.arange(1, 50)
DECAY = torch.exp(-TIMES.double() / 20)
PHASES = Phases(TIMES, DECAY - 0.5, DECAY, 0 * DECAY, 500)


def ink(path: Path) -> float:
    return float(np.any(matplotlib.image.imread(path)[..., :3] < 0.9, axis=-1).mean())


def test_a_landscape_says_what_its_constants_prove(tmp_path: Path):
    text = draw_landscape(LAND, "A title", tmp_path / "land.svg", PATH).read_text()
    for words in ("A title", "loss", "log K (upper bound)", "first direction", "second direction"):
        assert words in text
    guess = draw_landscape(replace(LAND, kind=Kind.ESTIMATE), "A title", tmp_path / "guess.svg").read_text()
    assert "log K (estimate)" in guess


def test_the_first_direction_is_drawn_to_the_right(tmp_path: Path):
    slope = STEPS[:, None].expand(5, 5).contiguous()
    png = draw_landscape(Landscape(STEPS, STEPS, slope, slope, Kind.UPPER), "", tmp_path / "land.png")
    pixels = matplotlib.image.imread(png)[..., :3]
    height, width, _ = pixels.shape
    # In the colours of the map high is bright: the mean of a strip near each side of the left panel.
    row = pixels[height // 2 - 20 : height // 2 + 20].mean((0, 2))
    assert row[int(0.32 * width) : int(0.35 * width)].mean() > row[int(0.12 * width) : int(0.15 * width)].mean() + 0.1


def test_phases_show_both_panels_and_leave_out_zeros(tmp_path: Path):
    text = draw_phases(PHASES, "A title", tmp_path / "phases.svg").read_text()
    for words in ("A title", "drift", "kappa", "lambda", "mean of the last 500 steps", "no bounds"):
        assert words in text
    assert ink(draw_phases(PHASES, "A title", tmp_path / "phases.png")) > 0.01


def test_batch_sizes_show_the_slope(tmp_path: Path):
    text = draw_batch_sizes((8, 16), (2.0, 1.0), (3.0, 1.5), -1.0, 20, tmp_path / "sizes.svg").read_text()
    for words in ("20 seeds: slope -1.00", "predicted by the model", "variance of K"):
        assert words in text


def test_the_same_numbers_give_the_same_bytes_and_others_do_not(tmp_path: Path):
    first, again = (draw_landscape(LAND, "", tmp_path / f"{i}.png", PATH).read_bytes() for i in range(2))
    assert first == again
    assert draw_landscape(LAND, "", tmp_path / "moved.png", PATH / 2).read_bytes() != first


def test_what_cannot_be_drawn_is_refused(tmp_path: Path):
    thin = Landscape(STEPS[:1], STEPS, BOWL[:1], BOWL[:1], Kind.UPPER)
    with pytest.raises(ArgumentError, match=r"two steps along each direction, got \(1, 5\)"):
        draw_landscape(thin, "", tmp_path / "thin.png")
    with pytest.raises(ArgumentError, match="got 1, 2, 2 and 20"):
        draw_batch_sizes((8, 16), (2.0,), (3.0, 1.5), -1.0, 20, tmp_path / "sizes.png")
