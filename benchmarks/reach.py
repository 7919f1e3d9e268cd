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


class Mixing(nn.Module):
    """A block of FNet: transforms over tokens and channels, then two layers, each beside its input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        """The tokens again."""
        mixed = x + torch.fft.fft2(x, norm="ortho").real
        return mixed + self.last(nn.functional.gelu(self.first(mixed)))


class Filters(nn.Module):
    """A block of a global filter network: one complex number for each frequency and channel, then a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.filters, self.last = nn.Parameter(torch.randn(8, 5, 4, 2)), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, 8, 8, 4)."""
        seen = torch.fft.rfft2(x, dim=(1, 2), norm="ortho") * torch.view_as_complex(self.filters)
        return x + torch.relu(self.last(torch.fft.irfft2(seen, s=(8, 8), dim=(1, 2), norm="ortho")))


class Operator(nn.Module):
    """Two layers of a Fourier neural operator: matrices at the lowest frequencies beside a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.spectral = nn.ParameterList(torch.randn(4, 4, 6, dtype=torch.cfloat) / 4 for _ in range(2))
        self.direct = nn.ModuleList(nn.Conv1d(4, 4, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, 4, 32)."""
        for weight, direct in zip(self.spectral, self.direct, strict=True):
            kept = torch.zeros(len(x), 4, 17, dtype=torch.cfloat, device=x.device)
            kept[:, :, :6] = torch.einsum("bix,iox->box", torch.fft.rfft(x)[:, :, :6], weight)
            x = nn.functional.gelu(torch.fft.irfft(kept, n=32) + direct(x))
        return x


class Spectrogram(nn.Module):
    """Magnitudes of a short-time transform, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(9 * 9, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, 64)."""
        window = torch.hann_window(16, dtype=x.dtype, device=x.device)
        return self.layers(torch.stft(x, 16, 8, window=window, normalized=True, return_complex=True).abs())


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
    torch.manual_seed(0)
    spectral = {
        "block of FNet, 8 tokens of 8": (Mixing(), torch.randn(1, 8, 8)),
        "block of a global filter network, 8 x 8 x 4": (Filters(), torch.randn(1, 8, 8, 4)),
        "Fourier neural operator, 2 layers, 32 points": (Operator(), torch.randn(1, 4, 32)),
        "magnitudes of a short-time transform, MLP": (Spectrogram(), torch.randn(1, 64)),
    }
    for name, (model, sample) in spectral.items():
        report(name, model, sample)
        report(f"{name}, ball of 0.1", model, sample, 0.1)


if __name__ == "__main__":
    main()
