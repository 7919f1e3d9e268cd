"""Local constants around MNIST digits beside auto_LiRPA, on the same weights in one process: value and seconds.

Claims: on l2 balls `Condensed` is below what the Jacobian bounds of auto_LiRPA give, at less cost, and both are above a
proven lower bound. On linf balls auto_LiRPA bounds the sum of |entries| of a gradient by linear relaxation of the
absolute value and may be smaller; no claim is made there. The exit status is 1 if an upper bound is below a lower one.

    python benchmarks/lirpa.py --data DIR --lirpa PATH [--digits 2] [--epochs 2]

DIR holds mnist/ (the gzipped IDX files), PATH a checkout of auto_LiRPA (measured: 0.7.1). Packages it imports and that
are not installed (appdirs, graphviz, tqdm) are replaced by empty ones, which no bound uses. Its l2 constant of ten
logits is the smaller of || max(|lo|, |hi|) || and ||(lo + hi)/2|| + ||(hi - lo)/2|| of its intervals; it refuses the
Jacobian of ten logits through a convolution, so that the convolutional net is compared on the logit of the right class.
Its arithmetic is float32 and counts no rounding. Seconds are processor time of one thread.
"""

import argparse
import gzip
import logging
import math
import sys
import tempfile
import time
import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from timing import machine
from torch import Tensor, nn
from torch.nn import functional

from lipkit import Ball, Metric
from lipkit.bounds import Condensed, DifferenceQuotient, FastLip, GradientAscent, Method, Relaxation
from lipkit.linops import Dense
from lipkit.trace import Network
from lipkit.trace.capture import capture


@dataclass(frozen=True, eq=False)
class Digits:
    """Images in [0, 1], (count, 1, 28, 28), and their labels."""

    images: Tensor
    labels: Tensor


def read(folder: Path, part: str) -> Digits:
    """One of the two parts, train or t10k."""

    def raw(name: str, offset: int) -> Tensor:
        with gzip.open(folder / f"{part}-{name}-ubyte.gz") as file:
            return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=offset).copy())

    return Digits(raw("images-idx3", 16).reshape(-1, 1, 28, 28).float() / 255, raw("labels-idx1", 8).long())


def mlp() -> nn.Sequential:
    """784 - 256 - 256 - 10."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
    )


def cnn() -> nn.Sequential:
    """Two convolutions of stride 2 and two dense layers."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 49, 100), nn.ReLU(), nn.Linear(100, 10),
    )  # fmt: skip


def trained(make: Callable[[], nn.Sequential], train: Digits, test: Digits, epochs: int) -> nn.Sequential:
    """The net after some epochs of Adam."""
    torch.manual_seed(0)
    model = make()
    step = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(epochs):
        for batch in torch.randperm(len(train.images)).split(128):
            step.zero_grad()
            functional.cross_entropy(model(train.images[batch]), train.labels[batch]).backward()
            step.step()
    with torch.no_grad():
        right = (model(test.images).argmax(1) == test.labels).double().mean()
    print(f"{make.__name__}: {epochs} epochs, {right:.2%} of the test digits right", flush=True)
    return model.eval()


def beside(path: Path) -> None:
    """Make auto_LiRPA importable from a checkout, with stand-ins for what it imports and no bound needs."""
    sys.path.insert(0, str(path))
    kept = tempfile.mkdtemp()
    needs = {
        "appdirs": {"user_data_dir": lambda *_: kept, "user_cache_dir": lambda *_: kept},
        "graphviz": {"Digraph": object},
        "tqdm": {"tqdm": lambda x=None, *_, **__: x},
    }
    for name, content in needs.items():
        if find_spec(name) is None:
            module = types.ModuleType(name)
            module.__dict__.update(content)
            sys.modules[name] = module
    # It builds its extension for GPUs and scripts functions while it is imported.
    warnings.simplefilter("ignore")
    import auto_LiRPA  # pyright: ignore[reportMissingImports]

    logging.getLogger("auto_LiRPA").setLevel(logging.ERROR)
    auto_LiRPA.utils.logger.setLevel(logging.ERROR)
    print(f"auto_LiRPA {auto_LiRPA.__version__}", flush=True)


