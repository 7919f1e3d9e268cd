"""No bound of a network is on the wrong side of its truth: random graphs, all methods, against brute force.

Claims: of N small networks of random graph shape (skip connections, joined parts, identities; ReLU, leaky ReLU, the
absolute value, slopes from -0.3 to 1.5; float32 and float64 weights), no UPPER or EXACT value is below the truth times
1 - 1e-12, and no LOWER or EXACT value is above it times 1 + 1e-9. Everywhere the truth is the largest norm over all
choices of extreme slopes (not smaller than the constant, and the least that methods which know only slopes can prove).
On a random box it is the largest norm of a Jacobian at 300 points from below; from above, a value is believed only if a
linear program finds a point of the box with a choice of slopes that steep.

The fold methods are run on every network in one of l1, l2, linf in turn. On every `--every`-th network (0: never) also
LipSDP, ECLipsE, SeqLip, refined LipLT and the lower searches everywhere; Local, FastLip and Condensed on two boxes at
once, each sample with its own truth; LinearPieces and LipMIP on the first. The exit status is 1 if anything is
violated; `--start I --count 1 --every 1` draws the culprit again. `--start` and `--count` cut a long run into parts.

    python benchmarks/soundness_bounds.py [--count 2000] [--start 0] [--every 20]
"""

import argparse
import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from scipy import optimize

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from lipkit import Bound, Box, Everywhere, Kind, Metric, Region
from lipkit.bounds import (
    DAG,
    Condensed,
    ECLipsE,
    FastLip,
    GradientAscent,
    LinearPieces,
    LipLT,
    LipMIP,
    LipSDP,
    Local,
    Method,
    Multipliers,
    Product,
    Sampling,
    SeqLip,
)
from lipkit.errors import NotProvenError, UnsupportedError
from lipkit.trace import Network
from lipkit.trace.rewrites.fuse import Junctions, Nowhere
from support.networks.random_graphs import affine_pieces, jacobians, jacobians_at, largest, random_network

# Brute force in numpy is off by a few roundings of sums of ten products.
BELOW = 1e-12
# Values from below carry the same roundings; the solver behind the linear program is good to about 1e-9.
ABOVE = 1e-9
POINTS = 300


@dataclass(frozen=True)
class Case:
    """A network, two boxes as one region for two samples, and the Jacobians that brute force finds."""

    seed: int
    network: Network
    boxes: Box

    @cached_property
    def everywhere(self) -> np.ndarray:
        """The Jacobians of all patterns."""
        return jacobians(self.network)

    @cached_property
    def inside(self) -> list[np.ndarray]:
        """The Jacobians at points of each box."""
        rng = np.random.default_rng([self.seed, 1])
        low, high = self.boxes.low.numpy()[:, None], self.boxes.high.numpy()[:, None]
        points = low + (high - low) * rng.random((2, POINTS, *self.network.source))
        return [jacobians_at(self.network, some) for some in points]

    def attained(self, value: float, p: float, sample: int) -> bool:
        """Whether a piece of the box is as steep as `value`, by linear programs over its points."""
        forms, matrices = affine_pieces(self.network)
        order = {1.0: 1, 2.0: 2, math.inf: np.inf}[p]
        steep = np.linalg.norm(matrices, ord=order, axis=(1, 2)) >= value * (1 - ABOVE)
        low, high = self.boxes.low[sample].numpy(), self.boxes.high[sample].numpy()
        for rows, shifts in (forms(int(i)) for i in np.flatnonzero(steep)):
            # rows x + shifts >= 0 for all kinks, up to what the solver tolerates.
            room = 1e-8 * (1 + np.abs(shifts) + np.abs(rows).sum(1))
            found = optimize.linprog(np.zeros(len(low)), -rows, shifts + room, bounds=list(zip(low, high, strict=True)))
            if found.status == 0:
                return True
        return False


