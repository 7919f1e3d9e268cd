"""Constants that the model itself disproves are refused; true ones never are, however tight."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import lipkit
from lipkit import nn as lnn
from lipkit.bound import Bound, Kind, Metric, Scope
from lipkit.bounds import DAG
from lipkit.certify import accuracy, head_pairwise
from lipkit.certify.evaluate.disproof import refuse_disproved
from lipkit.certify.radii.forward import Forward, Logits
from lipkit.errors import ArgumentError, BrokenCertificateError
from lipkit.regions import Ball

EXPONENTS = (1.0, 2.0, math.inf)


def _exact(weight: Tensor, of: Scope, metric: Metric) -> Tensor:
    """The constants of x -> W x in closed form."""
    dual = {1.0: math.inf, 2.0: 2.0, math.inf: 1.0}[metric.p_in]
    match of:
        case Scope.CLASS:
            return torch.linalg.vector_norm(weight, dual, 1)
        case Scope.PAIR:
            return torch.linalg.vector_norm(weight[:, None] - weight[None], dual, 2)
        case _:
            return torch.linalg.matrix_norm(weight, metric.p_in)


def _bound(value: Tensor, of: Scope, metric: Metric) -> Bound:
    return Bound.from_value(value, Kind.UPPER, "a closed form", metric, of)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    of=st.sampled_from([Scope.WHOLE, Scope.CLASS, Scope.PAIR]),
    p=st.sampled_from(EXPONENTS),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)
def test_exact_constants_pass_and_smaller_ones_of_pairs_do_not(seed: int, of: Scope, p: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    layer = nn.Linear(6, 4)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(4, 6, generator=generator) * scale)
    x = torch.randn(5, 6, generator=generator)
    metric = Metric(p, p)
    exact = _exact(layer.weight.detach().double(), of, metric)
    logits = Forward(layer, x[:1])
    # The smallest margin above the truth that a proven constant could have.
    refuse_disproved(layer, logits, x, _bound(exact * (1 + 1e-12), of, metric))
    if of is Scope.PAIR:
        # The direction looked at is that of a pair, so 1 % is seen; some pair is leading at every input.
        with pytest.raises(BrokenCertificateError, match="disproves the constant"):
            refuse_disproved(layer, logits, x, _bound(exact * 0.99, of, metric))


@pytest.mark.slow
def test_a_constant_of_another_model_does_not_certify() -> None:
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Flatten(), lnn.Linear(12, 32), lnn.MaxMin(), lnn.Linear(32, 4))
    data = TensorDataset(torch.rand(40, 3, 2, 2), torch.randint(0, 4, (40,)))
    bound = head_pairwise(inner, data.tensors[0][:1], DAG())
    accuracy(inner, data, bound, [0.1])
    # The classic: the normalisation is in the model that is evaluated, not in the one that was bounded.
    whole = nn.Sequential(lnn.Normalize([0.5] * 3, [0.25] * 3), inner)
    with pytest.raises(ArgumentError, match="of another network than the one that is evaluated"):
        accuracy(whole, data, bound, [0.1])
    # A number that somebody states does not say what it is of, so only the inputs can tell.
    with pytest.raises(BrokenCertificateError, match="was a normalisation left out"):
        accuracy(whole, data, replace(bound, subject=None), [0.1])
    accuracy(whole, data, head_pairwise(whole, data.tensors[0][:1], DAG()), [0.1])


def test_inputs_are_compared_with_each_other_where_there_is_no_gradient() -> None:
    class Opaque(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                return x @ torch.diag(torch.tensor([3.0, 1.0]))

    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    metric = Metric(2.0, 2.0)
    model = Opaque()
    given = Forward(model, x[:1])
    refuse_disproved(model, given, x, _bound(torch.tensor(3.0), Scope.WHOLE, metric))
    with pytest.raises(BrokenCertificateError, match=r"constant 2\.9"):
        refuse_disproved(model, given, x, _bound(torch.tensor(2.9), Scope.WHOLE, metric))


def test_nothing_is_said_of_a_region_or_of_single_samples() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)
    tiny = _bound(torch.tensor(1e-9), Scope.WHOLE, Metric(2.0, 2.0))
    refuse_disproved(layer, Forward(layer, x[:1]), x, replace(tiny, region=Ball(torch.zeros(3), 1e-3)))


def test_a_trained_looking_network_with_kinks_and_ties_passes() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 8), lnn.MaxMin(), nn.Linear(8, 3))
    # Zeros meet every kink, where formal derivatives may belong to no piece.
    x = torch.cat([torch.zeros(4, 5), torch.randn(8, 5)])
    with torch.no_grad():
        for layer in (model[0], model[2]):
            assert isinstance(layer, nn.Linear)
            layer.bias.zero_()
    refuse_disproved(model, Forward(model, x[:1]), x, lipkit.lipschitz(model, x[:1]))


class Centred(nn.Module):
    """Works in place on what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x.sub_(1.0)
        return self.layer(x)


