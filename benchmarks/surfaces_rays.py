"""Rays never overstep a surface: a million of them through solids and a network, each sampled densely.

Claims: of N rays none meets a zero of the field before its `distance`. Checked by values at `--samples` points of every
ray before that, denser towards its end: their signs must all be that of the first. Three fields:

- a tree of solids: differences, shells, smooth unions, stretched and turned solids, a plate of thickness 1e-4;
- a network of constant 1, fitted to the tree for a short while, with its proven constant;
- a SIREN, fitted in the same way, for which one claims the constant 1, as renderers of such networks do. It is no
  claim of this library; the count shows what the check is able to find.

The exit status is 1 if a ray of the first two is wrong.

    python benchmarks/surfaces_rays.py [--rays 1000000] [--samples 64] [--device cpu] [--seed 0]
"""

import argparse
import math
import time

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from lipkit import sdf
from lipkit.nn import Linear, MaxMin

FAR, BLOCK = 8.0, 2**17
# Networks fitted so shortly miss what is thin; grown by this much they have something to meet.
GROWN = 0.15


def solids() -> sdf.Field:
    """A hollow cube with a ball in it, a bowl, two balls that flow together, a lens, a plate like paper."""

    def at(*entries: float) -> Tensor:
        return torch.tensor(entries, dtype=torch.float64)

    turn = torch.eye(3, dtype=torch.float64)
    turn[:2, :2] = torch.tensor([[0.6, -0.8], [0.8, 0.6]], dtype=torch.float64)
    cube = sdf.Difference(sdf.Box(at(-0.5, -0.5, -0.5), at(0.5, 0.5, 0.5)), sdf.Sphere(at(0, 0, 0), 0.62))
    bowl = sdf.Intersection(sdf.Shell(sdf.Sphere(at(0.9, -0.8, 0.3), 0.4), 0.04), sdf.HalfSpace(at(0, 0, 1), 0.4))
    pair = sdf.SmoothUnion(sdf.Sphere(at(-0.9, 0.9, 0), 0.3), sdf.Sphere(at(-0.9, 0.5, 0.2), 0.2), 0.3)
    lens = sdf.Moved(sdf.Scaled(sdf.Sphere(at(0, 0, 0), 1.0), at(0.3, 0.3, 0.1)), at(0.8, 0.8, 0.5))
    paper = sdf.Box(at(-1.2, -1.2, -0.9), at(1.2, 1.2, -0.8999))
    return sdf.Union(sdf.Moved(cube, at(0, 0, 0), turn), sdf.Sphere(at(0, 0, 0), 0.3), bowl, pair, lens, paper)


class Sine(nn.Module):
    """x -> sin(30 x), as in SIREN."""

    def forward(self, x: Tensor) -> Tensor:
        """The sine of each entry."""
        return torch.sin(30 * x)


def siren() -> nn.Sequential:
    """Three hidden layers of 64, with the published initial weights."""
    layers: list[nn.Module] = []
    for k, (wide, out) in enumerate(((3, 64), (64, 64), (64, 64), (64, 1))):
        layer = nn.Linear(wide, out)
        limit = 1 / 3 if k == 0 else math.sqrt(6 / wide) / 30
        nn.init.uniform_(layer.weight, -limit, limit)
        layers += [layer, Sine()]
    return nn.Sequential(*layers[:-1])


def lipschitz() -> nn.Sequential:
    """Four layers of constant 1."""
    ends = ((3, 64), (64, 64), (64, 64), (64, 1))
    return nn.Sequential(*[part for one in ends for part in (Linear(*one), MaxMin())][:-1])


def fitted(model: nn.Sequential, target: sdf.Field, rate: float, draw: torch.Generator) -> nn.Sequential:
    """The model after 500 steps of regression to the values of a field."""
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for _ in range(500):
        x = torch.rand(1024, 3, generator=draw) * 4 - 2
        loss = (model(x).squeeze(1) - target(x).float()).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.double().eval().requires_grad_(False)


def rays(n: int, draw: torch.Generator) -> tuple[Float64[Tensor, "n 3"], Float64[Tensor, "n 3"]]:
    """Rays from a sphere around the solids to points of a cube; every tenth starts in the cube itself."""
    origins = torch.randn(n, 3, generator=draw, dtype=torch.float64)
    origins = 3 * origins / origins.norm(dim=1, keepdim=True)
    origins[::10] /= 3
    return origins, 2.4 * torch.rand(n, 3, generator=draw, dtype=torch.float64) - 1.2 - origins


def changed(f: sdf.Field, origins: Tensor, directions: Tensor, found: sdf.Traced, samples: int) -> int:
    """On how many rays f changes its sign before the distance."""
    units = directions / directions.norm(dim=1, keepdim=True)
    first, bad = f(origins) > 0, torch.zeros(len(origins), dtype=torch.bool, device=origins.device)
    for share in torch.linspace(0, 1, samples + 1, dtype=torch.float64)[:-1].sqrt().tolist():
        bad |= (f(origins + share * found.distance[:, None] * units) > 0) != first
    return int(bad.sum())


def count(name: str, f: sdf.Field, origins: Tensor, directions: Tensor, samples: int) -> int:
    """Trace, sample, print."""
    at, wall, cpu, bad, hits, crossed, stalled, steps = 0, 0.0, 0.0, 0, 0, 0, 0, 0
    with torch.no_grad():
        while at < len(origins):
            part = slice(at, at + BLOCK)
            started = time.perf_counter(), time.process_time()
            found = sdf.trace(f, origins[part], directions[part], FAR)
            hits, crossed = hits + int(found.hit.sum()), crossed + int(found.crossed.sum())
            stalled, steps = stalled + int(found.stalled.sum()), steps + int(found.steps.sum())
            wall, cpu = wall + time.perf_counter() - started[0], cpu + time.process_time() - started[1]
            bad += changed(f, origins[part], directions[part], found, samples)
            at += BLOCK
    n = len(origins)
    print(
        f"{name:8s} {n:,} rays: {bad:,} with a changed sign before the distance; {hits:,} hits, {crossed:,} of them "
        f"proven, {stalled:,} stalled; {steps / n:.1f} values a ray; {wall:.1f} s, {cpu:.1f} s of the processor",
        flush=True,
    )
    return bad


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rays", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    draw = torch.Generator().manual_seed(args.seed)
    origins, directions = (one.to(args.device) for one in rays(args.rays, draw))
    tree = solids()
    bad = count("solids", tree, origins, directions, args.samples)
    model = fitted(lipschitz(), tree, 5e-3, draw).to(args.device)
    proven = sdf.Network(model, torch.zeros(1, 3, dtype=torch.float64, device=args.device))
    bad += count("network", sdf.Offset(proven, GROWN), origins, directions, args.samples)
    wave = fitted(siren(), tree, 1e-3, draw)
    # The value at the origin is asked for on the CPU.
    claimed = sdf.Function(lambda x: wave.to(x.device)(x).squeeze(1), 3, 1.0)
    count("siren", sdf.Offset(claimed, GROWN), origins, directions, args.samples)
    return int(bad > 0)


if __name__ == "__main__":
    raise SystemExit(main())
