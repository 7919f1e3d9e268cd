"""No proven norm is on the wrong side: random operators of every kind, all methods, against the float64 dense SVD.

Claims: of N operators (matrices, convolutions of all geometries, pools, gathers, products, sums, blocks; Gaussian,
orthogonal, rank one, zero, near-equal singular values, float32 and bfloat16 weights, scales of 1e-30 and 1e30, real and
complex), no EXACT or UPPER value is below the largest singular value of the matrix times 1 - n 2^-53, no LOWER value
is above it times 1 + n 2^-53, and EXACT ones are within 1e-8. Cheap methods are run on every operator they cover, the
others in turn. The exit status is 1 if anything is violated; `--start I --count 1` with the same seed draws the culprit
again.

    python benchmarks/soundness_norms.py [--count 20000] [--seed 0] [--start 0]
"""

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from lipkit import linops, norms
from lipkit.bound import Bound, Kind
from lipkit.errors import ArgumentError, ShapeError, UnsupportedError
from lipkit.linops import LinearOperator, Padding, Shape
from lipkit.norms import SVD, Cholesky, Gram, Norm

CHEAP: tuple[Norm, ...] = (SVD(), norms.Circulant(), norms.KernelIsometry(), norms.Monomial())
IN_TURN: tuple[Norm, ...] = (
    norms.Auto(),
    Cholesky(),
    Cholesky(rtol=1e-2, steps=5),
    norms.Circulant(Gram(4)),
    norms.FantasticFour(),
    norms.Frobenius(),
    Gram(),
    Gram(3, norms.Readout.ROW_SUM),
    norms.Lanczos(steps=30),
    norms.LipGrid(10),
    norms.Mixed(2, 2),
    norms.NearIsometry(),
    norms.Power(steps=10),
    norms.SmallGrid(),
    norms.SmallGrid(rtol=0.3, inner=SVD()),
    norms.Toeplitz(steps=1),
    norms.Toeplitz(),
)
AT_ONCE = 6
LARGEST = 120

T = TypeVar("T")
FAMILIES = ("gaussian", "gaussian", "orthogonal", "rank one", "near-equal", "zero", "alike", "signs", "sparse")


