"""The heat map of waves: complete, reproducible, and bright where errors are."""

from dataclasses import replace
from pathlib import Path

import matplotlib.image
import pytest
import torch

from lipkit.analysis import FourierHeatMap
from lipkit.report.frequency_figures import draw_fourier_heat_map

ERRORS = torch.full((5, 7), 0.1, dtype=torch.float64)
ERRORS[:2] = 0.9
HEAT = FourierHeatMap(ERRORS, torch.arange(5) - 2, torch.arange(7) - 3, 0.1, 4.0, 200)


def test_a_heat_map_says_what_it_shows(tmp_path: Path):
    text = draw_fourier_heat_map(HEAT, "A title", tmp_path / "heat.svg").read_text()
    for words in ("A title", "cycles across", "cycles down", "length 4; 10.0% without", "200 images", "no bound"):
        assert words in text


def test_it_is_bright_where_errors_are_and_the_first_row_is_on_top(tmp_path: Path):
    pixels = matplotlib.image.imread(draw_fourier_heat_map(HEAT, "", tmp_path / "heat.png"))[..., :3]
    height, width, _ = pixels.shape
    column = pixels[:, int(0.35 * width) : int(0.45 * width)].mean((1, 2))
    # High is bright in this map of colours.
    assert column[int(0.25 * height)] > column[int(0.65 * height)] + 0.2


@pytest.mark.slow
def test_the_same_numbers_give_the_same_bytes_and_others_do_not(tmp_path: Path):
    for kind in ("svg", "png"):
        one, two, other = (
            draw_fourier_heat_map(heat, "", tmp_path / f"{i}.{kind}").read_bytes()
            for i, heat in enumerate((HEAT, HEAT, replace(HEAT, errors=1 - ERRORS)))
        )
        assert one == two != other