def drawn(seed: int) -> Case:
    """A network of two to four hidden rows and up to eight kinks, and boxes of any size around points of any size."""
    rng = np.random.default_rng([seed, 0])
    dtype = (torch.float32, torch.float64)[int(rng.integers(2))]
    depth, width = (int(n) for n in rng.integers((2, 2), (5, 4)))
    network = random_network(seed, depth, width, neurons=8, dtype=dtype)
    center = torch.from_numpy(rng.normal(size=(2, *network.source)) * 10 ** rng.uniform(-1, 1))
    radius = torch.from_numpy(10 ** rng.uniform(-2, 1, size=(2, *network.source)))
    return Case(seed, network, Box(center - radius, center + radius))


def folds(p: float) -> list[Method]:
    """The methods run on every network."""
    metric = Metric(p, p)
    return [
        Product(metric=metric),
        DAG(metric=metric),
        DAG(cut=Junctions(), metric=metric),
        LipLT(metric=metric),
        LipLT(window=1, metric=metric),
    ]


def others(case: Case) -> Iterator[tuple[Method, Region]]:
    """The methods run now and then, with the region they are asked about."""
    slopes: list[Method] = [
        LipSDP(), LipSDP(Multipliers.PER_LAYER), ECLipsE(), SeqLip(), SeqLip(0), LipLT(refine=True), DAG(cut=Nowhere()),
        GradientAscent(steps=5, starts=4), Sampling(64),
    ]  # fmt: skip
    yield from ((method, Everywhere()) for method in slopes)
    widest = Metric(math.inf, math.inf)
    around = [Local(LipLT()), Local(LipSDP()), FastLip(), FastLip(widest), Condensed(), Condensed(widest)]
    yield from ((method, case.boxes) for method in around)
    first = Box(case.boxes.low[0], case.boxes.high[0])
    yield from ((method, first) for method in (LinearPieces(), LinearPieces(widest), LipMIP(), Sampling(64)))


def wrong_side(bound: Bound, case: Case) -> str:
    """What is wrong with a bound, or nothing."""
    p, from_below = bound.metric.p_in, bound.kind in (Kind.LOWER, Kind.EXACT)
    for sample, value in enumerate(bound.value.detach().flatten().tolist()):
        everywhere = bound.region == Everywhere()
        truth = largest(case.everywhere if everywhere else case.inside[sample], p)
        if bound.kind.certifies and value < truth * (1 - BELOW):
            return f"{value!r} is below {truth!r}"
        if from_below and value > truth * (1 + ABOVE) and (everywhere or not case.attained(value, p, sample)):
            return f"{value!r} is from below and above {truth!r}"
    return wrong_side(bound.lower, case) if bound.lower is not None else ""


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--every", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, bad, counts, spent = time.process_time(), 0, Counter[str](), defaultdict[str, float](float)
    for seed in range(args.start, args.start + args.count):
        case = drawn(seed)
        metric = (1.0, 2.0, math.inf)[seed % 3]
        tried: list[tuple[Method, Region]] = [(method, Everywhere()) for method in folds(metric)]
        if args.every and seed % args.every == 0:
            tried += others(case)
        for method, region in tried:
            name, at = f"{method} on {'boxes' if isinstance(region, Box) else region}", time.process_time()
            try:
                bound = method(case.network, region)
            except (UnsupportedError, NotProvenError) as error:
                counts[f"{type(error).__name__}: {name}"] += 1
                continue
            spent[name] += time.process_time() - at
            counts[f"{name}: {bound.kind.value}"] += bound.value.numel()
            wrong = wrong_side(bound, case)
            if wrong:
                bad += 1
                print(f"seed {seed}: {name}: {wrong}", flush=True)
        done = seed + 1 - args.start
        if done % 1000 == 0:
            print(f"{done} networks, {bad} violations, {time.process_time() - started:.0f} s", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8}  {name}")
    values = sum(count for name, count in counts.items() if "Error: " not in name)
    for name, seconds in sorted(spent.items()):
        print(f"{seconds:8.1f} s  {name}")
    used = time.process_time() - started
    print(f"{args.count} networks from {args.start}, {values} values, {bad} violations, {used:.0f} s of processor time")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
