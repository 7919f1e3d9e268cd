"""Certified accuracy of a network trained for smoothing: every method from one log of votes, beside what is published.

    python benchmarks/smoothing_cifar10.py --recipe recipes/cifar10_smoothing.py --run runs/noisy --data FOLDER
        --device cuda --out runs/noisy-table                                                        (on one line)
    python benchmarks/smoothing_cifar10.py --recipe recipes/cifar10_shift.py --run runs/shift-noisy --data FOLDER
        --device cuda --out runs/shift-table --n 10000 --lipschitz                                  (on one line)

Every 20th test image, 500 in all, as in the published tables. The votes go to `OUT/log` image by image; a command that
was stopped continues there, and the tables are made from the log alone. With --lipschitz the base network must have a
constant: it is bounded, evaluated in float32, and its constant is used together with the votes.

Networks are evaluated in bfloat16 otherwise, and certified as evaluated. `OUT/table.json` and `OUT/table.md` hold the
shares at each radius with 95 % intervals and the average radii, `OUT/curves.png` the curves.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import lipkit
from lipkit import bounds
from lipkit.bound import Bound
from lipkit.certify import Evaluation, accuracy
from lipkit.certify import smoothing as rs
from lipkit.cli.inputs import load
from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.training import Recipe
from lipkit.cli.training.overrides import make_recipe
from lipkit.report.results.smoothing_contents import LOW_VARIANCE, MethodCurve, customary_methods
from lipkit.report.smoothing_figure import draw_curves

EPS = (0.0, 0.25, 0.5, 0.75, 1.0)
# The radii of Delattre 2025, table 5.4, and two more.
FINE = (0.0, 0.14, 0.19, 0.25, 0.28, 0.42, 0.5, 0.75, 1.0)
# Temperatures of LVM-RS: fifty from 0.01 to 50, evenly spaced in their logarithms.
TEMPERATURES = tuple(0.01 * 5000 ** (i / 49) for i in range(50))


@final
class InPrecision(nn.Module):
    """A network in autocast: its weights and inputs stay in float32, so that no image is rounded before its noise."""

    def __init__(self, network: nn.Module, precision: torch.dtype) -> None:
        super().__init__()
        self.network, self.precision = network, precision

    def forward(self, x: Tensor) -> Tensor:
        """Logits in float32."""
        with torch.autocast(x.device.type, self.precision):
            return self.network(x).float()


def choose_maps(temperatures: Sequence[float] = TEMPERATURES) -> tuple[rs.SimplexMap, ...]:
    """Hard votes, and soft and sparse ones at every temperature."""
    soft = [kind(temperature=one) for kind in (rs.Softmax, rs.Sparsemax) for one in temperatures]
    return rs.Hardmax(), *soft


def load_run(recipe: Path, run: Path, data: Path) -> tuple[Recipe, nn.Module]:
    """The recipe with the settings of its run, and the network with the weights of that run."""
    fields = {**Identity.read(run).fields, "data": str(data)}
    made = make_recipe(recipe_class(recipe), [f"--{name}={value}" for name, value in fields.items()])
    model = made.model()
    load.weights(model, run / "model.safetensors")
    return made, model.eval().requires_grad_(False)


def certify_all(
    folder: Path, eps: Sequence[float], alpha: float, bound: Bound | None
) -> dict[str, tuple[Evaluation, Mapping[str, int]]]:
    """What each method proves from the votes of one log, and how often each theorem was used."""
    found = {
        name: _count(rs.recertify(folder, eps, alpha=alpha, method=method))
        for name, method in customary_methods().items()
    }
    if bound is not None:
        both = rs.recertify(folder, eps, alpha=alpha, method=rs.LowVariance(), bound=bound)
        found = {f"{LOW_VARIANCE}, with the constant": _count(both), **found}
    return found


def _count(one: rs.SmoothedEvaluation) -> tuple[Evaluation, Mapping[str, int]]:
    used = [rule for rule, label in zip(one.radii.rule, one.radii.label.tolist(), strict=True) if label != rs.ABSTAIN]
    return one.evaluation, {rule: used.count(rule) for rule in sorted(set(used))}


def tabulate(evaluations: Mapping[str, Evaluation]) -> str:
    """The table in Markdown: shares in percent with their intervals, and the average radius with its."""
    eps = next(iter(evaluations.values())).eps
    head = ["method", *(f"{one:.4g}" for one in eps), "average radius"]
    rows = [head, ["---", *("---:" for _ in head[1:])]]
    for name, one in evaluations.items():
        low, high = rs.mean_radius_interval(one)
        shares = [f"{100 * s.value:.1f} [{100 * s.low:.1f}, {100 * s.high:.1f}]" for s in one.overall.certified]
        rows.append([name, *shares, f"{one.overall.mean_radius:.3f} [{low:.3f}, {high:.3f}]"])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def to_plain(evaluations: Mapping[str, Evaluation], rules: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """The same as plain data, with the radius of every image."""
    return {
        name: {
            "eps": one.eps,
            "certified": [[s.count, s.total, s.low, s.high] for s in one.overall.certified],
            "mean_radius": one.overall.mean_radius,
            "mean_radius_interval": list(rs.mean_radius_interval(one)),
            "rules": dict(rules.get(name, {})),
            "radii": [sample.radius for sample in one.samples],
        }
        for name, one in evaluations.items()
    }


def main() -> None:
    """Sample, certify by every method, write the table and draw the curves."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", type=Path, required=True)
    parser.add_argument("--run", type=Path, required=True, help="The --out of the training.")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sigma", type=float, help="Noise; by default that of the training.")
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--n0", type=int, default=100)
    parser.add_argument("--alpha", type=float, default=1e-3)
    parser.add_argument("--every", type=int, default=20, help="Which test images: every 20th.")
    parser.add_argument("--images", type=int, default=500, help="How many of them at most.")
    parser.add_argument("--block", type=int, default=1000)
    parser.add_argument("--compile", action="store_true", help="Compile the network.")
    parser.add_argument("--lipschitz", action="store_true", help="Use the constant of the base network too.")
    parser.add_argument("--published", type=Path, help="A published log of the same noise, to draw beside ours.")
    request = parser.parse_args()
    recipe, model = load_run(request.recipe, request.run, request.data)
    model.to(request.device)
    sigma = request.sigma or getattr(recipe, "sigma", 0.0)
    everything = recipe.sets().test
    test = everything.at(list(range(0, len(everything), request.every))[: request.images])
    eps, bound, found = FINE if request.lipschitz else EPS, None, dict[str, Evaluation]()
    if request.lipschitz:
        # The constant is that of the network in real arithmetic, which float32 is near, and TF32 is not.
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
        example = test.inputs[:1].to(request.device)
        bound = lipkit.lipschitz(model, example, bounds.DAG(), lower=bounds.Sampling(count=16))
        print(f"constant of the base network: {bound}")
        found["constant alone"] = accuracy(model, test, recipe.bound(model, example), eps)
        network = model
    else:
        network = InPrecision(torch.compile(model, dynamic=False) if request.compile else model, torch.bfloat16)  # pyright: ignore[reportArgumentType]
    smoothed = rs.Smoothed(network, sigma, num_classes=10, simplex=choose_maps())
    rs.certify_data(
        smoothed, DataLoader(test, 1), eps, n0=request.n0, n=request.n, alpha=request.alpha, block=request.block,
        records=request.out / "log", progress=lambda done, total: print(f"{done} of {total}", end="\r", flush=True),
    )  # fmt: skip
    every = certify_all(request.out / "log", eps, request.alpha, bound)
    found |= {name: one for name, (one, _) in every.items()}
    if request.published is not None:
        found["published (ResNet-110)"] = rs.read_published_log(request.published, eps)
    text = tabulate(found)
    print(f"\nsigma {sigma:g}, {len(test)} images, n = {request.n}, alpha = {request.alpha:g}\n{text}")
    known = {
        "sigma": sigma, "n": request.n, "n0": request.n0, "alpha": request.alpha,
        "methods": to_plain(found, {name: rules for name, (_, rules) in every.items()}),
    }  # fmt: skip
    (request.out / "table.json").write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    (request.out / "table.md").write_text(text, encoding="utf-8")
    curves = [MethodCurve.of(name, one) for name, one in found.items()]
    draw_curves(curves, eps, f"CIFAR-10, sigma {sigma:g}, {len(test)} images", request.out / "curves.png")


if __name__ == "__main__":
    main()
