"""Parameters split between an optimizer on orthonormal matrices and another one."""

from typing import Any

import pytest
import torch
from torch import nn

from lipkit import nn as lnn
from lipkit.errors import ArgumentError
from lipkit.optim import StiefelMuon, split_orthonormal
from support.unchecked import unchecked


def model() -> nn.Module:
    torch.manual_seed(0)
    wide, square, tap = nn.Linear(9, 6), nn.Linear(6, 6), nn.Conv2d(6, 3, 1)
    nn.init.orthogonal_(wide.weight)
    square.weight = nn.Parameter(lnn.near_identity(6))
    nn.init.orthogonal_(tap.weight)
    kernel = nn.Conv2d(2, 18, 3)
    nn.init.orthogonal_(kernel.weight)
    return nn.ModuleDict(
        {"wide": wide, "square": square, "tap": tap, "kernel": kernel, "head": nn.Linear(6, 2),
         "block": lnn.ShiftBlock(8, method=None), "computed": lnn.Linear(6, 6, method=lnn.Polar())}
    )  # fmt: skip


def test_orthonormal_weights_are_found_and_every_parameter_is_in_one_list() -> None:
    net = model()
    tied, others = split_orthonormal(net)
    names = {id(p): name for name, p in net.named_parameters()}
    assert [names[id(p)] for p in tied] == ["wide.weight", "square.weight", "tap.weight", "block.weight"]
    assert sorted(map(id, (*tied, *others))) == sorted(names)


def test_free_numbers_of_a_method_are_left_to_it_even_if_orthonormal() -> None:
    layer = lnn.Linear(6, 6, method=lnn.SingularClip())
    raw = layer.get_parameter("parametrizations.weight.original")
    torch.testing.assert_close(raw @ raw.mT, torch.eye(6), atol=1e-5, rtol=0)
    first = nn.Linear(6, 6)
    nn.init.orthogonal_(first.weight)
    split = split_orthonormal(nn.Sequential(first, layer))
    assert [p is first.weight for p in split.orthonormal] == [True]


def test_optimizers_take_both_lists_and_weights_stay_orthonormal() -> None:
    net = model()["block"]  # pyright: ignore[reportIndexIssue]
    tied, others = split_orthonormal(net)
    optimizers = [StiefelMuon(tied, lr=1e-2), torch.optim.Adam(others, lr=1e-2)]
    before = tied[0].detach().clone()
    for _ in range(3):
        loss = net(torch.randn(2, 8, 3, 3)).square().sum() - net(torch.randn(2, 8, 3, 3)).sum()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
    assert not torch.allclose(before, tied[0])
    # One Björck step a step of training leaves an error of the fourth power of its length.
    torch.testing.assert_close(tied[0] @ tied[0].mT, torch.eye(8), atol=1e-4, rtol=0)


def test_a_model_without_orthonormal_weights_is_refused() -> None:
    with pytest.raises(ArgumentError, match="orthogonal_"):
        split_orthonormal(nn.Linear(4, 4))


def test_a_list_of_modules_is_refused() -> None:
    modules: Any = [nn.Linear(4, 4)]
    with unchecked(), pytest.raises(ArgumentError, match=r"takes a torch.nn.Module, got list"):
        split_orthonormal(modules)


def test_computed_weights_need_no_optimizer_of_their_own() -> None:
    with pytest.raises(ArgumentError, match="which any optimizer may take"):
        split_orthonormal(nn.Sequential(lnn.Linear(4, 4, method=lnn.Spectral()), nn.ReLU()))
