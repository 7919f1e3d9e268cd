"""What cannot be converted at all is refused in one sentence of lipkit, with what to do."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import lipkit.nn as lnn
from lipkit.errors import LipkitError
from support.unchecked import unchecked


def pruned() -> nn.Module:
    layer = nn.Linear(4, 3)
    prune.l1_unstructured(layer, "weight", 0.5)
    return nn.Sequential(layer)


def sparse() -> nn.Module:
    layer = nn.Linear(4, 3)
    layer.weight = nn.Parameter(torch.eye(3, 4).to_sparse())
    return nn.Sequential(layer)


@pytest.mark.parametrize(
    ("model", "remedy"),
    [
        (pruned(), "prune.remove"),
        (sparse(), "dense, first"),
        (nn.Sequential(nn.Linear(4, 3, device="meta")), "0.weight has no values yet"),
        (nn.Sequential(nn.LazyLinear(3)), "has no values yet"),
        (nn.ReLU, "plain torch.nn.Module"),
        (torch.relu, "plain torch.nn.Module"),
        ([nn.ReLU()], "plain torch.nn.Module"),
        (nn.Linear(4, 3).state_dict(), "plain torch.nn.Module"),
    ],
)
def test_what_cannot_be_copied_is_refused(model: Any, remedy: str):
    with unchecked(), pytest.raises(LipkitError, match=remedy):
        lnn.lipschitzify(model)


class Counted(nn.Module):
    """A function of the input that may read a buffer of whole numbers."""

    counts: Tensor

    def __init__(self, function: Callable[["Counted", Tensor], object]) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(4, dtype=torch.int64))
        self.function = function

    def forward(self, x: Tensor) -> object:
        return self.function(self, x)


@pytest.mark.parametrize(
    ("function", "remedy"),
    [
        (lambda self, x: x.type_as(self.counts), "stay with floating numbers"),
        (lambda self, x: x.to(self.counts), "stay with floating numbers"),
        (lambda self, x: x.to(other=self.counts), "stay with floating numbers"),
        (lambda self, x: x.to(self.counts.dtype), "stay with floating numbers"),
        (lambda _, x: x.view(dtype=torch.float16), "use .to"),
        (lambda _, x: x.chunk(2, 1), "return one tensor"),
        (lambda _, x: torch.split(x, 1, 1)[1:], "return one tensor"),
    ],
)
def test_jumps_and_tuples_that_moves_can_make_are_refused(function: Callable[[Counted, Tensor], object], remedy: str):
    with pytest.raises(LipkitError, match=remedy):
        lnn.lipschitzify(Counted(function))


def test_types_of_floating_tensors_are_taken():
    class Typed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.to(self.layer.weight.dtype).to(self.layer.weight)).to(torch.float64).chunk(2, 1)[0]

    twin, _ = lnn.lipschitzify(Typed())
    assert twin(torch.zeros(3, 4)).shape == (3, 1)
