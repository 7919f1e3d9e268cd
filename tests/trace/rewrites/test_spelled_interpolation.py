"""Weighted means and formulas that a model spells out become one node each, and nothing else does."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lipkit.trace.capture import capture
from lipkit.trace.network import Network


class Formula(nn.Module):
    """A model that is one formula of the thirds of its input."""

    def __init__(self, formula: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.formula = formula

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = x.chunk(3, 1)
        return self.formula(a, b, c)


def network_of(formula: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Network:
    return capture(Formula(formula), torch.randn(1, 12))


def names(network: Network) -> list[str]:
    return [str(node) for node in network.nodes if str(node) != "identity"]


MEANS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "difference": lambda a, b, c: a + torch.sigmoid(c) * (b - a),
    "other way round": lambda a, b, c: (b - a) * torch.sigmoid(c) + a,
    "two products": lambda a, b, c: (1 - torch.sigmoid(c)) * a + torch.sigmoid(c) * b,
    "of functions": lambda a, b, c: torch.tanh(a) + torch.sigmoid(c) * (torch.relu(b) - torch.tanh(a)),
}


@pytest.mark.parametrize("name", MEANS)
def test_weighted_means_are_one_node(name: str) -> None:
    network = network_of(MEANS[name])
    assert "weighted mean" in names(network)
    assert "product" not in names(network)
    x = torch.randn(5, 12, dtype=torch.float64)
    expected = MEANS[name](*x.chunk(3, 1))
    # The same function in another order of operations.
    assert torch.allclose(network(x), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "formula",
    [
        lambda a, b, c: a + torch.sigmoid(c) * (b + a),
        lambda a, b, c: a + torch.sigmoid(c) * (b - 2 * a),
        lambda a, b, c: (2 - torch.sigmoid(c)) * a + torch.sigmoid(c) * b,
        lambda a, b, c: (1 - torch.sigmoid(b)) * a + torch.sigmoid(c) * b,
    ],
)
def test_other_sums_of_products_are_not(formula: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
    assert "weighted mean" not in names(network_of(formula))


def test_a_recurrent_cell_has_one_mean_a_step() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(3, 4, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.gru(x)[0]

    model = Last()
    network = capture(model, torch.randn(1, 5, 3))
    # The first step starts from zero: there one product is left.
    assert names(network).count("weighted mean") == 4


def test_formulas_of_two_variables_stay_products() -> None:
    found = names(network_of(lambda a, b, _: torch.sin(a) * torch.sin(b)))
    assert found == ["sin", "sin", "product"]


def test_formulas_without_a_constant_stay_as_they_are() -> None:
    assert names(network_of(lambda a, *_: a**3)) == ["pow(3)"]
    assert names(network_of(lambda a, *_: a * torch.exp(a))) == ["exp", "product"]


def test_a_sum_of_values_is_one_variable() -> None:
    found = network_of(lambda a, b, _: (a + 2 * b) * torch.tanh(3 * a + 6 * b))
    assert len(names(found)) == 1
    assert "formula" in names(found)[0]


def test_functions_with_kinks_are_no_part_of_a_formula() -> None:
    """A formula says that it has no kinks, so that smoothness may be claimed of it."""
    assert "abs" in names(network_of(lambda a, *_: torch.abs(a) * torch.exp(-a * a)))
