"""Semidefinite and pairwise bounds: values against time and depth, and a search for violations.

Claims: on ReLU nets of width 64 (Gaussian weights, spectral norms near 2) LipSDP with one multiplier per neuron is
solved to 1e-4 and proven, below LipLT and the product by a factor that grows with the depth; published times of a
general solver (MOSEK) on its own machine stand beside ours. A solve that needs more than `--cap` seconds of processor
time is stopped and shown as such; cvxpy with Clarabel gets a minute, and nothing deeper once it failed. Trained nets
are read from `--data`, the folder with lipschitz-nets/, and left out without it. `--violations N` compares every method
with the largest Jacobian over all activation patterns on N random nets (any graph, slopes of any sign) and exits with
status 1 if one of them is below.

    python benchmarks/sdp.py [--data DIR] [--depths 2 4 8 16 32 64] [--rtol 1e-4] [--cap 300] [--violations 200]
                             [--seed 0] [--plot sdp.png]

Times are processor seconds of one thread, which a busy machine still lengthens; `--threads` for more.
"""

import argparse
import itertools
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from lipkit.bound import Bound
from lipkit.bounds import DAG, LipLT, Method, Product
from lipkit.bounds.sdp.cvxpy_solver import Cvxpy
from lipkit.bounds.sdp.diagonal_maximum import Alignment, Greedy
from lipkit.bounds.sdp.eclipse import ECLipsE
from lipkit.bounds.sdp.interior_point import InteriorPoint
from lipkit.bounds.sdp.lipsdp import LipSDP
from lipkit.bounds.sdp.program import Multipliers
from lipkit.bounds.sdp.seqlip import SeqLip
from lipkit.errors import UnsupportedError
from lipkit.linops import Dense
from lipkit.trace import Network, chain
from lipkit.trace.nodes import RELU, PiecewiseLinear, Pointwise

# Seconds of MOSEK for LipSDP-Neuron on nets of this depth and width 64, as published.
PUBLISHED = {2: 0.1, 4: 0.8, 8: 2.8, 16: 12.0, 32: 96.0, 64: 830.0}
INTERVALS = [(0.0, 1.0), (0.01, 1.0), (-0.13, 1.13), (1.0, 1.0), (-0.5, -0.2), (-1.0, 1.0), (0.97, 1.0)]


# log of the bound, wall seconds, processor seconds
Row = tuple[float, float, float]


def timed(call: Callable[[], Bound]) -> Row:
    """(log of the bound, wall seconds, processor seconds)."""
    wall, used = time.perf_counter(), time.process_time()
    log = float(call().log_value)
    return log, time.perf_counter() - wall, time.process_time() - used


