"""Every line of the page for those who know other packages, executed: ours always, theirs where they are installed."""

import importlib.util
import inspect
import math
import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lipkit
from lipkit import losses
from lipkit import nn as lnn
from lipkit.errors import UnsupportedError
from lipkit.nn import convex
from support.repository import ROOT

PAGE = ROOT / "docs" / "guides" / "migration.md"
# The names that lines use, and the modules behind them.
PEERS: dict[str, dict[str, str]] = {
    "deel-torchlip": {"torchlip": "deel.torchlip"},
    "orthogonium": {
        "layers": "orthogonium.layers",
        "aoc": "orthogonium.layers.conv.AOC",
        "soc": "orthogonium.layers.conv.adaptiveSOC",
        "aol": "orthogonium.layers.conv.AOL",
        "sll": "orthogonium.layers.conv.SLL",
        "residual": "orthogonium.layers.residual",
        "legacy": "orthogonium.legacy.cayley_ortho_conv",
    },
    "geotorch": {"geotorch": "geotorch"},
}


class Line(NamedTuple):
    """One row of a table."""

    package: str
    theirs: str
    ours: str
    given: str
    note: str

    def __str__(self) -> str:
        return self.theirs


def lines() -> list[Line]:
    found: list[Line] = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        package = section.partition("\n")[0]
        rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| ([^|]+) \| ?([^|]*)\|$", section, flags=re.MULTILINE)
        found += [Line(package, *(cell.strip() for cell in row)) for row in rows]
    return found


LINES = lines()
every_line = pytest.mark.parametrize("line", LINES, ids=str)


def arguments(line: Line, ours: bool) -> tuple[Tensor, ...]:
    """The inputs of a line; one-hot targets for theirs, numbers for ours."""
    generator = torch.Generator().manual_seed(0)
    kind = line.given.strip("`")
    numbers, scores = torch.randint(0, 4, (16,), generator=generator), torch.randn(16, 4, generator=generator)
    single = torch.randn(16, 1, generator=generator)
    signs = (torch.rand(16, 1, generator=generator) > 0.5).float() * 2 - 1
    named = {
        "binary": (single, signs),
        "bits": (single, (signs + 1) / 2),
        "numbers": (scores, numbers),
        "classes": (scores, numbers if ours else functional.one_hot(numbers, 4).float()),
    }
    if kind in named:
        return named[kind]
    shape = eval(re.findall(r"`([^`]+)`", line.given)[0])
    return tuple(torch.randn(3, *shape, generator=generator) for _ in range(2 if "two of" in line.given else 1))


def geo(constraint: Callable[..., object], inputs: int, outputs: int, *more: Any, **named: Any) -> nn.Module:
    layer = nn.Linear(inputs, outputs)
    constraint(layer, "weight", *more, **named)
    return layer


def our_result(line: Line) -> Tensor:
    for name in re.findall(r"lnn\.(\w+)", line.ours):
        if name not in vars(lnn):
            pytest.skip(f"lipkit.nn has no {name}")
    torch.manual_seed(0)
    module = eval(line.ours, {"lnn": lnn, "nn": nn, "losses": losses, "torch": torch})
    return module.eval()(*arguments(line, ours=True)).detach()


def test_the_page_has_lines_of_every_package() -> None:
    counts = {package: sum(line.package == package for line in LINES) for package in PEERS}
    assert min(counts.values()) >= 5
    assert sum(counts.values()) == len(LINES) >= 55


@every_line
def test_our_side_runs(line: Line) -> None:
    assert bool(torch.isfinite(our_result(line)).all())


