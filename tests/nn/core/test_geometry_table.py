"""The table of methods and geometries in docs/methods.md is what the methods answer."""

import re

import pytest
from torch import nn

from lipkit.errors import LipkitError
from lipkit.nn import WeightMethod
from lipkit.nn.core.geometry import geometry_of
from lipkit.nn.methods.fourier._base import FourierMethod
from support.layers.examples import METHODS
from support.repository import ROOT

PAGE = ROOT / "docs" / "methods.md"
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


if __name__ == "__main__":
    print(f"| method | {' | '.join(COLUMNS)} |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for kind in sorted(METHODS, key=lambda kind: kind.__name__):
        print(
            f"| `{kind.__name__}()` | "
            + " | ".join(answer(example(kind), module) for module in COLUMNS.values())
            + " |"
        )
