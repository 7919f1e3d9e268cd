"""Five toys in the plane: how steep a conventional one-class network becomes, beside one of constant 1.

    python benchmarks/one_class_toys.py [--steps 10000] [--ours 2000] [--out toys.json]

Both are 128 x 4 and learn to tell 2,000 standardised rows from complementary samples: uniform in the box of ten
standard deviations, walked along the gradient to the level set, anew at every eighth update. The conventional one
(ReLU, Adam) takes binary cross-entropy, which has no reason to stop: its slope grows as long as it is trained. Ours is
`sdf.one_class.OneClass`.

Printed for each toy: the largest norm of the gradient found at 100,000 points of the box, the rows, and samples that
were walked to the level set, which bounds the local constant from below (LOWER up to rounding); the constant that is
proven of ours (UPPER); the largest |f| in the box; the AUROC of fresh rows against points of the box.
One thread; published: Béthune 2024, table 5.3, a lower bound after 10,000 steps of a conventional network of that work.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from lipkit import sdf
from lipkit._files import write_whole
from lipkit.sdf.one_class import Lazy, OneClass, UniformBox, orthogonal_mlp

ROWS, WIDTHS, SIDE = 2000, (128,) * 4, 5.0
EVERY, BATCH, WALK_STEPS, LOOKS = 8, 128, 4, 100_000


def cloud(source: torch.Generator, count: int, center: tuple[float, float], spread: float) -> Tensor:
    """Gaussian points."""
    return torch.tensor(center) + spread * torch.randn(count, 2, generator=source)


def blob(source: torch.Generator, count: int, center: tuple[float, float], radius: float) -> Tensor:
    """Uniform points of a disc, whose density has an edge."""
    angle = 2 * math.pi * torch.rand(count, generator=source)
    length = radius * torch.rand(count, generator=source).sqrt()
    return torch.tensor(center) + length[:, None] * torch.stack([angle.cos(), angle.sin()], 1)


def moons(source: torch.Generator, count: int) -> Tensor:
    """Two half circles with noise of .05."""
    half = count // 2
    angle = math.pi * torch.rand(count, generator=source)
    upper = torch.stack([angle.cos(), angle.sin()], 1)[:half]
    lower = torch.stack([1 - angle.cos(), 0.5 - angle.sin()], 1)[half:]
    return torch.cat([upper, lower]) + 0.05 * torch.randn(count, 2, generator=source)


TOYS: dict[str, tuple[Callable[[torch.Generator, int], Tensor], float]] = {
    "one cloud": (lambda g, n: cloud(g, n, (0, 0), 1.0), 26.66),
    "two clouds": (lambda g, n: torch.cat([cloud(g, n // 2, (s, 0), 0.5) for s in (-1.5, 1.5)]), 122.84),
    "two blobs": (lambda g, n: torch.cat([blob(g, n // 2, (s, 0), 0.5) for s in (-1.5, 1.5)]), 1421.41),
    "blob and cloud": (
        lambda g, n: torch.cat([blob(g, n // 2, (-1.5, 0), 0.5), cloud(g, n // 2, (1.5, 0), 0.5)]),
        53.90,
    ),
    "two moons": (moons, 258.73),
}


def conventional(rows: Tensor, steps: int, seed: int) -> nn.Module:
    """A network without a constant, after binary cross-entropy of rows against its complementary samples."""
    torch.manual_seed(seed)
    sizes, layers = (2, *WIDTHS), list[nn.Module]()
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(WIDTHS[-1], 1))
    optimizer, loss_of = torch.optim.Adam(model.parameters(), 1e-3), nn.BCEWithLogitsLoss()
    source, low = torch.Generator().manual_seed(seed), torch.full((2,), -SIDE)
    walk, proposal = sdf.Walk(0.0, WALK_STEPS, 1.0, low, -low), UniformBox(-SIDE, SIDE)
    walked, labels = rows[:0], torch.cat([torch.ones(BATCH), torch.zeros(BATCH)])
    for step in range(steps):
        if step % EVERY == 0:
            walked = walk.toward(model, proposal.draw(rows, BATCH, source), generator=source)
        given = rows[torch.randint(len(rows), (BATCH,), generator=source)]
        loss = loss_of(model(torch.cat([given, walked])).flatten(), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def look(model: nn.Module, rows: Tensor, fresh: Tensor, seed: int) -> dict[str, float]:
    """The steepest gradient and the largest value that are found, and how well rows are told from the box."""
    source = torch.Generator().manual_seed(seed)
    box = SIDE * (2 * torch.rand(LOOKS, 2, generator=source, dtype=torch.float64) - 1)
    model = model.double().requires_grad_(False)
    low = torch.full((2,), -SIDE, dtype=torch.float64)
    at_level = sdf.Walk(0.0, 16, 1.0, low, -low).toward(model, box[:2000].clone())
    steepest = largest = 0.0
    for part in torch.cat([rows.double(), at_level, box]).split(2**15):
        points = part.requires_grad_()
        values = model(points).flatten()
        (slope,) = torch.autograd.grad(values.sum(), points)
        steepest = max(steepest, float(slope.norm(dim=1).max()))
        largest = max(largest, float(values.detach().abs().max()))
    scores = torch.cat([model(fresh.double()), model(box[: len(fresh)])]).flatten()
    labels = torch.cat([torch.ones(len(fresh)), torch.zeros(len(fresh))])
    return {"slope": steepest, "size": largest, "auroc": 100 * float(roc_auc_score(labels, scores))}


def measured(name: str, args: argparse.Namespace) -> dict[str, float | str]:
    """Both networks on one toy."""
    make, published = TOYS[name]
    source = torch.Generator().manual_seed(args.seed)
    rows, fresh = make(source, ROWS), make(source, ROWS)
    mean, spread = rows.mean(0), rows.std(0)
    rows, fresh = (rows - mean) / spread, (fresh - mean) / spread
    start = time.process_time()
    usual = look(conventional(rows, args.steps, args.seed), rows, fresh, args.seed)
    middle = time.process_time()
    model = orthogonal_mlp(2, WIDTHS, torch.Generator().manual_seed(args.seed))
    recipe = OneClass(steps=args.ours, proposal=UniformBox(-SIDE, SIDE), renewal=Lazy(EVERY), walk_steps=WALK_STEPS)
    recipe(model, rows, args.seed)
    end = time.process_time()
    proven = float(sdf.Network(model.double(), rows[:1].double()).bound.value)
    ours = look(model, rows, fresh, args.seed)
    return {
        "toy": name, "published": published, "proven": proven,
        "seconds": round(middle - start), "our seconds": round(end - middle),
        **{f"usual {key}": value for key, value in usual.items()},
        **{f"our {key}": value for key, value in ours.items()},
    }  # fmt: skip


def table(found: list[dict[str, float | str]]) -> str:
    """The rows of docs/results.md."""
    lines = [
        "| toy | conventional: steepest gradient | largest abs(f) | AUROC | ours: steepest gradient | proven constant "
        "| largest abs(f) | AUROC | published, conventional |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['toy']} | {row['usual slope']:.1f} | {row['usual size']:.0f} | {row['usual auroc']:.1f} | "
        f"{row['our slope']:.4f} | {row['proven']:.6f} | {row['our size']:.2f} | {row['our auroc']:.1f} | "
        f"{row['published']:.2f} |"
        for row in found
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure every toy that is not stored yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--ours", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("toys.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(args.out.read_text()) if args.out.exists() else []
    for name in TOYS:
        if name not in [row["toy"] for row in found]:
            found.append(measured(name, args))
            print(found[-1], flush=True)
            write_whole(args.out, json.dumps(found, indent=1).encode())
    print(table(found))


if __name__ == "__main__":
    main()
