"""Does the spectral score tell how robust a network is? Scores against prediction errors, over many networks.

    python benchmarks/spectral_score.py --data FOLDER [--seconds 7] [--images 200] [--out FILE] [--only speed,study]
    python benchmarks/spectral_score.py --read FILE     # the correlations of networks that `--out` stored, nothing else

Speed: 256 coalitions of 200 images through ResNet-18, beside bare forward passes of as many images in batches of the
same size, in one process. Claims: under 5 s, and at least 90 % of the bare throughput.

Study: each network (see spectral_networks.py) trains on CIFAR-10 for the given time, one after the other. Its scores
come from 8 bands of 200 test images; its mean prediction errors from 1,000 other ones, under the perturbations of Luo
2025, figures 6.9 and 6.10 (FGSM and PGD with 0.1 and 0.2, white noise 0.1 and 0.2, Gaussian blur 3 to 7), and under
smaller ones, since linf balls of 0.1 leave nothing of images so small. Published is that they correlate, without a
sign or a coefficient; robust networks with high scores mean a negative one.

Intervals are from 10,000 draws of networks with replacement; `chance` is the share of 10,000 random orders whose rank
correlation is as far from 0. Accuracy and error are related too, so that is printed beside, and each score once more
given the accuracy: the partial correlation of ranks, which is what the score says that accuracy does not.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cifar10_images import load
from scipy.stats import rankdata
from spectral_networks import PLANS, Plan, attacked, centred, residual, train
from timing import best_of, machine
from torch import Tensor, nn

from lipkit import analysis
from lipkit import nn as lnn

FORMS = {"signed": analysis.SignedScore(), "printed": analysis.PrintedScore()}
DRAWS = 10_000


def blurred(images: Tensor, side: int) -> Tensor:
    """A Gaussian blur by a kernel of `side` pixels, of the deviation that is usual for it, with mirrored borders."""
    deviation = 0.3 * ((side - 1) / 2 - 1) + 0.8
    places = torch.arange(side, device=images.device, dtype=images.dtype) - side // 2
    line = torch.softmax(-(places**2) / (2 * deviation**2), 0)
    kernel = (line[:, None] * line).expand(images.shape[1], 1, side, side)
    framed = nn.functional.pad(images, [side // 2] * 4, mode="reflect")
    return nn.functional.conv2d(framed, kernel, groups=images.shape[1])


def perturbations(model: nn.Module, x: Tensor, y: Tensor) -> Iterator[tuple[str, Callable[[], Tensor]]]:
    """Names of perturbations, and how each is made."""
    for eps in (2 / 255, 8 / 255, 0.1, 0.2):
        yield f"FGSM {eps:.3f}", lambda eps=eps: attacked(model, x, y, eps, 1)
        yield f"PGD {eps:.3f}", lambda eps=eps: attacked(model, x, y, eps, 10)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    for size in (0.05, 0.1, 0.2):
        yield f"noise {size:g}", lambda size=size: x + size * noise
    for side in (3, 5, 7):
        yield f"blur {side}", lambda side=side: blurred(x, side)


def correlate(a: np.ndarray, b: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Spearman's and Pearson's coefficients, with intervals over networks and the chance of the first."""
    random = np.random.default_rng(seed)
    draws = random.integers(len(a), size=(DRAWS, len(a)))
    shuffled = random.permuted(np.tile(b, (DRAWS, 1)), axis=1)
    ranks = [rankdata(row, axis=-1) for row in (a, b, a[draws], b[draws])]
    spearman = float(_pearson(ranks[0], ranks[1]))
    by_chance = _pearson(ranks[0][None], rankdata(shuffled, axis=1))
    return {
        "networks": len(a),
        "spearman": spearman,
        "spearman_interval": _middle(_pearson(ranks[2], ranks[3])),
        "chance": float((np.abs(by_chance) >= abs(spearman) - 1e-12).mean()),
        "pearson": float(_pearson(a, b)),
        "pearson_interval": _middle(_pearson(a[draws], b[draws])),
    }


