"""Ways to train an orthonormal matrix, side by side on one problem: time, memory, distance to the manifold, loss.

Claim: a step of an optimizer on the manifold costs less than one through a layer `Bjorck` (all but the exponential
retraction), and ends as near to the manifold as rounding allows (`Landing` and `StiefelMuon` after `retract`).

    python benchmarks/manifold_optimizers.py [--rows 256] [--cols 128] [--steps 300] [--device cpu] [--peers FOLDER]

Samples x have a covariance with eigenvalues from 0.1 to 1, targets are a teacher's with noise, y = T x + e, T with
orthonormal columns; the loss is half the mean squared distance. Its minimum over orthonormal matrices is known: the
polar factor of the sum of y x'. Losses are given above that of the minimiser, on the 4096 training samples and on as
many new ones, where the minimiser of the training loss is not the best and a difference may be negative. They are no
ranking: most of what is left is noise of the last steps, at one of three rates, of one seed.

Each method takes the best of three rates, found by a third of the steps, falls to a tenth of it in the end, and sees
the same batches of 64. Times are those of a whole step, forward, backward and update; processor time on a CPU, the
least of several. Memory is the peak of a step above what was there before, and what the optimizer keeps. Distances are
||W'W - I||_2 at the end, of the weight that the model multiplies with; `landing` is also retracted after it.
The cost is what comes beside forward and backward, for an n x p matrix and rank k.
`--peers` is a folder with geotorch, from `pip install --no-deps --target FOLDER geotorch`.
"""

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from timing import machine
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit import optim
from lipkit.regularizers import Orthogonality, StochasticParseval, layers_of, parseval_step_

Build = Callable[[nn.Module, float], torch.optim.Optimizer]


@dataclass(frozen=True)
class Problem:
    """The samples, and the minimiser."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    best: Tensor

    def loss(self, weight: Tensor) -> tuple[float, float]:
        """Above the minimiser's, on training and on new samples."""

        def of(w: Tensor, x: Tensor, y: Tensor) -> float:
            return float((x @ w.T - y).square().sum(1).mean()) / 2

        def above(x: Tensor, y: Tensor) -> float:
            return of(weight.detach().double(), x, y) - of(self.best, x, y)

        return above(self.x, self.y), above(self.test_x, self.test_y)


def problem(rows: int, cols: int, device: str, samples: int = 4096) -> Problem:
    torch.manual_seed(0)
    teacher = torch.linalg.qr(torch.randn(rows, cols, dtype=torch.float64)).Q
    spread = torch.linspace(0.1, 1.0, cols, dtype=torch.float64).sqrt()
    x = torch.randn(2, samples, cols, dtype=torch.float64) * spread
    y = x @ teacher.T + 0.1 * torch.randn(2, samples, rows, dtype=torch.float64)
    left, _, right = torch.linalg.svd(y[0].T @ x[0], full_matrices=False)
    return Problem(*(t.to(device) for t in (x[0], y[0], x[1], y[1], left @ right)))


def plain(rows: int, cols: int) -> nn.Module:
    layer = nn.Linear(cols, rows, bias=False)
    nn.init.orthogonal_(layer.weight)
    return layer


class Parseval(torch.optim.SGD):
    """SGD, and a Parseval step on the layer after it."""

    def __init__(self, layer: nn.Module, lr: float) -> None:
        super().__init__(layer.parameters(), lr, momentum=0.9)
        self.layer = layer

    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().step(closure)
        parseval_step_(self.layer, 0.1)


class Penalized(torch.optim.SGD):
    """SGD on the loss and a penalty on the weight."""

    def __init__(self, layer: nn.Module, lr: float, penalty: Orthogonality | StochasticParseval, share: float) -> None:
        super().__init__(layer.parameters(), lr, momentum=0.9)
        self.share, self.penalty = share, penalty
        self.layers = layers_of(layer, torch.zeros_like(next(layer.parameters())[:1]))

    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        # `Projected` takes its steps without gradients.
        with torch.enable_grad():
            (self.share * self.penalty(self.layers)).backward()
        super().step(closure)


@dataclass(frozen=True)
class Way:
    """A model and an optimizer; `products` is the cost beside forward and backward, for an n x p matrix."""

    name: str
    model: Callable[[int, int], nn.Module]
    optimizer: Build
    rates: tuple[float, float, float]
    products: str
    momentum: str


