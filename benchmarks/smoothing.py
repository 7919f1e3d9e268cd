"""Noisy images in a second: our sampling, the bare forward pass at the same batch, and the published loop.

    python benchmarks/smoothing.py --device cuda
    python benchmarks/smoothing.py --tiny

The network is the one of recipes/cifar10_smoothing.py with random weights, in the precision that it is certified in;
times do not depend on weights. All sides run in one process, one after the other; the best of several rounds counts:

- bare: the network on one fixed batch of images, again and again;
- ours: `Smoothed.sample`, that is noise, forward pass and votes, with hard votes, and with the grid of soft ones;
- published: the loop of Cohen et al. 2019, written anew: for each image batches of copies, noise by `randn_like`, the
  classes brought to the CPU, and counted there one by one.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from smoothing_cifar10 import InPrecision, choose_maps
from timing import best_of, machine
from torch import Tensor, nn

from lipkit.certify import smoothing as rs
from lipkit.cli.inputs.recipe_file import recipe_class
from lipkit.cli.training.overrides import make_recipe

RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "cifar10_smoothing.py"
CLASSES, SIGMA = 10, 0.25


def count_published(model: nn.Module, image: Tensor, samples: int, batch: int) -> np.ndarray:
    """The votes of noisy copies of one image, by the published loop."""
    counts = np.zeros(CLASSES, dtype=int)
    left = samples
    while left > 0:
        copies = image.repeat((min(batch, left), 1, 1, 1))
        noise = torch.randn_like(copies) * SIGMA
        predicted = model(copies + noise).argmax(1).cpu().numpy()
        for one in predicted:
            counts[one] += 1
        left -= batch
    return counts


def measure(
    model: nn.Module, images: Tensor, n: int, block: int, batches: Sequence[int], rounds: int
) -> dict[str, float]:
    """Noisy images in a second of each side."""
    fixed = images[:1].repeat((block, 1, 1, 1)) + SIGMA * torch.randn(block, *images.shape[1:], device=images.device)
    passes, work = -(-n // block), len(images) * n

    def bare() -> None:
        for _ in range(len(images) * passes):
            model(fixed)

    def ours(maps: Sequence[rs.SimplexMap]) -> Callable[[], object]:
        smoothed = rs.Smoothed(model, SIGMA, num_classes=CLASSES, simplex=maps)
        # The samples that choose are as few as can be: they are not what is compared.
        return lambda: smoothed.sample(images, n0=1, n=n, block=block)

    def published(batch: int) -> Callable[[], object]:
        return lambda: [count_published(model, image, n, batch) for image in images]

    sides: dict[str, Callable[[], object]] = {
        "bare forward pass": bare,
        "ours, hard votes": ours([rs.Hardmax()]),
        "ours, hard and soft votes": ours(choose_maps()),
        **{f"published loop, batches of {batch}": published(batch) for batch in batches},
    }
    with torch.no_grad():
        return {name: work / best_of(side, rounds)[0] for name, side in sides.items()}


def main() -> None:
    """Measure and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--block", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", action="store_true", help="Compile the network; all sides use the same one.")
    parser.add_argument("--tiny", action="store_true", help="A small network and few samples, to see that it runs.")
    parser.add_argument("--json", type=Path)
    request = parser.parse_args()
    words = ("--data=.", *(("--width=8", "--blocks=1") if request.tiny else ()))
    images, n, block = (2, 512, 128) if request.tiny else (request.images, request.n, request.block)
    torch.manual_seed(0)
    network = make_recipe(recipe_class(RECIPE), words).model().eval().requires_grad_(False).to(request.device)
    if request.compile:
        network = torch.compile(network, dynamic=False)
    model = InPrecision(network, torch.bfloat16)  # pyright: ignore[reportArgumentType]
    drawn = torch.rand(images, 3, 32, 32, device=request.device)
    # The largest batch and the one that the authors' commands name.
    rates = measure(model, drawn, n, block, (1000, 400), 1 if request.tiny else request.rounds)
    bare = rates["bare forward pass"]
    best = rates["ours, hard votes"]
    print(f"{machine()}; {images} images, n = {n}, blocks of {block}, bfloat16")
    for name, rate in rates.items():
        print(f"{name:36s} {rate:12,.0f} images/s   {rate / bare:6.1%} of bare   ours is {best / rate:6.2f}x")
    if request.json is not None:
        known = {"machine": machine(), "images": images, "n": n, "block": block, "rates": rates}
        request.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