def test_inputs_are_left_as_they_are() -> None:
    torch.manual_seed(0)
    model, x = Centred(), torch.randn(8, 3)
    before = x.clone()
    bound = _bound(torch.tensor(5.0), Scope.WHOLE, Metric(2.0, 2.0))
    refuse_disproved(model, Forward(model, x[:1]), x, bound)
    assert torch.equal(x, before)


class Several(nn.Module):
    """Gives more than its scores."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :2], x


class Shy(nn.Module):
    """Refuses to be differentiated."""

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad:
            raise ValueError("no gradients here")
        return x[:, :2]


@pytest.mark.parametrize("model", [Several(), Shy()])
def test_models_that_cannot_be_differentiated_are_compared_all_the_same(model: nn.Module) -> None:
    x = torch.randn(6, 3)

    def scores(points: Tensor) -> Logits:
        return Logits(points[:, :2].double(), torch.zeros(len(points), dtype=torch.float64))

    refuse_disproved(model, scores, x, _bound(torch.tensor(1.0 + 1e-9), Scope.WHOLE, Metric(2.0, 2.0)))
    with pytest.raises(BrokenCertificateError):
        refuse_disproved(model, scores, x, _bound(torch.tensor(0.1), Scope.WHOLE, Metric(2.0, 2.0)))


def test_data_made_in_inference_mode_are_no_obstacle() -> None:
    with torch.inference_mode():
        x = torch.randn(8, 3)
    layer, labels = nn.Linear(3, 2), torch.zeros(8, dtype=torch.long)
    accuracy(layer, [(x, labels)], lipkit.lipschitz(layer, torch.zeros(1, 3)), [0.1])


@pytest.mark.parametrize(("dtype", "size"), [(torch.float16, 6.4e4), (torch.float32, 3.3e38)])
def test_steps_stay_in_the_range_of_numbers(dtype: torch.dtype, size: float) -> None:
    layer = nn.Linear(3, 2)
    nn.init.constant_(layer.weight, 1e-20)
    x = torch.full((4, 3), size, dtype=dtype)
    refuse_disproved(layer, Forward(layer, torch.zeros(1, 3)), x, lipkit.lipschitz(layer, torch.zeros(1, 3)))


def test_a_probe_that_the_scores_refuse_says_nothing() -> None:
    layer, x = nn.Linear(3, 2), torch.rand(4, 3)
    found = Forward(layer, x[:1])

    def scores(points: Tensor) -> Logits:
        if bool((points > 1).any()) or bool((points < 0).any()):
            raise ValueError("pixels lie in [0, 1]")
        return found(points)

    refuse_disproved(layer, scores, x, lipkit.lipschitz(layer, x[:1]))


def test_an_infinite_constant_beside_a_false_one_hides_nothing() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(8, 3)
    x[1] = x[0]
    bound = Bound(
        torch.tensor([math.log(0.001), 800.0], dtype=torch.float64), Kind.UPPER, "one of each", of=Scope.CLASS
    )
    with pytest.raises(BrokenCertificateError, match=r"constant 0\.001 "):
        refuse_disproved(layer, Forward(layer, x[:1]), x, bound)


@pytest.mark.parametrize("of", [Scope.WHOLE, Scope.CLASS, Scope.PAIR])
def test_what_the_error_of_the_logits_may_have_moved_disproves_nothing(of: Scope) -> None:
    # Equal at all points in truth: what moves is error, up to its bound at both points and in both of two scores.
    model = nn.Linear(3, 2)
    x = torch.randn(6, 3)
    calls: list[int] = []

    def scores(points: Tensor) -> Logits:
        calls.append(len(points))
        sign = 1.0 if len(calls) == 1 else -1.0
        value = torch.tensor([[sign, -sign]], dtype=torch.float64).expand(len(points), 2)
        return Logits(value, torch.ones(len(points), dtype=torch.float64))

    value = torch.zeros((2,) * of.axes, dtype=torch.float64) + 1e-12
    refuse_disproved(model, scores, x, _bound(value, of, Metric(2.0, 2.0)))
    assert len(calls) == 5
