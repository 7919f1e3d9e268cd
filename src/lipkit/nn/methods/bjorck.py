"""Orthogonal matrices by the iteration of Björck and Bowie."""

import functools
import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Float64, Inexact
from torch import Tensor
from torch.nn import functional

from lipkit._compilers import constant_for_compilers, runs_plainly
from lipkit.errors import ArgumentError
from lipkit.nn.core.precision import exact_products, room_for, widest
from lipkit.nn.core.unchanged_bits import is_plain
from lipkit.nn.methods._arithmetic.bjorck_steps import Start, iterate, iterate_shortly
from lipkit.nn.methods._arithmetic.precise_products import gram_of, product
from lipkit.nn.methods._arithmetic.safe_scaling import divide_by_largest, largest, size_of
from lipkit.nn.methods._arithmetic.spectrum_range import range_of
from lipkit.nn.methods._base import MatrixMethod
from lipkit.nn.methods._isometry import excess_of
from lipkit.rounding.slacks import ULP

# The distance of singular values from 1 before the last step, which turns e into 3/2 e^2: 2e-12.
_NEAR = 1e-6
# The same where few steps are enough: the last one turns it into 4e-10.
_CLOSE = 2.0**-16
# In narrower matrices products cost no more than a look at singular values.
_WIDE = 128
# More steps reach smaller singular values than the Gram matrix has digits for.
_ON_GRAM = 8
# Narrower than this a GPU spends more time on starting the many small products than on fewer long ones.
_NARROW = 512
# On a CPU the same holds for iterations that save fewer products of numbers than this.
_MANY_PRODUCTS = 2**24

# Matrices of several shapes are made equal by zeros where one product with all of them has at most so many products of
# numbers, on a GPU and on a CPU: starting another iteration takes longer.
_FEW_PRODUCTS = (2**27, 2**19)


