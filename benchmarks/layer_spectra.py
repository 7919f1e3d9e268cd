"""Spectra of convolutions by each method: all singular values, from random free numbers and from the start of a layer.

Prints the largest, the mean and the smallest singular value of 16 channels, 3 x 3, zero padding, on 16 x 16 images (a
dense matrix of 4096 rows), and the share of a random signal that ten such layers keep; `--plot` draws them.

    python benchmarks/layer_spectra.py [--channels 16] [--size 16] [--plot docs/layer-spectra.png]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor

from lipkit import nn as lnn
from lipkit.linops import materialize
from lipkit.nn import WeightMethod
from lipkit.report.method_figures import style

METHODS: dict[str, WeightMethod] = {
    "AOL": lnn.AOL(),
    "Rescale(2)": lnn.Rescale(2),
    "Spectral": lnn.Spectral(),
    "RKO": lnn.RKO(),
    "Frobenius": lnn.Frobenius(),
}
# Colours that the colour-blind tell apart; dashes for grey print.
LOOKS = {
    "AOL": ("#0072B2", "-"),
    "Rescale(2)": ("#009E73", (0, (6, 2, 1, 2))),
    "Spectral": ("#D55E00", (0, (6, 2))),
    "RKO": ("#CC79A7", (0, (1, 1.2))),
    "Frobenius": ("#000000", (0, (3, 1.2))),
}


def spectrum(method: WeightMethod, channels: int, size: int, random: bool) -> Tensor:
    """The singular values of one layer, in falling order."""
    torch.manual_seed(0)
    layer = lnn.Conv2d(channels, channels, 3, padding=1, method=method)
    if random:
        with torch.no_grad():
            raw = layer.get_parameter("parametrizations.weight.original")
            raw.copy_(torch.randn_like(raw))
    with torch.no_grad():
        op = layer.linear_operator((channels, size, size)).to(torch.float64)
        return torch.linalg.svdvals(materialize(op))


def plot(found: dict[bool, dict[str, Tensor]], path: Path) -> None:
    """One panel for each kind of free numbers."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context(style()):
        figure, panels = plt.subplots(1, 2, figsize=(8, 3.6), sharey=True, layout="constrained")
        for axes, (random, spectra) in zip(panels, found.items(), strict=True):
            for name, values in spectra.items():
                colour, dashes = LOOKS[name]
                share = torch.linspace(0, 100, len(values))
                axes.plot(share, values, color=colour, linestyle=dashes, label=name)
            axes.set_title("random free numbers" if random else "as initialised", loc="left")
            axes.set_xlabel("singular values, largest first (%)")
            axes.set_ylim(0, 1.05)
        panels[0].set_ylabel("singular value")
        panels[1].legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
        figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--channels", type=int, default=8)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    found: dict[bool, dict[str, Tensor]] = {}
    print(f"{'free numbers':14} {'method':12} {'largest':>9} {'mean':>9} {'smallest':>9} {'kept by ten':>12}")
    for random in (True, False):
        found[random] = {name: spectrum(m, args.channels, args.size, random) for name, m in METHODS.items()}
        for name, values in found[random].items():
            kept = float(values.square().mean()) ** 5
            what = "random" if random else "initial"
            row = f"{float(values[0]):9.5f} {float(values.mean()):9.5f} {float(values[-1]):9.5f} {kept:12.2e}"
            print(f"{what:14} {name:12} {row}")
    if args.plot is not None:
        plot(found, args.plot)


if __name__ == "__main__":
    main()
