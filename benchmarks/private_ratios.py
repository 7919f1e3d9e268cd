"""How much of its proven limit the gradient of a record uses, tensor by tensor, before and after a private training.

    python benchmarks/private_ratios.py --data CIFAR10 [--steps 30] [--records 500]

A ratio r of |d loss_i / d w| to the limit of w says how tight the limit is: signal and noise of that tensor are alike
in a batch of sigma / r records. Three networks without biases: a mixer on patches of 4 x 4 pixels, whose matrices are
shared among places; a convolutional network; dense layers on low cosine frequencies. Records are test images. The first
two have the loss of tau 20 over tau, whose gradient is at most sqrt 2, in a ball of radius 3 around grey, as published;
the third clips gradients of the outputs, in a ball of 12. Mixer and dense layers are then trained privately, and made
orthonormal after each step: the first `--steps` of 300 for epsilon 8. The kernels of the other network are not kept
orthonormal, so it is measured as it starts.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from timing import machine
from torch import Tensor, nn

from lipkit import losses, privacy
from lipkit import nn as lnn
from lipkit.data import Examples, cifar10

QUANTILES = (0.05, 0.5, 0.95, 1.0)


class Mixer(nn.Module):
    """Patches of 48 numbers as 64 channels at 64 places, mixed across places, then across channels; six matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Sequential(lnn.SpaceToDepth(4), nn.Flatten(2))
        self.embed = nn.Linear(48, 64, bias=False)
        self.places = _mixing()
        self.channels = _mixing()
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(4096, 10, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        y = self.embed(self.patches(x).transpose(1, 2))
        y = self.places(y.transpose(1, 2)).transpose(1, 2)
        return self.head(self.channels(y))


def _mixing() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(64, 64, bias=False), lnn.FullSort(), lnn.LayerCentering(), nn.Linear(64, 64, bias=False)
    )


def convolutional() -> nn.Sequential:
    """Kernels of 3 x 3 whose sum over taps is orthonormal at the middle, pooled by norms."""
    parts: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32)):
        layer = nn.Conv2d(before, after, 3, padding=1, bias=False)
        with torch.no_grad():
            layer.weight.zero_()[:, :, 1, 1] = nn.init.orthogonal_(torch.empty(after, before))
        parts += [layer, lnn.MaxMin(), lnn.L2NormPool2d(4)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(128, 10, bias=False))


def dense() -> nn.Sequential:
    """Isometries of the 12 x 12 lowest cosine frequencies of brightness."""
    places = (torch.arange(32) + 0.5) * torch.pi / 32
    rows = torch.cos(torch.arange(12)[:, None] * places) * (2 / 32) ** 0.5
    rows[0] /= 2**0.5
    low = nn.Linear(3072, 144, bias=False).requires_grad_(False)
    low.weight.data.copy_(torch.kron(torch.full((1, 3), 3**-0.5), torch.kron(rows, rows)))
    return nn.Sequential(
        nn.Flatten(), low, nn.Linear(144, 128, bias=False), lnn.MaxMin(), nn.Linear(128, 10, bias=False)
    )


def matrices(model: nn.Module) -> list[Tensor]:
    """The trained matrices, which a step makes orthonormal again."""
    return [p for p in model.parameters() if p.requires_grad and p.ndim == 2]


def show(name: str, when: str, ratios: dict[str, Tensor]) -> None:
    """A line for each tensor: quantiles over records, in percent."""
    for tensor, found in ratios.items():
        said = " / ".join(f"{100 * float(found.quantile(q)):.1f}" for q in QUANTILES)
        print(f"{name:14} {when:8} {tensor:20} {said}", flush=True)


def measure(
    name: str, model: nn.Module, inputs: privacy.Inputs, clip: privacy.Clip | None, rate: float,
    sets: Sequence[Examples], steps: int,
) -> None:  # fmt: skip
    """Ratios before and after some private steps."""
    known, unseen = sets
    loss = losses.TauCrossEntropy(20.0, divided=True) if clip is None else losses.TauCrossEntropy(4.0)

    def ratios() -> dict[str, Tensor]:
        return privacy.gradient_ratios(model, loss, inputs, unseen.inputs, unseen.labels, clip)

    for p in matrices(model):
        nn.init.orthogonal_(p)
    lnn.orthonormal_(matrices(model))
    show(name, "start", ratios())
    if not steps:
        return
    plan = privacy.Plan(50_000, 2_500, 300, 1e-5, epsilon=8.0, accountant=privacy.RDP())
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, rate, momentum=0.9, dampening=0.9)
    with (
        tempfile.TemporaryDirectory() as folder,
        privacy.Training(
            model, loss, optimizer, (known.inputs, known.labels), plan, inputs, ledger=Path(folder) / "ledger",
            clip=clip, after=lambda: lnn.orthonormal_(matrices(model)),
        ) as training,
    ):  # fmt: skip
        for _ in range(steps):
            training.step()
    show(name, f"step {steps}", ratios())
    with torch.no_grad():
        right = (model(inputs(unseen.inputs)).argmax(1) == unseen.labels).double().mean()
    print(f"{name:14} right on {100 * float(right):.1f} % of them", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--records", type=int, default=500)
    given = parser.parse_args()
    print(machine())
    print("percent of the limit: 5 % / half / 95 % / all of the records are below")
    torch.manual_seed(0)
    sets = cifar10(given.data), cifar10(given.data, train=False).at(range(given.records))
    small = privacy.Inputs((3, 32, 32), 3.0, center=0.47)
    measure("mixer", Mixer(), small, None, 0.3, sets, given.steps)
    measure("convolutional", convolutional(), small, None, 0.0, sets, 0)
    wide = privacy.Inputs((3, 32, 32), 12.0, center=0.47)
    measure("dense", dense(), wide, privacy.Fixed(0.1), 20.0, sets, given.steps)


if __name__ == "__main__":
    main()
