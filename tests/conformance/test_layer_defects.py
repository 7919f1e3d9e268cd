"""The checks of the layer suite fail where they should: each is run on a layer with a planted defect."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.exc import Unsupported
from torch.autograd.gradcheck import GradcheckError

from lipkit import nn as lnn
from lipkit.bound import Bound, Kind
from lipkit.linops import Shape
from lipkit.nn import WeightMethod
from lipkit.nn.core.geometry import Geometry
from lipkit.nn.methods._base import Promise
from support.layers.checks import (
    check_declared,
    check_evaluation,
    check_gradients,
    check_isometry,
    check_norm,
    check_saving,
    check_steps,
)
from support.layers.examples import QUIET
from support.layers.geometries import filled
from support.programs.layer_programs import compiled, exported, mixed, narrow
from support.programs.run import PROGRAMS, run_program


@dataclass(frozen=True)
class Loose(WeightMethod):
    """A weight that is too large by 2^-20, about what a float32 iteration leaves."""

    def promise(self, geometry: Geometry) -> Promise:
        return Promise.ISOMETRY

    def __call__(self, raw: Tensor, geometry: Geometry) -> Tensor:
        return lnn.Bjorck()(raw, geometry) * (1 + 2.0**-18)


@dataclass(frozen=True)
class OnePowerStep(WeightMethod):
    """Divided by a lower bound of the norm, which is what one step of power iteration gives."""

    def promise(self, geometry: Geometry) -> Promise:
        return Promise.CONTRACTION

    def __call__(self, raw: Tensor, geometry: Geometry) -> Tensor:
        v = torch.ones(raw.shape[-1], dtype=raw.dtype)
        return raw / (raw @ (v / v.norm())).norm()


class Counting(nn.Linear):
    """Writes a buffer in evaluation."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(input)


class Wasteful(nn.Linear):
    """Computes its weight again although it is frozen."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 0 * (self.weight @ self.weight.mT).sum() * (not self.plain)

    plain = False

    def to_plain(self, dtype: torch.dtype | None = None) -> nn.Module:
        made = nn.Linear(self.in_features, self.out_features)
        made.load_state_dict(self.state_dict())
        return made


class Forgetful(nn.Linear):
    """Keeps a number that is not part of its state."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.offset = torch.randn(())

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + self.offset


class Modest(nn.Linear):
    """Declares half of its constant."""

    gain = 0.5

    def declared_lipschitz(self, in_shape: Shape) -> Bound:
        return Bound.from_value(0.5, Kind.UPPER, "wrong")


class _WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.sin()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:  # noqa: ARG004 - torch's name
        return grad_outputs[0]


class Wrong(nn.Module):
    """A backward pass that is not the derivative."""

    def forward(self, x: Tensor) -> Tensor:
        return _WrongBackward.apply(x)


class Branching(nn.Linear):
    """A Python branch on values: breaks graphs."""

    def forward(self, input: Tensor) -> Tensor:
        found = super().forward(input)
        return found if found.sum() > 0 else -found


class Wide(nn.Linear):
    """Always answers in float32."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).float()


class Overflowing(nn.Linear):
    """Computes in the type of autocast what needs more digits."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + 100 * (
            torch.mm(input, input.mT).sum() - (input @ input.mT).float().sum() + 1e-2
        )


def test_norm() -> None:
    with pytest.raises(AssertionError, match="norm"):
        check_norm(lnn.Linear(5, 5, method=Loose()), (5,))


def test_isometry() -> None:
    torch.manual_seed(0)
    layer = lnn.Linear(8, 8, method=lnn.Bjorck(steps=1))
    filled(layer, "normal")
    with pytest.raises(AssertionError, match="smallest singular value"):
        check_isometry(layer, (8,), 1 - 2e-5)


def test_steps() -> None:
    with pytest.raises(AssertionError, match="norm"):
        check_steps(lnn.Linear(8, 8, method=OnePowerStep()), (8,))


def test_declared() -> None:
    layer = Modest(4, 4)
    nn.init.eye_(layer.weight)
    with pytest.raises(AssertionError):
        check_declared(layer, (4,))


@pytest.mark.parametrize("layer", [Counting, lambda: Wasteful(4, 4)], ids=["writes", "computes twice"])
def test_evaluation(layer: Any) -> None:
    with pytest.raises(AssertionError):
        check_evaluation(layer(), torch.randn(2, 4))


def test_saving() -> None:
    with pytest.raises(AssertionError):
        check_saving(Forgetful, torch.randn(2, 4))


def test_gradients() -> None:
    with pytest.raises(GradcheckError):
        check_gradients(Wrong(), torch.randn(2, 4))


@pytest.mark.compile
def test_programs() -> None:
    x = torch.randn(3, 4)
    with pytest.raises(Unsupported):
        compiled(Branching(4, 4), x)
    with pytest.raises(Exception, match=r"ata-dependent|guard"):
        exported(Branching(4, 4), x)
    with pytest.raises(AssertionError):
        narrow(Wide(4, 4), x)
    with pytest.raises(AssertionError):
        mixed(Overflowing(4, 4), 3 * torch.randn(16, 4))


@pytest.mark.process
def test_distributed() -> None:
    found = run_program(PROGRAMS / "layer_programs.py", ["planted"], variables=QUIET)
    assert found.returncode != 0
    assert "planted: seen differs" in found.stderr
