"""The figure of the guide on smoothing: two small networks on scikit-learn's digits, certified by votes under noise.

    python benchmarks/smoothing_digits.py --plot docs/guides/smoothing.png

Left: a plain network, trained with noise of 0.5; what each method proves from the same votes. Right: a network of
Lipschitz constant 4, trained with noise of 0.25; what its constant proves, what votes prove, and what both prove
together. Two minutes on one core.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from smoothing_cifar10 import TEMPERATURES, choose_maps, tabulate
from torch import nn
from torch.utils.data import DataLoader

import lipkit
from lipkit import bounds
from lipkit import nn as lnn
from lipkit.bound import Bound
from lipkit.certify import Evaluation, accuracy, head_pairwise
from lipkit.certify import smoothing as rs
from lipkit.data import Examples, digits
from lipkit.losses import Consistency
from lipkit.report.figure_style import sheet
from lipkit.report.results.smoothing_contents import MethodCurve, customary_methods
from lipkit.report.smoothing_figure import plot_curves

EPS = (0.0, 0.25, 0.5, 0.75, 1.0)


def train(model: nn.Module, train: Examples, sigma: float, epochs: int) -> nn.Module:
    """Train with noise, two copies of each image."""
    noisy, loss = rs.Noisy(model, sigma, 2), Consistency(1.0, 0.0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(train)).split(100):
            optimizer.zero_grad()
            loss(noisy.copies(train.inputs[rows]), train.labels[rows]).backward()
            optimizer.step()
    return model.eval().requires_grad_(False)


def certify(model: nn.Module, test: Examples, sigma: float, n: int, bound: Bound | None) -> dict[str, Evaluation]:
    """What each method proves from one log, and with a bound what it proves alone and together with the votes."""
    smoothed = rs.Smoothed(model, sigma, num_classes=10, simplex=choose_maps(TEMPERATURES[::5]))
    with tempfile.TemporaryDirectory() as folder:
        rs.certify_data(smoothed, DataLoader(test, 1), EPS, n=n, records=folder, block=2000)
        methods = customary_methods()
        found = {name: rs.recertify(folder, EPS, method=one).evaluation for name, one in methods.items()}
        if bound is not None:
            both = rs.recertify(folder, EPS, method=rs.LowVariance(), bound=bound).evaluation
            alone = accuracy(model, test, head_pairwise(model, test.inputs[:1], bounds.DAG()), EPS)
            votes = found["intersection-union"]
            found = {"votes and constant": both, "votes alone": votes, "constant alone": alone}
    return found


def main() -> None:
    """Train, certify, print the tables and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plot", type=Path, required=True)
    parser.add_argument("--n", type=int, default=10_000)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--images", type=int, default=200)
    request = parser.parse_args()
    torch.manual_seed(0)
    learn, test = digits().split(397, seed=0)
    test = test.at(range(request.images))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    tied = nn.Sequential(nn.Flatten(), lnn.networks.mlp((64, 128, 128, 10), K=4.0))
    left = certify(train(plain, learn, 0.5, request.epochs), test, 0.5, request.n, None)
    tied = train(tied, learn, 0.25, request.epochs)
    bound = lipkit.lipschitz(tied, test.inputs[:1], bounds.DAG(), lower=bounds.Sampling(count=16))
    right = certify(tied, test, 0.25, request.n, bound)
    for title, found in (("plain network", left), (f"network of constant {bound}", right)):
        print(f"{title}\n{tabulate(found)}")
    with sheet(8.0, 4.0) as figure:
        figure.set_layout_engine("constrained")
        for axes, found, title in zip(
            figure.subplots(1, 2, sharey=True),
            (left, right),
            ("a plain network, noise 0.5", "a network of constant 4, noise 0.25"),
            strict=True,
        ):
            plot_curves(axes, [MethodCurve.of(*one) for one in found.items()], EPS, "length of the change in l2")
            axes.set_title(title)
            axes.legend(loc="upper right")
        figure.axes[1].set_ylabel("")
        figure.savefig(request.plot, metadata={"Software": None})


if __name__ == "__main__":
    main()
