"""Whole-network bounds of a ResNet-50 at 224 x 224, calibrated on random images: value and seconds of each method.

Claims: on two cores the fold takes under 60 s and LipLT(window=6) under 10 minutes; on a GPU full LipLT takes under
2 minutes. `--growth` also times residual networks of growing depth and width.

    python benchmarks/resnet50.py [--device cuda] [--methods dag w2 w6 full] [--model resnet50] [--size 224] [--growth]
"""

import argparse
import time

import torch
from architectures import calibrated, resnet, resnet18, resnet50
from torch import nn

from lipkit.bounds import DAG, LipLT, Method
from lipkit.norms import Auto
from lipkit.trace import Network
from lipkit.trace.capture import capture


def methods(rtol: float) -> dict[str, Method]:
    """The rungs of the ladder; `rtol` is the excess allowed to each norm."""
    norm = Auto(rtol=rtol)
    return {
        "dag": DAG(norm),
        "w2": LipLT(norm, window=2),
        "w6": LipLT(norm, window=6),
        "full": LipLT(norm),
    }


def captured(model: nn.Module, size: int, device: str) -> Network:
    """The network of a model for square images, without gradients."""
    model = calibrated(model, (3, size, size))
    started = time.perf_counter()
    network = capture(model, torch.zeros(1, 3, size, size)).detach().to(device=device)
    print(f"captured {len(network.nodes)} operations in {time.perf_counter() - started:.1f} s", flush=True)
    return network


def measure(network: Network, method: Method) -> None:
    """One line: value, seconds, number of norms, failure."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started = time.perf_counter()
    bound = method(network)
    seconds = time.perf_counter() - started
    value = f"10^{float(bound.log_value) / 2.302585093:.3f}"
    print(
        f"  {bound.method!s:40} {value:>12} {seconds:9.1f} s {len(bound.parts):6} norms  failure {bound.failure:.1e}",
        flush=True,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", default=["dag", "w6"])
    parser.add_argument("--model", choices=["resnet18", "resnet50"], default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rtol", type=float, default=1e-2)
    parser.add_argument("--growth", action="store_true")
    args = parser.parse_args()
    torch.manual_seed(0)
    print(f"{args.model} at {args.size} on {args.device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    network = captured({"resnet18": resnet18, "resnet50": resnet50}[args.model](), args.size, args.device)
    for name in args.methods:
        measure(network, methods(args.rtol)[name])
    for depth in (1, 2, 3, 4, 6) if args.growth else ():
        torch.manual_seed(0)
        print(f"bottlenecks a stage: {depth}")
        grown = captured(resnet((depth,) * 4, bottleneck=True), args.size, args.device)
        for name in args.methods:
            measure(grown, methods(args.rtol)[name])


if __name__ == "__main__":
    main()
