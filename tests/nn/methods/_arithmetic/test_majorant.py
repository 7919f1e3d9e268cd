"""Diagonals that dominate W'W, on both ways to them: half of the shifts, and all of them at once on an accelerator."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.linops import materialize
from lipkit.nn.methods._arithmetic import filter_gram as _filter_gram
from lipkit.nn.methods._arithmetic import rescaling_step as _one_step
from lipkit.nn.methods._arithmetic.filter_gram import all_shifts, every_tap, launches_count, twice_gram
from lipkit.nn.methods._arithmetic.majorant import majorant
from lipkit.nn.methods.rescale import Rescale
from lipkit.nn.residual._base import ResidualLayer
from lipkit.nn.residual.sll import SLL, SLLConv
from support.layers.examples import QUIET
from support.layers.launches import Launches
from support.programs.run import run_program

quiet = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


@contextmanager
def on_an_accelerator() -> Iterator[None]:
    """A context rather than a fixture, because examples of hypothesis share fixtures."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (_filter_gram, _one_step):
            patch.setattr(module, "launches_count", lambda _: True)
        yield


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def isometric(kernel: Tensor) -> Tensor:
    """Orthonormal columns at one tap, as far as the shape has room for them: where bounds are tight."""
    spot = torch.linalg.qr(kernel.flatten(3)[..., 0].double())[0]
    found = torch.zeros_like(kernel)
    found.flatten(3)[:, :, : spot.shape[2], -1] = spot.to(kernel.dtype)
    return found


def uneven(kernel: Tensor) -> Tensor:
    """Columns from one down to numbers whose squares vanish in float32."""
    size = torch.logspace(0, -30, kernel.shape[2]).reshape(-1, *(1,) * (kernel.ndim - 3))
    return kernel * size.to(kernel.dtype)


FILLS = {
    "normal": lambda kernel: kernel,
    "isometric": isometric,
    "equal": lambda kernel: kernel[:, :1, :1].mean().expand_as(kernel),
    "uneven": uneven,
    "tiny": lambda kernel: 1e-20 * kernel,
    "zero": torch.zeros_like,
}


@st.composite
def kernels(draw: DrawFn, dtype: torch.dtype) -> Tensor:
    """Kernels of one to three axes with entries of at most one."""
    rank = draw(st.integers(1, 3))
    groups, rows, cols = draw(st.integers(1, 2)), draw(st.integers(1, 6)), draw(st.integers(1, 6))
    taps = [draw(st.integers(1, (4, 3, 2)[rank - 1])) for _ in range(rank)]
    free = torch.randn(groups, rows, cols, *taps, generator=seeded(draw(st.integers(0, 2**31)))).to(dtype)
    return FILLS[draw(st.sampled_from(sorted(FILLS)))](free / free.abs().amax())


def weights(kernel: Tensor, spread: float) -> Tensor:
    """Weights q whose logarithms are normal, `spread` wide."""
    groups, _, cols = kernel.shape[:3]
    return (spread * torch.randn(groups, cols, dtype=torch.float64, generator=seeded(0))).exp()


def excess(kernel: Tensor, diagonal: Tensor) -> float:
    """The largest eigenvalue of D^(-1/2) E* E D^(-1/2), less one, at many frequencies, 0 and pi among them."""
    cols, *taps = kernel.shape[2:]
    grids = [torch.cat([2 * math.pi * torch.arange(8) / 8, torch.rand(2, generator=seeded(1))]).double() for _ in taps]
    scaled = kernel.double() * diagonal.rsqrt().reshape(len(kernel), 1, cols, *(1,) * len(taps))
    symbol = scaled.to(torch.complex128)
    # The axes of taps become axes of frequencies at the end, one by one.
    for t, grid in zip(taps, grids, strict=True):
        waves = torch.exp(1j * torch.arange(t).double()[:, None] * grid)
        symbol = symbol.movedim(3, -1) @ waves
    values = torch.linalg.matrix_norm(symbol.flatten(3).movedim(3, 0), 2).square()
    return float(values.max()) - 1


def above(kernel: Tensor, diagonal: Tensor) -> bool:
    # The reference itself rounds by some n 2^-53.
    return excess(kernel, diagonal) <= 1e-13


@given(st.data())
@settings(max_examples=150)
def test_it_dominates_at_every_frequency(data: st.DataObject) -> None:
    """In the digits it has, without one to spare: what float32 loses is counted."""
    kernel = data.draw(kernels(data.draw(st.sampled_from([torch.float32, torch.float64]))))
    steps = data.draw(st.integers(1, 3))
    q = weights(kernel, data.draw(st.sampled_from([0.3, 30.0]))) if data.draw(st.booleans()) else None
    assert above(kernel, majorant(kernel, steps, q))
    with on_an_accelerator():
        found = majorant(kernel, steps, q)
        assert above(kernel, found)
        torch.testing.assert_close(majorant(kernel, steps, q, 3.0), 3 * found, rtol=1e-15, atol=0)


