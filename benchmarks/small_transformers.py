"""Local constants of small transformers around an example: the bound, a proven lower bound, their ratio, and seconds.

Claims: on the ball of radius 1e-3 the bound is within 10 times the lower bound for every architecture, and with
`--layers 4 --spread 0.2` for GPT-2, Llama, Mistral, Qwen3 and T5, on a machine with a core to spare: a busy one ends
the budget before `Linearization`. At 0.05 no claim is made. The exit status is 1 if an upper bound is below a lower
one.

    python benchmarks/small_transformers.py [--models gpt2 vit ...] [--radii 1e-3 0.05] [--spread 0.02] [--budget 60]

Random weights from the configurations of the package transformers, 2 layers of width 32 with 4 heads (`--layers`,
`--width`), on 8 tokens given as embeddings, or on images of 16 x 16 in patches of 4. `--spread` is the standard
deviation of the weights where a configuration has one. Seconds are of the bound alone, on a captured network.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from timing import machine
from torch import Tensor, nn

from lipkit import Ball
from lipkit.bounds import Auto, GradientAscent
from lipkit.trace.capture import capture

TOKENS = 8


@dataclass(frozen=True)
class Size:
    """How large a model is, and how its weights are drawn."""

    layers: int
    width: int
    heads: int
    spread: float


class Embedded(nn.Module):
    """The last hidden state of a model of sequences, of the embeddings of one."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, tokens, width)."""
        return self.model(inputs_embeds=x).last_hidden_state


class Seen(nn.Module):
    """The last hidden state of a model of images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, 3, 16, 16)."""
        return self.model(pixel_values=x).last_hidden_state


def gpt2(s: Size) -> nn.Module:
    """GPT-2."""
    config = transformers.GPT2Config(
        vocab_size=16, n_positions=TOKENS, n_embd=s.width, n_layer=s.layers, n_head=s.heads, initializer_range=s.spread
    )
    return Embedded(transformers.GPT2Model(config))


def _decoder(s: Size) -> dict[str, Any]:
    return {
        "vocab_size": 16,
        "hidden_size": s.width,
        "intermediate_size": 2 * s.width,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "num_key_value_heads": s.heads // 2,
        "max_position_embeddings": TOKENS,
        "initializer_range": s.spread,
        "use_cache": False,
    }


def llama(s: Size) -> nn.Module:
    """Llama."""
    return Embedded(transformers.LlamaModel(transformers.LlamaConfig(**_decoder(s))))


def mistral(s: Size) -> nn.Module:
    """Mistral."""
    return Embedded(transformers.MistralModel(transformers.MistralConfig(**_decoder(s))))


def qwen3(s: Size) -> nn.Module:
    """Qwen 3, whose queries and keys are normalised."""
    return Embedded(transformers.Qwen3Model(transformers.Qwen3Config(**_decoder(s), head_dim=s.width // s.heads)))


def t5(s: Size) -> nn.Module:
    """The encoder of T5."""
    config = transformers.T5Config(
        vocab_size=16, d_model=s.width, d_kv=s.width // s.heads, d_ff=2 * s.width, num_layers=s.layers,
        num_heads=s.heads, initializer_factor=s.spread / 0.02,
    )  # fmt: skip
    return Embedded(transformers.T5EncoderModel(config))


def mamba(s: Size) -> nn.Module:
    """Mamba."""
    config = transformers.MambaConfig(
        vocab_size=16, hidden_size=s.width, num_hidden_layers=s.layers, state_size=4, initializer_range=5 * s.spread,
        use_cache=False,
    )  # fmt: skip
    return Embedded(transformers.MambaModel(config))


def _vision(s: Size) -> dict[str, Any]:
    return {
        "hidden_size": s.width,
        "num_hidden_layers": s.layers,
        "num_attention_heads": s.heads,
        "image_size": 16,
        "patch_size": 4,
        "initializer_range": s.spread,
    }


def vit(s: Size) -> nn.Module:
    """ViT."""
    config = transformers.ViTConfig(**_vision(s), intermediate_size=2 * s.width)
    return Seen(transformers.ViTModel(config, add_pooling_layer=False))


def clip(s: Size) -> nn.Module:
    """The vision tower of CLIP."""
    config = transformers.CLIPVisionConfig(**_vision(s), intermediate_size=2 * s.width)
    return Seen(transformers.CLIPVisionModel(config))


def dinov2(s: Size) -> nn.Module:
    """DINOv2."""
    return Seen(transformers.Dinov2Model(transformers.Dinov2Config(**_vision(s), mlp_ratio=2)))


MODELS: dict[str, Callable[[Size], nn.Module]] = {
    "gpt2": gpt2, "vit": vit, "clip": clip, "dinov2": dinov2, "llama": llama, "mistral": mistral, "qwen3": qwen3,
    "t5": t5, "mamba": mamba,
}  # fmt: skip


def main() -> None:
    """The table."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    arguments.add_argument("--radii", nargs="+", type=float, default=[1e-3, 0.05])
    arguments.add_argument("--layers", type=int, default=2)
    arguments.add_argument("--width", type=int, default=32)
    arguments.add_argument("--heads", type=int, default=4)
    arguments.add_argument("--spread", type=float, default=0.02)
    arguments.add_argument("--budget", type=float, default=60.0)
    given = arguments.parse_args()
    size = Size(given.layers, given.width, given.heads, given.spread)
    print(f"{machine()}\n{size}, {TOKENS} tokens, Auto({given.budget:g} s)")
    print(f"{'model':8} {'radius':>8} {'lower':>10} {'bound':>10} {'ratio':>10} {'s':>6}  method")
    wrong = False
    for name in given.models:
        torch.manual_seed(0)
        model = MODELS[name](size).eval()
        x = torch.randn(1, 3, 16, 16) if isinstance(model, Seen) else torch.randn(1, TOKENS, given.width)
        network = capture(model, x).detach().to(torch.float64)
        for radius in given.radii:
            region = Ball(x[0].double(), radius)
            lower = float(GradientAscent(steps=10, starts=4)(network, region).value)
            begun = time.monotonic()
            bound = Auto(budget=given.budget)(network, region)
            seconds, value = time.monotonic() - begun, float(bound.value)
            wrong |= value < lower
            numbers = f"{radius:8g} {lower:10.4g} {value:10.4g} {value / lower:10.3g} {seconds:6.1f}"
            print(f"{name:8} {numbers}  {bound.method}", flush=True)
    sys.exit(wrong)


if __name__ == "__main__":
    main()
