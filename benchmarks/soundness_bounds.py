"""No bound of a network is on the wrong side of its truth: random graphs, all methods, against brute force.

Claims: of N small networks of random graph shape (skip connections, joined parts, identities; ReLU, leaky ReLU, the
absolute value, slopes from -0.3 to 1.5; float32 and float64 weights), no UPPER or EXACT value is below the truth times
1 - 1e-12, and no LOWER or EXACT value is above it times 1 + 1e-9. Everywhere the truth is the largest norm over all
choices of extreme slopes (not smaller than the constant, and the least that methods which know only slopes can prove).
On a random box it is the largest norm of a Jacobian at 300 points from below; from above, a value is believed only if a
linear program finds a point of the box with a choice of slopes that steep.

The methods are those of tests/support/networks/bound_methods.py, in one of l1, l2, linf in turn: the fast ones on every
network, the slow ones on every `--every`-th (0: never). Each is asked about the whole space, and about a box if it
reads regions; those that take a batch about two boxes at once, each sample with its own truth. The exit status is 1 if
anything is violated; `--start I --count 1 --every 1` draws the culprit again. `--start` and `--count` cut a long run
into parts.

    python benchmarks/soundness_bounds.py [--count 2000] [--start 0] [--every 20]
"""

import argparse
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from lipkit import Box, Everywhere, Region
from lipkit.bounds import Method, Pairwise
from lipkit.errors import NotProvenError, UnsupportedError
from support.networks.bound_methods import METRICS, instances, reads_region
from support.networks.random_cases import Case, drawn, wrong_side


def questions(case: Case, slow: bool | None) -> Iterator[tuple[Method | Pairwise, Region]]:
    """The methods, each with the regions it is asked about."""
    for method, claims in instances(METRICS[case.seed % 3], slow):
        if Everywhere in claims.regions:
            yield method, Everywhere()
        if reads_region(method) and Box in claims.regions:
            yield method, case.boxes if claims.batched else case.first


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
        for method, region in questions(case, None if args.every and seed % args.every == 0 else False):
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
