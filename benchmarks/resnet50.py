"""Whole-network bounds of a ResNet-50 at 224 x 224, calibrated on random images: value and seconds of each method.

Claims: on two cores the fold takes under 60 s and LipLT(window=6) under 10 minutes; on a GPU full LipLT takes under
2 minutes. `--growth` instead times residual networks of bottlenecks that grow in depth (16 channels in the first stage,
1 to 3 bottlenecks in each of four) and in width (one bottleneck a stage, 8 to 32 channels), and `--plot` draws them.

    python benchmarks/resnet50.py [--device cuda] [--methods dag w2 w6 full] [--model resnet50] [--size 224]
                                  [--growth] [--plot growth.png]        (measured: --growth --size 32)
"""

import argparse
import time
from pathlib import Path

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


def measure(network: Network, method: Method) -> float:
    """One line: value, seconds, processor seconds, number of norms, failure; returns the processor seconds."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    started, used = time.perf_counter(), time.process_time()
    bound = method(network)
    value = f"10^{float(bound.log_value) / 2.302585093:.3f}"
    seconds, used = time.perf_counter() - started, time.process_time() - used
    print(
        f"  {bound.method!s:40} {value:>12} {seconds:9.1f} s {used:9.1f} cpu s {len(bound.parts):6} norms"
        f"  failure {bound.failure:.1e}",
        flush=True,
    )
    return used


def grown(chosen: dict[str, Method], size: int, device: str, path: Path | None) -> None:
    """Networks of growing depth, then of growing width, and their plot."""
    panels = {
        "bottlenecks in each of 4 stages": {n: resnet((n,) * 4, bottleneck=True, first=16) for n in (1, 2, 3)},
        "channels of the first stage": {n: resnet((1,) * 4, bottleneck=True, first=n) for n in (8, 16, 32)},
    }
    lines: dict[str, dict[str, list[float]]] = {what: {name: [] for name in chosen} for what in panels}
    for what, models in panels.items():
        for n, model in models.items():
            print(f"{what}: {n}")
            network = captured(model, size, device)
            for name, method in chosen.items():
                lines[what][name].append(measure(network, method))
    if path is None:
        return
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, both = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", sharey=True)
    for axes, (what, models) in zip(both, panels.items(), strict=True):
        for (name, method), style in zip(chosen.items(), ("o-", "s-", "^-", "D-"), strict=False):
            axes.plot([*models], lines[what][name], style, label=str(method), markersize=4)
        axes.set(xscale="log", yscale="log", xlabel=what)
        axes.set_xticks([*models], [str(n) for n in models])
        axes.minorticks_off()
    both[0].set(ylabel="processor seconds", title=f"Depth, images of {size} x {size}")
    both[1].set(title="Width")
    both[0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--methods", nargs="+", default=["dag", "w6"])
    parser.add_argument("--model", choices=["resnet18", "resnet50"], default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rtol", type=float, default=1e-2)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--plot", type=Path, default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    print(f"at {args.size} on {args.device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    chosen = {name: methods(args.rtol)[name] for name in args.methods}
    if args.growth:
        grown(chosen, args.size, args.device, args.plot)
        return
    print(args.model)
    network = captured({"resnet18": resnet18, "resnet50": resnet50}[args.model](), args.size, args.device)
    for method in chosen.values():
        measure(network, method)


if __name__ == "__main__":
    main()
