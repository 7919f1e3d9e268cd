"""The pages under docs are true: every method has its row, what is cited exists, numbers come out, examples run."""

import ast
import inspect
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch.nn import Module, functional

from lipkit import analysis, bounds, certify, losses, nn, norms, optim, privacy, regularizers, sdf
from lipkit.bound import Bound, Kind
from lipkit.linops import Conv, Dense, Diagonal, LinearOperator, Padding
from lipkit.norms import Mixed, Monomial, Norm, SpectralRadius
from support.printed.analysis import NUMBERS as OF_ANALYSIS
from support.printed.bounds import NUMBERS as OF_NETWORKS
from support.printed.dynamics import NUMBERS as OF_DYNAMICS
from support.printed.layers import NUMBERS as OF_LAYERS
from support.printed.losses import NUMBERS as OF_LOSSES
from support.printed.privacy import NUMBERS as OF_PRIVACY
from support.printed.sdf_energies import NUMBERS as OF_SDF_ENERGIES
from support.printed.sdf_fields import NUMBERS as OF_SDF_FIELDS
from support.printed.sdf_oneclass import NUMBERS as OF_SDF_ONECLASS
from support.printed.sdf_rays import NUMBERS as OF_SDF_RAYS
from support.printed.smoothing import NUMBERS as OF_SMOOTHING
from support.printed.spectra import NUMBERS as OF_SPECTRA
from support.printed.votes import NUMBERS as OF_VOTES
from support.repository import ROOT
from test_readme import PAGES, blocks, run

DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
EVERY_PAGE = [*DOCS, *PAGES]
# Their examples are one program, in parts.
CONTINUED = ("docs/guides/surfaces.md",)


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


def named(package: ModuleType) -> set[str]:
    """What docs/methods.md names as `package.name`, by the last part of the package's own name."""
    short = package.__name__.rpartition(".")[2]
    return set(re.findall(rf"`{short}\.(\w+)", (ROOT / "docs/methods.md").read_text()))


@pytest.mark.parametrize("package", [bounds, nn, nn.convex], ids=["bounds", "nn", "convex"])
def test_every_method_of_a_package_is_on_the_page(package: ModuleType):
    listed = named(package)
    public = {name: value for name, value in vars(package).items() if inspect.isclass(value) and name[0].isupper()}
    if package is bounds:
        wanted = {n for n, v in public.items() if issubclass(v, bounds.Method) and not inspect.isabstract(v)}
    else:
        wanted = {n for n, v in public.items() if issubclass(v, nn.WeightMethod | Module) and not inspect.isabstract(v)}
    assert wanted - listed == set()
    assert listed - vars(package).keys() == set()


@pytest.mark.parametrize(
    "package",
    [analysis, losses, regularizers, optim, certify, certify.attacks, certify.text, nn.networks, privacy, sdf],
    ids=lambda one: one.__name__,
)
def test_every_class_and_function_of_a_package_is_on_the_page(package: ModuleType):
    public = {name: value for name, value in vars(package).items() if not name.startswith("_")}
    classes = {name for name, value in public.items() if inspect.isclass(value) and not inspect.isabstract(value)}
    functions = {name for name, value in public.items() if inspect.isfunction(value)}
    # Bases that are abstract in name only, for whoever writes a method of their own.
    bases = {"Loss", "Retraction", "RunningMetric", "Attack"}
    assert (classes | functions) - named(package) - bases == set()
    assert named(package) - vars(package).keys() == set()


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


def test_a_row_that_promises_exact_means_every_operator_it_takes():
    # The example above is a convolution; this is a plain matrix.
    matrix = Dense(torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64))
    exact = {name for name, cells in rows().items() if cells[0] == "EXACT"} - {"Monomial"}
    assert exact == {"SVD"}
    assert all(methods()[name]()(matrix).kind is Kind.EXACT for name in exact)


def functions(file: Path) -> set[str]:
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)}


# The errata name files of other projects too.
@pytest.mark.parametrize("page", [page for page in EVERY_PAGE if page != "docs/errata.md"])
def test_the_files_a_page_names_exist(page: str):
    # Files are named from the repository, from src/lipkit, or after their folder was mentioned, by their last part.
    there = [
        f"/{path.relative_to(ROOT)}"
        for part in ("src", "tests", "recipes", "benchmarks")
        for path in (ROOT / part).rglob("*.py")
    ]
    for file in re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text()):
        assert any(path.endswith(f"/{file}") for path in there), file