@final
@dataclass(frozen=True)
class Bjorck(MatrixMethod):
    """The nearest orthogonal matrix: W <- 3/2 c W - 1/2 c^3 W W' W, which takes a singular value s to that of c s.

    It starts from W / b with b >= ||W||, b^2 = min(||W'W||_F, ||W'W||_inf) on the smaller side, so all singular values
    are in [0, 1] and stay there: 3/2 s - 1/2 s^3 is in [0, 1] for s in [0, 3^(1/2)], and every c is at most 3^(1/2).
    What has not converged yet is below one, never above. Björck's c is 1; the c of the early steps are larger, chosen
    so that both ends of the range that is left, [l, 1], come to the same place:
        c = (3 / (1 + l + l^2))^(1/2),   l <- 3/2 c - 1/2 c^3.
    Singular values above b / 58 arrive at 1 up to 1e-6, those above b / 47 up to 2e-12, and rounding; each step more
    reaches 2.6 times further. Initial weights are orthogonal already.

    Guarantee: norm at most 1 as stored: the last step is done in float64, and 3/2 s - 1/2 s^3 <= 1 for every s in
    [0, 2], so earlier rounding cannot carry it above. Cost: 2 `steps` products with the smaller side, the last two in
    float64, and 3 `steps` backward. A matrix at least twice as long as wide is multiplied only twice, and three times
    backward: the steps are those of its Gram matrix (up to 8 steps, without tf32, on a GPU from 512 columns, on a CPU
    where this saves more than starting the smaller products takes).
    In training on a CPU from 128 columns, float32, only the steps that the singular values need are taken: one for an
    isometry, four where the largest is up to 1.6 times the smallest. The Gram matrix proves that result, which agrees
    up to rounding with that of all steps; evaluations take all.
    Gradient: through all steps that are taken.
    Reference: Björck and Bowie 1971; Anil, Lucas and Grosse 2019; the factors c: Chen and Chow 2014.

    Args:
        steps: Iterations; each reaches singular values 2.6 times smaller.
    """

    scale_free = True
    takes_complex = True

    steps: int = 8

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ArgumentError(f"Bjorck.steps must be at least 1, got {self.steps}.")

    def __str__(self) -> str:
        return f"Björck, {self.steps} steps"

    def matrix(self, raw: Inexact[Tensor, "batch rows cols"]) -> Inexact[Tensor, "batch rows cols"]:
        return self._in_type(raw, raw.dtype)

    def in_float64(self, *several: Float[Tensor, "_ _ _"]) -> tuple[Float64[Tensor, "_ _ _"], ...]:
        """In one iteration where shapes are equal, or few numbers are added: zeros stay zeros, and change no other."""
        rows, cols = (max(one.shape[axis] for one in several) for axis in (1, 2))
        counts = [len(one) for one in several]
        work = sum(counts) * rows * cols * min(rows, cols)
        equal = all(one.shape[1:] == (rows, cols) for one in several)
        if not equal and work > _FEW_PRODUCTS[int(several[0].device.type == "cpu")]:
            return tuple(self._in_type(one, torch.float64) for one in several)
        whole = torch.cat([_padded(one, rows, cols) for one in several])
        found = self._in_type(whole, torch.float64).split(counts)
        return tuple(one[:, : was.shape[1], : was.shape[2]] for one, was in zip(found, several, strict=True))

    def _in_type(
        self, raw: Inexact[Tensor, "batch rows cols"], dtype: torch.dtype
    ) -> Inexact[Tensor, "batch rows cols"]:
        if raw.shape[-2] < raw.shape[-1]:
            return self._tall(raw.mT, dtype).mT
        return self._tall(raw, dtype)

    def _tall(self, tall: Inexact[Tensor, "batch rows cols"], dtype: torch.dtype) -> Inexact[Tensor, "batch rows cols"]:
        scales = factors(self.steps - 1)
        if self._on_gram(tall):
            return by_gram(tall, scales, dtype)
        short = self._short_way(tall, dtype) if _may_look(tall) else None
        return iterate(tall, scales, dtype) if short is None else short

    def _short_way(
        self, tall: Inexact[Tensor, "batch rows cols"], dtype: torch.dtype
    ) -> Inexact[Tensor, "batch rows cols"] | None:
        """The same with as few steps as the singular values need; None where all steps are needed."""
        with torch.no_grad():
            unit = largest(tall)
            level = tall / unit
            gram = torch.bmm(level.mH, level)
            least, most = range_of(gram)
            # Singular values that `steps` steps would leave short stay as short as they are.
            arrive = least >= float(size_of(gram).max()) ** 2 * reach(self.steps - 1, _NEAR) ** 2
            start = Start(unit, gram, torch.full_like(unit, most))
        count = next((n for n in range(self.steps - 1) if reach(n, _CLOSE) ** 2 * most <= least), None)
        if count is None or not arrive:
            return None
        return iterate_shortly(tall, start, factors(count, _CLOSE), 4 * _CLOSE * math.sqrt(tall.shape[-1]), dtype)

    def _on_gram(self, tall: Tensor) -> bool:
        count, rows, cols = tall.shape
        saved = count * self.steps * (2 * rows - 3 * cols) * cols**2
        worth = rows >= 2 * cols and (saved >= _MANY_PRODUCTS if tall.device.type == "cpu" else cols >= _NARROW)
        return worth and 1 < self.steps <= _ON_GRAM and exact_products(tall)


# Compilers ignore what is cached, and say so in a warning.
@constant_for_compilers
def factors(steps: int, near: float = _NEAR) -> tuple[float, ...]:
    """The factors c of `steps` steps after which both ends of the range are at 1 - `near`.

    Found backwards: with s = 2 sin t a step takes s to sin 3t, and c and c l are the two s that come to the new l.
    """
    return _backwards(steps, near)[0]


def reach(steps: int, near: float) -> float:
    """The lower end l of the range [l, 1] that `steps` steps bring to 1 - `near`."""
    return _backwards(steps, near)[1]


@functools.cache
def _backwards(steps: int, near: float) -> tuple[tuple[float, ...], float]:
    found: list[float] = []
    least = 1 - near
    for _ in range(steps):
        third = math.asin(least) / 3
        found.append(2 * math.sin(math.pi / 3 - third))
        least = 2 * math.sin(third) / found[-1]
    return tuple(reversed(found)), least


def _may_look(tall: Tensor) -> bool:
    """Whether the numbers of a matrix may decide which operations follow, and it is large enough for that to pay.

    Only in steps of training that Python runs, in main memory: evaluations, exports and compiled programs have the same
    bits as each other, and a GPU would wait.
    """
    wanted = torch.is_grad_enabled() and tall.requires_grad
    fits = tall.dtype == torch.float32 and tall.shape[-1] >= _WIDE and is_plain(tall) and exact_products(tall)
    return wanted and fits and runs_plainly()


