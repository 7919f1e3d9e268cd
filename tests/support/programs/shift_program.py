"""Run in a process of its own, without shape checks, on a GPU: the kernel of `ShiftBlock` against torch's operations.

    PYTHONPATH=tests python tests/support/programs/shift_program.py

Stops with an error at the first difference; the oracle is the block itself, not compiled, which calls no kernel.
"""

import sys
from typing import Any

import torch
from torch import fx

from lipkit.nn import ShiftBlock

SHAPES = (
    (3, 24, 5),
    (4, 1024, 16, 16),
    (2, 40, 1, 2),
    (7, 24, 5, 3),
    (9, 512, 8, 8),
    (2, 8, 3, 4, 2),
    (2, 40, 3, 4, 5),
)


def compare(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Values and gradients of the compiled block are those of the block, bit for bit."""
    torch.manual_seed(0)
    torch.compiler.reset()
    block = ShiftBlock(shape[1], rank=len(shape) - 2, method=None, device=torch.device("cuda"), dtype=dtype)
    with torch.no_grad():
        # Products without rounding, so that every difference is one of places.
        block.weight.copy_(torch.eye(block.channels))
    # Few different numbers, so that there are ties.
    x = torch.randn(shape, device="cuda").mul(2).round().to(dtype).requires_grad_()
    g = torch.randn(shape, device="cuda").to(dtype)
    ends = []
    for run in (block, torch.compile(block, fullgraph=True)):
        found = run(x)
        ends.append((found.detach(), *torch.autograd.grad(found, x, g)))
    for ours, theirs in zip(*ends, strict=True):
        assert torch.equal(ours, theirs), (shape, dtype)


def uses_the_kernel() -> bool:
    """Whether a compiled block calls the operator at all."""
    called: list[str] = []

    def backend(graph: fx.GraphModule, _: list[Any]) -> Any:
        called.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch.compile(ShiftBlock(8, device=torch.device("cuda")), backend=backend)(torch.ones(1, 8, 2, 2, device="cuda"))
    return any("sort_and_move" in name for name in called)


def main() -> int:
    """Compare all shapes in both types."""
    assert uses_the_kernel(), "a compiled ShiftBlock does not call the kernel"
    for dtype in (torch.bfloat16, torch.float32):
        for shape in SHAPES:
            compare(shape, dtype)
    return 0


if __name__ == "__main__":
    sys.exit(main())
