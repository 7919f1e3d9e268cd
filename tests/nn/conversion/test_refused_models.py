"""What cannot be converted at all is refused in one sentence of lipkit, with what to do."""

from typing import Any

import pytest
import torch
from torch import nn
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
