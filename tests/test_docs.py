"""The pages under docs agree with the code: every method has its row, what is cited exists, and examples run."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch

from lipkit import norms
from lipkit.bound import Bound, Kind
from lipkit.linops import Conv, Dense, Diagonal, LinearOperator, Padding
from lipkit.norms import Mixed, Monomial, Norm, SpectralRadius
from test_readme import PAGES, ROOT, blocks, run

DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))


def methods() -> dict[str, type]:
    """Every public method that can be called: the norms that are not abstract, and the spectral radius."""
    public = {name: value for name, value in vars(norms).items() if inspect.isclass(value)}
    found = {name: value for name, value in public.items() if issubclass(value, Norm) and not inspect.isabstract(value)}
    return {**found, "SpectralRadius": SpectralRadius}


def rows() -> dict[str, list[str]]:
    """The cells of each method's row in docs/methods.md, without its name."""
    lines = re.findall(r"^\| `(\w+)` \|(.*)\|$", (ROOT / "docs/methods.md").read_text(), flags=re.MULTILINE)
    assert len(dict(lines)) == len(lines), "a method has two rows"
    return {name: [cell.strip() for cell in rest.split(" | ")] for name, rest in lines}


def test_there_are_methods_to_look_for():
    assert len(methods()) >= 19
    assert {"Gram", "Lanczos", "Auto", "ReshapedKernel", "SpectralRadius"} <= methods().keys()


def test_every_method_has_its_row_and_every_row_its_method():
    assert rows().keys() == methods().keys()
    for name, cells in rows().items():
        assert len(cells) == 5, name
        assert all(cells), name


@pytest.mark.parametrize("name", sorted(methods()))
def test_the_promise_of_a_row_is_kept(name: str):
    result = example(name)
    promised = {kind for kind in Kind if re.search(rf"\b{kind.name}\b", rows()[name][0])}
    assert result.kind in promised


def example(name: str) -> Bound:
    weight = torch.randn(3, 2, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    method = methods()[name]
    if method is SpectralRadius:
        return SpectralRadius()(weight[0, 0])
    op: LinearOperator = Conv(weight, (5, 5), (1, 1), ((1, 1), (1, 1)), (1, 1), mode=Padding.CIRCULAR)
    if method is Monomial:
        op = Diagonal(weight[0, 0], (3, 3))
    return (Mixed(1, 1) if method is Mixed else method())(op)


def test_every_norm_of_a_matrix_is_a_kind_of_bound():
    # The example above is a convolution; what is EXACT there must be EXACT for a plain matrix too.
    matrix = Dense(torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    exact = {name for name, cells in rows().items() if cells[0] == "EXACT"} - {"Monomial"}
    assert exact == {"SVD"}
    assert all(methods()[name]()(matrix).kind is Kind.EXACT for name in exact)


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", DOCS)
def test_the_tests_a_page_cites_exist(page: str):
    cited = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / page).read_text())
    for file, name in cited:
        assert (ROOT / file).is_file(), file
        assert not name or name in functions(ROOT / file), f"{file}::{name}"


def test_every_erratum_and_every_method_names_its_test():
    entries = (ROOT / "docs/errata.md").read_text().split("\n### ")[1:]
    assert len(entries) >= 10
    for entry in entries:
        assert re.search(r"\*Test\.\* `tests/norms/\w+\.py::test_\w+`", entry), entry.splitlines()[0]
        for part in ("*Printed.*", "*Against it.*", "*Right.*"):
            assert part in entry, entry.splitlines()[0]
    assert all(re.search(r"`tests/[\w/]+\.py`", cells[-1]) for cells in rows().values())


def anchors(page: Path) -> set[str]:
    """The fragments GitHub makes of headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*DOCS, "README.md"])
def test_links_lead_somewhere(page: str):
    here = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", here.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, fragment = target.partition("#")
        found = here.parent / file if file else here
        assert found.is_file(), target
        assert not fragment or fragment in anchors(found), target


@pytest.mark.parametrize("page", [page for page in DOCS if page not in PAGES])
def test_examples_run(page: str):
    for code in blocks(page):
        run(code)


def test_the_pages_shown_first_are_tested_in_full_elsewhere():
    assert set(PAGES) <= {*DOCS, "README.md"}
