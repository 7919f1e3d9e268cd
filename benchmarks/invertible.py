"""An invertible residual network as a density: bits per dimension on two moons, or on MNIST with --data.

Two moons: 8 blocks x + 0.9 f(x), f = 2 - 16 - 16 - 2 with CLipSwish and spectral normalisation, exact
log-determinants, 500 steps of Adam at 5e-3 falling to 0 on 256 fresh points each (noise 0.1, both axes divided by one
number so that they have unit size). Held out: 4000 points. Then the inverse: 1000 points there and back, in both types.

MNIST: images with uniform noise, logit of (0.05 + 0.9 x), folded 4 x 4 to 16 channels of 7 x 7; 4 blocks of
convolutions 16 - 64 - 64 - 16, log-determinants by Russian roulette, until --seconds are over. A measure of the
code, not of the model: published flows have a hundred blocks and train for days.

    python benchmarks/invertible.py [--steps 500]
    python benchmarks/invertible.py --data FOLDER [--seconds 90]

A minute and a half of one core for two moons.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.data import mnist, moons
from lipkit.nn.residual.log_determinant import LogDeterminantMethod

BLOCKS, HIDDEN, SHARPNESS, CONTRACTION, RATE, BATCH, NOISE = 8, 16, 8.0, 0.9, 5e-3, 256, 0.1


def perceptron() -> nn.Module:
    method = lnn.Spectral(steps=4)
    # Units of layers of norm one see small numbers, where smooth activations are nearly linear: f(a x) / a is not.
    return nn.Sequential(
        lnn.Scale(SHARPNESS), lnn.Linear(2, HIDDEN, method=method), lnn.CLipSwish(),
        lnn.Linear(2 * HIDDEN, HIDDEN, method=method), lnn.CLipSwish(), lnn.Linear(2 * HIDDEN, 2, method=method),
        lnn.Scale(1 / SHARPNESS),
    )  # fmt: skip


def convolutions() -> nn.Module:
    return nn.Sequential(
        lnn.Conv2d(16, 64, 3, padding=1), lnn.LipSwish(), lnn.Conv2d(64, 64, 1), lnn.LipSwish(),
        lnn.Conv2d(64, 16, 3, padding=1),
    )  # fmt: skip


def log_density(flow: lnn.InvertibleSequential, x: Tensor, method: LogDeterminantMethod) -> Tensor:
    """log p(x) for a flow to the standard normal density."""
    found = flow.log_determinant(x, method)
    z = found.image.flatten(1)
    return found.value - z.square().sum(1) / 2 - z.shape[1] / 2 * math.log(2 * math.pi)


def plane(steps: int) -> None:
    torch.manual_seed(0)
    held = moons(4000, seed=10**6, noise=NOISE).inputs.float()
    center, scale = held.mean(0), held.std()
    flow = lnn.InvertibleSequential(*(lnn.InvertibleResidual(perceptron(), CONTRACTION) for _ in range(BLOCKS)))
    optimizer = torch.optim.Adam(flow.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    def bits() -> float:
        """Bits per dimension in the units of the data: those of the scaled points and log2 of the scale."""
        with torch.no_grad():
            nats = -log_density(flow, (held - center) / scale, lnn.DenseJacobian()).mean() / 2
        return (nats.item() + math.log(scale.item())) / math.log(2)

    began = time.perf_counter()
    print(f"step    0: {bits():.3f} bits per dimension")
    for step in range(1, steps + 1):
        x = (moons(BATCH, seed=step, noise=NOISE).inputs.float() - center) / scale
        loss = -log_density(flow, x, lnn.DenseJacobian()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % max(1, steps // 4) == 0:
            print(f"step {step:4d}: {bits():.3f} bits per dimension, {time.perf_counter() - began:.0f} s")
    print(f"the density that the points are drawn from: {entropy(held):.3f}")
    cloud = held.double()
    covariance = torch.linalg.slogdet(torch.cov(cloud.mT)).logabsdet.item()
    gaussian = (1 + math.log(2 * math.pi) + covariance / 2) / 2 / math.log(2)
    print(f"a normal density with the same mean and covariance: {gaussian:.3f}")
    x = (held[:1000] - center) / scale
    for dtype in (torch.float32, torch.float64):
        flow, x = flow.to(dtype), x.to(dtype)
        with torch.no_grad():
            found = flow.inverse(flow(x))
        # The stated one is for the worst case: each block may enlarge an error by 1/(1 - c), ten times.
        print(
            f"inverse in {dtype}: largest error {(found.point - x).abs().max():.1e}, stated {found.error.max():.1e}, "
            f"{found.steps} evaluations of {BLOCKS} blocks together"
        )


def entropy(held: Tensor) -> float:
    """Bits per dimension of two moons themselves: normal noise around 4000 places on each half circle."""
    places = moons(8000, seed=0, noise=0.0).inputs.double()
    squares = torch.cdist(held.double(), places).square() / (2 * NOISE**2)
    nats = math.log(len(places) * 2 * math.pi * NOISE**2) - torch.logsumexp(-squares, 1).mean()
    return float(nats) / 2 / math.log(2)


def images(folder: Path, seconds: float) -> None:
    torch.manual_seed(0)
    train, held = mnist(folder, train=True), mnist(folder, train=False)
    flow = lnn.InvertibleSequential(*(lnn.InvertibleResidual(convolutions(), CONTRACTION) for _ in range(4)))
    optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
    size = 28 * 28

    def bits(inputs: Tensor) -> Tensor:
        """Bits per dimension of the 256 grey levels, for noise that is drawn anew."""
        x = (inputs.float() * 255 + torch.rand(inputs.shape)) / 256
        p = 0.05 + 0.9 * x
        y = torch.logit(p).reshape(-1, 1, 28, 28)
        # d logit = 0.9 / (p (1 - p)), and one grey level is 1/256.
        inner = (math.log(0.9) - p.log() - torch.log1p(-p)).flatten(1).sum(1) - size * math.log(256)
        folded = nn.functional.pixel_unshuffle(y, 4)
        return -(log_density(flow, folded, lnn.RussianRoulette()) + inner) / (size * math.log(2))

    with torch.no_grad():
        print(f"before: {bits(held.inputs[:500]).mean():.3f} bits per dimension (an estimate)")
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        chosen = torch.randint(0, len(train.inputs), (64,))
        optimizer.zero_grad()
        bits(train.inputs[chosen]).mean().backward()
        optimizer.step()
        steps += 1
    with torch.no_grad():
        found = bits(held.inputs[:500]).mean()
    print(f"after {steps} steps in {seconds:.0f} s: {found:.3f} bits per dimension (an estimate)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--data", type=Path, help="folder with MNIST")
    parser.add_argument("--seconds", type=float, default=90)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.data is None:
        plane(given.steps)
    else:
        images(given.data, given.seconds)