def gaussian_mlp(depth: int, width: int, seed: int) -> Network:
    """`depth` square layers with entries of variance 1 / width."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(width, width, generator=generator, dtype=torch.float64) / width**0.5 for _ in range(depth)]
    return chain([Dense(w) for w in weights], RELU)


def trained_nets(folder: Path) -> dict[str, Network]:
    """The fully connected nets of the folder, all outputs."""
    found: dict[str, Network] = {}
    for name in ("fnn2_seed0", "fnn3_seed0", "lipsdp_random", "lipsdp_mnist"):
        with np.load(folder / f"{name}.npz") as stored:
            weights = [torch.from_numpy(stored[k]) for k in sorted(stored) if k.endswith("weight") or k[0] == "w"]
        found[name] = chain([Dense(w) for w in weights], RELU)
    return found


def on_trained_nets(folder: Path) -> None:
    """Every method on every net: value and seconds."""
    methods: list[Method] = [
        LipSDP(),
        LipSDP(Multipliers.PER_LAYER),
        LipSDP(split=1),
        ECLipsE(),
        LipLT(),
        SeqLip(),
        SeqLip(0, Alignment(printed=True)),
        SeqLip(beyond=Greedy()),
        Product(),
    ]
    for name, network in trained_nets(folder).items():
        small = name in ("fnn2_seed0", "lipsdp_random")
        chosen = [*methods, LipSDP(solver=Cvxpy())] if find_spec("cvxpy") and small else methods
        print(f"\n{name}")
        for method in chosen:
            log, wall, used = timed(lambda m=method, n=network: m(n))
            print(f"  {np.exp(log):10.5f}  {wall:8.3f} s  {used:8.3f} cpu s  {method}")


def capped(call: Callable[[], Bound], seconds: float) -> Row | None:
    """`timed` in a process of its own, which ends after so many seconds of processor time; None if it ended so."""
    there, here = (context := multiprocessing.get_context("fork")).Pipe(duplex=False)

    def work() -> None:
        used = int(time.process_time() + seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (used, used))
        here.send(timed(call))

    process = context.Process(target=work)
    process.start()
    here.close()
    try:
        # A process that waits for something uses no processor time: it gets ten times as long by the clock.
        return there.recv() if there.poll(10 * seconds) else None
    except EOFError:
        return None
    finally:
        process.kill()
        process.join()


def over_depth(depths: list[int], rtol: float, seed: int, cap: float) -> dict[str, dict[int, Row]]:
    """Log10 of the bounds and seconds, against the depth, as Markdown; the rows by method."""
    print(f"\nGaussian ReLU nets of width 64, log10 of bounds; LipSDP to rtol {rtol:g}, processor seconds\n")
    solver = InteriorPoint(rtol=rtol)
    methods: dict[str, Method] = {
        "LipSDP": LipSDP(solver=solver),
        "LipSDP in parts of 8": LipSDP(solver=solver, split=8),
        "Clarabel": LipSDP(solver=Cvxpy()),
        "ECLipsE": ECLipsE(),
        "LipLT": LipLT(),
        "product": Product(),
    }
    found: dict[str, dict[int, Row]] = {name: {} for name in methods}
    # Late imports must not be timed. Clarabel is not called here: its threads would not survive a fork.
    for name in methods.keys() - {"Clarabel"}:
        methods[name](gaussian_mlp(2, 4, seed))
    print("| depth |" + "".join(f" {name} | s |" for name in methods) + " MOSEK, published s |")
    print("|---:|" + "---:|---:|" * len(methods) + "---:|")
    tired: set[str] = set() if find_spec("cvxpy") else {"Clarabel"}
    for depth in depths:
        network = gaussian_mlp(depth, 64, seed)
        line = f"| {depth} |"
        for name, method in methods.items():
            limit = min(cap, 60.0) if name == "Clarabel" else cap
            row = None if name in tired else capped(lambda m=method, n=network: m(n), limit)
            if row is not None:
                found[name][depth] = row
                line += f" {row[0] / np.log(10):.4f} | {row[2]:.3g} |"
            else:
                line += " | |" if name in tired else f" | > {limit:g} |"
                tired.add(name)
        print(line + f" {PUBLISHED.get(depth, '')} |", flush=True)
    return found


def plot(found: dict[str, dict[int, Row]], path: Path) -> None:
    """Value and time against the depth, one line a method, published times beside."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    looks = {"LipSDP": ("0", "o-"), "LipSDP in parts of 8": ("0", "o--"), "Clarabel": ("C3", "D-"),
             "ECLipsE": ("C1", "^-"), "LipLT": ("C0", "s-"), "product": ("0.6", "v-")}  # fmt: skip
    for name, (color, style) in looks.items():
        depths = sorted(found[name])
        if not depths:
            continue
        rows = [found[name][depth] for depth in depths]
        # A power of ten a layer is divided out, or all methods would be one steep line.
        left.plot(depths, [np.exp(row[0] / depth) for depth, row in zip(depths, rows, strict=True)], style,
                  color=color, label=name, markersize=4)  # fmt: skip
        right.plot(depths, [row[2] for row in rows], style, color=color, label=name, markersize=4)
    right.plot([*PUBLISHED], [*PUBLISHED.values()], "x:", color="C3", label="MOSEK, published", markersize=5)
    ticks = sorted(found["product"])
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.set_xlabel("layers, each 64 x 64")
    left.set(ylabel="bound ** (1 / depth)", title="Value for each layer")
    right.set(yscale="log", ylabel="seconds, one thread", title="Time")
    right.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def random_net(rng: np.random.Generator) -> tuple[Network, dict[tuple[int, int], np.ndarray], list[np.ndarray]]:
    """A small net of random graph, widths and slopes, with its matrices and the (alpha, beta) of every node."""
    sizes = [int(s) for s in rng.integers(1, 5, size=rng.integers(3, 6))]
    while sum(sizes[1:-1]) > 9:
        del sizes[1]
    jumps = rng.random() < 0.5
    matrices: dict[tuple[int, int], np.ndarray] = {}
    for k in range(1, len(sizes)):
        for j in range(k):
            if j == k - 1 or (jumps and rng.random() < 0.4):
                matrices[k, j] = rng.normal(size=(sizes[k], sizes[j])) * 10.0 ** rng.uniform(-2, 2)
                matrices[k, j] *= rng.random(matrices[k, j].shape) < rng.choice([0.5, 1.0])
    dtype = torch.float32 if rng.random() < 0.3 else torch.float64
    blocks = {at: Dense(torch.from_numpy(m).to(dtype)) for at, m in matrices.items()}
    slopes = [np.array([INTERVALS[i] for i in rng.integers(len(INTERVALS), size=n)]).T for n in sizes[1:-1]]
    nodes = tuple(Pointwise(two_slopes(*(torch.from_numpy(s) for s in pair)), (pair.shape[1],)) for pair in slopes)
    exact = {at: op.weight.double().numpy() for at, op in blocks.items()}
    return Network((sizes[0],), nodes, blocks, target=(sizes[-1],)), exact, slopes