@every_line
def test_both_sides_agree(line: Line) -> None:
    names = PEERS[line.package]
    root = next(iter(names.values())).partition(".")[0]
    if importlib.util.find_spec(root) is None:
        pytest.skip(f"{line.package} is not installed")
    ours = our_result(line)
    with warnings.catch_warnings():
        # Theirs to make.
        warnings.simplefilter("ignore")
        # Their own requirements may be missing: of orthogonium.legacy they are not declared.
        used = {name: path for name, path in names.items() if re.search(rf"\b{name}\.", line.theirs)}
        modules = {name: pytest.importorskip(path) for name, path in used.items()}
        module = eval(line.theirs, {**modules, "nn": nn, "geo": geo})
        theirs = module.eval()(*arguments(line, ours=False)).detach()
    assert ours.shape == theirs.shape
    if line.note.startswith("same values"):
        # A factor 1 - 2^-22 for safety here, and sums in another order.
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def makes_a_layer(name: str, one: object, package: str) -> bool:
    """A class of modules, or a function with the name of one: theirs choose the class by kernel and stride."""
    if inspect.isfunction(one):
        return name[0].isupper() and one.__module__.partition(".")[0] == package
    return inspect.isclass(one) and issubclass(one, nn.Module)


@pytest.mark.parametrize("package", PEERS)
def test_every_module_of_a_package_is_on_the_page(package: str) -> None:
    page = PAGE.read_text()
    for path in PEERS[package].values():
        if "legacy" in path:
            # Older forms of what is on the page.
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = pytest.importorskip(path, reason=f"{package} is not installed")
        public = {name for name, one in vars(module).items() if makes_a_layer(name, one, path.partition(".")[0])}
        if package == "geotorch":
            public = {name for name, one in vars(module).items() if inspect.isfunction(one)}
        assert {name for name in public if name not in page} == set()


def dense(layer: nn.Module, *shape: int) -> Tensor:
    units = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    return (layer(units) - layer(0 * units)).detach().flatten(1).mT


# Their kernels are orthogonal with circular borders.
ORTHOGONAL = (lnn.AOC(), lnn.BCOP(), lnn.SOC())


def disturb(layer: nn.Module) -> None:
    """Other free numbers than those of the start, which is an orthogonal matrix at the central tap."""
    raw = layer.get_parameter("parametrizations.weight.original")
    with torch.no_grad():
        raw.add_(torch.randn_like(raw))


