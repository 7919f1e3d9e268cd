"""The ladder of methods on real networks: what each proves and how long it takes, in one process.

Claims: (a) on small trained nets of the literature, for the logit whose constants were published, LipSDP agrees with
the published value to 1e-4 and is proven, LipLT agrees with the published one, and no upper bound is below a lower one;
(b) on convolutional and residual nets every method gives a value, or a reason why it does not. The exit status is 1 if
an upper bound is below a lower one.

    python benchmarks/ladder.py --data DIR [--nets small mnist cifar resnet18] [--images 4000]
                                [--leave-out METHOD ...] [--out DIR]

DIR holds lipschitz-nets/ (npz), mnist/ (the gzipped IDX files) and cifar10/ (sheets of images). The nets for MNIST
(4C3F) and CIFAR-10 (6C2F) are trained here, one epoch on `--images` images; ResNet-18 has calibrated random weights.
Tables are Markdown; seconds are processor time of one thread, the fastest of three where short. `--out` gets figures.
"""

import argparse
import gzip
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from architectures import calibrated, four_c_three_f, resnet18, six_c_two_f
from timing import machine
from torch import Tensor, nn
from torch.nn import functional

from lipkit.bound import Bound, Kind
from lipkit.bounds import DAG, Condensed, GradientAscent, LipLT, Local, Method, Product, Sampling
from lipkit.cli.demo.ladder import EVERYWHERE, Rung, climb, panel
from lipkit.regions import Ball, Everywhere, Region
from lipkit.report.method_figures import ladder
from lipkit.trace import Network
from lipkit.trace.capture import capture

SMALL = ("fnn2_seed0", "fnn3_seed0", "cnn2_seed0", "cnn3_seed0")
LOGIT = 7
# Our names of what the published table calls by others.
THEIRS = {"Product": "MP", "LipLT": "LT", "LipSDP": "LipSDP", "Sampling": "lb"}
SEARCH = {"GradientAscent": GradientAscent(steps=5, starts=4), "Sampling": Sampling(16)}
LARGE: dict[str, Method] = {**EVERYWHERE, **SEARCH}
AROUND: dict[str, Method] = {
    "Local(DAG)": Local(DAG()),
    "Local(LipLT)": Local(LipLT()),
    "Condensed": Condensed(),
    **SEARCH,
}
# Twenty products with the Jacobian for each point: two points are what a minute pays for.
DEEP: dict[str, Method] = {
    "Product": Product(),
    "DAG": DAG(),
    "LipLT, window 2": LipLT(window=2),
    **{name: EVERYWHERE[name] for name in ("SeqLip", "ECLipsE", "LipSDP")},
    "Sampling": Sampling(2),
}


@dataclass(frozen=True, eq=False)
class Case:
    """A network, where, by which methods, and what others published."""

    name: str
    network: Network
    region: Region
    methods: Mapping[str, Method]
    published: Mapping[str, float]


