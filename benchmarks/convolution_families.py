"""Every family of convolutions on CIFAR-10 for the same time: clean and certified accuracy, steps and memory.

    python benchmarks/convolution_families.py --data FOLDER [--seconds 45] [--depth 16] [--device cuda] [--only AOC,SOC]

All networks have the same form: blocks of 2 x 2 pixels in channels, an orthogonal 1 x 1 layer, half of the `depth`
layers of the family at 16 x 16 (each with sorted pairs, circular borders), the same again at 8 x 8 with twice the
channels, and one dense layer. They train by Adam with EMMA for the given time, weights computed anew at each step, in
float32 without compilation. All layers before the last have constant 1 by construction; a label is certified at a
radius if its lead on every rival exceeds the radius times ||w_y - w_j||. The rounding of the forward pass is not
counted here: for figures that are proven to the last digit use `lipkit certify`.
"""

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.data import cifar10, cropped, flipped
from lipkit.losses import EMMA

UNIT = 36 / 255
RADII = (0.0, UNIT, 2 * UNIT, 3 * UNIT)
Layer = Callable[[int, int], list[nn.Module]]


def by(method: Callable[[int], lnn.WeightMethod]) -> Layer:
    """A convolution 3 x 3 by a method, given the side of the image, and sorted pairs."""
    return lambda channels, side: [
        lnn.Conv2d(channels, channels, 3, padding=1, padding_mode="circular", method=method(side)),
        lnn.MaxMin(),
    ]


FAMILIES: dict[str, Layer] = {
    "AOL": by(lambda _: lnn.AOL()),
    "RKO": by(lambda _: lnn.RKO()),
    "LinearResidual": by(lambda _: lnn.LinearResidual()),
    "BCOP": by(lambda _: lnn.BCOP()),
    "AOC": by(lambda _: lnn.AOC()),
    "SOC": by(lambda _: lnn.SOC()),
    "LOT": by(lambda side: lnn.LOT(in_size=(side, side))),
    "BRO": by(lambda side: lnn.BRO(in_size=(side, side))),
    "FourierCayley": by(lambda side: lnn.FourierCayley(in_size=(side, side))),
    "SLLConv": lambda channels, _: [lnn.SLLConv(channels, 3, padding_mode="circular")],
    "CPLConv": lambda channels, _: [lnn.CPLConv(channels, 3, padding_mode="circular")],
    "ShiftBlock": lambda channels, _: [lnn.ShiftBlock(channels)],
}


def network(layer: Layer, channels: int, depth: int) -> nn.Module:
    """The network of a family."""
    parts: list[nn.Module] = []
    before = 3
    for side, wide in ((16, channels), (8, 2 * channels)):
        parts += [lnn.SpaceToDepth(2), lnn.Conv2d(4 * before, wide, 1, method=lnn.Bjorck()), lnn.MaxMin()]
        for _ in range(depth // 2):
            parts += layer(wide, side)
        before = wide
    return lnn.Sequential(*parts, nn.Flatten(), lnn.Linear(before * 64, 10))


def pair_constants(model: nn.Module) -> Tensor:
    """||w_a - w_b|| of the rows of the last layer."""
    last = [part for part in model.modules() if isinstance(part, nn.Linear)][-1]
    return torch.linalg.vector_norm(last.weight[:, None] - last.weight[None], dim=2)


def train(
    model: nn.Module, images: Tensor, labels: Tensor, seconds: float, batch: int, rate: float
) -> tuple[int, float]:
    """Steps that fit into the time, and the seconds of a step once it runs."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    begin, steps, warm = time.perf_counter(), 0, (0, 0.0)
    while (share := (time.perf_counter() - begin) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = rate * min(1.0, steps / 50 + 0.02) * 0.5 * (1 + math.cos(math.pi * share))
        chosen = torch.randint(len(images), (batch,), device=images.device)
        x, y = cropped(flipped(images[chosen]), 4), labels[chosen]
        with lnn.batched(model):
            loss = EMMA(2 * UNIT * min(1.0, 2 * share) + 1e-3)(model(x), y, pair_constants(model))
            optimizer.zero_grad()
            loss.backward()
        optimizer.step()
        steps += 1
        if steps % 20 == 0 and images.is_cuda:
            # The queue of a GPU runs ahead of the clock.
            torch.cuda.synchronize()
        if steps == 10:
            warm = steps, time.perf_counter()
    taken = (time.perf_counter() - warm[1]) / max(1, steps - warm[0]) if warm[0] else math.nan
    return steps, taken


@torch.no_grad()
def shares(model: nn.Module, images: Tensor, labels: Tensor) -> list[float]:
    """The percentage of images whose class is right and cannot change within each radius."""
    model.eval()
    constants = pair_constants(model)
    counts = torch.zeros(len(RADII))
    with lnn.frozen(model):
        for x, y in zip(images.split(500), labels.split(500), strict=True):
            logits = model(x)
            lead = logits.gather(1, y[:, None]) - logits
            reach = (lead / constants[y].clamp(min=1e-30)).scatter(1, y[:, None], math.inf).amin(1)
            counts += torch.tensor([float((reach > radius).sum()) for radius in RADII])
    return (100 * counts / len(images)).tolist()


def gradient_kept(model: nn.Module, images: Tensor) -> float:
    """The norm of the gradient of one logit's lead at the input, next to that at the last hidden layer."""
    x = images[:64].clone().requires_grad_()
    parts = list(model.children())
    hidden = nn.Sequential(*parts[:-1])(x)
    logits = parts[-1](hidden)
    outer, inner = torch.autograd.grad((logits[:, 0] - logits[:, 1]).sum(), (hidden, x))
    return float((inner.flatten(1).norm(dim=1) / outer.flatten(1).norm(dim=1)).mean())


def main() -> None:
    """Print one row for each family."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", default=",".join(FAMILIES))
    for name, kind, default in (("seconds", float, 45.0), ("rate", float, 1e-3), ("depth", int, 16)):
        parser.add_argument(f"--{name}", type=kind, default=default)
    for name, default in (("channels", 64), ("batch", 512), ("seed", 0), ("count", 50_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    sets = [
        cifar10(given.data, train=train).at(range(count)) for train, count in ((True, given.count), (False, 10_000))
    ]
    images, labels, test, answers = (t.to(given.device) for s in sets for t in (s.inputs, s.labels))
    print(
        f"depth {given.depth}, {given.channels} channels, {given.seconds:g} s each, batch {given.batch}, {given.device}"
    )
    print("| family | clean | certified 36 / 72 / 108 of 255 | gradient kept | steps | ms a step | GiB |")
    print("|---|---|---|---|---:|---:|---:|", flush=True)
    for name in given.only.split(","):
        torch.manual_seed(given.seed)
        if given.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        model = network(FAMILIES[name], given.channels, given.depth).to(given.device)
        steps, taken = train(model, images, labels, given.seconds, given.batch, given.rate)
        kept = gradient_kept(model, test)
        clean, *sure = shares(model, test, answers)
        memory = torch.cuda.max_memory_allocated() / 2**30 if given.device == "cuda" else math.nan
        certified = " / ".join(f"{share:.1f}" for share in sure)
        print(
            f"| {name} | {clean:.1f} | {certified} | {kept:.2g} | {steps} | {1e3 * taken:.1f} | {memory:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