def test_the_map_of_the_folders_is_complete():
    source = ROOT / "src" / "lipkit"
    listed = re.findall(r"^\| `([\w/]+/)` \|", (ROOT / "docs/architecture.md").read_text(), flags=re.MULTILINE)
    assert set(listed) == {f"{path.parent.relative_to(source)}/" for path in source.rglob("*/__init__.py")}


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_the_tests_a_page_cites_exist(page: str):
    cited = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / page).read_text())
    for file, name in cited:
        assert (ROOT / file).is_file(), file
        assert not name or name in functions(ROOT / file), f"{file}::{name}"


def errata() -> dict[str, str]:
    """The entries of docs/errata.md by their headings, without what is in parentheses."""
    entries = (ROOT / "docs/errata.md").read_text().split("\n### ")[1:]
    return {entry.partition(" (")[0]: entry for entry in entries}


def test_every_erratum_and_every_method_names_its_test():
    for title, entry in errata().items():
        assert re.search(
            r"\*Test\.\* `tests/(?:norms|bounds|nn|losses|regularizers|certify|analysis|privacy|sdf|estimators)"
            r"/[\w/]+\.py::test_\w+`",
            entry,
        ), title
        for part in ("*Printed.*", "*Against it.*", "*Right.*"):
            assert part in entry, title
    assert all(re.search(r"`tests/[\w/]+\.py`", cells[-1]) for cells in rows().values())


