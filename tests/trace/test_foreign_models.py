"""Models of transformers, built small from their configuration classes: captured as they are, and bounded."""

import warnings

import pytest
import torch
from torch import Tensor, nn

from lipkit import Ball, Everywhere, Kind, capture
from lipkit.bounds import DAG, Local, Sampling
from lipkit.errors import NeedsRegion
from lipkit.trace import Network

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    t = pytest.importorskip("transformers", reason="transformers is not installed")

IMAGE = {"num_channels": 3}
SMALL = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}


def image_model(name: str) -> nn.Module:
    """The architecture with its own layer types and wiring, but few channels."""
    configs = {
        "resnet18": lambda: t.ResNetForImageClassification(
            t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[2, 2], layer_type="basic")
        ),
        "resnet50": lambda: t.ResNetForImageClassification(
            t.ResNetConfig(embedding_size=8, hidden_sizes=[16, 24], depths=[2, 1], layer_type="bottleneck")
        ),
        "convnext": lambda: t.ConvNextForImageClassification(
            t.ConvNextConfig(hidden_sizes=[8, 12], depths=[1, 1], num_stages=2, patch_size=4)
        ),
        "mobilenetv2": lambda: t.MobileNetV2ForImageClassification(
            t.MobileNetV2Config(depth_multiplier=0.1, min_depth=4, depth_divisible_by=4, classifier_dropout_prob=0.0)
        ),
        "regnet": lambda: t.RegNetForImageClassification(
            t.RegNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], groups_width=4)
        ),
        "vit": lambda: t.ViTForImageClassification(t.ViTConfig(image_size=32, patch_size=16, **SMALL)),
        "deit": lambda: t.DeiTForImageClassification(t.DeiTConfig(image_size=32, patch_size=16, **SMALL)),
        "swin": lambda: t.SwinForImageClassification(
            t.SwinConfig(image_size=16, patch_size=4, embed_dim=4, depths=[2, 1], num_heads=[1, 1], window_size=2)
        ),
    }
    torch.manual_seed(0)
    return configs[name]().eval()


def agrees(network: Network, model: nn.Module, x: Tensor) -> None:
    expected = model(x).logits.detach()
    found = network(x).detach()
    # Float32 sums in another order, through some dozens of layers.
    assert (found - expected).abs().max() <= 1e-4 * (1 + expected.abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50", "convnext", "mobilenetv2"])
def test_global_bounds(name: str):
    model, x = image_model(name), torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    network = capture(model, x).detach()
    agrees(network, model, x)
    bound = DAG()(network)
    assert bound.kind is Kind.UPPER
    assert bound.region == Everywhere()
    assert bound.value > Sampling(count=4)(network).value


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regnet", "vit", "deit", "swin"])
def test_bounds_on_a_ball(name: str):
    side = 16 if name == "swin" else 32
    model, x = image_model(name), torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(1))
    network = capture(model, x).detach()
    agrees(network, model, x)
    region = Ball(x[0].double(), 1e-3)
    bound = Local(DAG())(network, region)
    if name == "regnet":
        with pytest.raises(NeedsRegion, match="bounded region"):
            DAG()(network)
    else:
        # Attention behind a normalisation receives bounded values, whatever the input is.
        assert bound.value < DAG()(network).value
    assert bound.kind is Kind.UPPER
    assert bound.value > Sampling(count=4)(network, region).value


@pytest.mark.slow
def test_bert_is_a_function_of_its_embeddings():
    torch.manual_seed(0)
    model = t.BertModel(t.BertConfig(vocab_size=50, **SMALL), add_pooling_layer=False).eval()
    tokens = torch.randint(0, 50, (1, 6))
    network = capture(model, tokens, wrt="embeddings").detach()
    assert network.source == (6, 12)
    embedded = model.embeddings(tokens).detach()
    expected = model(tokens).last_hidden_state.detach()
    assert (network(embedded) - expected).abs().max() <= 1e-5 * expected.abs().max()
    region = Ball(embedded[0].double(), 1e-3)
    bound = Local(DAG())(network, region)
    assert bound.value > Sampling(count=4)(network, region).value
