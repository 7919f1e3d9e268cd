"""LipLT for every pair of classes of 6C2F on CIFAR-10, beside the public code of its authors: value and seconds.

Claims: on the same weights in one process, ours is proven (UPPER, with its probability of failure), theirs is the same
sum with norms by power iteration from random vectors in float32, which approaches the value from below as the steps
grow; the two agree as far as the steps go. Theirs is faster at few steps, where it is not a bound.

    python benchmarks/liplt_pairwise.py --reference PATH [--data DIR] [--steps 1 10 100 1000] [--images 4000]
                                         [--rtol 1e-2]

PATH is a checkout of the authors' code (CRM-LipLT), of which Networks/NetworkModels.py is imported. With DIR (cifar10/)
the net is trained for one epoch, without it has PyTorch's random weights. Seconds are processor time of one thread.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import torch
from architectures import six_c_two_f
from ladder import cifar_images, fitted
from timing import machine
from torch import Tensor, nn

from lipkit.bounds import PairwiseLipLT
from lipkit.norms import Auto
from lipkit.trace.capture import capture


def theirs(path: Path, model: nn.Sequential, steps: int) -> tuple[Tensor, float]:
    """The authors' constants of all pairs after so many steps of power iteration, and seconds."""
    sys.path.insert(0, str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from Networks.NetworkModels import SequentialLipltLipschitz  # pyright: ignore[reportMissingImports]

    torch.manual_seed(0)
    net = SequentialLipltLipschitz(
        list(model), (3, 32, 32), torch.device("cpu"), perClassLipschitz=False, numberOfPowerIterations=steps,
        pairwiseLipschitz=True,
    )  # fmt: skip
    with torch.no_grad():
        started = time.process_time()
        found = net.calculateNetworkLipschitz()
        return found.double(), time.process_time() - started


def line(name: str, values: Tensor, seconds: float, ours: Tensor) -> None:
    """A row: the mean and the largest over pairs, and how far from ours."""
    pairs = torch.triu_indices(len(values), len(values), offset=1)
    chosen, beside = (constants[pairs[0], pairs[1]] for constants in (values, ours))
    apart = chosen / beside - 1
    print(
        f"| {name} | {chosen.mean():.5g} | {chosen.max():.5g} | {apart.min():+.2%} to {apart.max():+.2%} |"
        f" {seconds:.3g} |",
        flush=True,
    )


def main() -> None:
    """Both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--rtol", type=float, default=1e-2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine())
    model = six_c_two_f()
    if args.data is not None:
        right = fitted(model, *cifar_images(args.data), args.images)
        print(f"one epoch on {args.images} images, {right:.1%} of 1000 others right")
    network = capture(model.eval(), torch.zeros(1, 3, 32, 32)).detach()
    PairwiseLipLT()(capture(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.zeros(1, 2)).detach())
    print("\n| 45 pairs | mean | largest | beside ours | s |\n|---|---:|---:|---:|---:|")
    started = time.process_time()
    bound = PairwiseLipLT(Auto(rtol=args.rtol))(network)
    used = time.process_time() - started
    ours = bound.value
    line(f"`PairwiseLipLT`, {bound.kind.value}, fails <= {bound.failure:.0e}", ours, used, ours)
    for steps in args.steps:
        line(f"authors' code, {steps} steps, not a bound", *theirs(args.reference, model, steps), ours)


if __name__ == "__main__":
    main()
