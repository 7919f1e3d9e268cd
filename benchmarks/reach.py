"""Which models have a finite constant, and how far it is above the lower bound.

    python benchmarks/reach.py

Prints one line for each model: the upper bound of `lipkit.lipschitz` (with a budget of 20 s), its lower bound, and
their ratio; a refusal is printed as it is.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

import lipkit
from lipkit.bounds import Auto, LipLT, Local, Relaxation


class First(nn.Module):
    """The first result of a recurrent layer."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """All hidden states."""
        return self.layer(x)[0]


class Cell(nn.Module):
    """An LSTM cell unrolled over the second axis."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        """The last hidden state."""
        h = c = x.new_zeros(len(x), 16)
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))
        return h


class Net(nn.Module):
    """Two linear layers with a formula between them."""

    def __init__(self, formula: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.formula, self.last = nn.Linear(8, 32), formula, nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        return self.last(self.formula(self.first(x)))


class Pairs(nn.Module):
    """A bilinear layer of the halves of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Bilinear(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        return self.layer(x[:, :4], x[:, 4:])


def report(name: str, model: nn.Module, x: Tensor, radius: float | None = None, ranges: bool = False) -> None:
    """One line."""
    region = lipkit.Everywhere() if radius is None else lipkit.Ball(x[0], radius)
    method = Local(LipLT(window=2), Relaxation()) if ranges else Auto(budget=20)
    try:
        with torch.no_grad():
            bound = lipkit.lipschitz(model, x, method, region)
        upper, lower = float(bound.value), float(bound.lower.value) if bound.lower is not None else 0.0
        print(f"| {name} | {upper:.5g} | {lower:.5g} | {upper / lower:.3g} |", flush=True)
    except lipkit.errors.LipkitError as error:
        print(f"| {name} | {str(error).splitlines()[0][:120]} |", flush=True)


def main() -> None:
    """The table."""
    torch.manual_seed(0)
    x = torch.randn(1, 8, 8)
    gru, lstm, cell = First(nn.GRU(8, 16, batch_first=True)), First(nn.LSTM(8, 16, batch_first=True)), Cell()
    print("| model | upper bound | lower bound | ratio |")
    print("|---|---:|---:|---:|")
    report("LSTM(8, 16), 8 steps, everywhere", lstm, x)
    report("LSTMCell(8, 16), 8 steps, everywhere", cell, x)
    report("GRU(8, 16), 8 steps, everywhere", gru, x)
    report("GRU(8, 16), 8 steps, ball of 0.1", gru, x, 0.1)
    report("the same, ranges by linear relaxation", gru, x, 0.1, ranges=True)
    report("LSTM(8, 16), 8 steps, ball of 0.1", lstm, x, 0.1)
    row = torch.randn(1, 8)
    formulas = {
        "sin(x)^2": lambda z: torch.sin(z) ** 2,
        "sqrt(1 + x^2)": lambda z: torch.sqrt(1 + z * z),
        "exp(-x^2)": lambda z: torch.exp(-z * z),
        "x / (1 + x^2)": lambda z: z / (1 + z * z),
        "sigmoid(x) tanh(y)": lambda z: torch.sigmoid(z) * torch.tanh(z.flip(-1)),
        "where(x > 0, x, 0.1 x)": lambda z: torch.where(z > 0, z, 0.1 * z),
        "sign(x) relu(|x| - 0.5)": lambda z: z.sign() * torch.relu(z.abs() - 0.5),
        "where(x > 0, x, exp(x) - 1)": lambda z: torch.where(z > 0, z, torch.exp(z) - 1),
    }
    for name, formula in formulas.items():
        report(f"two layers with {name}", Net(formula), row)
    torch.manual_seed(0)
    row = torch.randn(1, 8)
    report("Bilinear(4, 4, 3), ball of 0.1", Pairs(), row, 0.1)
    torch.manual_seed(0)
    image = torch.randn(1, 3, 16, 16)
    report("LPPool2d(2, 3, stride=2)", nn.LPPool2d(2, 3, stride=2), image)
    report("Conv2d(3, 8, 3), LPPool2d(2, 2)", nn.Sequential(nn.Conv2d(3, 8, 3), nn.LPPool2d(2, 2)), image)


if __name__ == "__main__":
    main()
