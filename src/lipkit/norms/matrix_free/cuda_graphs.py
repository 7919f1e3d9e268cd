"""Recording of repeated work on CUDA, where small steps wait for launches rather than for arithmetic."""

from collections.abc import Callable
from dataclasses import fields

import torch

from lipkit.linops import (
    Adjoint,
    BatchNorm,
    Compose,
    Conv,
    ConvTranspose,
    Dense,
    DenseStack,
    Diagonal,
    LinearOperator,
    Padding,
    Permute,
    Reshape,
    StatedRounding,
    Sum,
    Sweep,
)

# Operators that only launch kernels on their own tensors. Others may copy from the host, which a recording forbids.
_RECORDABLE = (
    Adjoint,
    BatchNorm,
    Compose,
    Conv,
    ConvTranspose,
    Dense,
    DenseStack,
    Diagonal,
    Permute,
    Reshape,
    StatedRounding,
    Sum,
    Sweep,
)


def record_graph(step: Callable[[int], None], argument: int, device: torch.device) -> Callable[[int], None]:
    """`step(argument)` as one recorded CUDA graph; it must work on fixed buffers and must have run once before."""
    with torch.cuda.device(device):
        graph, side, here = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.current_stream()
        side.wait_stream(here)
        # Recorded by hand: torch's context manager empties the allocator's cache first, which costs more than it saves.
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                step(argument)
            finally:
                graph.capture_end()
        here.wait_stream(side)

    def replay(_: int) -> None:
        with torch.cuda.device(device):
            graph.replay()

    return replay


def recordable(op: LinearOperator) -> bool:
    """Whether every part of the operator is known to allow recording."""
    if not isinstance(op, _RECORDABLE) or (isinstance(op, Conv) and op.mode is not Padding.ZEROS):
        return False
    parts = (getattr(op, f.name) for f in fields(op))
    inner = [edge for _, _, edge in op.edges] if isinstance(op, Sweep) else parts
    return all(recordable(part) for part in inner if isinstance(part, LinearOperator))