def small_net(folder: Path, name: str) -> nn.Sequential:
    """A stored net with its last layer cut down to the one logit that was published."""
    with np.load(folder / f"{name}.npz") as stored:
        weights = {key: torch.from_numpy(stored[key]) for key in sorted(stored) if "weight" in key or "bias" in key}
    layers: list[nn.Module] = []
    names = [key.removesuffix("_weight") for key in weights if key.endswith("_weight")]
    names.sort(key=lambda one: (not one.startswith("conv"), one))
    for one in names:
        weight, bias = weights[f"{one}_weight"], weights[f"{one}_bias"]
        if one == names[-1]:
            weight, bias = weight[LOGIT : LOGIT + 1], bias[LOGIT : LOGIT + 1]
        if weight.ndim == 2 and layers and isinstance(layers[-2], nn.Conv2d):
            layers.append(nn.Flatten())
        made = (
            nn.Conv2d(weight.shape[1], len(weight), 3, padding=1)
            if weight.ndim == 4
            else nn.Linear(weight.shape[1], len(weight))
        )
        made.load_state_dict({"weight": weight, "bias": bias})
        layers += [made.to(weight.dtype), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def small(data: Path, _: int) -> Iterator[Case]:
    """The stored nets, one logit, with published values."""
    published = json.loads((data / "lipschitz-nets" / "published.json").read_text())
    for name in SMALL:
        model = small_net(data / "lipschitz-nets", name)
        first = next(model.parameters())
        shape = (1, 64) if first.ndim == 2 else (1, 1, 8, 8)
        network = capture(model, torch.zeros(shape, dtype=first.dtype)).detach()
        yield Case(f"{name}, logit {LOGIT}", network, Everywhere(), EVERYWHERE, published[name])


def mnist(data: Path, count: int) -> Iterator[Case]:
    """4C3F on MNIST."""

    def read(name: str, offset: int) -> Tensor:
        with gzip.open(data / "mnist" / f"train-{name}-ubyte.gz") as file:
            return torch.from_numpy(np.frombuffer(file.read(), np.uint8, offset=offset).copy())

    images = read("images-idx3", 16).reshape(-1, 1, 28, 28).float() / 255
    yield from trained("4C3F on MNIST", four_c_three_f(), images, read("labels-idx1", 8).long(), count)


def cifar_images(data: Path) -> tuple[Tensor, Tensor]:
    """The first 5,000 images of CIFAR-10 in [0, 1], and their labels."""
    from PIL import Image

    pixels = np.asarray(Image.open(data / "cifar10" / "train-00.webp").convert("RGB"))
    tiles = pixels.reshape(-1, 32, 40, 32, 3).transpose(0, 2, 4, 1, 3).reshape(-1, 3, 32, 32)
    labels = torch.from_numpy(np.load(data / "cifar10" / "train-labels.npy")[: len(tiles)]).long()
    return torch.from_numpy(tiles.copy()).float() / 255, labels


def cifar(data: Path, count: int) -> Iterator[Case]:
    """6C2F on CIFAR-10."""
    yield from trained("6C2F on CIFAR-10", six_c_two_f(), *cifar_images(data), count)


def fitted(model: nn.Sequential, images: Tensor, labels: Tensor, count: int) -> float:
    """One epoch on the first `count` images, and the share of 1000 others that it gets right."""
    step = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for batch in torch.randperm(min(count, len(images) - 1000)).split(64):
        step.zero_grad()
        functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        step.step()
    with torch.no_grad():
        return (model(images[-1000:]).argmax(1) == labels[-1000:]).double().mean().item()


def trained(name: str, model: nn.Sequential, images: Tensor, labels: Tensor, count: int) -> Iterator[Case]:
    """A net after one epoch, everywhere and around the last image."""
    right = fitted(model, images, labels, count)
    network = capture(model.eval(), images[:1]).detach()
    print(f"\n{name}: one epoch on {count} images, {right:.1%} of 1000 others right", flush=True)
    ball = Ball(images[-1], 0.01)
    yield Case(f"{name}, everywhere", network, Everywhere(), LARGE, {})
    yield Case(f"{name}, on the {ball} around an image", network, ball, AROUND, {})


def residual(_: Path, __: int) -> Iterator[Case]:
    """ResNet-18 at 224 x 224."""
    model = calibrated(resnet18(), (3, 224, 224))
    network = capture(model, torch.zeros(1, 3, 224, 224)).detach()
    yield Case("ResNet-18, calibrated on noise", network, Everywhere(), DEEP, {})


NETS = {"small": small, "mnist": mnist, "cifar": cifar, "resnet18": residual}


def table(case: Case, rungs: list[Rung]) -> None:
    """The rungs as Markdown, with published values beside where there are some, and reasons at the end."""
    print(f"\n{case.name}\n")
    print("| method | value | kind | seconds |" + (" published |" if case.published else ""))
    print("|---|---:|---|---:|" + ("---:|" if case.published else ""))
    for rung in rungs:
        if isinstance(rung.result, Bound):
            theirs = case.published.get(THEIRS.get(rung.label, ""), None)
            beside = "" if not case.published else " |" if theirs is None else f" {theirs:.5f} |"
            value = f"{rung.result.value.item():.6g}"
            sure = f", fails <= {rung.result.failure:.0e}" if rung.result.failure else ""
            print(f"| `{rung.label}` | {value} | {rung.result.kind.value}{sure} | {rung.seconds:.3g} |{beside}")
    for rung in rungs:
        if not isinstance(rung.result, Bound):
            print(f"\n`{rung.label}`: {type(rung.result).__name__}: {rung.result}")
    sys.stdout.flush()


def crossed(rungs: list[Rung]) -> bool:
    """Whether some upper bound is below some lower bound."""
    results = [rung.result for rung in rungs if isinstance(rung.result, Bound)]
    above = [float(one.log_value) for one in results if one.kind.certifies]
    below = [float(one.log_value) for one in results if one.kind is Kind.LOWER]
    return bool(above and below) and max(below) > min(above)


def main() -> int:
    """Tables and figures; the exit status says whether two bounds contradict each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--nets", nargs="*", choices=NETS, default=list(NETS))
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--leave-out", nargs="*", default=[], metavar="METHOD", help="names as in the tables")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(machine())
    wrong = False
    for net in options.nets:
        panels = []
        for case in NETS[net](options.data, options.images):
            methods = {name: method for name, method in case.methods.items() if name not in options.leave_out}
            rungs = climb(case.network, case.region, methods)
            table(case, rungs)
            wrong |= crossed(rungs)
            panels.append(panel(case.name, rungs))
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            ladder(panels, f"What each method proves: {net}", options.out / f"ladder-{net}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
