"""How often certificates of randomized smoothing are false, and what they are worth: simulations with known shares.

Claims: at alpha = 0.05 no method and no limit fails in more than 5 % of all runs, except the runner-up that is fixed by
the samples that choose, which does. Stopping early certifies nearly what a fixed n does, with a few of the samples.

    python benchmarks/smoothing_coverage.py [--runs 20000] [--seed 0]

One process on one core, some minutes, nothing is downloaded. A certificate is false if its class is not the top one, or
if its radius is above that of the same formula at the true shares. Rates that alpha would produce less than once in a
million are printed in bold.
"""

import argparse
import dataclasses
from collections.abc import Callable
from itertools import product

import numpy as np
import torch
from scipy.special import ndtri
from scipy.stats import binom, multinomial
from timing import machine

from lipkit.certify import smoothing as rs
from lipkit.certify.confidence_intervals import lower_limits, upper_limits
from lipkit.certify.smoothing.samples import Samples
from lipkit.certify.smoothing.statistics.votes import Votes

THEOREM = rs.Theorem(rs.Gaussian(1.0))
ALPHA = 0.05
ELECTIONS = {
    "3, close": ([0.36, 0.35, 0.29], 1000, 1.0),
    "3, close, n = 10,000": ([0.36, 0.35, 0.29], 10_000, 1.0),
    "10": ([0.45, 0.2, 0.1, 0.05, 0.05, 0.05, 0.04, 0.03, 0.02, 0.01], 10_000, 1.0),
    "10, easy": ([0.98, 0.01, 0.01, *[0.0] * 7], 10_000, 1.0),
    "1000": ([0.3, *[0.7 / 999] * 999], 2000, 0.1),
    "1000, close": ([0.11, 0.1, 0.09, *[0.7 / 997] * 997], 2000, 0.1),
}
METHODS: dict[str, rs.Method] = {
    "Cohen": rs.Cohen(),
    "IntersectionUnion": rs.IntersectionUnion(),
    "Bonferroni": rs.Bonferroni(),
    "ClassPartition": rs.ClassPartition(),
    "EmpiricalBernstein": rs.IntersectionUnion(interval=rs.EmpiricalBernstein()),
    "Hoeffding": rs.IntersectionUnion(interval=rs.Hoeffding()),
    "BetaBinomial": rs.IntersectionUnion(interval=rs.BetaBinomial()),
}


def voted(selection: np.ndarray, counts: np.ndarray, adaptive: bool = False) -> Samples:
    """Samples with these numbers of votes for each class, of shape (batch, classes)."""
    batch, classes = counts.shape
    winners = np.repeat(np.tile(np.arange(classes), batch), selection.ravel()).reshape(batch, -1)
    logits = torch.nn.functional.one_hot(torch.from_numpy(winners), classes).float()
    votes = torch.from_numpy(counts.astype(np.int64))
    everyone = torch.arange(classes).expand(batch, -1)
    return Samples(logits, votes, votes.sum(1), everyone, adaptive=adaptive)


def fixed_runner_up(samples: Samples, alpha: float) -> rs.Event:
    """The top two classes of the samples that choose, and one bound for each at alpha/2."""
    batch, classes = samples.counts.shape
    chosen = torch.zeros(batch, classes).scatter_add(
        1, samples.selection.argmax(-1), torch.ones(samples.selection.shape[:2])
    )
    top = chosen.argsort(dim=1, descending=True, stable=True)[:, :2]
    counts, n = samples.counts.gather(1, top).numpy(), samples.spent.numpy()
    lower = torch.from_numpy(lower_limits(counts[:, 0], n, alpha / 2))
    rival = torch.from_numpy(upper_limits(counts[:, 1], n, alpha / 2))
    upper = torch.zeros(batch, classes, dtype=torch.float64).scatter(1, top[:, 1:], rival[:, None])
    return rs.Event(top[:, 0], lower, upper, (rs.Hardmax(),) * batch)


def false(event: rs.Event, shares: np.ndarray) -> np.ndarray:
    """Which certificates are wrong."""
    radius = THEOREM.radius(event).numpy()
    second, first = np.sort(shares)[-2:]
    wrong = shares[event.label.numpy()] < shares.max()
    return (radius > 0) & (wrong | (radius > (ndtri(first) - ndtri(second)) / 2))


def rate(wrong: np.ndarray) -> str:
    """The share in per cent; bold if a rate of alpha would show it less than once in a million."""
    text = f"{100 * wrong.mean():.2f} %"
    return f"**{text}**" if binom.sf(wrong.sum() - 1, len(wrong), ALPHA) < 1e-6 else text


