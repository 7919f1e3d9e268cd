"""Ways in which a traced graph can lie about a model, 1 to 7, each with a model that would fall into it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

from lipkit.errors import CaptureError
from lipkit.linops import BatchNorm
from lipkit.trace.capture import capture
from support.networks.short_models import Model, agrees, linear, model, parts_of, vector

# 1. In-place operations: the raw graph would return the value from before them.


def test_in_place_operations_are_seen():
    def run(self: Any, x: Tensor) -> Tensor:
        y = self.a(x)
        y[:, :4].mul_(10)
        return y

    module = model(run, a=linear())
    network = capture(module, vector())
    agrees(network, module, vector())
    plain = capture(module.a, vector())
    ratio = network(vector()) - network(vector() * 0), plain(vector()) - plain(vector() * 0)
    assert torch.allclose(ratio[0][:, :4], 10 * ratio[1][:, :4])


def test_an_input_changed_in_place_is_left_alone():
    module = model(lambda self, x: self.a(x.relu_()), a=linear())
    x = vector()
    before = x.clone()
    network = capture(module, x)
    agrees(network, module, x)
    assert torch.equal(x, before)


# 2. Functional, method and module variants are one operation.


@pytest.mark.parametrize(
    "relu",
    [
        functional.relu,
        torch.relu,
        Tensor.relu,
        lambda x: x.clone().relu_(),
        nn.ReLU(inplace=True),
        lambda x: x.clamp(min=0),
        lambda x: torch.clamp_min(x, 0),
        lambda x: functional.threshold(x, 0.0, 0.0),
        lambda x: functional.leaky_relu(x, 0.0),
    ],
)
def test_variants_of_relu_agree(relu: Callable[[Tensor], Tensor]):
    module = model(lambda self, x: self.b(relu(self.a(x))), a=linear(), b=linear())
    network = capture(module, vector())
    agrees(network, module, vector())
    constants = [float(node.log_constant(2.0)) for node in network.nodes]
    # log 1, rounded up by at most a unit.
    assert max(constants) <= 1e-15


# 3. Batch norm.


def test_batch_norm_in_evaluation_is_a_visible_diagonal():
    module: Any = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).double()
    _ = module(torch.randn(4, 2, 6, 6, dtype=torch.float64))
    network = capture(module, torch.randn(2, 2, 6, 6, dtype=torch.float64))
    found = [part for op in network.blocks.values() for part in parts_of(op) if isinstance(part, BatchNorm)]
    assert len(found) == 1
    assert found[0].weight is module[1].weight
    assert found[0].variance is module[1].running_var


def test_the_mode_and_the_buffers_are_put_back():
    module: Any = nn.Sequential(nn.BatchNorm1d(6), nn.Sequential(nn.Dropout(0.5), nn.ReLU())).double()
    module[1][1].training = False
    modes = [child.training for child in module.modules()]
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    _ = capture(module, vector())
    assert [child.training for child in module.modules()] == modes
    assert all(torch.equal(value, buffers[name]) for name, value in module.named_buffers())


def test_the_mode_is_put_back_after_an_error():
    module: Any = Model(lambda self, x: self.drop(x).fmod(2.0), drop=nn.Dropout(0.5)).double()
    with pytest.raises(CaptureError):
        _ = capture(module, vector())
    assert module.training
    assert module.drop.training


def test_statistics_of_the_batch_are_refused():
    module = nn.Sequential(nn.BatchNorm1d(6, track_running_stats=False), nn.ReLU()).double()
    with pytest.raises(CaptureError, match=r"batch statistics.*track running statistics"):
        _ = capture(module, vector()[:, :, None].expand(-1, -1, 4))


def test_running_statistics_that_are_updated_are_refused():
    def run(self: Any, x: Tensor) -> Tensor:
        return functional.batch_norm(x, self.norm.running_mean, self.norm.running_var, training=True)

    with pytest.raises(CaptureError, match=r"changes its own state.*norm.running_mean"):
        _ = capture(model(run, norm=nn.BatchNorm1d(6)), vector()[:, :, None].expand(-1, -1, 4))


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    count: Tensor

    def __init__(self, by_assignment: bool) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.by_assignment = by_assignment

    def forward(self, x: Tensor) -> Tensor:
        if self.by_assignment:
            self.count = self.count + 1
        else:
            self.count += 1
        return x * self.count


@pytest.mark.parametrize("by_assignment", [True, False])
def test_a_model_that_changes_its_buffers_is_refused(by_assignment: bool):
    module = Counter(by_assignment)
    with pytest.raises(CaptureError, match=r"changes its own state in evaluation mode: count"):
        _ = capture(module, vector())
    assert module.count == 0


# 4. Dropout and noise.


def test_dropout_in_evaluation_is_nothing():
    module = nn.Sequential(linear(), nn.Dropout(0.9), nn.Dropout1d(0.9), nn.AlphaDropout(0.9)).double()
    network = capture(module, vector())
    agrees(network, module.eval(), vector())


@pytest.mark.parametrize(
    "noise",
    [
        functional.dropout,
        lambda x: functional.alpha_dropout(x, training=True),
        lambda x: functional.rrelu(x, training=True),
        lambda x: x + torch.randn_like(x),
        lambda x: x * torch.rand(6),
        torch.bernoulli,
    ],
)
def test_noise_is_refused(noise: Callable[[Tensor], Tensor]):
    module = model(lambda self, x: self.a(noise(x)), a=linear())
    with pytest.raises(CaptureError, match="draws random numbers"):
        _ = capture(module, vector().sigmoid())


# 5. Attention is one node.


def test_attention_is_one_node():
    def run(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.a(x).chunk(3, -1)
        return functional.scaled_dot_product_attention(q, k, v)

    module = model(run, a=linear(6, 18))
    x = torch.randn(2, 4, 6, dtype=torch.float64)
    network = capture(module, x)
    agrees(network, module, x)
    assert sum("scaled_dot_product_attention" in network.origin(k).op for k in range(1, network.sink)) >= 1
    assert not any("softmax" in network.origin(k).op for k in range(1, network.sink))


def test_the_encoder_layer_of_torch_is_captured():
    module = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).double().eval()
    x = torch.randn(2, 3, 8, dtype=torch.float64)
    network = capture(module, x)
    agrees(network, module, x)


# 6. Parametrized weights are folded, once, and stay live.


@pytest.mark.parametrize(
    "parametrize", [parametrizations.spectral_norm, parametrizations.weight_norm, parametrizations.orthogonal]
)
def test_parametrized_weights_are_live(parametrize: Callable[[nn.Module], nn.Module]):
    layer: Any = parametrize(linear(6, 5)).double()
    module = nn.Sequential(layer, nn.ReLU(), linear(5, 2).double())
    network = capture(module, vector())
    agrees(network, module.eval(), vector())
    (operator,) = [op for (k, _), op in network.blocks.items() if network.origin(k).module == "0" and op.tensors()]
    (weight,) = operator.tensors()
    loss = weight.square().sum() + (weight**3).sum()
    expected = layer.weight.square().sum() + (layer.weight**3).sum()
    assert torch.equal(loss, expected)
    originals = [p for name, p in layer.named_parameters() if "parametrizations" in name]
    for found, wanted in zip(
        torch.autograd.grad(loss, originals), torch.autograd.grad(expected, originals), strict=True
    ):
        # One computation, run twice.
        assert torch.allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_a_weight_used_twice_is_computed_once():
    layer = parametrizations.weight_norm(linear()).double()
    network = capture(nn.Sequential(layer, nn.ReLU(), layer), vector())
    weights = [op.tensors() for (k, _), op in network.blocks.items() if network.origin(k).module and op.tensors()]
    assert len(weights) == 2
    assert weights[0][0] is weights[1][0]


def test_plain_weights_are_the_parameters_themselves():
    module = nn.Sequential(linear(), nn.ReLU(), linear())
    network = capture(module, vector().float())
    assert {id(p) for p in module.parameters() if p.ndim == 2} <= {id(t) for t in network.tensors()}


# 7. Shapes: one sample, whatever the example's batch.


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_the_network_is_that_of_one_sample(batch: int):
    network = capture(nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5)), torch.randn(batch, 2, 4, 4))
    assert (network.source, network.target) == ((2, 4, 4), (5,))


def test_a_squeeze_that_takes_the_batch_axis_is_followed():
    module = model(lambda self, x: self.a(x).squeeze(), a=linear(6, 1))
    network = capture(module, vector())
    assert network.target == (1,)
    agrees(network, module, vector())
