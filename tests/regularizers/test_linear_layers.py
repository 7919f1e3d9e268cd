"""Finding the linear layers of ordinary models, at their true input shapes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from lipkit import nn as constrained
from lipkit.errors import ArgumentError, UnsupportedError
from lipkit.linops import Dense, materialize
from lipkit.norms import Auto, spectral_norm
from lipkit.regularizers import NormSum, TrainingNorm, clip_, layers_of, shrink_


def images() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(4, 3, 2, stride=2),
        nn.Flatten(),
        nn.Linear(3 * 8 * 6, 5),
    )


def test_shapes_are_those_of_the_example() -> None:
    found = layers_of(images(), torch.randn(3, 2, 8, 6))
    assert {layer.name: layer.in_shape for layer in found} == {
        "0": (2, 8, 6),
        "3": (4, 8, 6),
        "5": (4, 4, 3),
        "7": (144,),
    }


def test_nothing_of_the_model_is_changed() -> None:
    model = images().train()
    model[2].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    layers_of(model, torch.ones(2, 2, 8, 6))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model] == [True, True, False, True, True, True, True, True]
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_operators_are_the_layers_as_they_are_now() -> None:
    model = images().double()
    layers = layers_of(model, torch.zeros(1, 2, 8, 6, dtype=torch.float64))
    with torch.no_grad():
        model[3].weight.mul_(3)
    x = torch.randn(4, 8, 6, dtype=torch.float64)
    expected = model[3](x[None])[0] - model[3](0 * x[None])[0]
    assert torch.allclose(layers[1].operator().apply(x), expected, atol=1e-12)


class Twice(nn.Module):
    """A convolution used at two sizes, called by keyword, and a matrix that is only used through its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 3, padding=1)
        self.matrix = nn.Linear(3, 3)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        y = self.conv(input=nn.functional.avg_pool1d(self.conv(input=x * scale), 2))
        return nn.functional.linear(y, self.matrix.weight)


@pytest.mark.parametrize("example", ["tuple", "mapping"])
def test_each_shape_of_a_shared_convolution_counts(example: str) -> None:
    x, scale = torch.randn(1, 2, 6), torch.tensor(2.0)
    given = (x, scale) if example == "tuple" else {"x": x, "scale": scale}
    found = layers_of(Twice(), given)
    assert [(layer.name, layer.in_shape) for layer in found] == [
        ("conv", (2, 6)),
        ("conv", (2, 3)),
        ("matrix", (3,)),
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_attention_has_four_projections(packed: bool) -> None:
    size = None if packed else 8
    model: Any = nn.MultiheadAttention(8, 2, batch_first=True, kdim=size and 6, vdim=size and 4)
    x = torch.randn(1, 3, 8)
    other = x if packed else torch.randn(1, 3, 6)
    found = layers_of(model, (x, other, x if packed else torch.randn(1, 3, 4)))
    assert [layer.name for layer in found] == ["query", "key", "value", "out_proj"]
    if packed:
        whole = torch.cat([materialize(layer.operator()) for layer in found[:3]])
        assert torch.equal(whole, model.in_proj_weight)
    NormSum()(found).backward()
    gradient = model.in_proj_weight.grad if packed else model.v_proj_weight.grad
    assert gradient is not None
    assert bool(gradient.any())


def test_an_encoder_layer_is_seen_through_its_fast_path() -> None:
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    names = [layer.name for layer in layers_of(model, torch.randn(1, 3, 8))]
    assert names == ["self_attn.query", "self_attn.key", "self_attn.value", "self_attn.out_proj", "linear1", "linear2"]


def test_constrained_and_parametrized_layers_reach_their_parameters() -> None:
    model: Any = nn.Sequential(
        constrained.Conv2d(2, 4, 3, padding=1), nn.Flatten(), constrained.Linear(64, 5), weight_norm(nn.Linear(5, 2))
    )
    found = layers_of(model, torch.randn(1, 2, 4, 4))
    penalty = NormSum()(found)
    penalty.backward()
    # Constrained layers have norm one, up to the excess of the training norm: 64^(1/128) and the grid's 5 %.
    own = float(spectral_norm(model[3]).value.detach())
    assert 1.9 + own < float(penalty.detach()) < 2.3 + 1.02 * own
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in found[2].parameters() if p.ndim == 2)


def test_what_the_example_does_not_reach_is_refused() -> None:
    model: Any = nn.Module()
    model.used = nn.Linear(2, 2)
    model.spare = nn.Conv2d(1, 1, 3)
    model.forward = model.used.forward  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ArgumentError, match="does not reach spare"):
        layers_of(model, torch.randn(1, 2))
    with pytest.raises(ArgumentError, match="no linear"):
        layers_of(nn.ReLU(), torch.randn(1, 2))


def test_the_training_norm_says_what_it_is() -> None:
    torch.manual_seed(1)
    conv = layers_of(nn.Conv2d(3, 5, 3, padding=1), torch.randn(1, 3, 7, 7))[0].operator()
    small, large = Dense(torch.randn(20, 30)), Dense(torch.randn(300, 280))
    for op in (conv, small, large):
        bound = TrainingNorm()(op)
        truth = float(torch.linalg.svdvals(materialize(op).detach().double())[0])
        assert bound.kind.certifies
        # The grid adds 5 %, six Gram steps rank^(1/128), 5 %; zero padding on 7 x 7 another few.
        assert truth <= float(bound.value.detach()) <= 1.16 * truth
    assert isinstance(TrainingNorm().select(conv @ conv.T), Auto)
    with pytest.raises(ArgumentError, match="warm start"):
        TrainingNorm()(small, state=torch.zeros(3))


def test_shrinking_projects_and_leaves_what_is_inside() -> None:
    model = images().double()
    with torch.no_grad():
        model[0].weight.mul_(10)
        model[7].weight.mul_(0.01)
    layers = layers_of(model, torch.zeros(1, 2, 8, 6, dtype=torch.float64))
    inside = model[7].weight.detach().clone()
    shrink_(layers, limit=0.5)
    for layer in layers:
        # Stored in float64: the scale is rounded once.
        assert float(torch.linalg.svdvals(materialize(layer.operator()).detach())[0]) <= 0.5 * (1 + 1e-15)
    assert torch.equal(model[7].weight, inside)
    first = model[0].weight.detach().clone()
    shrink_(layers, limit=0.5)
    assert torch.allclose(model[0].weight, first, rtol=1e-12)


def test_shrinking_refuses_what_it_cannot_replace() -> None:
    model: Any = nn.Sequential(nn.Linear(3, 3), weight_norm(nn.Linear(3, 3)))
    before = model[0].weight.detach().clone()
    layers = layers_of(model, torch.zeros(1, 3))
    with pytest.raises(UnsupportedError, match="parametrization"):
        shrink_(layers, limit=1e-3)
    assert torch.equal(model[0].weight, before)
    with pytest.raises(ArgumentError, match="positive"):
        shrink_(layers, limit=0.0)


def test_clipping_bounds_entries_and_norms() -> None:
    torch.manual_seed(0)
    model: Any = clip_(nn.Linear(7, 5), 0.01)
    assert float(model.weight.detach().abs().max()) <= 0.01
    assert float(torch.linalg.svdvals(model.weight.detach())[0]) <= 0.01 * 35**0.5
    with pytest.raises(ArgumentError, match="positive"):
        clip_(model, -1.0)