def anchors(page: Path) -> set[str]:
    """The fragments GitHub makes of headings: lower case, no punctuation, hyphens for spaces."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", EVERY_PAGE)
def test_links_lead_somewhere(page: str):
    here = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", here.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        file, _, fragment = target.partition("#")
        found = here.parent / file if file else here
        assert found.is_file(), target
        assert not fragment or fragment in anchors(found), target


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in DOCS if page not in PAGES])
def test_examples_run(page: str):
    for code in ["".join(blocks(page))] if page in CONTINUED else blocks(page):
        run(code)


def spectral(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2))


def schatten(sigma: tuple[float, ...], p: float) -> float:
    return float((np.array(sigma) ** p).sum() ** (1 / p))


def convolution(kernel: np.ndarray, n: int, circular: bool = False) -> np.ndarray:
    """The matrix of a convolution of n x n images, without lipkit."""
    k, c_in = kernel.shape[-1], kernel.shape[1]
    images = torch.eye(c_in * n * n, dtype=torch.float64).reshape(-1, c_in, n, n)
    padded = (
        functional.pad(images, (k // 2,) * 4, mode="circular") if circular else functional.pad(images, (k // 2,) * 4)
    )
    return functional.conv2d(padded, torch.from_numpy(kernel)).flatten(1).numpy().T


def filter_grams(kernel: np.ndarray, steps: int) -> list[np.ndarray]:
    found = [torch.from_numpy(kernel)]
    for _ in range(steps):
        found.append(functional.conv2d(found[-1], found[-1], padding=found[-1].shape[-1] - 1))
    return [one.numpy() for one in found[1:]]


def power_iteration() -> list[str]:
    matrix, u, errors = np.diag([1.0, 0.8, 0.3]), np.ones(3), []
    for _ in range(20):
        v = matrix @ u / np.linalg.norm(matrix @ u)
        u = matrix.T @ v / np.linalg.norm(matrix.T @ v)
        errors.append((np.linalg.norm(u - np.eye(3)[0]), 1 - u @ matrix @ v))
    return [f"{after / before:.4f}" for before, after in zip(errors[-2], errors[-1], strict=True)]


def any_norm() -> list[str]:
    gram = np.full((2, 2), 2.0)
    return [f"{np.linalg.matrix_power(gram, 2 ** (t - 2)).max() ** 2.0 ** (1 - t):.4f}" for t in (2, 3, 4)]


def orthogonal() -> list[str]:
    return [f"{512**2.0 ** -(n + 1):.{digits}f}" for n, digits in ((4, 4), (6, 4), (10, 5))]


def schatten_index() -> list[str]:
    return [f"{schatten((2, 1), 4):.4f}", f"{schatten((2, 1), 0.5):.4f}"]


def exponent() -> list[str]:
    errors = {t: schatten((1, 0.8, 0.3), 2**t) - 1 for t in (3, 4, 5)}
    wrong = {t: e / 0.8**2**t * 2.0**2**t for t, e in errors.items()}
    right = {t: e / 0.8**2**t * 2**t for t, e in errors.items()}
    powers = [f"{wrong[4] / 1e3:.1f}·10³", f"{wrong[5] / 1e8:.1f}·10⁸"]
    return [f"{wrong[3]:.1f}", *powers, f"{right[3]:.3f}", f"{right[4]:.3f}", f"{right[5]:.4f}"]


def zero_padding() -> list[str]:
    kernel = np.random.default_rng(1).standard_normal((4, 3, 3, 3))
    grams = filter_grams(kernel.transpose(1, 0, 2, 3), 5)
    frobenius = [(factor * (grams[3] ** 2).sum()) ** 2.0**-5 for factor in (9, 64)]
    rows = [np.abs(gram).sum((1, 2, 3)).max() ** 2.0**-n for n, gram in enumerate(grams, 1)]
    limit = np.linalg.norm(np.fft.fft2(kernel, s=(360, 360)), 2, axis=(0, 1)).max()
    return [f"{value:.3f}" for value in (spectral(convolution(kernel, 8)), *frobenius, limit, *rows)]


def support() -> list[str]:
    return [", ".join(str(gram.shape[-1]) for gram in filter_grams(np.ones((1, 1, 3, 3)), 5))]


def small_grid() -> list[str]:
    def outer(h: tuple[float, ...]) -> np.ndarray:
        return np.outer(h, h)[None, None]

    def printed(kernel: np.ndarray, points: int, t: int) -> float:
        alpha = 2**t / points
        return (1 - alpha) ** -(2.0**-t) * np.abs(np.fft.fft2(kernel, s=(points, points))).max()

    edge, hidden = outer((1.0, 0.0, -1.0)), outer((-2 / 3, 1 / 3, -2 / 3))
    assert spectral(convolution(edge, 8, circular=True)) == pytest.approx(4)
    assert spectral(convolution(hidden, 8, circular=True)) == pytest.approx(25 / 9)
    assert math.cos(math.pi / 6) ** -2 == pytest.approx(4 / 3)
    values = (printed(edge, 6, 1), printed(edge, 6, 2), spectral(convolution(edge, 16)), printed(hidden, 3, 1))
    return [f"{value:.3f}" for value in values]


def one_size() -> list[str]:
    kernel = np.full((1, 1, 3, 3), -2 / 9)
    kernel[..., 1, 1] += 1
    circular = convolution(kernel, 3, circular=True)
    assert circular @ circular.T == pytest.approx(np.eye(9))
    assert spectral(convolution(kernel, 3)) == pytest.approx(11 / 9)
    assert np.abs(np.fft.fft2(kernel, s=(240, 240))).max() == pytest.approx(5 / 3)
    return [f"{spectral(convolution(kernel, 8)):.4f}", "11/9", "5/3"]


def simultaneous() -> list[str]:
    matrix, negative = np.diag([3.0, 1.0, 0.5]), 0
    for seed in range(4000):
        u, v = np.random.default_rng(seed).standard_normal((2, 3))
        for _ in range(60):
            u, v = matrix @ v / np.linalg.norm(matrix @ v), matrix.T @ u / np.linalg.norm(matrix.T @ u)
        assert abs(u @ matrix @ v) == pytest.approx(3)
        negative += bool(u @ matrix @ v < 0)
    return [f"+3 in {4000 - negative}, -3 in {negative}"]


def squared() -> list[str]:
    u = np.ones(2)
    for _ in range(60):
        u = np.diag([9.0, 1.0]) @ (u / np.linalg.norm(u))
    return [f"tends to {np.linalg.norm(u):.0f}"]


def normalised() -> list[str]:
    inside = 36 / 255
    # A step of d in pixels is one of 2 d after (x - 0.5) / 0.5.
    outside = inside * 0.5
    return [f"{inside:.3f} = 36/255", f"{round(outside * 255)}/255"]


NUMBERS: dict[str, Callable[[], list[str]]] = {
    "The rate of power iteration": power_iteration,
    "An upper bound for any norm": any_norm,
    "The rate of Gram iteration needs a simple largest singular value": orthogonal,
    "The index of the Schatten norm": schatten_index,
    "An exponent in the discussion of the experiment": exponent,
    "The Frobenius form for zero padding": zero_padding,
    "How fast the kernel grows": support,
    "The factor for smaller grids": small_grid,
    "Orthogonal for one image size": one_size,
    "The simultaneous update of power iteration": simultaneous,
    "The last vector has the squared norm": squared,
    "The unit of the radius on CIFAR-10": normalised,
    **OF_NETWORKS,
    **OF_LAYERS,
    **OF_LOSSES,
    **OF_SDF_RAYS,
    **OF_SDF_FIELDS,
    **OF_SDF_ENERGIES,
    **OF_SDF_ONECLASS,
    **OF_SMOOTHING,
    **OF_ANALYSIS,
    **OF_DYNAMICS,
    **OF_PRIVACY,
    **OF_SPECTRA,
    **OF_VOTES,
}


def test_every_erratum_has_its_numbers():
    assert errata().keys() == NUMBERS.keys()


@pytest.mark.parametrize("title", NUMBERS)
def test_the_numbers_of_an_erratum_come_out(title: str):
    # Lines are broken anywhere.
    entry = " ".join(errata()[title].split())
    for number in NUMBERS[title]():
        assert number in entry
