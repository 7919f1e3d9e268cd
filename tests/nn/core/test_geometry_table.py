"""The table of methods and geometries in docs/methods.md is what the methods answer."""

import re

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.errors import LipkitError
from lipkit.nn import WeightMethod
from lipkit.nn.core.geometry import geometry_of
from lipkit.nn.methods.fourier._base import FourierMethod
from support.layers.checks import singular_values
from support.layers.examples import METHODS
from support.repository import ROOT

PAGE = ROOT / "docs" / "methods.md"
GUIDE = ROOT / "docs" / "guides" / "choosing-a-layer.md"
# The columns of the table in the guide.
ORTHOGONAL = (lnn.AOC, lnn.BCOP, lnn.SOC, lnn.RKO, lnn.LOT)
# The columns of the table: a torch layer each. Four channels, so that isometries exist in both directions.
COLUMNS: dict[str, nn.Module] = {
    "matrix": nn.Linear(4, 4),
    "1 tap": nn.Conv2d(4, 4, 1),
    "3 x 3": nn.Conv2d(4, 4, 3, padding=1),
    "stride 2": nn.Conv2d(4, 4, 3, stride=2, padding=1),
    "patches": nn.Conv2d(4, 4, 2, stride=2),
    "dilation 2": nn.Conv2d(4, 4, 3, padding=2, dilation=2),
    "groups": nn.Conv2d(4, 4, 3, padding=1, groups=2),
    "circular": nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
    "too much circular": nn.Conv2d(4, 4, 3, padding=2, padding_mode="circular"),
    "reflect": nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
    "transposed": nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1),
}


def answer(method: WeightMethod, module: nn.Module) -> str:
    try:
        return str(method.promise(geometry_of(module)))
    except LipkitError:
        return "refused"


def example(kind: type[WeightMethod]) -> WeightMethod:
    """The method as it is by default; methods for one size of images have an example."""
    return METHODS[kind][0] if issubclass(kind, FourierMethod) else kind()


def table() -> dict[str, list[str]]:
    rows = re.findall(r"^\| `(\w+)\(\)` \|(.*)\|$", PAGE.read_text(), flags=re.MULTILINE)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}


def test_every_method_has_a_row() -> None:
    assert table().keys() == {kind.__name__ for kind in METHODS}
    assert f"| method | {' | '.join(COLUMNS)} |" in PAGE.read_text()


@pytest.mark.parametrize("kind", METHODS, ids=lambda kind: kind.__name__)
def test_the_row_is_what_the_method_answers(kind: type[WeightMethod]) -> None:
    assert table()[kind.__name__] == [answer(example(kind), module) for module in COLUMNS.values()]


def guide_rows() -> list[tuple[str, list[str]]]:
    """The layers of the guide's table, and what it says of each method."""
    rows = re.findall(r"^\| `(Conv2d\(4, [^`]*\))` \|[^|]*\|(.*)\|$", GUIDE.read_text(), flags=re.MULTILINE)
    return [(layer, [cell.strip() for cell in rest.split("|")]) for layer, rest in rows]


@pytest.mark.parametrize(("layer", "said"), guide_rows(), ids=lambda value: value if isinstance(value, str) else "")
def test_the_table_of_the_guide_is_what_the_methods_answer(layer: str, said: list[str]) -> None:
    module = eval(f"nn.{layer}", {"nn": nn})
    assert said == [answer(example(kind), module) for kind in ORTHOGONAL]


@pytest.mark.parametrize(("layer", "said"), guide_rows(), ids=lambda value: value if isinstance(value, str) else "")
def test_layers_say_whether_they_are_isometries(layer: str, said: list[str]) -> None:
    """By their singular values, on images of a size that the stride divides."""
    torch.manual_seed(0)
    made = eval(f"lnn.{layer}", {"lnn": lnn})
    assert made.is_isometry == (said[0] == "isometry")
    if made.is_isometry:
        # Björck steps end within 2e-5. A contraction may be an isometry as it starts, or on some sizes.
        assert float(singular_values(made, (4, 6, 6))[-1]) >= 1 - 2e-5
    nn.utils.parametrize.remove_parametrizations(made, "weight")
    assert not made.is_isometry


def test_the_guide_has_rows() -> None:
    assert len(guide_rows()) >= 7


if __name__ == "__main__":
    print(f"| method | {' | '.join(COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for kind in sorted(METHODS, key=lambda kind: kind.__name__):
        print(
            f"| `{kind.__name__}()` | "
            + " | ".join(answer(example(kind), module) for module in COLUMNS.values())
            + " |"
        )
