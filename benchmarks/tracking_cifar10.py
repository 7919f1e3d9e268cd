"""How well a profiler's trackers follow log K through a whole training: Luo 2025, figure 4.2, with errors.

Claims: measured at every step, the realised tracker stays within 1e-3 of log K over the run, and the expected one
within 2 % of the change of log K.

    python benchmarks/tracking_cifar10.py --data FOLDER [--steps 39000] [--seconds 150] [--setting plain] [--out FILE]

The ConvNet of table 4.1 on CIFAR-10: SGD without momentum, rate 1e-3, batch 256, in float32 (no TF32). Pixels are
standardised, which the source does not say. Training stops at whichever of steps and seconds comes first, and the table
says after how many steps. K is the product of the norms of the five layers, convolutions as matrices.

An error is that of log K, so near 0 it is the relative error of K. `worst` is the largest over all steps so far, and
`share` is worst over the largest change of log K so far.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from cifar10_images import load, standardised
from timing import machine
from torch import Tensor, nn

from lipkit import analysis

TRACKERS = ("realised", "expected", "sampled")
SETTINGS = ("plain", "smoothing", "dropout", "decay")


def network(dropout: bool) -> nn.Sequential:
    """The ConvNet of table 4.1, its dropout as an option."""
    some, more = (nn.Dropout(0.2), nn.Dropout(0.3)) if dropout else (nn.Identity(), nn.Identity())
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 3, padding=1), some, nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(64, 128, 3, padding=1, stride=2), some, nn.ReLU(), nn.Flatten()),
        *(nn.Linear(2048, 256), nn.ReLU(), more, nn.Linear(256, 10)),
    )


def row(history: analysis.History, until: int) -> dict[str, Any]:
    """The errors over the first `until` measurements."""
    true = history.log_constant[: until + 1]
    change = float((true - true[0]).abs().max())
    found: dict[str, Any] = {
        "steps": int(history.steps[until]),
        "log_constant": float(true[-1]),
        "change": float(true[-1] - true[0]),
        "largest_change": change,
    }
    for name in TRACKERS:
        tracked: Tensor | None = getattr(history, name)
        if tracked is None:
            found[name] = {"refused": history.refused.get(name, "")}
            continue
        errors = (tracked[: until + 1] - true).abs()
        worst = float(errors.max())
        found[name] = {"last": float(errors[-1]), "worst": worst, "share": worst / change if change else None}
    return found


def causes(history: analysis.History) -> list[dict[str, Any]]:
    """For each layer the sums over the run: what moved its norm, and how often a step left the series' radius."""
    return [
        {
            "layer": layer.name,
            "change": float(layer.norm[-1].log() - layer.norm[0].log()),
            **{name: float(getattr(layer, name).sum()) for name in ("drift", "curvature", "decay", "rest")},
            "crossings": int(layer.crossings.sum()),
            "kappa": None if layer.kappa is None else float(layer.kappa.mean()),
            "diffusion": None if layer.diffusion is None else float(layer.diffusion.mean()),
        }
        for layer in history.layers
    ]


def summary(history: analysis.History, facts: dict[str, Any]) -> dict[str, Any]:
    """All that is written: facts of the run, errors at some steps, causes, and a thousand points of each curve."""
    count = len(history.steps)
    marks = sorted({min(count - 1, at) for at in (50, 195, 1000, 3000, 10_000, 20_000, 30_000, count - 1)})
    thinned = torch.linspace(0, count - 1, min(count, 1000)).round().long()
    curves = {"steps": history.steps, "log_constant": history.log_constant}
    curves |= {name: getattr(history, name) for name in TRACKERS if getattr(history, name) is not None}
    return {
        **facts,
        "label": history.label,
        "rows": [row(history, at) for at in marks],
        "layers": causes(history),
        "refused": dict(history.refused),
        "curves": {name: curve[thinned].tolist() for name, curve in curves.items()},
    }


