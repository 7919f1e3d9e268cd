"""The code in the documentation runs, and prints what it says it prints."""

import ast
import linecache
import re

import pytest
import torch
from torch.nn import functional

from lipkit.bound import Bound
from support.repository import ROOT

PAGES = ("README.md", "CONTRIBUTING.md")
GUIDES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "guides").glob("*.md"))


def blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)


def run(code: str) -> dict[str, object]:
    names: dict[str, object] = {"__name__": "documentation"}
    # As if the example were a file: lipkit reads the source of functions that it stores results of.
    linecache.cache["documentation"] = (len(code), None, code.splitlines(keepends=True), "documentation")
    exec(compile(code, "documentation", "exec"), names)
    return names


def test_each_page_has_its_examples():
    assert [len(blocks(page)) for page in PAGES] == [3, 1]


def test_the_example_for_users_of_auto_lirpa_runs():
    (code,) = blocks("docs/guides/auto-lirpa.md")
    assert run(code)["radii"]


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", *GUIDES])
def test_an_example_needs_nothing_that_users_do_not_have(page: str):
    code = "\n".join(blocks(page))
    assert re.findall(r"^\s*(?:from|import) (?:tests|support|conftest|pytest)\b.*", code, flags=re.MULTILINE) == []
    ast.parse(code)


@pytest.mark.parametrize(("page", "at"), [(page, at) for page in PAGES for at in range(len(blocks(page)))])
def test_the_example_prints_what_its_comment_says(page: str, at: int, capsys: pytest.CaptureFixture[str]):
    code = blocks(page)[at]
    run(code)
    printed = re.match(r"([\d.]+) \((.*)\)\n", capsys.readouterr().out)
    stated = re.search(r"^print\(.*\)  # ([\d.]+) \((.*), \.\.\.\)$", code, flags=re.MULTILINE)
    assert printed is not None
    assert stated is not None
    assert printed[2].startswith(stated[2])
    # The comment gives three digits, and a method may change by the one percent it is asked for.
    assert float(printed[1]) == pytest.approx(float(stated[1]), rel=0.02)


def test_the_bound_of_the_readme_holds_and_its_gradient_arrives():
    names = run(blocks("README.md")[1])
    conv, bound = names["conv"], names["bound"]
    assert isinstance(conv, torch.nn.Conv2d)
    assert isinstance(bound, Bound)
    weight = conv.weight.detach().double()
    x = torch.randn(1, 64, 56, 56, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    stretch = 0.0
    for _ in range(30):
        y = functional.conv2d(x / x.norm(), weight, stride=2, padding=1)
        stretch = float(y.norm())
        x = functional.conv_transpose2d(y, weight, stride=2, padding=1, output_padding=1)
    # Thirty steps of power iteration in plain torch come within a few percent of the norm, from below.
    assert stretch <= bound.value.item() <= 1.1 * stretch
    assert conv.weight.grad is not None
    # ||W|| is homogeneous, so <W, grad ||W||> = ||W||; the method may return a gradient of its own, larger value.
    along = (conv.weight.grad * conv.weight).sum().item()
    assert along == pytest.approx(bound.value.item(), rel=0.05)
