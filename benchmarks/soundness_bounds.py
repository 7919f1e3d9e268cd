"""No upper bound of a network is below its truth: random graphs, all methods, against every activation pattern.

Claims: of N small networks of random graph shape (skip connections, joined parts, identities; ReLU, leaky ReLU, the
absolute value, slopes from -0.3 to 1.5; float32 and float64 weights), no UPPER or EXACT value is below the largest norm
over all choices of extreme slopes times 1 - 1e-12, and no LOWER value is above it times 1 + 1e-12. The fold methods are
run on every network in one of l1, l2, linf in turn; LipSDP, ECLipsE, local bounds and the mixed-integer program on
every `--every`-th. The exit status is 1 if anything is violated; `--start I --count 1` draws the culprit again.

    python benchmarks/soundness_bounds.py [--count 2000] [--start 0] [--every 20]
"""

import argparse
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from lipkit import Box, Everywhere, Kind, Metric, Region
from lipkit.bounds import (
    DAG,
    Condensed,
    ECLipsE,
    FastLip,
    GradientAscent,
    LipLT,
    LipSDP,
    Local,
    Method,
    Multipliers,
    Product,
    Sampling,
)
from lipkit.errors import UnsupportedError
from lipkit.trace import Network
from lipkit.trace.fuse import Junctions, Nowhere
from problems import jacobians, largest, random_network

# Brute force in numpy is off by a few roundings of sums of ten products.
SLACK = 1e-12


def folds(p: float) -> list[Method]:
    """The methods run on every network."""
    metric = Metric(p, p)
    window = LipLT(window=1, metric=metric)
    return [
        Product(metric=metric),
        DAG(metric=metric),
        DAG(cut=Junctions(), metric=metric),
        LipLT(metric=metric),
        window,
    ]


def others(network: Network) -> Iterator[tuple[Method, Region]]:
    """The methods run now and then, with the region they are asked about."""
    box = Box(*(torch.full(network.source, end, dtype=torch.float64) for end in (-0.5, 0.5)))
    yield from (
        (method, Everywhere()) for method in (LipSDP(), LipSDP(Multipliers.PER_LAYER), ECLipsE(), LipLT(refine=True))
    )
    yield from ((method, Everywhere()) for method in (GradientAscent(), Sampling(), DAG(cut=Nowhere())))
    yield from ((method, box) for method in (Local(LipLT()), Local(LipSDP()), FastLip(), Condensed()))


def violated(network: Network, method: Method, region: Region, truth: float, counts: Counter[str]) -> bool:
    """Whether a value is on the wrong side; what a method does not cover is counted, not judged."""
    try:
        bound = method(network, region)
    except UnsupportedError:
        counts[f"{method} (not covered)"] += 1
        return False
    counts[str(method)] += 1
    value = float(bound.value.detach())
    if bound.kind is Kind.LOWER:
        return value > truth * (1 + SLACK)
    # On a box the truth may be smaller than over all patterns, so only a sampled lower bound judges.
    if region != Everywhere():
        truth = float(Sampling()(network, region).value)
    return bound.kind.certifies and value < truth * (1 - SLACK)


def main() -> int:
    """Run and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--every", type=int, default=20)
    args = parser.parse_args()
    torch.set_num_threads(1)
    started, bad, counts = time.perf_counter(), 0, Counter[str]()
    for seed in range(args.start, args.start + args.count):
        network = random_network(seed, neurons=8, dtype=torch.float32 if seed % 2 else torch.float64)
        slopes = jacobians(network)
        p = (1.0, 2.0, math.inf)[seed % 3]
        tried: list[tuple[Method, Region, float]] = [(m, Everywhere(), largest(slopes, p)) for m in folds(p)]
        if seed % args.every == 0:
            tried += [(method, region, largest(slopes, 2.0)) for method, region in others(network)]
        for method, region, truth in tried:
            if violated(network, method, region, truth, counts):
                bad += 1
                print(f"seed {seed}: {method} on {region} is on the wrong side of {truth!r}", flush=True)
    for name, count in sorted(counts.items()):
        print(f"{count:8}  {name}")
    print(
        f"{args.count} networks, {sum(counts.values())} values, {bad} violations, {time.perf_counter() - started:.0f} s"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
