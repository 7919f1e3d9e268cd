"""Chains that promise a constant as a whole are taken apart for the page, and stay as they are in the model."""

import torch
from torch import Tensor, nn

from lipkit import nn as lnn
from lipkit.bound import Metric
from lipkit.bounds.certificates.issue import table_on
from lipkit.regions import Everywhere
from lipkit.report.results.gather import open_chains
from lipkit.report.results.spectra import spectra
from lipkit.trace.capture import capture


class Holder(nn.Module):
    """A chain in a chain, with one layer in two places, in a module of somebody else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        twice = lnn.Linear(6, 6)
        self.body = lnn.Sequential(twice, lnn.MaxMin(), lnn.Sequential(twice, lnn.MaxMin(), K=0.5), K=3.0)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def names(model: nn.Module) -> list[str]:
    network = capture(model, torch.zeros(1, 6))
    return [one.name for one in spectra(network).shown]


def test_the_layers_of_a_chain_are_seen() -> None:
    model = Holder().eval()
    assert names(model) == ["head"]
    assert names(open_chains(model)) == ["body.0", "body.2.0", "head"]
    rows = table_on(capture(open_chains(model), torch.zeros(1, 6)), Metric(2, 2), Everywhere(), savings=False)
    assert sum("Linear 6->6" in row.operator for row in rows) == 2


def test_it_computes_the_same_and_leaves_the_model_alone() -> None:
    model = Holder().eval()
    before = str(model)
    plain, x = open_chains(model), torch.randn(5, 6)
    assert torch.equal(plain(x), model(x))
    assert str(model) == before
    assert {id(one) for one in plain.parameters()} == {id(one) for one in model.parameters()}
    parts = [module for module in plain.modules() if isinstance(module, lnn.Linear)]
    assert len(parts) == 1
    assert not any(isinstance(module, lnn.Sequential) for module in plain.modules())


def test_a_model_without_chains_is_itself() -> None:
    model = nn.Sequential(nn.Linear(2, 2), lnn.SLL(2))
    assert open_chains(model) is model