def their_intervals(model: nn.Module, x: Tensor, logits: Tensor, radius: float, p: float) -> float:
    """The constant from their intervals for every entry of the Jacobian of `logits` (10, count)."""
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm  # pyright: ignore[reportMissingImports]
    from auto_LiRPA.jacobian import JacobianOP  # pyright: ignore[reportMissingImports]

    class Jacobian(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, at: Tensor, chosen: Tensor) -> Tensor:
            return JacobianOP.apply(self.model(at).matmul(chosen), at)

    options = {"conv_mode": "matrix"}
    bounded = BoundedModule(Jacobian(), (BoundedTensor(x), logits), device="cpu", bound_opts=options)
    ball = BoundedTensor(x, PerturbationLpNorm(norm=p, eps=radius))
    ends = bounded.compute_jacobian_bounds((ball, logits))
    low, high = (end.detach().double().reshape(logits.shape[1], -1) for end in ends)
    largest = torch.maximum(low.abs(), high.abs())
    if p == math.inf:
        return float(largest.sum(1).max())
    halves = torch.linalg.matrix_norm((low + high) / 2, 2) + torch.linalg.matrix_norm((high - low) / 2, 2)
    return float(torch.minimum(torch.linalg.matrix_norm(largest, 2), halves))


def their_sums(model: nn.Module, x: Tensor, logits: Tensor, radius: float, p: float) -> float:
    """The largest l1 norm of a gradient, which is the constant from linf, as their example bounds it."""
    from auto_LiRPA import BoundedModule, BoundedTensor, PerturbationLpNorm  # pyright: ignore[reportMissingImports]
    from auto_LiRPA.jacobian import GradNorm, JacobianOP  # pyright: ignore[reportMissingImports]

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model
            self.sum = GradNorm(norm=1)

        def forward(self, at: Tensor, chosen: Tensor) -> Tensor:
            return self.sum(JacobianOP.apply(self.model(at).matmul(chosen), at))

    chosen = logits[:, :1].clone()
    bounded = BoundedModule(Sum(), (BoundedTensor(x), chosen), device="cpu")
    ball = BoundedTensor(x, PerturbationLpNorm(norm=p, eps=radius))
    largest = 0.0
    for row in logits.T:
        # In place: it keeps the tensor it was built with, and another one passed here would be ignored.
        chosen.copy_(row[:, None])
        largest = max(largest, float(bounded.compute_jacobian_bounds((ball, chosen), bound_lower=False)[1].detach()))
    return largest


def timed(run: Callable[[], float]) -> tuple[float, float]:
    """Value and processor seconds."""
    started = time.process_time()
    value = run()
    return value, time.process_time() - started


def compare(name: str, model: nn.Sequential, x: Tensor, logits: Tensor, radius: float, p: float) -> bool:
    """One row of the table; whether an upper bound is below the lower one."""
    network: Network = capture(model, x).detach().then(Dense(logits.T.clone()))
    metric, ball = Metric(p, p), Ball(x[0], radius, p)
    theirs = {"intervals": their_intervals} if p == 2 else {"intervals": their_intervals, "sums": their_sums}
    ours: dict[str, Method] = {
        "Condensed": Condensed(metric),
        "FastLip(slopes=Relaxation())": FastLip(metric, slopes=Relaxation()),
    }
    search = GradientAscent(20, 8, on=DifferenceQuotient(), metric=metric)
    rows: dict[str, tuple[float, float]] = {}
    for kind, run in theirs.items():
        rows[f"auto_LiRPA, {kind}"] = timed(lambda r=run: r(model, x, logits, radius, p))
    for kind, method in ours.items():
        rows[kind] = timed(lambda m=method: float(m(network, ball).value))
    lower, _ = timed(lambda: float(search(network, ball).value))
    best = min((rows[kind][0], rows[kind][1]) for kind in rows if kind.startswith("auto"))
    cells = f"{best[0]:.4g} | {best[1]:.3g} | " + " | ".join(f"{rows[k][0]:.4g} | {rows[k][1]:.3g}" for k in ours)
    print(f"| {name} | {cells} | {lower:.4g} | {best[0] / rows['Condensed'][0]:.2f} |", flush=True)
    return any(value < lower for value, _ in rows.values())


def main() -> int:
    """The table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--lirpa", type=Path, required=True)
    parser.add_argument("--digits", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(machine())
    beside(args.lirpa)
    train, test = (read(args.data / "mnist", part) for part in ("train", "t10k"))
    dense, convolutional = (trained(make, train, test, args.epochs) for make in (mlp, cnn))
    print("\n| net, region, digit | auto_LiRPA | s | Condensed | s | FastLip | s | lower | theirs / ours |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    wrong = False
    for digit in range(args.digits):
        x = test.images[digit : digit + 1]
        for p, radius, said in ((2.0, 0.1, "0.1"), (2.0, 0.3, "0.3"), (math.inf, 1 / 255, "1/255"),
                                (math.inf, 4 / 255, "4/255")):  # fmt: skip
            wrong |= compare(f"MLP, ten logits, l{p:g} {said}, digit {digit}", dense, x, torch.eye(10), radius, p)
        one = functional.one_hot(test.labels[digit : digit + 1], 10).float().T
        for radius in (0.05, 0.1):
            wrong |= compare(f"CNN, one logit, l2 {radius}, digit {digit}", convolutional, x, one, radius, 2.0)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
