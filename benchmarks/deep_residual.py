"""A thousand residual layers without normalisation: how much of the gradient arrives, and whether they learn.

Width 16, batches of 64 points of two moons (noise 0.1), Adam at 1e-3, cross-entropy of the logits over 0.2. Stacks of
one depth L between a layer 2 - 16 and one 16 - 2: convex potential layers (`CPL`) from three starts and as branches of
`ConvexResidual` with a share of 1/L each, layers x + V relu(W x + b) as torch starts them, and layers relu(W x + b).
Printed for each: the loss before and after,
accuracy on 1000 held-out points, and the gradient kept: the norm of the loss's derivative in the input of the stack
over that in its output. Where less than 1e-6 of the gradient is kept, or it is not finite, training stops.

    python benchmarks/deep_residual.py [--depth 1000] [--steps 30] [--only "CPL, share 1/L"]

Two to three minutes of one core.
"""

import argparse
import time
from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit import nn as lnn
from lipkit.data import moons

WIDTH, BATCH, RATE, TEMPERATURE, NOISE, GRAM = 16, 64, 1e-3, 0.2, 0.1, 16
LEAST = 1e-6


@final
class Plain(nn.Module):
    """relu(W x + b), or x + V relu(W x + b)."""

    def __init__(self, residual: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH) if residual else None

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.relu(self.first(x))
        return inner if self.second is None else x + self.second(inner)


def orthonormal(hidden: int) -> nn.Module:
    """W with orthonormal rows: W'W is a projector, so that every step is a reflection and loses nothing."""
    # One row has its norm for its only singular value, which a single product finds.
    layer = lnn.CPL(WIDTH, hidden, steps=1 if hidden == 1 else GRAM)
    nn.init.orthogonal_(layer.weight)
    return layer


# One layer of a stack of so many.
STACKS: dict[str, Callable[[int], nn.Module]] = {
    "CPL, share 1/L": lambda depth: lnn.ConvexResidual(lnn.CPL(WIDTH), start=1 / depth),
    "CPL, normal start": lambda _: lnn.CPL(WIDTH, steps=6),
    "CPL, orthonormal": lambda _: orthonormal(WIDTH),
    "CPL, one hidden unit": lambda _: orthonormal(1),
    "x + V relu(W x + b)": lambda _: Plain(residual=True),
    "relu(W x + b)": lambda _: Plain(residual=False),
}


def run(name: str, depth: int, steps: int) -> None:
    torch.manual_seed(0)
    first, last = lnn.Linear(2, WIDTH), lnn.Linear(WIDTH, 2)
    stack = nn.Sequential(*(STACKS[name](depth) for _ in range(depth)))
    optimizer = torch.optim.Adam([*first.parameters(), *stack.parameters(), *last.parameters()], lr=RATE)
    held = moons(1000, seed=10**6, noise=NOISE)
    began = time.perf_counter()
    losses: list[float] = []
    shares: list[float] = []
    for step in range(steps):
        batch = moons(BATCH, seed=step, noise=NOISE)
        start = first(batch.inputs.float())
        end = stack(start)
        loss = functional.cross_entropy(last(end) / TEMPERATURE, batch.labels)
        before, after = torch.autograd.grad(loss, [start, end], retain_graph=True)
        shares.append(float(before.norm() / after.norm()))
        losses.append(loss.item())
        if not shares[-1] >= LEAST:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        logits = last(stack(first(held.inputs.float())))
    right = float((logits.argmax(1) == held.labels).float().mean())
    print(
        f"{name:21s} depth {depth}: {len(losses)} steps, loss {losses[0]:.4g} -> {losses[-1]:.4g}, "
        f"accuracy {right:.3f}, gradient kept {shares[0]:.3g} at first, {shares[-1]:.3g} at last, "
        f"{time.perf_counter() - began:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--depth", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--only", choices=STACKS, nargs="+", default=list(STACKS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.only:
        run(name, given.depth, given.steps)