class Draw:
    """Everything random about one operator, from one seed."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = random.Random(f"{seed} {index}")
        self.generator = torch.Generator().manual_seed(self.rng.getrandbits(40))

    def integer(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def pick(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)

    def shape(self, rank: int, longest: int) -> Shape:
        return tuple(self.integer(1, longest) for _ in range(rank))

    def gaussian(self, shape: Shape) -> Tensor:
        return torch.randn(shape, dtype=torch.float64, generator=self.generator)

    def tensor(self, shape: Shape) -> Tensor:
        """Numbers of a drawn family; matrices of the first axis against the others where structure matters."""
        family = self.pick(FAMILIES)
        rows, cols = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
        found = self.gaussian((rows, cols))
        match family:
            case "orthogonal" | "near-equal":
                u, _, vh = torch.linalg.svd(found, full_matrices=False)
                step = 10.0 ** -self.integer(4, 16) if family == "near-equal" else 0.0
                found = (u * (1 - step * torch.arange(u.shape[1]))) @ vh
            case "rank one":
                found = torch.outer(found[:, 0], self.gaussian((cols,)))
            case "zero":
                found = torch.zeros_like(found)
            case "alike":
                found = torch.ones_like(found)
            case "signs":
                found = found.sign()
            case "sparse":
                found = found * (found.abs() > 1)
            case _:
                pass
        if self.integer(0, 4) == 0:
            found = torch.complex(found, self.gaussian((rows, cols)))
        return (found * self.pick((1.0, 1.0, 1.0, 1e-30, 1e30))).reshape(shape)


def matrix(draw: Draw) -> LinearOperator:
    """Square, tall and wide ones."""
    return linops.Dense(draw.tensor(draw.shape(2, draw.pick((3, 12, 40)))))


def sides(draw: Draw, size: int, mode: Padding) -> tuple[int, int]:
    """Widths that the mode allows, equal ones often."""
    widest = {Padding.REFLECT: min(3, size - 1), Padding.CIRCULAR: min(3, size)}.get(mode, 3)
    left = draw.integer(0, widest)
    return left, left if draw.integer(0, 1) else draw.integer(0, widest)


def conv(draw: Draw) -> LinearOperator:
    """All ranks, strides, dilations, groups, paddings and modes."""
    rank = draw.integer(1, 3)
    mode = draw.pick(list(Padding))
    spatial = draw.shape(rank, {1: 14, 2: 6, 3: 4}[rank])
    kernel, groups = draw.shape(rank, {1: 5, 2: 3, 3: 2}[rank]), draw.integer(1, 2)
    c_out, c_in = draw.shape(2, 3)
    padding = tuple(sides(draw, n, mode) for n in spatial)
    weight = draw.tensor((groups * c_out, c_in, *kernel))
    return linops.Conv(weight, spatial, draw.shape(rank, 3), padding, draw.shape(rank, 2), groups, mode)


def conv_transpose(draw: Draw) -> LinearOperator:
    """All ranks, strides, dilations, groups and paddings."""
    rank = draw.integer(1, 2)
    kernel, groups = draw.shape(rank, 4), draw.integer(1, 2)
    c_in, c_out = draw.shape(2, 2)
    padding = tuple(draw.integer(0, 2) for _ in range(rank))
    weight, spatial = draw.tensor((groups * c_in, c_out, *kernel)), draw.shape(rank, 5)
    return linops.ConvTranspose(weight, spatial, draw.shape(rank, 3), padding, (0,) * rank, draw.shape(rank, 2), groups)


def pool(draw: Draw) -> LinearOperator:
    """Overlapping and disjoint windows."""
    rank = draw.integer(1, 2)
    kernel, padding = draw.shape(rank, 3), tuple(draw.integer(0, 1) for _ in range(rank))
    return linops.AvgPool(
        draw.integer(1, 3), draw.shape(rank, 7), kernel, draw.shape(rank, 3), padding, math.prod(kernel)
    )


def monomial(draw: Draw) -> LinearOperator:
    """One entry in each row."""
    shape = draw.shape(draw.integer(1, 3), 4)
    kind = draw.pick(("diagonal", "batch norm", "permute", "gather", "pad"))
    if kind == "diagonal":
        return linops.Diagonal(draw.tensor(shape), shape)
    if kind == "batch norm":
        return linops.BatchNorm(draw.gaussian(shape[:1]), draw.gaussian(shape[:1]).square(), 1e-5, shape)
    if kind == "permute":
        return linops.Permute(shape, tuple(reversed(range(len(shape)))))
    if kind == "pad":
        mode = draw.pick(list(Padding))
        return linops.pad(shape, (sides(draw, shape[-1], mode),), mode)
    target = draw.shape(2, 4)
    index = torch.tensor([draw.integer(-1, math.prod(shape) - 1) for _ in range(math.prod(target))])
    return linops.Index(index.reshape(target), shape)


def between(draw: Draw, source: Shape, target: Shape) -> LinearOperator:
    """A matrix between two shapes."""
    flat = linops.Dense(draw.tensor((math.prod(target), math.prod(source))))
    return linops.Reshape(flat.out_shape, target) @ flat @ linops.Reshape(source, flat.in_shape)


def composite(draw: Draw) -> LinearOperator:
    """Products, sums, multiples, adjoints and blocks of the others."""
    first = draw.pick(LEAVES)(draw)
    second = between(draw, first.in_shape, first.out_shape)
    match draw.integer(0, 6):
        case 0:
            return first.T
        case 1:
            return draw.gaussian(()) * first
        case 2:
            return between(draw, first.out_shape, (3,)) @ first
        case 3:
            return first + second
        case 4:
            return linops.BlockRow((first, second))
        case 5:
            return linops.BlockColumn((first, second))
        case _:
            return linops.BlockDiagonal((first, second))


LEAVES: tuple[Callable[[Draw], LinearOperator], ...] = (matrix, conv, conv, conv_transpose, pool, monomial)


def operator(draw: Draw) -> LinearOperator:
    """One of a size whose dense matrix is cheap, in one of the precisions of weights."""
    while True:
        make = draw.pick((*LEAVES, composite))
        try:
            op = make(draw)
        except (ShapeError, ArgumentError):
            continue  # A kernel that does not fit; draw again.
        if 0 < max(op.in_size, op.out_size) <= LARGEST:
            break
    dtype = draw.pick((torch.float64, torch.float32, torch.bfloat16))
    return op.to(torch.float32 if dtype is torch.bfloat16 and op.dtype.is_complex else dtype)


@dataclass
class Tally:
    """The result of one method."""

    count: int = 0
    violations: int = 0
    excess: list[float] = field(default_factory=list)

    def row(self) -> str:
        """One line of the table."""
        ordered = sorted(self.excess, key=abs) or [math.nan]
        return f"{self.count:8d} {self.violations:10d} {ordered[len(ordered) // 2]:12.2e} {ordered[-1]:12.2e}"


def faults(bound: Bound, truth: float, size: float, n: int) -> list[str]:
    """The false statements of the bound; empty if all are true."""
    found: list[str] = []
    rounding = n * 2.0**-53
    if bound.kind.certifies and not bound.value >= truth * (1 - rounding):
        found.append(f"{bound.kind.value} {bound.value.item():.17g} is below {truth:.17g}")
    if bound.kind is Kind.EXACT and not bound.value <= truth * (1 + 1e-8) + 1e-11 * size:
        found.append(f"exact {bound.value.item():.17g} is far above {truth:.17g}")
    lower = bound if bound.kind is Kind.LOWER else bound.lower
    if lower is not None and not lower.value <= truth * (1 + rounding):
        found.append(f"lower bound {lower.value.item():.17g} is above {truth:.17g}")
    return found


def check(op: LinearOperator, methods: tuple[Norm, ...], tallies: dict[Norm, Tally]) -> list[str]:
    """Run the methods that cover the operator, and list the false statements."""
    dense = linops.materialize(op.to(torch.float64))
    truth = float(torch.linalg.svdvals(dense).max())
    parts = linops.magnitude(op)
    size = float(parts.absolute) + parts.relative * truth
    found: list[str] = []
    for method in methods:
        try:
            bound = method(op)
        except UnsupportedError:
            continue
        tally, wrong = tallies[method], faults(bound, truth, size, max(dense.shape))
        tally.count += 1
        tally.violations += bool(wrong)
        if truth > 1e-9 * size:
            tally.excess.append(float(bound.value) / truth - 1)
        found += [f"{method}: {fault}" for fault in wrong]
    return found


def main() -> int:
    """Draw, check, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    tallies = {method: Tally() for method in (*CHEAP, *IN_TURN)}
    kinds: dict[str, int] = {}
    violated, began = 0, time.perf_counter()
    for index in range(options.start, options.start + options.count):
        op = operator(Draw(options.seed, index))
        kinds[type(op).__name__] = kinds.get(type(op).__name__, 0) + 1
        turn = tuple(IN_TURN[(index * AT_ONCE + k) % len(IN_TURN)] for k in range(AT_ONCE))
        for fault in check(op, (*CHEAP, *turn), tallies):
            violated += 1
            print(f"VIOLATION at index {index}, {op} in {op.dtype}: {fault}")
    print(f"{options.count} operators, seed {options.seed}: " + ", ".join(f"{n} {k}" for k, n in sorted(kinds.items())))
    print(f"{'method':64s} {'count':>8s} {'violations':>10s} {'median':>12s} {'worst':>12s}  (value/truth - 1)")
    for method, tally in tallies.items():
        print(f"{method!s:64.64s} {tally.row()}")
    print(
        f"{sum(t.count for t in tallies.values())} bounds, {violated} violations, {time.perf_counter() - began:.0f} s"
    )
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
