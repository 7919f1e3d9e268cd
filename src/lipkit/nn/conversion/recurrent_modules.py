"""Recurrent layers in a traced model, as recurrent layers with a constant."""

from typing import TYPE_CHECKING

from torch import fx, nn

from lipkit.nn.conversion.attention_modules import keep_first
from lipkit.nn.conversion.conversion_report import ConversionVerdict
from lipkit.nn.conversion.replacement import Choices, Refusal
from lipkit.nn.recurrent.sequences import GRU, RNN

if TYPE_CHECKING:
    from lipkit.nn.conversion.graph_walk import Walk

# Signals in a twin are small: gates open and close for numbers of this size at the start.
_LENGTH = 0.1
CELLS = (nn.RNNCell, nn.GRUCell, nn.LSTMCell)


def recurrent_twin(module: nn.RNNBase, choices: Choices) -> RNN | GRU:
    """A recurrent layer of the same sizes, with weights of its own start: gates and states mean something else."""
    name = f"nn.{type(module).__name__}"
    if not module.batch_first:
        raise Refusal(f"sequences come as (tokens, batch, size); build {name} with batch_first=True")
    if module.bidirectional or module.proj_size:
        raise Refusal(
            f"build {name} without bidirectional and proj_size; read the reverse with a second one, on x.flip(1)"
        )
    weight = next(module.parameters())
    sizes = module.input_size, module.hidden_size, module.num_layers, module.bias, weight.device, weight.dtype
    if isinstance(module, nn.RNN):
        activation = nn.ReLU() if module.nonlinearity == "relu" else nn.Tanh()
        return RNN(*sizes, activation=activation, method=choices.linear)
    return GRU(*sizes, length=_LENGTH, method=choices.linear)


def convert_recurrent(walk: "Walk", node: fx.Node, module: nn.RNNBase) -> None:
    """layer(x)[0], as `RNN` or `GRU`; states that are given or taken are refused."""
    live = [arg for arg in node.all_input_nodes if arg in walk.scales]
    given = [arg for arg in (*node.args[1:], *node.kwargs.values()) if arg is not None]
    if len(live) != 1 or not node.args or node.args[0] is not live[0] or given:
        raise Refusal("a first state that is given has no counterpart; call it with the sequence alone")
    keep_first(node, "use the last output, out[:, -1], in the place of the final state")
    walk.exchange(node, live[0], lambda: recurrent_twin(module, walk.choices))
    dropped = ", without dropout" if module.dropout else ""
    twin = type(walk.body.get_submodule(str(node.target))).__name__
    walk.report(node, ConversionVerdict.CHANGED, f"{twin} of one matrix of norm 1 a layer{dropped}, weights drawn anew")
