"""Recording of repeated work on CUDA, where small steps wait for launches rather than for arithmetic."""

from collections.abc import Callable
from dataclasses import fields

import torch

from lipkit.linops import Function, LinearOperator


def recorded(step: Callable[[int], None], argument: int) -> Callable[[int], None]:
    """`step(argument)` as one recorded CUDA graph; it must work on fixed buffers and must have run once before."""
    graph, side, here = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(here)
    # Recorded by hand: torch's context manager empties the allocator's cache first, which costs more than it saves.
    with torch.cuda.stream(side):
        graph.capture_begin()
        step(argument)
        graph.capture_end()
    here.wait_stream(side)

    def replay(_: int) -> None:
        graph.replay()

    return replay


def recordable(value: object) -> bool:
    """Whether an operator is made of our own parts only; somebody's callable may not allow recording."""
    if isinstance(value, Function):
        return False
    if isinstance(value, LinearOperator):
        return all(recordable(getattr(value, f.name)) for f in fields(value))  # pyright: ignore[reportArgumentType]
    return not isinstance(value, tuple) or all(map(recordable, value))