def two_slopes(alpha: Tensor, beta: Tensor) -> PiecewiseLinear:
    """One pair of slopes for each neuron."""
    return PiecewiseLinear("two slopes", lambda z, a, b: torch.where(z < 0, a * z, b * z), (0.0,), (alpha, beta))


def largest_jacobian(matrices: dict[tuple[int, int], np.ndarray], slopes: list[np.ndarray]) -> float:
    """The largest norm over all choices of an extreme slope at every neuron."""
    widths = [pair.shape[1] for pair in slopes]
    free = np.concatenate([pair[0] != pair[1] for pair in slopes])
    alpha, beta = (np.concatenate([pair[i] for pair in slopes]) for i in (0, 1))
    choices = np.array(list(itertools.product((False, True), repeat=int(free.sum()))))
    corners = np.repeat(beta[None], len(choices), axis=0)
    corners[:, free] = np.where(choices, beta[free], alpha[free])
    layers = np.split(corners, np.cumsum(widths)[:-1], axis=1)
    inputs = next(m for (_, j), m in matrices.items() if j == 0).shape[1]
    values = [np.broadcast_to(np.eye(inputs), (len(corners), inputs, inputs))]
    for k in range(1, len(slopes) + 2):
        z = np.sum([m @ values[j] for (at, j), m in matrices.items() if at == k], axis=0)
        values.append(z if k > len(slopes) else layers[k - 1][:, :, None] * z)
    return float(np.linalg.norm(values[-1], ord=2, axis=(1, 2)).max())


def never_below(count: int, seed: int = 0) -> list[str]:
    """Violations found on `count` random nets, one sentence each; a sound library returns none."""
    methods: list[Method] = [
        LipSDP(),
        LipSDP(Multipliers.PER_LAYER),
        LipSDP(solver=InteriorPoint(rtol=0.3)),
        LipSDP(split=1),
        ECLipsE(),
        SeqLip(),
        SeqLip(0),
        SeqLip(0, Alignment(printed=True)),
    ]
    found: list[str] = []
    for i in range(count):
        network, matrices, slopes = random_net(np.random.default_rng([seed, i]))
        truth = largest_jacobian(matrices, slopes)
        fold = float(DAG()(network).value)
        for method in methods:
            try:
                value = float(method(network).value)
            except UnsupportedError:  # a method for chains, on another graph
                continue
            # Brute force may be high by a few units in the last place; a solver at rtol 0.3 may be above the fold.
            if value < truth * (1 - 1e-13):
                found.append(f"net {i} of seed {seed}: {method} gave {value!r}, the largest Jacobian is {truth!r}")
            if method is methods[0] and value > fold * (1 + 1e-5):
                found.append(f"net {i} of seed {seed}: {method} gave {value!r}, more than the fold {fold!r}")
    return found


def main() -> int:
    """Tables and the search; the exit status says whether a violation was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--depths", type=int, nargs="*", default=[*PUBLISHED])
    parser.add_argument("--rtol", type=float, default=1e-4)
    parser.add_argument("--cap", type=float, default=300.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--violations", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.data is not None:
        on_trained_nets(options.data / "lipschitz-nets")
    found = over_depth(options.depths, options.rtol, options.seed, options.cap)
    if options.plot is not None:
        plot(found, options.plot)
    violations = never_below(options.violations, options.seed)
    print(f"\n{len(violations)} violations on {options.violations} random nets", *violations, sep="\n")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
