"""Lengths of the loss' gradient after each module, which show whether it vanishes or explodes on its way back."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from lipkit._runtime import evaluating
from lipkit.errors import NonFiniteError
from lipkit.report.results.contents import DepthRow

# The quantiles of a row, in the order low, median, high.
QUANTILES = (0.1, 0.5, 0.9)


def gradient_norms(
    model: nn.Module, inputs: Float[Tensor, "batch ..."], labels: Int[Tensor, " batch"]
) -> tuple[DepthRow, ...]:
    """||d loss_i / d a_k(x_i)||_2 over the samples i of a batch: the input, then every module's output in order.

    The loss is the cross-entropy of the logits, one for each sample; the model runs in evaluation mode, so samples do
    not mix. Modules that call others are left out, and so is what they compute between the calls. Modules without one
    floating-point output of the batch's length (recurrent ones, indices) are passed over. Measured numbers, in the
    model's own precision. Cost: one forward and one backward pass. The model is left as it was.
    """
    x = inputs.detach().clone().requires_grad_()
    seen: list[tuple[str, str, Tensor]] = []
    with torch.inference_mode(False), torch.enable_grad(), evaluating(model), _watching(model, len(x), seen):
        loss = functional.cross_entropy(model(x), labels, reduction="sum")
        found = torch.autograd.grad(loss, [x, *(out for *_, out in seen)], allow_unused=True)
    names = [("input", ""), *((name, module) for name, module, _ in seen)]
    return tuple(_row(*who, one) for who, one in zip(names, found, strict=True) if one is not None)


@contextmanager
def _watching(model: nn.Module, batch: int, seen: list[tuple[str, str, Tensor]]) -> Iterator[None]:
    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(_module: nn.Module, _args: object, out: object) -> Tensor | None:
            if not (isinstance(out, Tensor) and out.is_floating_point() and out.requires_grad):
                return None
            if out.ndim < 2 or len(out) != batch:
                return None
            times = sum(known == name or known.startswith(f"{name}@") for known, *_ in seen)
            seen.append((f"{name}@{times}" if times else name, type(module).__name__, out))
            # A later operation may work in place: on the copy.
            return out.clone()

        return module.register_forward_hook(note)

    with ExitStack() as stack:
        for name, module in model.named_modules():
            # A weight's parametrization is no layer.
            inside = "parametrizations" in name.split(".")
            if not inside and all(child == "parametrizations" for child, _ in module.named_children()):
                stack.callback(watch(name or "model", module).remove)
        yield


def _row(name: str, module: str, gradient: Float[Tensor, "batch ..."]) -> DepthRow:
    lengths = torch.linalg.vector_norm(gradient.flatten(1).to(torch.float64), dim=1)
    if not bool(torch.isfinite(lengths).all()):
        raise NonFiniteError(f"The gradient after {name} is not finite for some inputs; check the model's weights.")
    low, median, high = torch.quantile(lengths, lengths.new_tensor(QUANTILES)).tolist()
    return DepthRow(name, module.removeprefix("Parametrized"), float(lengths.mean()), low, median, high)