SLOW, FAST, BETWEEN = (0.1, 0.3, 1.0), (3e-3, 1e-2, 3e-2), (0.03, 0.1, 0.3)


def on_parameters(build: Callable[..., torch.optim.Optimizer], **fields: object) -> Build:
    return lambda model, lr: build(model.parameters(), lr, **fields)


def constrained(method: lnn.WeightMethod) -> Callable[[int, int], nn.Module]:
    return lambda rows, cols: lnn.Linear(cols, rows, bias=False, method=method)


def ways() -> Iterator[Way]:
    """Everything that is compared, the plain layer first."""
    on, adam = on_parameters, on_parameters(torch.optim.Adam)
    yield Way("no constraint, Adam", plain, adam, FAST, "np", "yes")

    def projected(model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return optim.Projected(torch.optim.SGD(model.parameters(), lr))

    yield Way("`Projected(SGD)`", plain, projected, SLOW, "9 np²", "of the base")
    for retraction, cost in (
        (optim.QRRetraction(), "4 np² + QR"),
        (optim.CayleyRetraction(), "17 np² + LU of 2p"),
        (optim.ExponentialRetraction(), "4 np² + QR and exp of 2p"),
        (optim.PolarRetraction(), "12 np²"),
    ):
        sgd = on(optim.RiemannianSGD, momentum=0.9, retraction=retraction)
        yield Way(f"`RiemannianSGD`, {retraction}", plain, sgd, SLOW, cost, "carried along")
    yield Way("`RiemannianAdam`", plain, on(optim.RiemannianAdam), FAST, "4 np² + QR", "carried along")
    yield Way("`StiefelMuon`", plain, on(optim.StiefelMuon), BETWEEN, "19 np²", "yes")
    yield Way("`Landing`", plain, on(optim.Landing, momentum=0.9), SLOW, "4 np²", "yes")
    yield Way("`ProjUNND`, rank 8", plain, on(optim.ProjUNND, rank=8), SLOW, "8k np + SVD of n x 2k", "yes")
    yield Way("`ProjUNNT`, rank 8", plain, on(optim.ProjUNNT, rank=8), SLOW, "7k np + QR of n x 2k", "yes")
    yield Way("`parseval_step_(0.1)` after SGD", plain, Parseval, SLOW, "2 np²", "of the base")
    # One vector gives an unbiased gradient too. Its deviation is four times as large, so steps are finite for smaller
    # products of rate and share only.
    stochastic = partial(Penalized, penalty=StochasticParseval(draws=16), share=0.01)
    dense = partial(Penalized, penalty=Orthogonality(), share=0.1)
    yield Way("`Orthogonality` beside the loss, SGD", plain, dense, SLOW, "2 np²", "of the base")
    yield Way("`StochasticParseval(16)` beside the loss, SGD", plain, stochastic, BETWEEN, "64 np", "of the base")

    def mixed(model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return optim.Projected(stochastic(model, lr), every=10)

    yield Way("the same, in `Projected(every=10)`", plain, mixed, BETWEEN, "64 np + 0.9 np²", "of the base")
    for method in (
        lnn.Bjorck(), lnn.Cayley(), lnn.Exponential(), lnn.QR(), lnn.Householder(), lnn.Polar(), lnn.NewtonSchulz()
    ):  # fmt: skip
        name = f"`nn.Linear(method={type(method).__name__}())`, Adam"
        yield Way(name, constrained(method), adam, FAST, "in the layer", "yes")
    with contextlib.suppress(ImportError):
        import geotorch  # pyright: ignore[reportMissingImports]

        def trivialized(rows: int, cols: int) -> nn.Module:
            layer = nn.Linear(cols, rows, bias=False)
            geotorch.orthogonal(layer, "weight")
            return layer

        yield Way("geotorch orthogonal, Adam", trivialized, adam, FAST, "in the layer", "yes")


class Run:
    """A model, its optimizer, and the batches that both see."""

    def __init__(self, way: Way, data: Problem, dtype: torch.dtype, rate: float, steps: int) -> None:
        torch.manual_seed(1)
        rows, cols = data.best.shape
        self.data, self.dtype, self.rate, self.steps = data, dtype, rate, steps
        self.model = way.model(rows, cols).to(data.x.device, dtype)
        self.optimizer = way.optimizer(self.model, rate)
        drawn = torch.randint(len(data.x), (steps, 64), generator=torch.Generator().manual_seed(2))
        self.drawn = drawn.to(data.x.device)

    def step(self, i: int) -> None:
        x, y = (t[self.drawn[i % self.steps]].to(self.dtype) for t in (self.data.x, self.data.y))
        self.optimizer.zero_grad()
        ((self.model(x) - y).square().sum(1).mean() / 2).backward()
        self.optimizer.step()

    def train(self) -> None:
        for i in range(self.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate * 0.1 ** (i / self.steps)
            self.step(i)

    @property
    def weight(self) -> Tensor:
        self.model.eval()
        with torch.no_grad():
            return self.model.weight.detach().double()  # pyright: ignore[reportReturnType, reportCallIssue]

    def distance(self) -> float:
        w = self.weight
        return float(torch.linalg.matrix_norm(w.T @ w - torch.eye(w.shape[1], dtype=w.dtype, device=w.device), 2))


def milliseconds(run: Run, repeats: int = 20) -> float:
    """Of the fastest step: processor time on a CPU."""
    on_gpu = run.data.x.is_cuda
    clock, fastest = time.perf_counter if on_gpu else time.process_time, float("inf")
    for i in range(repeats):
        if on_gpu:
            torch.cuda.synchronize()
        start = clock()
        run.step(i)
        if on_gpu:
            torch.cuda.synchronize()
        fastest = min(fastest, clock() - start)
    return fastest * 1e3


def peak_mib(run: Run) -> float:
    """Of a step, above what was there before, and what the optimizer keeps."""
    kept = sum(
        t.numel() * t.element_size() for s in run.optimizer.state.values() for t in s.values() if isinstance(t, Tensor)
    )
    run.optimizer.zero_grad()
    if run.data.x.is_cuda:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run.step(0)
        return (torch.cuda.max_memory_allocated() - before + kept) / 2**20
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as found:
        run.step(0)
    now = most = 0
    for event in found.profiler.kineto_results.events():  # pyright: ignore[reportOptionalMemberAccess]
        if event.name() == "[memory]":
            now += event.nbytes()  # pyright: ignore[reportAttributeAccessIssue]
            most = max(most, now)
    return (most + kept) / 2**20


def best_rate(way: Way, data: Problem, steps: int) -> float:
    losses: dict[float, float] = {}
    for rate in way.rates:
        trial = Run(way, data, torch.float32, rate, steps)
        trial.train()
        losses[rate] = data.loss(trial.weight)[0]
    return min(losses, key=lambda rate: losses[rate] if losses[rate] == losses[rate] else float("inf"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--cols", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peers")
    parser.add_argument("--only", nargs="+", default=[""], help="ways whose name contains one of these")
    args = parser.parse_args()
    if args.peers is not None:
        sys.path.append(args.peers)
    data = problem(args.rows, args.cols, args.device)
    print(f"{args.rows} x {args.cols}, {args.steps} steps, {machine()}\n")
    print("| method | cost a step | momentum | rate | ms | MiB | distance, float32 | float64 | training loss | test |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for way in ways():
        if not any(part in way.name for part in args.only):
            continue
        rate = best_rate(way, data, args.steps // 3)
        single, double = (Run(way, data, dtype, rate, args.steps) for dtype in (torch.float32, torch.float64))
        single.train()
        double.train()
        training, test = data.loss(single.weight)
        distances = [single.distance(), double.distance()]
        took, mib = milliseconds(single), peak_mib(single)
        print(
            f"| {way.name} | {way.products} | {way.momentum} | {rate:g} | {took:.2f} | {mib:.1f} | "
            f"{distances[0]:.0e} | {distances[1]:.0e} | {training:.1e} | {test:.1e} |",
            flush=True,
        )
        if "Landing" in way.name:
            for run in (single, double):
                run.optimizer.retract()  # pyright: ignore[reportAttributeAccessIssue]
            training, test = data.loss(single.weight)
            print(
                f"| the same, after `retract` | | | | | | {single.distance():.0e} | {double.distance():.0e} | "
                f"{training:.1e} | {test:.1e} |"
            )


if __name__ == "__main__":
    main()
