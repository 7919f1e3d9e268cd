"""Norms in the demonstration: norms of some layers, and the norm of one convolution by many methods."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, final

import torch
from torch import Tensor, nn

from lipkit.bound import Bound, Kind
from lipkit.cli.console import table
from lipkit.cli.demo.ladder import Rung, colour_kind, measure
from lipkit.linops import LinearOperator, Shape, of
from lipkit.norms import (
    SVD,
    Auto,
    Cholesky,
    Circulant,
    FantasticFour,
    Gram,
    Lanczos,
    LipGrid,
    Norm,
    Power,
    ReshapedKernel,
    SmallGrid,
    Toeplitz,
)
from lipkit.report.html.numbers import digits
from lipkit.report.method_figures import Curve, convergence

if TYPE_CHECKING:
    from lipkit.cli.console import Table


class Layer(NamedTuple):
    """A module with a name and the shape of one input."""

    name: str
    module: nn.Module
    in_shape: Shape

    @property
    def op(self) -> LinearOperator:
        """The operator it is, without gradient: this page only looks."""
        return of(self.module, self.in_shape).map(Tensor.detach)


def layers(seed: int) -> list[Layer]:
    """A handful of layers as they occur in networks, with weights drawn from `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        square = nn.Linear(256, 256, bias=False)
        nn.init.orthogonal_(square.weight)
        norm = nn.BatchNorm2d(64).eval()
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        assert norm.running_var is not None
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        plain = nn.Conv2d(64, 64, 3, padding=1)
        ring = nn.Conv2d(64, 64, 3, padding=1, padding_mode="circular")
        ring.weight = plain.weight
        wider = nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1)
        return [
            Layer("Linear 512 -> 256", nn.Linear(512, 256), (512,)),
            Layer("Linear 256, orthogonal", square, (256,)),
            Layer("Conv2d 3 -> 64, 7x7, stride 2", nn.Conv2d(3, 64, 7, stride=2, padding=3), (3, 64, 64)),
            Layer("Conv2d 64 -> 64, 3x3", plain, (64, 28, 28)),
            Layer("the same, circular padding", ring, (64, 28, 28)),
            Layer("Conv2d 64, 3x3, depthwise", nn.Conv2d(64, 64, 3, padding=1, groups=64), (64, 28, 28)),
            Layer("ConvTranspose2d 64 -> 32, 4x4, stride 2", wider, (64, 14, 14)),
            Layer("AvgPool2d 2x2", nn.AvgPool2d(2), (64, 28, 28)),
            Layer("BatchNorm2d, evaluation", norm, (64, 28, 28)),
        ]


def convolution(channels: int, size: int, seed: int) -> LinearOperator:
    """A 3x3 convolution with zero padding, as torch initialises it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Layer("", nn.Conv2d(channels, channels, 3, padding=1), (channels, size, size)).op


@final
@dataclass(frozen=True, eq=False)
class LayerNorm:
    """A layer with the norm that `Auto` gives, a lower bound, and why that method was chosen."""

    layer: Layer
    norm: Rung
    lower: float
    why: str

    def plain(self) -> dict[str, object]:
        """As JSON."""
        return {
            "layer": self.layer.name,
            "input": list(self.layer.in_shape),
            "lower": self.lower,
            **self.norm.plain(),
        }


def layer_norms(seed: int) -> list[LayerNorm]:
    """Each layer by `Auto`."""
    found: list[LayerNorm] = []
    for layer in layers(seed):
        op = layer.op
        chosen = Auto().select(op)
        norm = measure(type(chosen.method).__name__, lambda op=op: Auto()(op))
        # With a seed of ours the result is LOWER, which is what is wanted here.
        lower = norm.bound.lower or Lanczos(steps=60, rtol=1e-3, seed=seed)(op)
        found.append(LayerNorm(layer, norm, lower.value.item(), chosen.why))
    return found


def method_norms(seed: int) -> list[Rung]:
    """One small convolution by many methods, sorted by value."""
    op = convolution(8, 12, seed)
    ours: list[Norm] = [SVD(), Power(steps=30), Lanczos(), Circulant(), SmallGrid(), Toeplitz()]
    methods: list[Norm] = [*ours, FantasticFour(), LipGrid(), ReshapedKernel()]
    return sorted((_norm_of(method, op) for method in methods), key=lambda one: one.bound.value.item())


def layer_table(found: Sequence[LayerNorm]) -> "Table":
    """Each layer with the bound `Auto` gives, its kind, and the lower bound that shows how much it can be off."""
    headers = ("layer", "input", ">lower bound", ">bound", "kind", ">gap", ">ms", "+method, and why")
    made = table("Norms of some layers, as Auto finds them", *headers)
    for one in found:
        bound = one.norm.bound
        value, below = bound.value.item(), Kind.EXACT if bound.kind is Kind.EXACT else Kind.LOWER
        numbers = (digits(one.lower, below, 6), digits(value, bound.kind, 6), colour_kind(bound))
        made.add_row(
            one.layer.name, "x".join(map(str, one.layer.in_shape)), *numbers, _gap(value / one.lower - 1),
            f"{1e3 * one.norm.seconds:.0f}", f"{one.norm.label}: {one.why}",
        )  # fmt: skip
    return made


def method_table(found: Sequence[Rung]) -> "Table":
    """One small convolution by many methods: what is below the true norm, and what is above."""
    truth = next(one.bound for one in found if one.bound.kind is Kind.EXACT).value.item()
    title = f"One convolution by many methods: 8 -> 8, 3x3, on 12 x 12, true norm {truth:.5f}"
    made = table(title, "method", "kind", "may certify", ">value", ">against the truth", ">ms")
    for one in found:
        kind, value = one.bound.kind, one.bound.value.item()
        away = "the truth" if kind is Kind.EXACT else f"{value / truth - 1:+.2%}"
        cells = ("yes" if kind.certifies else "no", digits(value, kind, 6), away, f"{1e3 * one.seconds:.1f}")
        made.add_row(one.label, colour_kind(one.bound), *cells)
    return made


def draw_convergence(op: LinearOperator, stem: Path, seed: int) -> tuple[Path, Path]:
    """Distance to the true norm against time, for methods with a knob that buys accuracy."""
    # Both sides of this enclosure agree to ten digits, two more than the figure shows.
    truth = _lower(Lanczos(steps=400, rtol=1e-10)(op)).value.item()

    def curve(label: str, methods: Iterable[Norm], above: bool) -> Curve:
        runs = [_norm_of(method, op) for method in methods]
        away = [(one.bound.value.item() / truth - 1) * (1 if above else -1) for one in runs]
        # Two proven lower bounds of one norm may differ in their last digit.
        return Curve(label, tuple(1e3 * one.seconds for one in runs), tuple(max(one, 0.0) for one in away), above)

    grids = [SmallGrid(rtol=r, inner=Cholesky(rtol=r / 10)) for r in (0.9, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3)]
    curves = [
        curve("Lanczos", [Lanczos(steps=k, rtol=0.0) for k in (8, 16, 32, 64, 96, 128, 192, 256)], above=True),
        curve("Gram on the torus", [Circulant(Gram(k)) for k in range(8)], above=True),
        curve("SmallGrid", grids, above=True),
        curve("Toeplitz", [Toeplitz(k) for k in (1, 2, 3)], above=True),
        # One start for all, known beforehand: LOWER.
        curve("Lanczos", [Lanczos(steps=k, rtol=0.0, seed=seed) for k in (8, 16, 24, 32, 48, 64, 96)], above=False),
        curve("power iteration", [Power(2**k, seed=seed) for k in range(9)], above=False),
    ]
    torus = Circulant()(op).value.item() / truth - 1
    title = "Norm of a convolution: 32 -> 32 channels, 3x3, zero padding, on 28 x 28"
    return convergence(curves, title, ("norm on the torus", torus), stem)


def _norm_of(method: Norm, op: LinearOperator) -> Rung:
    return measure(type(method).__name__, lambda: method(op))


def _lower(bound: Bound) -> Bound:
    assert bound.lower is not None
    return bound.lower


def _gap(relative: float) -> str:
    return f"{relative:.2%}" if relative >= 1e-4 else f"{max(relative, 0.0):.0e}"
