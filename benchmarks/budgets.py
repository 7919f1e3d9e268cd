"""Budgets: how long a whole call takes when it is given so many seconds.

Claim: `lipkit.lipschitz(model, x, Auto(budget=S))` returns an upper bound within 1.2 S, capture and lower bound
included, whatever the model; a capture that takes longer than S cannot be interrupted and comes on top.

    python benchmarks/budgets.py [--budget 4 10] [--only NAME ...] [--threads 1]

One process, random weights, nothing is downloaded; a small model is bounded first, so that what torch loads once is
loaded. Models with attention or gates are bounded on a ball of radius 0.01. Misses are printed in bold.
"""

import argparse
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from architectures import calibrated, resnet18, six_c_two_f
from timing import machine
from torch import Tensor, nn

import lipkit
from lipkit.bounds import Auto

_RADIUS = 0.01
_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}


@dataclass(frozen=True)
class Task:
    """A model, an example, and where it is bounded: everywhere, or around a point."""

    model: nn.Module
    example: Tensor
    center: Tensor | None = None
    wrt: str | None = None
    output: str | None = None


class LastState(nn.Module):
    """An LSTM, and a linear layer after its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(16, 32, batch_first=True)
        self.head = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The scores after the last step."""
        return self.head(self.recurrent(x)[0][:, -1])


def mlp(*widths: int) -> Task:
    """Linear layers with ReLUs between them."""
    layers = [part for n, m in itertools.pairwise(widths) for part in (nn.Linear(n, m), nn.ReLU())]
    return Task(nn.Sequential(*layers[:-1]), torch.randn(1, widths[0]))


def small_cnn() -> Task:
    """The convolutional network of the README."""
    layers = (nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return Task(nn.Sequential(*layers, nn.Linear(128, 10)), torch.randn(1, 1, 8, 8))


def residual(side: int) -> Task:
    """ResNet-18 on images of this side."""
    return Task(calibrated(resnet18(), (3, side, side)), torch.randn(1, 3, side, side))


def vision_transformer() -> Task:
    """Two layers of attention over sixteen patches."""
    import transformers

    config = transformers.ViTConfig(image_size=32, patch_size=8, **_SMALL)
    image = torch.randn(1, 3, 32, 32)
    return Task(transformers.ViTForImageClassification(config), image, image[0])


def gpt2() -> Task:
    """Two layers of GPT-2, as a function of the embeddings of sixteen words."""
    import transformers

    config = transformers.GPT2Config(
        n_embd=64, n_layer=2, n_head=4, vocab_size=1000, use_cache=False, bos_token_id=0, eos_token_id=0
    )
    model, words = transformers.GPT2Model(config), torch.randint(0, 1000, (1, 16))
    return Task(model, words, model.wte(words)[0].detach(), "wte", "last_hidden_state")


def lstm() -> Task:
    """An LSTM over ten steps."""
    x = torch.randn(1, 10, 16)
    return Task(LastState(), x, x[0])


TASKS: dict[str, Callable[[], Task]] = {
    "MLP 784-256-256-10": lambda: mlp(784, 256, 256, 10),
    "CNN of the README": small_cnn,
    "6C2F": lambda: Task(six_c_two_f(), torch.randn(1, 3, 32, 32)),
    "ResNet-18 at 32": lambda: residual(32),
    "ResNet-18 at 224": lambda: residual(224),
    "MLP of 1000 layers": lambda: mlp(*[64] * 1001),
    "MLP of 100M weights": lambda: mlp(*[3200] * 11),
    "ViT, small": vision_transformer,
    "GPT-2, tiny": gpt2,
    "LSTM": lstm,
}


def line(name: str, budget: float) -> str:
    """One call, as a row of the table."""
    torch.manual_seed(0)
    task = TASKS[name]()
    task.model.eval()
    region = lipkit.Everywhere() if task.center is None else lipkit.Ball(task.center, _RADIUS)
    began: dict[lipkit.Phase, float] = {}
    start = time.perf_counter()
    bound = lipkit.lipschitz(
        task.model, task.example, Auto(budget=budget), region, wrt=task.wrt, output=task.output,
        progress=lambda step: began.setdefault(step.phase, time.perf_counter()),
    )  # fmt: skip
    seconds = time.perf_counter() - start
    capture = began[lipkit.Phase.BOUND] - start
    missed = seconds > 1.2 * budget + (capture if capture > budget else 0.0)
    shown = f"**{seconds:.1f}**" if missed else f"{seconds:.1f}"
    lower = "none" if bound.lower is None else f"{float(bound.lower.value):.3g}"
    value = str(bound).split(" ", maxsplit=1)[0]
    return f"| {name} | {budget:g} | {shown} | {capture:.1f} | {value} | {lower} | {bound.method} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, nargs="+", default=[4.0, 10.0])
    parser.add_argument("--only", nargs="+", choices=[*TASKS], default=[*TASKS])
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print(machine())
    lipkit.lipschitz(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), torch.zeros(1, 4))
    print("\n| model | budget, s | seconds in all | of these capture | bound | lower bound | method |")
    print("|---|---|---|---|---|---|---|")
    for name in args.only:
        for budget in args.budget:
            print(line(name, budget), flush=True)


if __name__ == "__main__":
    main()