def show(found: dict[str, Any]) -> None:
    """The table."""
    print("| steps | log K | change | " + " | ".join(f"{name}: last, worst, share" for name in TRACKERS) + " |")
    print("|---:|---:|---:|" + "---|" * len(TRACKERS))
    for one in found["rows"]:
        cells: list[str] = []
        for name in TRACKERS:
            of = one[name]
            share = "" if of.get("share") is None else f"{100 * of['share']:.2g} %"
            cells.append("refused" if "refused" in of else f"{of['last']:.1e}, {of['worst']:.1e}, {share}")
        print(f"| {one['steps']} | {one['log_constant']:.4f} | {one['change']:+.4f} | {' | '.join(cells)} |")
    print("| layer | change | drift | curvature | decay | rest | crossings | kappa | diffusion |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for layer in found["layers"]:
        sums = " | ".join(f"{layer[key]:+.2e}" for key in ("change", "drift", "curvature", "decay", "rest"))
        noise = " | ".join("refused" if layer[key] is None else f"{layer[key]:.2e}" for key in ("kappa", "diffusion"))
        print(f"| {layer['layer']} | {sums} | {layer['crossings']} | {noise} |")
    for name, reason in found["refused"].items():
        print(f"{name} refused: {reason}")


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The percentage of right classes."""
    model.eval()
    parts = zip(images.split(2000), labels.split(2000), strict=True)
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in parts)
    model.train()
    return 100 * right / len(images)


def main() -> None:
    """Train, follow, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, help="file for the figures as JSON, written anew every 30 seconds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--setting", choices=SETTINGS, default="plain")
    for name, kind, default in (("seconds", float, 150.0), ("rate", float, 1e-3)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    for name, default in (("steps", 39_000), ("batch", 256), ("every", 1), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    data = load(given.data, given.device)
    images, test = standardised(data.train), standardised(data.test)
    torch.manual_seed(given.seed)
    model = network(given.setting == "dropout").to(given.device)
    decay = 5e-4 if given.setting == "decay" else 0.0
    optimizer = torch.optim.SGD(model.parameters(), lr=given.rate, weight_decay=decay)
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.1 if given.setting == "smoothing" else 0.0)
    facts: dict[str, Any] = {
        "machine": machine(),
        "images": len(images),
        **{key: getattr(given, key) for key in ("setting", "rate", "batch", "every", "seed")},
    }
    print(f"{machine()}; {given.setting}, {len(images)} images, batch {given.batch}, rate {given.rate:g}", flush=True)
    begin = written = time.perf_counter()
    order, at, step = torch.randperm(len(images), device=given.device), 0, 0
    stopped = None
    with analysis.Profiler(model, optimizer, images[:1], every=given.every, seed=given.seed) as profile:
        try:
            while step < given.steps and (now := time.perf_counter()) - begin < given.seconds:
                if at + given.batch > len(images):
                    order, at = torch.randperm(len(images), device=given.device), 0
                chosen, at = order[at : at + given.batch], at + given.batch
                optimizer.zero_grad()
                loss_of(model(images[chosen]), data.labels[chosen]).backward()
                optimizer.step()
                step += 1
                if given.out and now - written > 30:
                    partial = {**facts, "seconds": now - begin, "ended": False}
                    given.out.write_text(json.dumps(summary(profile.history, partial)) + "\n", encoding="utf-8")
                    written = time.perf_counter()
                    print(f"{step} steps after {now - begin:.0f} s", flush=True)
        except (RuntimeError, ValueError, ArithmeticError) as error:
            # What was followed until then is a result all the same.
            stopped = f"{type(error).__name__}: {error}"
            print(f"stopped after {step} steps: {stopped}", flush=True)
    seconds = time.perf_counter() - begin
    facts |= {"seconds": seconds, "ended": True, "ms_a_step": 1e3 * seconds / max(1, step), "stopped": stopped}
    facts |= {"accuracy": accuracy(model, test, data.answers)}
    found = summary(profile.history, facts)
    if given.out:
        given.out.write_text(json.dumps(found) + "\n", encoding="utf-8")
    show(found)
    print(f"{step} steps in {seconds:.0f} s, {facts['ms_a_step']:.2f} ms each; test accuracy {facts['accuracy']:.1f} %")
    last = found["rows"][-1]
    for name, key, aim in (("realised", "worst", 1e-3), ("expected", "share", 0.02)):
        value = last[name].get(key)
        verdict = "no value" if value is None else f"{value:.2e}, {'met' if value <= aim else 'missed'}"
        print(f"{name}, {key} over the run, aim {aim:g}: {verdict}")


if __name__ == "__main__":
    main()