def print_methods(runs: int, seed: int) -> None:
    """False certificates and mean radii at alpha = 0.05, and mean radii at 0.001."""
    print(f"\n## Certificates at alpha = {ALPHA}: false ones, mean 2R/sigma; the same mean at alpha = 0.001\n")
    names = [*METHODS, "runner-up fixed"]
    print("| classes | " + " | ".join(names) + " |\n|" + "---|" * (len(names) + 1))
    for name, (shares, n, part) in ELECTIONS.items():
        p, rng, cells = np.array(shares), np.random.default_rng(seed), []
        batches = [int(part * runs) // 10] * 10
        found: dict[str, list[tuple[np.ndarray, float, float]]] = {one: [] for one in names}
        for batch in batches:
            samples = voted(rng.multinomial(100, p, batch), rng.multinomial(n, p, batch))
            for one in names:
                events = [
                    METHODS[one].event(samples, alpha, THEOREM) if one in METHODS else fixed_runner_up(samples, alpha)
                    for alpha in (ALPHA, 1e-3)
                ]
                worth = [2 * float(THEOREM.radius(event).clamp(min=0).mean()) for event in events]
                found[one].append((false(events[0], p), worth[0], worth[1]))
        for one in names:
            wrong, worth, strict = zip(*found[one], strict=True)
            cells.append(f"{rate(np.concatenate(wrong))}, {np.mean(worth):.3f}; {np.mean(strict):.3f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def print_enumeration() -> None:
    """The largest exact probability of a false certificate over laws on three classes."""
    grid = [np.array([a, b, 20 - a - b]) / 20 for a, b in product(range(1, 19), repeat=2) if a + b < 20 and a >= b]
    laws = [p for p in grid if p[1] >= p[2]] + [p + np.array([0.004, -0.002, -0.002]) for p in grid if p[1] >= p[2]]
    print(f"\n## Exact probability of a false certificate, three classes: the largest over {len(laws)} laws\n")
    print("| n | " + " | ".join(METHODS) + " |\n|" + "---|" * (len(METHODS) + 1))
    for n in (5, 10, 20, 40):
        counts = np.array([(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)])
        cells = []
        for method in METHODS.values():
            worst = 0.0
            for selection in ([9, 1, 0], [1, 9, 0], [4, 3, 3], [3, 3, 4]):
                event = method.event(voted(np.tile(selection, (len(counts), 1)), counts), ALPHA, THEOREM)
                worst = max([worst, *(multinomial.pmf(counts, n, p)[false(event, p)].sum() for p in laws)])
            cells.append(f"{100 * worst:.2f} %")
        print(f"| {n} | " + " | ".join(cells) + " |", flush=True)


def print_intervals(runs: int, seed: int) -> None:
    """Failures of both sides of every limit."""
    print("\n## Limits at a = 0.05: how often the lower / the upper one fails\n")
    both = {"Hoeffding": rs.Hoeffding(), "EmpiricalBernstein": rs.EmpiricalBernstein()}
    binary = {**both, "ClopperPearson": rs.ClopperPearson(), "BetaBinomial": rs.BetaBinomial()}
    laws: dict[str, tuple[Callable[..., np.ndarray], float, dict[str, rs.Interval]]] = {
        "Bernoulli(0.07)": (lambda rng, size: (rng.random(size) < 0.07) * 1.0, 0.07, binary),
        "Bernoulli(0.5)": (lambda rng, size: (rng.random(size) < 0.5) * 1.0, 0.5, binary),
        "Beta(6, 2)": (lambda rng, size: rng.beta(6.0, 2.0, size), 0.75, both),
        "Beta(0.1, 0.3)": (lambda rng, size: rng.beta(0.1, 0.3, size), 0.25, both),
        "ramp of a Gaussian": (
            lambda rng, size: np.clip(0.5 + 0.1 * rng.standard_normal(size), 0, 1),
            0.5,
            {**both, "SubGaussian(0.1)": rs.SubGaussian(0.1)},
        ),
    }
    print("| law | n | limits |\n|---|---|---|")
    for (name, (draw, mean, limits)), n in product(laws.items(), (20, 200, 2000)):
        x = torch.from_numpy(draw(np.random.default_rng(seed), (max(runs // 10, 1000), n)))
        sums = Votes(x.sum(1, keepdim=True), x.square().sum(1, keepdim=True), torch.full((len(x),), n))
        cells = []
        for title, one in limits.items():
            low, high = one.lower(sums, ALPHA), one.upper(sums, ALPHA)
            cells.append(f"{title} {rate((low > mean).numpy())} / {rate((high < mean).numpy())}")
        found = [rs.betting_interval(row, 2 * ALPHA) for row in x[:300]]
        low, high = np.array([one.low > mean for one in found]), np.array([one.high < mean for one in found])
        print(f"| {name} | {n} | " + ", ".join([*cells, f"bets {rate(low)} / {rate(high)}"]) + " |", flush=True)


def print_stopping(seed: int, n: int = 100_000, block: int = 1000, images: int = 1000, alpha: float = 1e-3) -> None:
    """Samples spent and share certified at a target, against a fixed n."""
    print(f"\n## Stopping early: {images} inputs, top share Beta(4, 1), n <= {n}, blocks of {block}, alpha = {alpha}\n")
    print("| target R/sigma | certified, fixed n | certified, early | mean samples | saved | fixed n = that mean |")
    print("|---|---|---|---|---|---|")
    rng = np.random.default_rng(seed)
    top = rng.beta(4.0, 1.0, images)
    shares = np.stack([top, *((1 - top) * part for part in (0.7, 0.2, 0.1))], 1)
    for target in (0.25, 0.5, 1.0, 2.0):
        method = rs.Anytime(target)
        selection = rng.multinomial(100, shares)
        counts, every, live = np.zeros_like(selection), np.zeros_like(selection), np.arange(images)
        for _ in range(n // block):
            votes = rng.multinomial(block, shares)
            every += votes
            counts[live] += votes[live]
            if len(live):
                samples = voted(selection[live], counts[live], adaptive=True)
                live = live[~method.done(samples, alpha, THEOREM).numpy()]
        spent = counts.sum(1).mean()
        same = rng.multinomial(int(spent), shares)

        def certified(method: rs.Method, samples: Samples, target: float = target) -> float:
            return 100 * float((THEOREM.radius(method.event(samples, alpha, THEOREM)) >= target).double().mean())

        early = certified(method, voted(selection, counts, adaptive=True))
        late, cheap = (certified(rs.IntersectionUnion(), voted(selection, votes)) for votes in (every, same))
        print(
            f"| {target} | {late:.1f} % | {early:.1f} % | {spent:.0f} | {n / spent:.0f}x | {cheap:.1f} % |", flush=True
        )


def print_splits(seed: int, n: int = 10_000, runs: int = 1000, alpha: float = 1e-3) -> None:
    """Mean 2R/sigma for parts of alpha, and for a part that the samples which choose pick."""
    parts = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    print(f"\n## The label's part of alpha: mean 2R/sigma, n = {n}, alpha = {alpha}\n")
    print("| shares | " + " | ".join(map(str, parts)) + " | chosen of 0.5 and 1 |\n|" + "---|" * (len(parts) + 2))
    ten = np.arange(10)
    for first, second in (
        (0.9999, 0.0001),
        (0.99, 0.00111),
        (0.99, 0.01),
        (0.9, 0.0111),
        (0.9, 0.09),
        (0.7, 0.3),
        (0.5, 0.2),
    ):
        p = np.where(ten == 0, first, np.where(ten == 1, second, max(1 - first - second, 0) / 8))
        rng = np.random.default_rng(seed)
        selection = rng.multinomial(100, p / p.sum(), runs)
        samples = voted(selection, rng.multinomial(n, p / p.sum(), runs))
        alike = dataclasses.replace(samples, counts=torch.from_numpy(selection) * (n // 100))
        proven, hoped = (
            [THEOREM.radius(rs.IntersectionUnion(part).event(one, alpha, THEOREM)).clamp(min=0) for part in parts]
            for one in (samples, alike)
        )
        chosen = torch.where(hoped[5] > hoped[2], proven[5], proven[2])
        cells = " | ".join(f"{2 * float(one.mean()):.3f}" for one in (*proven, chosen))
        print(f"| {first}, {second}, ... | {cells} |", flush=True)


def main() -> None:
    """Prints every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20_000, help="elections for each law; a tenth with 1000 classes")
    parser.add_argument("--seed", type=int, default=0, help="draws the votes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{machine()}, {options.runs} runs, seed {options.seed}")
    print_methods(options.runs, options.seed)
    print_enumeration()
    print_intervals(options.runs, options.seed)
    print_stopping(options.seed)
    print_splits(options.seed)


if __name__ == "__main__":
    main()