@given(st.data())
@settings(max_examples=60)
def test_all_shifts_at_once_are_the_half_of_them(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    kernel = data.draw(kernels(dtype))
    steps, q = data.draw(st.integers(1, 4)), weights(kernel, 0.3)
    expected, gram = majorant(kernel, steps, q), twice_gram(kernel)
    with on_an_accelerator():
        found, every = majorant(kernel, steps, q), twice_gram(kernel)
    digits = {torch.float32: 1e-5, torch.float64: 1e-12}[dtype]
    torch.testing.assert_close(found, expected, rtol=digits, atol=0)
    torch.testing.assert_close(every, gram, rtol=digits, atol=digits)
    # Without a single rounding between them: the powers of anything else dominate nothing.
    for both in (gram, every):
        axes = list(range(3, both.ndim))
        assert torch.equal(both, both.flip(axes).transpose(1, 2))


@pytest.mark.parametrize("taps", [(1,), (4,), (3, 2), (1, 3), (3, 1), (2, 3, 2), (3, 1, 2), (1, 2, 3)], ids=str)
def test_every_shift_stands_in_its_place(taps: tuple[int, ...]) -> None:
    kernel = torch.randn(2, 3, 4, *taps, dtype=torch.float64, generator=seeded(0))
    expected = twice_gram(kernel)
    assert expected.shape == (2, 4, 4, *(2 * t - 1 for t in taps))
    with on_an_accelerator():
        torch.testing.assert_close(twice_gram(kernel), expected)


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("shape", [(2**16, 2, 1), (2**12, 3, 3), (2, 2**10, 1), (2, 2**7, 3)], ids=str)
@pytest.mark.parametrize("accelerated", [False, True])
def test_rounding_of_equal_entries(shape: tuple[int, ...], steps: int, accelerated: bool) -> None:
    """Equal entries are rounded the same way in every sum, so that errors add up; the norm is known without a sum.

    For few columns the first product counts, and for few rows the last.
    """
    rows, cols, taps = shape
    for value in torch.rand(8, generator=seeded(0)):
        kernel = value.expand(1, *shape).contiguous()
        if accelerated:
            with on_an_accelerator():
                found = majorant(kernel, steps)
        else:
            found = majorant(kernel, steps)
        # All taps are in phase at frequency zero.
        assert float(found.min()) >= float(value.double()) ** 2 * rows * cols * taps**2


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_products_that_vanish(steps: int) -> None:
    """Where processors take small numbers for zero, every product of these is lost."""
    kernel = torch.full((1, 2**10, 2, 1), 2.0**-63.4)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    try:
        with on_an_accelerator():
            found = majorant(kernel, steps)
    finally:
        torch.set_flush_denormal(False)
    assert float(found.min()) >= float(kernel[0, 0, 0, 0].double()) ** 2 * 2**11


def test_which_kernels_are_multiplied_at_once() -> None:
    def counted(*shape: int) -> bool:
        return launches_count(torch.empty(1, *shape, device="meta"))

    assert counted(2048, 2048, 3, 3)
    assert counted(256, 256, 5, 5)
    assert not counted(512, 512, 5, 5)
    assert not launches_count(torch.empty(1, 2, 2, 3))


DERIVED = [(1, 3, 2, 1), (2, 2, 2, 3), (1, 2, 2, 2, 3), (1, 1, 2, 2, 1, 2)]


@quiet
@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("shape", DERIVED, ids=str)
def test_derivatives(shape: tuple[int, ...], steps: int) -> None:
    """Against differences, of first and second order; forward mode; and all of them against the half of the shifts."""
    kernel, turn = (torch.rand(shape, dtype=torch.float64, generator=seeded(i)) - 0.5 for i in range(2))
    q = weights(kernel, 0.5)
    move = torch.randn(q.shape, dtype=torch.float64, generator=seeded(2))

    def value(kernel: Tensor, q: Tensor) -> Tensor:
        return majorant(kernel, steps, q)

    def second(kernel: Tensor, q: Tensor) -> tuple[Tensor, ...]:
        return torch.func.jvp(torch.func.jacrev(value, (0, 1)), (kernel, q), (turn, move))[1]

    def twice(kernel: Tensor, q: Tensor) -> Tensor:
        once = torch.func.jvp(lambda *at: torch.func.jvp(value, at, (turn, move))[1], (kernel, q), (turn, move))
        return once[1]

    expected = second(kernel, q), twice(kernel, q)
    with on_an_accelerator():
        found = second(kernel, q), twice(kernel, q)
        mapped = torch.vmap(torch.func.jacrev(value))(torch.stack([kernel, turn]), torch.stack([q, q]))
        one_by_one = torch.stack([torch.func.jacrev(value)(each, q) for each in (kernel, turn)])
        free = kernel.requires_grad_(), q.requires_grad_()
        assert torch.autograd.gradcheck(value, free, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(value, free)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(mapped, one_by_one)


RESIDUAL: dict[str, tuple[Any, tuple[int, ...]]] = {
    "dense": (lambda steps: SLL(6, 4, steps=steps), (6,)),
    "1-D": (lambda steps: SLLConv(2, 3, 4, rank=1, dilation=2, steps=steps), (2, 9)),
    "2-D, groups": (lambda steps: SLLConv(4, (3, 3), 6, groups=2, steps=steps), (4, 5, 4)),
    "3-D": (lambda steps: SLLConv(2, 3, 3, rank=3, padding_mode="circular", steps=steps), (2, 3, 3, 3)),
}


def safe(layer: ResidualLayer, in_shape: tuple[int, ...]) -> Tensor:
    """The step sizes, after W' C W <= 2 was seen for the numbers as they are multiplied with."""
    with torch.no_grad():
        c = layer.coefficient_of(layer.weight).double()
    assert bool(torch.isfinite(c).all())
    assert bool((c >= 0).all())
    operator = materialize(layer.geometry.operator(layer.weight.detach().double(), in_shape))
    root = c.sqrt().repeat_interleave(len(operator) // len(c))
    # The SVD may be high by n 2^-53.
    assert float(torch.linalg.matrix_norm(operator * root[:, None], 2)) ** 2 <= 2 * (1 + 1e-13)
    return c


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("name", RESIDUAL)
def test_step_sizes_are_safe(name: str, steps: int, dtype: torch.dtype) -> None:
    build, in_shape = RESIDUAL[name]
    scales = (1.0, 3e-5, 3e3) if dtype == torch.float16 else (1.0, 1e-37, 1e-30, 1e-9, 1e15, 1e30)
    for scale in scales:
        torch.manual_seed(0)
        layer = build(steps).to(dtype)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(layer.weight.shape).mul(scale))
            layer.log_q.copy_(torch.randn(layer.log_q.shape))
        expected = safe(layer, in_shape)
        with on_an_accelerator():
            found = safe(layer, in_shape)
            y = layer(torch.randn(1, *in_shape).to(dtype))
            (gradient,) = torch.autograd.grad(y.float().sum(), layer.weight)
        # As many digits as the type has, and those of float32 before they are rounded.
        torch.testing.assert_close(found, expected, rtol=max(1e-5, torch.finfo(dtype).eps), atol=0)
        assert not bool(gradient.isnan().any())
        # Beyond these step sizes are cut, or vanish.
        if 1e-8 < scale < 1e2:
            assert bool((found > 0).all())


@pytest.mark.parametrize("steps", [1, 2])
def test_groups_of_very_different_size(steps: int) -> None:
    """No group loses digits for the others: each has the step sizes it has alone."""
    layer = SLLConv(4, 3, 6, groups=2, steps=steps, rank=1)
    alone = SLLConv(2, 3, 3, steps=steps, rank=1)
    with torch.no_grad(), on_an_accelerator():
        layer.weight[3:] *= 1e-15
        alone.weight.copy_(layer.weight[3:])
        torch.testing.assert_close(layer.coefficient_of(layer.weight)[3:], alone.coefficient_of(alone.weight))


@pytest.mark.parametrize("log_q", [[0.0, -1e3, 1e3, 0.0], [0.0, 0.0, 250.0, -250.0], [-math.inf, 0.0, 1.0, 2.0]])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_any_weights_are_safe(log_q: list[float], steps: int) -> None:
    layer = SLL(5, 4, steps=steps)
    with torch.no_grad(), on_an_accelerator():
        layer.log_q.copy_(torch.tensor(log_q))
        safe(layer, (5,))
        # A channel that meets no other has the step size of its own norm, whatever its weight.
        layer.weight.copy_(torch.eye(4, 5))
        torch.testing.assert_close(safe(layer, (5,)), torch.full((4,), 2.0, dtype=torch.float64), rtol=1e-4, atol=0)
    only = layer.log_q
    (gradient,) = torch.autograd.grad(layer.coefficient_of(layer.weight.detach()).sum(), only)
    assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_channels_of_zeros_have_derivatives_like_others(steps: int, dtype: torch.dtype) -> None:
    # The term for underflow has a root that is not small: it must not become the size of a channel of zeros.
    torch.manual_seed(0)
    constrained = lnn.Conv2d(2, 3, 3, padding=1, method=Rescale(steps), dtype=dtype)
    raw = constrained.get_parameter("parametrizations.weight.original")
    residual = SLLConv(3, 3, steps=steps, dtype=dtype)
    with torch.no_grad():
        raw[:, 0] = 0
        residual.weight[0] = 0
    (constrained.weight * torch.randn(3, 2, 3, 3, dtype=dtype)).sum().backward()
    residual(torch.randn(2, 3, 5, 5, dtype=dtype)).square().sum().backward()
    assert raw.grad is not None
    assert residual.weight.grad is not None
    # Without such channels they are of the order of 1 and 10.
    assert float(raw.grad.abs().max()) < 100
    assert float(residual.weight.grad.abs().max()) < 1000
    assert float(residual.coefficient_of(residual.weight).detach().abs().max()) < 10


def test_channels_of_zeros_have_no_step() -> None:
    layer = SLLConv(3, 3, 4)
    with torch.no_grad():
        layer.weight[1] = 0
    with on_an_accelerator():
        c = layer.coefficient_of(layer.weight)
        c.sum().backward()
    assert (c == 0).tolist() == [False, True, False, False]
    assert layer.weight.grad is not None
    assert bool(torch.isfinite(layer.weight.grad).all())
    assert bool((layer.weight.grad[1] == 0).all())


@quiet
@pytest.mark.parametrize("kind", ["SLLConv", "Rescale"])
def test_under_transforms(kind: str) -> None:
    layer = SLLConv(2, 3, 3, steps=2) if kind == "SLLConv" else lnn.Conv2d(2, 2, 3, padding=1, method=Rescale(2))
    layer = layer.double()
    x = torch.randn(1, 2, 4, 4, dtype=torch.float64)
    free = {name: p.detach() for name, p in layer.named_parameters()}

    def value(free: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layer, free, (x,)).square().sum()

    with on_an_accelerator():
        slopes = torch.func.grad(value)(free)
        forward = torch.func.jacfwd(value)(free)
        stacked = torch.vmap(torch.func.grad(value))({name: torch.stack([p, p]) for name, p in free.items()})
    for name, slope in slopes.items():
        torch.testing.assert_close(forward[name], slope)
        torch.testing.assert_close(stacked[name], torch.stack([slope, slope]))


PROGRAM = """
import torch
from lipkit import nn as lnn
from lipkit.nn.methods._arithmetic import filter_gram, rescaling_step
from support.programs.layer_programs import compiled, exported

for module in (filter_gram, rescaling_step):
    module.launches_count = lambda _: True
for build in (
    lambda: lnn.SLLConv(2, 3, 3, steps=2),
    lambda: lnn.SLLConv(2, 3, 3, steps=3, rank=1),
    lambda: lnn.Conv2d(2, 2, 3, padding=1, method=lnn.Rescale(2)),
):
    for check in (compiled, exported):
        torch.manual_seed(0)
        torch.compiler.reset()
        layer = build().double()
        check(layer, torch.randn(3, 2, 4, *(4,) * (layer.weight.ndim - 3), dtype=torch.float64))
"""


@pytest.mark.compile
@pytest.mark.process
def test_compiled_and_exported(tmp_path: Path) -> None:
    """In a program of its own, without shape checks, which compilation does not see through."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    ran = run_program(script, [], 300, variables=QUIET)
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]


LAUNCHES: list[tuple[nn.Module, tuple[int, ...], int, int]] = [
    (SLLConv(4, 3, 5, steps=1), (4, 4, 4), 32, 43),
    (SLLConv(4, 3, 5, steps=2), (4, 4, 4), 44, 59),
    (SLL(4, 5, steps=1), (4,), 27, 38),
    (SLL(4, 5, steps=2), (4,), 34, 46),
    (lnn.Conv2d(4, 4, 3, padding=1, method=Rescale(2)), (4, 4, 4), 31, 41),
]


@pytest.mark.parametrize(("layer", "in_shape", "forward", "backward"), LAUNCHES, ids=lambda v: type(v).__name__)
def test_launches(layer: nn.Module, in_shape: tuple[int, ...], forward: int, backward: int) -> None:
    """Small layers take as long as their operations need to be launched."""
    x = torch.ones(2, *in_shape)
    with on_an_accelerator():
        with Launches() as there:
            y = layer(x)
        with Launches() as back:
            y.backward(x)
    assert (there.count, back.count) == (forward, backward)


@given(st.integers(1, 3), st.data())
@settings(max_examples=20)
def test_all_shifts_move_with_the_kernel(rank: int, data: st.DataObject) -> None:
    shape = (2, 2, 3, *(data.draw(st.integers(1, 3)) for _ in range(rank)))
    kernel, change = (torch.randn(shape, dtype=torch.float64, generator=seeded(i)) for i in range(2))

    def gram(kernel: Tensor) -> Tensor:
        return all_shifts(every_tap(kernel), kernel.shape)

    moved = all_shifts(every_tap(kernel), kernel.shape, every_tap(change))
    torch.testing.assert_close(moved, torch.func.jvp(gram, (kernel,), (change,))[1])