def _padded(
    one: Inexact[Tensor, "batch rows cols"], rows: int, cols: int
) -> Inexact[Tensor, "batch more_rows more_cols"]:
    more = (0, cols - one.shape[2], 0, rows - one.shape[1])
    return functional.pad(one, more) if any(more) else one


def by_gram(
    tall: Inexact[Tensor, "batch rows cols"], scales: tuple[float, ...], dtype: torch.dtype
) -> Inexact[Tensor, "batch rows cols"]:
    """Björck steps from c W / b, c in `scales`, b >= ||W||, and a last one with c = 1, with norm at most 1 in `dtype`.

    All steps multiply W from the right by functions of A = W'W / b^2, so only those are computed, T being their
    product so far:  P = 3/2 c I - 1/2 c^3 A,   T <- T P,   A <- A P^2.
    The last step, W T (3/2 I - 1/2 T'W'W T), is done in float64; rounding before it changes T, which it squares away.
    A Gram matrix has half the digits for small singular values: in float32 those below b / 1000 come out short.

    Cost: two products of rows cols^2 in float64, forward; three in the type of W, backward; about 3 `steps` of cols^3.
    """
    rows, cols = tall.shape[-2:]
    scaled = divide_by_largest(tall)
    wide = widest(tall.dtype)
    gram = gram_of(scaled, wide)
    size = size_of(gram)
    root = (_gram_root((gram / size.square()).to(tall.dtype), scales) / size).to(tall.dtype)
    half = product(root.mH, gram, wide)
    inner = product(root.mH, half.mH, wide)
    error = _gram_error(scaled, root)
    excess = excess_of(inner, False, error)
    room = room_for(rows, cols, 1, dtype) / (1 + error)
    whole = product(root, _step_factor(inner, excess.rsqrt(), room), wide)
    return product(scaled, whole, dtype)


def _gram_root(
    gram: Inexact[Tensor, "batch cols cols"], scales: tuple[float, ...]
) -> Inexact[Tensor, "batch cols cols"]:
    root = step = _step_factor(gram, scales[0])
    for scale in scales[1:]:
        gram = torch.bmm(gram, gram_of(step, step.dtype))
        step = _step_factor(gram, scale)
        root = torch.bmm(root, step)
    return root


def _step_factor(
    gram: Inexact[Tensor, "batch cols cols"], scale: float | Tensor, room: float | Tensor = 1.0
) -> Inexact[Tensor, "batch cols cols"]:
    """(3/2 c I - 1/2 c^3 W'W) r: what a Björck step from c W multiplies W by, with r in [0, 1] for rounding."""
    identity = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    return (1.5 * room * scale) * identity - (0.5 * room * scale**3) * gram


def _gram_error(
    scaled: Inexact[Tensor, "batch rows cols"], root: Inexact[Tensor, "batch cols cols"]
) -> Float64[Tensor, "batch 1 1"]:
    """A bound of what rounding in the five products of the last step adds to its norm, and to that of T'W'W T.

    With t^2 = min(||T||_F^2, ||T||_1 ||T||_inf), a bound of ||abs(T)||^2, and q = t ||W||_F: the Gram matrix is known
    up to gamma_rows ||W||_F^2 and T'W'W T up to (gamma_rows + 2 gamma_cols) q^2; the factor has norm at most 3/2, which
    leaves 3 cols^(1/2) gamma_(cols + 5) q for the other two. Twice that, for the rounding of this formula; and four
    times where products are complex.
    """
    rows, cols = scaled.shape[-2:]
    both = (-2, -1)
    whole, entries = (x.detach().to(widest(x.dtype)) for x in (scaled, root))
    by_row, by_col = (torch.linalg.vector_norm(entries, 1, axis, keepdim=True).amax(both, True) for axis in (-1, -2))
    square = torch.minimum(torch.linalg.vector_norm(entries, dim=both, keepdim=True).square(), by_row * by_col)
    q = square.sqrt() * torch.linalg.vector_norm(whole, dim=both, keepdim=True)
    unit = 4 * ULP if scaled.dtype.is_complex else ULP
    return unit * (rows + 5 * cols + 16) * q * (q + math.sqrt(cols))