def correlate_given(a: np.ndarray, b: np.ndarray, known: np.ndarray, seed: int = 0) -> dict[str, Any]:
    """Spearman's coefficient of a and b given a third measure, with an interval over networks."""
    draws = np.random.default_rng(seed).integers(len(a), size=(DRAWS, len(a)))

    def partial(rows: np.ndarray) -> np.ndarray:
        x, y, z = (rankdata(one[rows], axis=-1) for one in (a, b, known))
        xy, xz, yz = _pearson(x, y), _pearson(x, z), _pearson(y, z)
        rest = (1 - xz**2) * (1 - yz**2)
        # What follows the third measure exactly has no rest to correlate.
        return np.where(rest > 1e-9, xy - xz * yz, np.nan) / np.sqrt(np.maximum(rest, 1e-9))

    return {"partial": float(partial(np.arange(len(a)))), "partial_interval": _middle(partial(draws))}


def _pearson(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (x - x.mean(-1, keepdims=True) for x in (a, b))
    size = np.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    return (a * b).sum(-1) / np.where(size > 0, size, np.nan)


def _middle(values: np.ndarray) -> list[float]:
    return [float(x) for x in np.nanquantile(values, [0.025, 0.975])]


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The percentage of right classes."""
    return (
        100
        * sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(1000), y.split(1000), strict=True))
        / len(x)
    )


def judge(model: nn.Module, x: Tensor, y: Tensor, count: int) -> dict[str, Any]:
    """Accuracy on all images, scores on the first `count`, and errors on the next thousand."""
    found: dict[str, Any] = {"accuracy": accuracy(model, x, y)}
    begin = time.perf_counter()
    values = analysis.SpectralGame(model, batch=4096)(x[:count], y[:count])
    found |= {"game_seconds": time.perf_counter() - begin, "sid": values.sid.tolist()}
    found |= {"shapley": values.shapley.tolist(), "standard_errors": values.error.tolist()}
    found["score"] = {name: list(values.score_interval(form=form)) for name, form in FORMS.items()}
    others, truth = x[count : count + 1000], y[count : count + 1000]
    errors: dict[str, list[float]] = {}
    for name, make in perturbations(model, others, truth):
        errors[name] = list(analysis.mean_prediction_error(model, others, make(), truth))
    found["errors"] = errors | {"mean": [float(np.mean([value for value, _ in errors.values()]))]}
    return found


def relate(networks: list[dict[str, Any]]) -> dict[str, Any]:
    """Both scores, and accuracy, against the error under each perturbation; scores also given the accuracy."""
    measures = {name: np.array([one["score"][name][0] for one in networks]) for name in FORMS}
    measures["accuracy"] = np.array([one["accuracy"] for one in networks])
    found: dict[str, Any] = {}
    for kind in networks[0]["errors"]:
        error = np.array([one["errors"][kind][0] for one in networks])
        found[kind] = {measure: correlate(values, error) for measure, values in measures.items()}
        for name in FORMS:
            found[kind][name] |= correlate_given(measures[name], error, measures["accuracy"])
    return found


def speed(device: str, count: int) -> list[dict[str, Any]]:
    """Seconds of a game and of bare forward passes, for two sizes of batches."""
    torch.manual_seed(0)
    model = residual(64, 2, 2, 2, 2).to(device).eval()
    x, y = torch.randn(count, 3, 32, 32, device=device), torch.randint(10, (count,), device=device)
    rows: list[dict[str, Any]] = []
    for batch in (1024, 4096):
        one = torch.randn(min(batch, 256 * count), 3, 32, 32, device=device)
        passes = -(-256 * count // len(one))

        @torch.no_grad()
        def bare(one: Tensor = one, passes: int = passes) -> None:
            for _ in range(passes):
                model(one)

        game = analysis.SpectralGame(model, batch=batch)
        played = alone = float("inf")
        for _ in range(3):
            played = min(played, best_of(lambda game=game: game(x, y), 1)[0])
            alone = min(alone, best_of(bare, 1)[0])
        alone *= 256 * count / (passes * len(one))
        rows.append({"batch": batch, "images": count, "seconds": played, "bare": alone, "share": alone / played})
        print(
            f"{count} images, 256 coalitions, ResNet-18, batch {batch}: {played:.2f} s, bare {alone:.2f} s, "
            f"{100 * alone / played:.0f} % of the bare throughput",
            flush=True,
        )
    return rows


def study(plan: Plan, data: tuple[Tensor, ...], seconds: float, batch: int, count: int) -> dict[str, Any]:
    """Train and judge one network, and print its row."""
    images, labels, test, answers = data
    torch.manual_seed(0)
    model, steps = train(plan, images, labels, seconds, batch)
    if plan.half:
        found = judge(model, test, answers, count)
    else:
        with lnn.frozen(model):
            found = judge(model, test, answers, count)
    scores = " | ".join("{:.3f} [{:.3f}, {:.3f}]".format(*found["score"][name]) for name in FORMS)
    shown = " | ".join(f"{found['errors'][kind][0]:.3f}" for kind in ("PGD 0.031", "noise 0.1", "blur 5", "mean"))
    print(f"| {plan.name} | {steps} | {found['accuracy']:.1f} | {scores} | {shown} |", flush=True)
    return {"name": plan.name, "steps": steps, **found}


def conclude(networks: list[dict[str, Any]]) -> dict[str, Any]:
    """The table of rank correlations, over all networks and over those that learned something."""
    found: dict[str, Any] = {}
    learned = [one for one in networks if one["accuracy"] >= 50]
    for title, some in (("all networks", networks), ("accuracy of 50 % or more", learned)):
        if len(some) < 4:
            print(f"{title}: {len(some)} networks are too few for a correlation")
            continue
        found[title] = relate(some)
        head = (*FORMS, "accuracy", *(f"{name} given accuracy" for name in FORMS))
        print(f"\n{title}: {len(some)}\n| error under | {' | '.join(head)} |\n|---|---|---|---|---|---|")
        for kind, row in found[title].items():
            cells = [
                "{:+.2f} [{:+.2f}, {:+.2f}], chance {:.3f}".format(
                    of["spearman"], *of["spearman_interval"], of["chance"]
                )
                for of in row.values()
            ]
            given = [(row[name]["partial"], *row[name]["partial_interval"]) for name in FORMS]
            cells += ["{:+.2f} [{:+.2f}, {:+.2f}]".format(*one) for one in given]
            print(f"| {kind} | {' | '.join(cells)} |")
    return found


def main() -> None:
    """Speed, then the networks one after the other; the file is written after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path)
    source.add_argument("--read", type=Path, help="what an earlier --out wrote: its correlations, without any training")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default="speed,study")
    parser.add_argument("--seconds", type=float, default=7.0, help="training of one network")
    parser.add_argument("--limit", type=float, default=200.0, help="no network begins after so many seconds")
    for name, default in (("batch", 512), ("images", 200), ("networks", len(PLANS))):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    if given.read:
        conclude(json.loads(given.read.read_text(encoding="utf-8"))["networks"])
        return
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    begin = time.perf_counter()
    found: dict[str, Any] = {"machine": machine(), "seconds": given.seconds, "networks": [], "failed": {}}

    def write() -> None:
        if given.out:
            given.out.write_text(json.dumps(found) + "\n", encoding="utf-8")

    print(machine(), flush=True)
    if "speed" in given.only:
        try:
            found["speed"] = speed(given.device, given.images)
        except Exception as error:  # noqa: BLE001 - one part that fails must not cost the others
            found["failed"]["speed"] = f"{type(error).__name__}: {error}"
            print(f"speed failed: {found['failed']['speed']}", flush=True)
        write()
    if "study" not in given.only:
        return
    loaded = load(given.data, given.device)
    data = (centred(loaded.train), loaded.labels, centred(loaded.test), loaded.answers)
    found["images"] = len(loaded.train)
    print(f"{len(loaded.train)} images, {given.seconds:g} s for each network; scores are of {given.images} images")
    print("| network | steps | accuracy | signed | printed | PGD 8/255 | noise .1 | blur 5 | mean of all |")
    print("|---|---:|---:|---|---|---:|---:|---:|---:|", flush=True)
    for plan in PLANS[: given.networks]:
        if time.perf_counter() - begin > given.limit:
            found["failed"][plan.name] = "no time was left"
            continue
        try:
            found["networks"].append(study(plan, data, given.seconds, given.batch, given.images))
        except Exception as error:  # noqa: BLE001 - one part that fails must not cost the others
            found["failed"][plan.name] = f"{type(error).__name__}: {error}"
            print(f"| {plan.name} | failed: {found['failed'][plan.name]} |", flush=True)
        write()
    found["correlations"] = conclude(found["networks"])
    write()
    for name, reason in found["failed"].items():
        print(f"left out: {name}, {reason}")
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
