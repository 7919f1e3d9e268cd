"""Attention in a traced model, as attention with a constant."""

import inspect
import operator
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from lipkit.errors import ShapeError
from lipkit.nn.attention.cosine_attention import CosineMixing
from lipkit.nn.attention.l2_attention import L2Attention
from lipkit.nn.conversion.conversion_report import ConversionVerdict
from lipkit.nn.conversion.replacement import Choices, Refusal
from lipkit.nn.conversion.transfer import take_bias, take_weight
from lipkit.nn.core.bounded_length import wide
from lipkit.nn.core.known_constants import SAFE, Contraction
from lipkit.nn.core.precision import uncast

if TYPE_CHECKING:
    from lipkit.nn.conversion.graph_walk import Walk

# Signals in a twin are about a tenth to a hundredth of one: squared distances count this many times at the start, and
# tokens are shortened from this length on.
_SCALE = 50.0
_LENGTH = 0.3
_ARGUMENTS = inspect.signature(nn.MultiheadAttention.forward)


@final
class JoinedMixing(Contraction):
    """`CosineMixing` of queries, keys and values that come side by side, as one input. Guarantee: constant 1."""

    def __init__(self, is_causal: bool, length: float) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.mixing = CosineMixing(1, 1.0, length)

    def forward(self, joined: Tensor, width: int) -> Tensor:
        """The mixed values; queries and keys have `width` entries each."""
        q, k, v = joined.split((width, width, joined.shape[-1] - 2 * width), -1)
        with uncast(q.device.type):
            return self.mixing(wide(q), wide(k), wide(v), None, self.is_causal).to(joined.dtype)


@final
class MixedTokens(nn.Module):
    """softmax(t q^ k^') v^ / c (`CosineMixing`) of three tensors that are 1-Lipschitz functions of one input: so is it.

    Together the three have constant sqrt(3), by which the result is divided too.

    Args:
        is_causal: Whether token i sees only the tokens up to i.
        length: The length from which on rows are shortened, at the start.
    """

    def __init__(self, is_causal: bool, length: float = _LENGTH) -> None:
        super().__init__()
        self.joined = JoinedMixing(is_causal, length)

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The mixed values."""
        if not q.shape[:-1] == k.shape[:-1] == v.shape[:-1]:
            raise ShapeError(
                f"Queries, keys and values of one sequence have shapes that differ in the last axis at most, got "
                f"{tuple(q.shape)}, {tuple(k.shape)} and {tuple(v.shape)}; attend to the same sequence."
            )
        return self.joined(torch.cat([q, k, v], -1), q.shape[-1]) * (SAFE / 3**0.5)


def attention_twin(module: nn.MultiheadAttention, is_causal: bool, choices: Choices) -> L2Attention:
    """L2 attention of the same sizes. Its first weight starts from the queries', its second from W_O W_V."""
    name = "nn.MultiheadAttention"
    if not module.batch_first:
        raise Refusal(f"sequences come as (tokens, batch, size); build {name} with batch_first=True")
    if module.bias_k is not None or module.add_zero_attn:
        raise Refusal(f"added keys have no counterpart; build {name} without add_bias_kv and add_zero_attn")
    if not isinstance(module.in_proj_weight, Tensor):
        raise Refusal("keys and values of other sizes belong to another sequence; use self-attention")
    weight, out = module.in_proj_weight, module.out_proj
    place = {"device": weight.device, "dtype": weight.dtype}
    twin = L2Attention(
        module.embed_dim, module.num_heads, out.bias is not None, **place,
        is_causal=is_causal, scale=_SCALE, method=choices.linear,
    )  # fmt: skip
    queries, _, values = weight.detach().chunk(3)
    take_weight(twin.in_proj, _linear(queries, None), choices.start)
    mixed = _linear(out.weight.detach() @ values, out.bias)
    take_weight(twin.out_proj, mixed, choices.start)
    # Values of the original have another size than those of the twin, whatever the start.
    take_bias(twin.out_proj, mixed, 0.0)
    return twin


def convert_attention(walk: "Walk", node: fx.Node, module: nn.MultiheadAttention) -> None:
    """attention(x, x, x)[0], as L2 attention; anything but self-attention is refused."""
    given = _ARGUMENTS.bind(None, *node.args, **node.kwargs)
    given.apply_defaults()
    arguments: dict[str, Any] = given.arguments
    source = arguments["query"]
    if source not in walk.scales or arguments["key"] is not source or arguments["value"] is not source:
        raise Refusal("attention to another sequence has no counterpart; use self-attention, attention(x, x, x)")
    masked = arguments["attn_mask"] is not None and not arguments["is_causal"]
    if masked or arguments["key_padding_mask"] is not None:
        raise Refusal("masks that are tensors have no counterpart; leave them out, or set is_causal=True")
    keep_first(node, "use its output alone, attention(x, x, x, need_weights=False)[0]")
    dropped = ", without dropout" if module.dropout else ""
    walk.exchange(node, source, lambda: attention_twin(module, bool(arguments["is_causal"]), walk.choices))
    words = f"L2Attention, scores are distances{dropped}, {walk.choices.start}"
    walk.report(node, ConversionVerdict.CHANGED, words)


def convert_function(walk: "Walk", node: fx.Node) -> None:
    """F.scaled_dot_product_attention(q, k, v), as attention by angles."""
    given = inspect.Signature(
        [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("query", "key", "value")]
        + [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=d) for n, d in _OPTIONS.items()]
    ).bind(*node.args, **node.kwargs)
    given.apply_defaults()
    arguments: dict[str, Any] = given.arguments
    parts = tuple(arguments[name] for name in ("query", "key", "value"))
    if not all(part in walk.scales for part in parts):
        raise Refusal("queries, keys and values that do not all depend on the input have no counterpart")
    if arguments["attn_mask"] is not None or arguments["enable_gqa"] is not False:
        raise Refusal(
            "masks that are tensors, and shared keys, have no counterpart; leave them out, or set is_causal=True"
        )
    if not isinstance(arguments["is_causal"], bool):
        raise Refusal("whether it is causal must be a plain value; write is_causal=True or is_causal=False")
    dropped = ", without dropout" if arguments["dropout_p"] != 0.0 else ""
    walk.report(node, ConversionVerdict.CHANGED, f"attention by angles, divided by its constant{dropped}")
    walk.replace_node(node, walk.place(MixedTokens(arguments["is_causal"])), parts, 1.0)


_OPTIONS: dict[str, Any] = {
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}
IS_ATTENTION = functional.scaled_dot_product_attention


def keep_first(node: fx.Node, remedy: str) -> None:
    """Let a node that gave a tuple give its first part; users of other parts are refused."""
    _drop_unused(node)
    for user in list(node.users):
        first = user.args[1:] == (0,)
        if user.target is not operator.getitem or not first:
            raise Refusal(f"more than its first result is used; {remedy}")
    for user in list(node.users):
        user.replace_all_uses_with(node)
        node.graph.erase_node(user)


def _drop_unused(node: fx.Node) -> None:
    """Erase the parts that a model takes out and leaves, as in `out, (h, c) = lstm(x)`."""
    for user in list(node.users):
        if user.target is operator.getitem:
            _drop_unused(user)
            if not user.users:
                node.graph.erase_node(user)


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    plain = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, weight.device, weight.dtype)
    with torch.no_grad():
        plain.weight.copy_(weight)
        if bias is not None:
            plain.bias.copy_(bias)
    return plain