def test_norms_of_groups_are_not_multiplied() -> None:
    """Groups act on different channels: the norm is the largest of theirs, for layers and for the measure."""
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 4, 3, padding=1, groups=2, padding_mode="circular").double()
    with torch.no_grad():
        layer.weight.mul_(3)
    truth = float(torch.linalg.svdvals(dense(layer, 4, 6, 6))[0])
    parts = [nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular").double() for _ in range(2)]
    with torch.no_grad():
        for part, weight in zip(parts, layer.weight.chunk(2), strict=True):
            part.weight.copy_(weight)
    norms = [float(torch.linalg.svdvals(dense(part, 2, 6, 6))[0]) for part in parts]
    assert abs(truth - max(norms)) < 1e-9
    assert norms[0] * norms[1] > 2 * truth
    found = float(lipkit.spectral_norm(layer, (4, 6, 6)).value.detach())
    assert truth * (1 - 1e-12) <= found <= truth * 1.01
    for method in (lnn.AOL(), lnn.Spectral(), lnn.RKO()):
        grouped = lnn.Conv2d(4, 4, 3, padding=1, groups=2, method=method).double()
        assert float(torch.linalg.svdvals(dense(grouped, 4, 6, 6))[0]) <= 1 + 1e-12
    for method in ORTHOGONAL:
        grouped = lnn.Conv2d(4, 4, 3, padding=1, groups=2, padding_mode="circular", method=method).double()
        disturb(grouped)
        values = torch.linalg.svdvals(dense(grouped, 4, 6, 6))
        # Were norms of groups multiplied anywhere, groups would be divided by too much or by too little. The series of
        # SOC loses up to 2.5e-6.
        assert 1 - 3e-6 <= float(values[-1]) <= float(values[0]) <= 1 + 1e-12


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_repeated_borders_are_refused(mode: Any) -> None:
    for method in (lnn.AOL(), lnn.RKO(), lnn.Frobenius(), *ORTHOGONAL):
        with pytest.raises(UnsupportedError, match="repeats entries of the border"):
            lnn.Conv2d(4, 4, 3, padding=1, padding_mode=mode, method=method)
    # Without padding there is nothing to repeat.
    lnn.Conv2d(4, 4, 3, padding_mode=mode)


def test_the_norm_that_reflected_borders_would_have() -> None:
    """Orthogonal kernels in torch's layer with reflected borders: what the page says of them, by dense SVD."""
    found: list[float] = []
    for seed in range(8):
        torch.manual_seed(seed)
        layer = lnn.Conv2d(4, 4, 3, padding=1, padding_mode="circular").double()
        disturb(layer)
        plain = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect", bias=False).double()
        with torch.no_grad():
            plain.weight.copy_(layer.weight)
        found.append(float(torch.linalg.svdvals(dense(plain, 4, 6, 6))[0]))
    assert f"of eight of ours in torch's\n  layer {min(found):.2f} to {max(found):.2f} (" in PAGE.read_text()


# Methods whose kernels need no overlap to be orthogonal, made for images of one size.
IN_FOURIER_SPACE = (lnn.LOT((6, 6)), lnn.BRO((6, 6)), lnn.FourierCayley((6, 6)))


@pytest.mark.parametrize("kernel", [(3, 1), (1, 3), (2, 5)])
def test_rectangular_kernels(kernel: tuple[int, int]) -> None:
    torch.manual_seed(0)
    for method in (lnn.AOL(), lnn.Rescale(2), lnn.Spectral(), lnn.RKO(), lnn.Frobenius(), convex.NonNegative()):
        layer = lnn.Conv2d(3, 4, kernel, padding=(1, 0), method=method).double()
        assert float(torch.linalg.svdvals(dense(layer, 3, 6, 6))[0]) <= 1 + 1e-12
    for method in (*ORTHOGONAL, *IN_FOURIER_SPACE):
        if isinstance(method, lnn.SOC) and kernel == (2, 5):
            with pytest.raises(UnsupportedError, match="odd on every axis"):
                lnn.Conv2d(4, 3, kernel, method=method)
            continue
        # Circular borders as wide as the kernel leave the size as it is, so the map is one onto fewer channels.
        layer = lnn.Conv2d(4, 3, kernel, padding="same", padding_mode="circular", method=method).double()
        disturb(layer)
        values = torch.linalg.svdvals(dense(layer, 4, 6, 6))
        assert 1 - 3e-6 <= float(values[-1]) <= float(values[0]) <= 1 + 1e-12
    # Rows of norm one, which bound each output by itself.
    layer = lnn.Conv2d(3, 4, kernel, padding=(1, 0), method=lnn.UnitRows()).double()
    disturb(layer)
    assert float(dense(layer, 3, 6, 6).norm(dim=1).max()) <= 1 + 1e-12


@pytest.mark.parametrize("method", [lnn.Bjorck(), lnn.Cayley(), lnn.SingularClip(), lnn.LpBall()], ids=repr)
def test_methods_for_matrices_refuse_kernels_of_every_shape(method: lnn.WeightMethod) -> None:
    for kernel in ((3, 1), (3, 3)):
        with pytest.raises(UnsupportedError):
            lnn.Conv2d(3, 4, kernel, method=method)


def test_a_constant_for_one_layer() -> None:
    """k_coef_lip is spelled Sequential(layer, K=...): every K, in chains too."""
    torch.manual_seed(0)
    layer = lnn.Linear(6, 6).double()
    norm = float(torch.linalg.svdvals(dense(layer, 6))[0])
    for k in (0.5, 3.0):
        scaled = lnn.Sequential(layer, K=k)
        found = float(torch.linalg.svdvals(dense(scaled, 6))[0])
        assert norm * k * (1 - 1e-5) <= found <= k
        chain = lnn.Sequential(scaled, lnn.MaxMin(), lnn.Sequential(lnn.Linear(6, 2), K=2.0), K=2 * k)
        assert lnn.gain_of(chain) == 2 * k
        assert chain.factor == 1.0
