"""The sort and the moves of a `ShiftBlock` in one pass over memory, for compiled networks on CUDA."""

import functools
import importlib.util
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from lipkit._compilers import is_compiling, is_exporting

# Where the operator is found once it is registered.
_NAME = "lipkit::sort_and_move"
# Pairs that one program of the kernel takes, with four warps.
_TILE = 2048


def available(x: Tensor) -> bool:
    """Whether the pass can take the place of torch's operations here: compiled, on CUDA, and registered before."""
    return x.is_cuda and is_compiling() and not is_exporting() and hasattr(torch.ops.lipkit, "sort_and_move")


def sort_and_move(mixed: Float[Tensor, "*batch channels"], rank: int) -> Float[Tensor, "*batch channels"]:
    """MaxMin of halves, then the moves of `ShiftBlock`, of values with channels last and `rank` axes before them.

        high = max(a, b) goes a pixel up axis j, low = min(a, b) one down, in the j-th quarter of the pairs, j < rank.

    Guarantee: the same permutation, ties included, as torch's operations one by one, bit for bit; the backward pass is
    its inverse. Cost: what it reads and writes, twice the tensor forward and three times backward.
    """
    return torch.ops.lipkit.sort_and_move(mixed, rank)


def prepare() -> None:
    """Register the operator where there is a GPU and Triton, which comes with torch for CUDA."""
    if torch.cuda.is_available() and importlib.util.find_spec("triton") is not None:
        register()


@functools.cache
def register() -> None:
    """Make `torch.ops.lipkit.sort_and_move`, once for each process."""
    kernel = torch.library.wrap_triton(_kernel())

    def run(mixed: Tensor, gradient: Tensor, rank: int, back: bool) -> Tensor:
        out = torch.empty_like(mixed)
        # Numbers, also where a compiler would keep sizes open: the kernel is made for them.
        *sizes, channels = (int(n) for n in mixed.shape[mixed.ndim - 1 - rank :])
        # Axes that are not there have one pixel and come first.
        axes = [1] * (3 - rank) + sizes
        share = channels // 8
        lanes = 1 << (share - 1).bit_length()
        # As many pixels as give every thread sixteen numbers.
        rows = max(1, _TILE // lanes)
        pixels = math.prod(mixed.shape[:-1])
        grid = (4, -(-pixels // rows))
        kernel[grid](mixed, gradient, out, pixels, *axes, rank, share, lanes, rows, back, num_warps=4)
        return out

    def run_forward(mixed: Tensor, rank: int) -> Tensor:
        mixed = mixed.contiguous()
        return run(mixed, mixed, rank, False)

    def run_backward(mixed: Tensor, gradient: Tensor, rank: int) -> Tensor:
        return run(mixed.contiguous(), gradient.contiguous(), rank, True)

    def keep(ctx: Any, inputs: tuple[Tensor, int], output: Tensor) -> None:  # noqa: ARG001 - torch gives it
        ctx.save_for_backward(inputs[0])
        ctx.rank = inputs[1]

    def back(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return inverse(*ctx.saved_tensors, gradient, ctx.rank), None

    made = functools.partial(torch.library.triton_op, mutates_args=())
    operator: Any = made(_NAME, run_forward, schema="(Tensor mixed, int rank) -> Tensor")
    inverse = made(f"{_NAME}_backward", run_backward, schema="(Tensor mixed, Tensor gradient, int rank) -> Tensor")
    operator.register_autograd(back, setup_context=keep)


def _kernel() -> Any:
    """Both passes, one program for a quarter of the pairs of some pixels: read them and write them where they go; or
    the other way around. All pairs of a quarter move alike, so neighbours stay neighbours and are read and written
    sixteen bytes at a time.

    It calls no other function: compilers copy its text, not what it refers to.
    """
    import triton  # pyright: ignore[reportMissingImports]
    import triton.language as tl  # pyright: ignore[reportMissingImports]

    @triton.jit  # pyright: ignore[reportUntypedFunctionDecorator]
    def kernel(
        mixed, gradient, out, pixels,  # pyright: ignore[reportMissingParameterType]
        d: tl.constexpr, h: tl.constexpr, w: tl.constexpr, rank: tl.constexpr,
        share: tl.constexpr, lanes: tl.constexpr, rows: tl.constexpr, back: tl.constexpr,
    ):  # fmt: skip
        # The quarter says along which axis its pairs move: 0 along the first, and so on.
        quarter = tl.program_id(0)
        here = tl.program_id(1).to(tl.int64) * rows + tl.arange(0, rows)
        lane = tl.arange(0, lanes)
        inside = (here < pixels)[:, None] & (lane < share)[None, :]
        x = here % w
        step = tl.where(quarter == rank - 1, 1, 0)
        plus = here + step * ((x + 1) % w - x)
        minus = here + step * ((x + w - 1) % w - x)
        if rank > 1:
            y = here // w % h
            step = tl.where(quarter == rank - 2, w, 0)
            plus += step * ((y + 1) % h - y)
            minus += step * ((y + h - 1) % h - y)
        if rank > 2:
            z = here // (w * h) % d
            step = tl.where(quarter == 0, w * h, 0)
            plus += step * ((z + 1) % d - z)
            minus += step * ((z + d - 1) % d - z)
        pair = (quarter * share + lane)[None, :]
        one = here[:, None] * (8 * share) + pair
        high = plus[:, None] * (8 * share) + pair
        low = minus[:, None] * (8 * share) + 4 * share + pair
        a = tl.load(mixed + one, inside)
        b = tl.load(mixed + one + 4 * share, inside)
        if back:
            from_high = tl.load(gradient + high, inside)
            from_low = tl.load(gradient + low, inside)
            tl.store(out + one, tl.where(a > b, from_high, from_low), inside)
            tl.store(out + one + 4 * share, tl.where(a > b, from_low, from_high), inside)
        else:
            tl.store(out + high, tl.where(a > b, a, b), inside)
            tl.store(out + low, tl.where(a > b, b, a), inside)

    return kernel
