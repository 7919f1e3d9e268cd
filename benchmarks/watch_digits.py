"""The figures of the guide on profiles: a plain network on scikit-learn's digits, and what makes its constant grow.

    python benchmarks/watch_digits.py --plot docs/guides

Three trainings by plain SGD at rate 0.1: batches of 32, the same with weight decay, and batches of 4. Then the phases
of the third, the landscape around the first, and the spectral game of the first two. One minute on one core.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import lipkit
from lipkit import analysis, bounds
from lipkit.data import Examples, digits
from lipkit.report import draw_landscape, draw_phases
from lipkit.report.figure_style import LOOKS, sheet

RATE = 0.1
# Title, weight decay, batch, epochs.
RUNS = (("batch 32", 0.0, 32, 30), ("batch 32, weight decay 0.005", 5e-3, 32, 30), ("batch 4", 0.0, 4, 6))
CAUSES = ("drift", "curvature", "decay", "rest")


def fit(train: Examples, decay: float, batch: int, epochs: int) -> tuple[nn.Module, analysis.History]:
    """Train as anybody would, inside of a profiler."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, weight_decay=decay)
    with analysis.Profiler(model, optimizer, train.inputs[:1], every=10) as profile:
        for rows in (rows for _ in range(epochs) for rows in torch.randperm(len(train)).split(batch)):
            optimizer.zero_grad()
            cross_entropy(model(train.inputs[rows]), train.labels[rows]).backward()
            optimizer.step()
    return model, profile.history


def tell(title: str, history: analysis.History, right: float) -> None:
    """Print what the guide quotes."""
    first, last = float(history.log_constant[0]), float(history.log_constant[-1])
    print(
        f"{title}: log K from {first:.2f} to {last:.2f}, tracked {float(history.realised[-1]):.2f}, {right:.1%} right"
    )
    for layer in history.layers:
        sums = "  ".join(f"{cause} {float(getattr(layer, cause).sum()):+.2f}" for cause in CAUSES)
        crossings = int(layer.crossings.sum())
        print(
            f"  {layer.name}: {float(layer.norm[0]):.2f} -> {float(layer.norm[-1]):.2f}  {sums}  {crossings} crossings"
        )


def draw_growth(found: dict[str, analysis.History], path: Path) -> None:
    """Above: log K, measured and tracked. Below: its change, stacked by cause."""
    with sheet(8.0, 4.6) as figure:
        figure.set_layout_engine("constrained")
        panels = figure.subplots(2, len(found), sharey="row", sharex="col")
        for column, (title, history) in enumerate(found.items()):
            steps = history.steps.tolist()
            upper, lower = panels[0][column], panels[1][column]
            lines = (("measured", history.log_constant), ("tracked", history.realised), ("model", history.expected))
            for (name, values), (colour, dashes, _) in zip(lines, LOOKS, strict=False):
                assert values is not None, "plain SGD has a model"
                upper.plot(steps, values.tolist(), color=colour, ls=dashes, label=name)
            upper.set_title(title)
            above = below = np.zeros(len(steps))
            for cause, (colour, _, _) in zip(CAUSES, LOOKS, strict=False):
                total = torch.stack([getattr(layer, cause) for layer in history.layers]).sum(0).cumsum(0).numpy()
                total = np.concatenate([[0.0], total])
                up, down = above + total.clip(min=0), below + total.clip(max=0)
                lower.fill_between(steps, above, up, color=colour, alpha=0.5, lw=0, label=cause)
                lower.fill_between(steps, below, down, color=colour, alpha=0.5, lw=0)
                above, below = up, down
            change = (history.log_constant - history.log_constant[0]).tolist()
            lower.plot(steps, change, color="#000000", lw=1.4, label="in all")
            lower.axhline(0, color="#444444", lw=0.8)
            lower.set_xlabel("step")
        panels[0][0].set_ylabel("log K")
        panels[1][0].set_ylabel("change of log K, by cause")
        panels[0][0].legend(loc="lower right")
        handles, names = panels[1][0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=5)
        figure.savefig(path, metadata={"Software": None})


def draw_bands(found: dict[str, analysis.SpectralValues], path: Path) -> None:
    """Shapley values of bands, with two standard errors."""
    with sheet(6.4, 3.2) as figure:
        figure.set_layout_engine("constrained")
        axes = figure.subplots()
        for at, ((name, values), (colour, _, _)) in enumerate(zip(found.items(), LOOKS, strict=False)):
            places = np.arange(len(values.shapley)) + 0.4 * (at - 0.5)
            bars = (2 * values.error).tolist()
            hatch = ("", "///")[at]
            axes.bar(
                places, values.shapley.tolist(), 0.36, yerr=bars, color=colour, alpha=0.6, hatch=hatch, capsize=3.0,
                label=name,
            )  # fmt: skip
        axes.axhline(0, color="#444444", lw=0.8)
        axes.set_xticks(range(4), ["0 (lowest)", "1", "2", "3 (highest)"])
        axes.grid(visible=False, axis="x")
        axes.set_xlabel("band of frequencies; bars are two standard errors over 397 images")
        axes.set_ylabel("Shapley value (nats)")
        axes.set_title("What each band tells the network about the label")
        axes.legend(loc="upper right")
        figure.savefig(path, metadata={"Software": None})


def landscape_around(model: nn.Module, train: Examples) -> analysis.Landscape:
    """Loss and proven log K over a plane of weights through those of the model."""
    directions = analysis.random_directions(model, torch.Generator().manual_seed(0))
    steps, fold = torch.linspace(-1.0, 1.0, 13).tolist(), bounds.DAG()
    return analysis.landscape(
        model,
        lambda m: cross_entropy(m(train.inputs), train.labels),
        lambda m: fold(lipkit.capture(m, train.inputs[:1])),
        directions,
        steps,
        steps,
    )


def main() -> None:
    """Train, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="folder for the figures")
    folder = parser.parse_args().plot
    train, test = digits().split(397, seed=0)
    histories: dict[str, analysis.History] = {}
    models: list[nn.Module] = []
    for title, decay, batch, epochs in RUNS:
        model, history = fit(train, decay, batch, epochs)
        with torch.no_grad():
            right = float((model(test.inputs).argmax(1) == test.labels).double().mean())
        tell(title, history, right)
        histories[title] = history
        models.append(model)
    games = {
        name: analysis.SpectralGame(model, bands=4)(test.inputs, test.labels)
        for name, model in (("batch 32", models[0]), ("weight decay 0.005", models[1]))
    }
    for name, values in games.items():
        print(f"{name}: {values.shapley.tolist()} +- {values.error.tolist()}, {values.score_interval()}")
    if folder is not None:
        draw_growth(histories, folder / "watch-growth.png")
        draw_bands(games, folder / "watch-bands.png")
        title, history = list(histories.items())[-1]
        growth = analysis.phases(history, window=300)
        draw_phases(growth, f"What makes log K grow: {title}", folder / "watch-phases.png")
        found = landscape_around(models[0], train)
        draw_landscape(found, "Around the weights after training with batches of 32", folder / "watch-landscape.png")


if __name__ == "__main__":
    main()
