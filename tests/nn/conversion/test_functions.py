"""Functions that conversions read as the modules that do the same: dropout, and stacks as concatenations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lipkit.errors import UnsupportedError
from lipkit.nn.conversion.conversion_report import ConversionVerdict
from lipkit.nn.conversion.transfer import ConversionStart
from lipkit.nn.conversion.twin import lipschitzify
from support.jacobians import steepest


class Applied(nn.Module):
    """A function behind a layer, and before one."""

    def __init__(self, function: Callable[[Tensor, bool], Tensor], outputs: int) -> None:
        super().__init__()
        self.function = function
        self.first = nn.Linear(4, 4)
        self.last = nn.Linear(outputs, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), self.training))


DROPOUTS: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "dropout": lambda x, training: functional.dropout(x, 0.4, training),
    "dropout by name": lambda x, training: functional.dropout(x, p=0.4, training=training),
    "torch.dropout": lambda x, training: torch.dropout(x, 0.4, training),
    "torch.dropout by name": lambda x, training: torch.dropout(x, p=0.4, train=training),
    "dropout1d": lambda x, training: functional.dropout1d(x[:, None], 0.4, training)[:, 0],
}


@pytest.mark.parametrize("name", DROPOUTS)
@pytest.mark.parametrize("training", [True, False])
def test_dropout_follows_the_mode_of_the_twin(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model = Applied(DROPOUTS[name], 4).train(training)
    twin, report = lipschitzify(model)
    assert any("random in training" in row.now for row in report.of(ConversionVerdict.KEPT))
    assert twin.training == training
    x = torch.randn(64, 4)
    assert torch.equal(twin.eval()(x), twin(x))
    twin.train()
    assert not torch.equal(twin(x), twin(x))
    assert steepest(twin.eval().double(), (1, 4)) <= 1 + 1e-12


def test_dropout_that_ignores_the_mode_is_refused() -> None:
    for flag, training in ((True, False), (False, True)):
        model = Applied(lambda x, _, flag=flag: functional.dropout(x, 0.4, flag), 4).train(training)
        with pytest.raises(UnsupportedError, match="does not follow the mode"):
            lipschitzify(model)


STACKS: dict[str, Callable[[Tensor, bool], Tensor]] = {
    "axis 1": lambda x, _: torch.stack([x, x.relu()], 1).flatten(1),
    "last axis": lambda x, _: torch.stack((x, x.relu()), dim=-1).flatten(1),
    "thrice": lambda x, _: torch.stack([x, x, x], 2).flatten(1),
}


@pytest.mark.parametrize("start", ConversionStart, ids=str)
@pytest.mark.parametrize("name", STACKS)
def test_stacks_are_scaled_like_concatenations(name: str, start: ConversionStart) -> None:
    torch.manual_seed(0)
    outputs = 12 if name == "thrice" else 8
    twin, _ = lipschitzify(Applied(STACKS[name], outputs).eval(), start=start)
    # Rounding of products in float64.
    assert steepest(twin.double(), (1, 4)) <= 1 + 1e-12


def test_a_stack_of_copies_has_constant_one_exactly() -> None:
    class Copies(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x, x, x, x], 1)

    twin, _ = lipschitzify(Copies())
    found = twin(torch.eye(3))
    assert found.shape == (3, 4, 3)
    # Each copy times 1/2, made smaller by 2^-22.
    torch.testing.assert_close(found, 0.5 * torch.eye(3)[:, None].expand(3, 4, 3), rtol=1e-6, atol=0)


def test_stacks_along_the_batch_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="another axis than the batch"):
        lipschitzify(Applied(lambda x, _: torch.stack([x, x]).sum(0), 4))
