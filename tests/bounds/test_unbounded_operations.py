"""What is said of operations without a constant depends on what was given: a region, and a method that reads it."""

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor

import lipkit
from lipkit.bounds import DAG, Auto, LipLT, Local
from lipkit.bounds._base import Method
from lipkit.bounds.lower.sampling import matrix_norms
from lipkit.certify import Forward
from lipkit.errors import NeedsRegion
from lipkit.regions import Ball, Region
from support.networks.short_models import linear, model, vector


def logarithm(self: Any, x: Tensor) -> Tensor:
    return self.a(x).log()


def squares(self: Any, x: Tensor) -> Tensor:
    y = self.a(x)
    for _ in range(3):
        y = y * self.b(x)
    return y


def refusal(run: Any, method: Method, region: Region) -> str:
    with pytest.raises(NeedsRegion) as caught:
        lipkit.lipschitz(model(run, a=linear(), b=linear()), vector(), method, region)
    return str(caught.value)


def test_without_a_region_one_is_asked_for():
    text = refusal(logarithm, DAG(), lipkit.Everywhere())
    assert "log" in text
    assert "on the whole space. Give a bounded region" in text


@pytest.mark.parametrize("method", [Auto(budget=0.5), Local(DAG()), Local(LipLT())])
def test_with_a_region_the_range_is_named_and_no_region_is_asked_for(method: Method):
    center = vector()[0]
    text = refusal(logarithm, method, Ball(center, 2.0))
    assert "Give a bounded region" not in text
    weight, bias = linear().double().weight.detach(), linear().double().bias.detach()
    # The range of a linear map on a ball, in closed form; six digits are printed.
    middle, spread = weight @ center + bias, 2 * torch.linalg.vector_norm(weight, dim=1)
    low, high = float((middle - spread).min()), float((middle + spread).max())
    assert f"values from {low:.6g} to {high:.6g}" in text
    assert "smaller region" in text


def test_a_method_that_does_not_read_the_region_says_so():
    text = refusal(logarithm, DAG(), Ball(vector()[0], 0.5))
    assert "Give a bounded region" not in text
    assert "Local(DAG(...))" in text
    assert "l2 ball of radius 0.5" in text


def test_one_place_is_named_once_with_its_count():
    text = refusal(squares, DAG(), lipkit.Everywhere())
    assert text.count("mul.Tensor") == 1
    assert "3 times" in text


def test_a_forward_pass_takes_no_region_and_asks_for_none():
    with pytest.raises(NeedsRegion, match="rounding error of the logits") as caught:
        Forward(model(logarithm, a=linear()), vector())
    assert "egion" not in str(caught.value)


def test_three_factors_are_not_sent_to_a_region():
    cube = model(lambda _self, x: torch.einsum("bi,bi,bi->b", x, x, x))
    with pytest.raises(lipkit.errors.CaptureError, match="products of two factors") as caught:
        lipkit.lipschitz(cube, vector())
    assert "region" not in str(caught.value)


def test_the_refusal_survives_a_process_boundary():
    error = NeedsRegion("log: no constant.", "Do this.")
    assert str(pickle.loads(pickle.dumps(error))) == "log: no constant. Do this."


def test_norms_of_jacobians_do_not_overflow():
    matrix = torch.tensor([[[3.0, 0.0], [0.0, 4.0]]], dtype=torch.float64)
    norm, direction = matrix_norms(torch.cat([matrix * 1e200, matrix, matrix * 1e-200, matrix * torch.inf]), lipkit.L2)
    # Two products with exact factors and a root.
    assert torch.allclose(norm[:3], torch.tensor([4e200, 4.0, 4e-200], dtype=torch.float64), rtol=1e-12, atol=0)
    assert torch.allclose(direction[:3].abs(), torch.tensor([0.0, 1.0], dtype=torch.float64).expand(3, 2))
    assert float(norm[3]) == 0


def test_a_bound_on_a_giant_region_has_a_lower_bound_or_none_but_no_crash():
    product = model(lambda self, x: self.a(x) * self.b(x), a=linear(), b=linear())
    found = lipkit.lipschitz(product, vector(), Auto(budget=0.5), Ball(vector()[0], 1e200))
    assert float(found.value.detach()) > 1e200
