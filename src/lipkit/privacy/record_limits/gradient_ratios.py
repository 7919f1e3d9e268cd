"""How much of its limit the gradient of each record uses: the signal that noise is measured against."""

import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from lipkit.errors import NotProvenError
from lipkit.nn import condense
from lipkit.privacy.gradient_clipping import Clip
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.record_limits.captured_sensitivity import sensitivity


def gradient_ratios(
    model: nn.Module,
    loss: nn.Module,
    inputs: Inputs,
    x: Float[Tensor, "records ..."],
    y: Shaped[Tensor, "records ..."],
    clip: Clip | None = None,
    *,
    chunk: int = 64,
) -> dict[str, Float64[Tensor, " records"]]:
    """|d loss_i / d w| / limit for each record i and each trained tensor w: 1 means that nothing of the limit is slack.

    With ratios near r, signal and noise of a tensor are alike in a batch of sigma / r records. The ratios are computed
    from the records without noise: they are for public records, or for whoever may see the private ones, and must not
    be published. A ratio above 1 would disprove the limit, and is an error.

    Guarantee: exact up to rounding. Cost: the gradient of every record, `chunk` of them in memory at once.
    Reference: Béthune 2024, section 6.5.3.

    Args:
        model: The model.
        loss: The loss of one record.
        inputs: Applied to the records.
        x: Records.
        y: Their labels.
        clip: How gradients in the outputs are clipped, if they are.
        chunk: How many records are in memory at once.
    """
    limits = sensitivity(model, loss, inputs, clip).values_by_name()
    plain = condense(model)
    fixed = {name: t.detach() for name, t in plain.named_parameters() if not t.requires_grad}
    fixed |= dict(plain.named_buffers())
    trained = {name: t.detach() for name, t in plain.named_parameters() if t.requires_grad}

    def norms(record: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
        pull = vjp(lambda tensors: functional_call(plain, {**fixed, **tensors}, (record[None],)), trained)[1]
        (found,) = pull(cotangent[None])
        return {name: torch.linalg.vector_norm(gradient.double()) for name, gradient in found.items()}

    parts: list[dict[str, Tensor]] = []
    for some, labels in zip(inputs(x).split(chunk), y.split(chunk), strict=True):
        with torch.no_grad():
            outputs = plain(some)
        ends = outputs.requires_grad_()
        with torch.enable_grad():
            seen = ends if clip is None else clip(ends)
            value = loss(seen, labels)
            if getattr(loss, "reduction", "none") == "mean":
                value = value * len(some)
        (cotangents,) = torch.autograd.grad(value.sum(), ends)
        parts.append(vmap(norms)(some, cotangents))
    ratios = {name: torch.cat([part[name] for part in parts]) / limit for name, limit in limits.items()}
    for name, found in ratios.items():
        if not bool((found <= 1).all()):
            raise NotProvenError(
                f"The gradient of {name} reaches {float(found.max()):.6g} of its limit, which is disproved; please "
                "report the model."
            )
    return ratios
