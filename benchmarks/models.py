"""Models nobody here wrote: captured and bounded, or refused with the reason. Random weights, nothing is downloaded.

Claim: every model of the list gives a number, a global one where that exists, otherwise one on a ball around an image
(or around the embeddings of a sentence); what is refused is refused by name. The lower bound beside it is the largest
singular value of the Jacobian at the image, by power iteration on the model itself.

    python benchmarks/models.py [--source transformers|timm] [--device cuda] [--radius 0.01] [--only NAME ...]
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lipkit import Ball, Everywhere
from lipkit.bounds import DAG, Local
from lipkit.errors import CaptureError, LipkitError, NeedsRegion
from lipkit.trace import Network
from lipkit.trace.capture import capture

TIMM = (
    "resnet18", "resnet50", "vgg11_bn", "densenet121", "mobilenetv2_100", "efficientnet_b0", "convnext_atto",
    "vit_tiny_patch16_224", "mixer_s32_224", "regnety_002",
)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A model, an example, and what it is a function of."""

    model: nn.Module
    example: Tensor
    wrt: str | None = None


def from_timm(name: str) -> Candidate:
    """A model of timm with random weights."""
    import timm

    model = timm.create_model(name, pretrained=False)
    size = 224
    return Candidate(model, torch.randn(1, 3, size, size))


def from_transformers(name: str) -> Candidate:
    """A model of transformers, built from its configuration class."""
    import transformers as t

    image = torch.randn(1, 3, 224, 224)
    match name:
        case "resnet18":
            config = t.ResNetConfig(layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2])
            return Candidate(t.ResNetForImageClassification(config), image)
        case "bert":
            tokens = torch.randint(0, 30000, (1, 16))
            return Candidate(t.BertModel(t.BertConfig(), add_pooling_layer=False), tokens, "embeddings")
    classes = {
        "resnet50": (t.ResNetConfig, t.ResNetForImageClassification),
        "convnext": (t.ConvNextConfig, t.ConvNextForImageClassification),
        "mobilenetv2": (t.MobileNetV2Config, t.MobileNetV2ForImageClassification),
        "regnet": (t.RegNetConfig, t.RegNetForImageClassification),
        "vit": (t.ViTConfig, t.ViTForImageClassification),
        "deit": (t.DeiTConfig, t.DeiTForImageClassification),
        "swin": (t.SwinConfig, t.SwinForImageClassification),
    }
    config, model = classes[name]
    return Candidate(model(config()), image)


TRANSFORMERS = ("resnet18", "resnet50", "convnext", "mobilenetv2", "regnet", "vit", "deit", "swin", "bert")


def steepness(network: Network, x: Tensor, steps: int = 20) -> float:
    """The largest singular value of the Jacobian at x, from below: a plausibility check, not a proof."""
    v = torch.randn_like(x)
    size = 0.0
    for _ in range(steps):
        v = v / v.norm()
        _, image = torch.func.jvp(network, (x,), (v,))
        size = float(image.norm())
        _, back = torch.func.vjp(network, x)
        v = back(image)[0]
    return size


def line(name: str, make: Callable[[str], Candidate], device: str, radius: float) -> str:
    """The result for one model."""
    torch.manual_seed(0)
    candidate = make(name)
    started = time.perf_counter()
    try:
        network = capture(candidate.model, candidate.example, wrt=candidate.wrt)
    except CaptureError as error:
        return f"{name:22} refused\n{error}"
    traced = time.perf_counter() - started
    network = network.detach().to(device=device)
    started = time.perf_counter()
    point = candidate.example[0] if candidate.wrt is None else torch.randn(network.source)
    where, region = "everywhere", Everywhere()
    try:
        try:
            bound = DAG()(network)
        except NeedsRegion:
            region = Ball(point.double().to(device), radius)
            where = f"ball of {radius:g}"
            bound = Local(DAG())(network, region)
    except LipkitError as error:
        return f"{name:22} {len(network.nodes):5} operations, captured in {traced:.1f} s; no bound: {error}"
    seconds = time.perf_counter() - started
    below = steepness(network.to(dtype=torch.float64), point[None].double().to(device))
    log10 = float(bound.log_value) / 2.302585093
    return (
        f"{name:22} {len(network.nodes):5} operations {traced:6.1f} s   {where:12}  10^{log10:<9.3f} {seconds:7.1f} s"
        f"   at the point {below:.3g}"
    )


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", choices=["transformers", "timm"], default="transformers")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--radius", type=float, default=0.01)
    parser.add_argument("--only", nargs="+")
    args = parser.parse_args()
    names, make = (TIMM, from_timm) if args.source == "timm" else (TRANSFORMERS, from_transformers)
    for name in args.only or names:
        print(line(name, make, args.device, args.radius), flush=True)


if __name__ == "__main__":
    main()
