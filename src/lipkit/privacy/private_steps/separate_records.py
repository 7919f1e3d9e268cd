"""Whether a model and a loss keep the records of a batch apart, tried with public numbers before a record is read."""

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from lipkit.bounds.certificates.identity import model_contents
from lipkit.errors import UnsupportedError
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.private_steps.accepted_records import summed
from lipkit.privacy.record_limits.gradient_fold import Cotangent
from lipkit.privacy.record_limits.public_records import public_records

# How far a record's numbers may differ in a batch and alone, relative to the largest: rounding is far below. Gradients
# of weights jump where a kink is crossed by rounding, for one unit of many.
_ALONE, _SUMS = 2.0**-10, 2.0**-8
# Outputs of three sizes, as losses see them from the start of a training to its end.
_OUTPUTS = (0.1, 1.0, 20.0)
# Rows of a batch whose loss is also computed alone.
_COMPARED = 8


def batch_sizes(most: int) -> list[int]:
    """1, 2, 3, 5, the powers of two and `most`: a model or a loss that looks at the size of a batch shows."""
    return sorted({n for n in (1, 2, 3, 5, *(2**k for k in range(most.bit_length())), most) if n <= most})


def refuse_mixing_model(plain: nn.Module, inputs: Inputs, most: int) -> None:
    """Refuse a model in which the records of a batch change each other's outputs or gradients.

    Two public records, the first and the last of batches of all `batch_sizes`, must have the outputs and the sum
    of gradients that they have alone, where the gradients in the outputs of all others are zero. No pass may leave
    anything behind in the model, which the next batch could read.

    Guarantee: none for other sizes. Cost: two to three passes forward and back of `most` records.
    """
    names = [name for name, p in plain.named_parameters() if p.requires_grad]
    tensors = [p for p in plain.parameters() if p.requires_grad]
    x = public_records(inputs, max(2, most), tensors[0])
    generator = torch.Generator().manual_seed(1)

    def passed(batch: Tensor, ends: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Outputs of the first and the last record, their given or drawn cotangents, and the sum of the gradients."""
        with torch.enable_grad():
            outputs = plain(batch)
        edges = outputs[[0, -1]] if len(batch) > 1 else outputs
        if ends is None:
            ends = torch.randn(edges.shape, generator=generator, dtype=torch.float64).to(edges)
        found = torch.autograd.grad(edges, tensors, ends, materialize_grads=True)
        return edges.detach(), ends, [gradient.nan_to_num(0.0, 0.0, 0.0) for gradient in found]

    first, last = passed(x[:1], None), passed(x[1:2], None)
    # What a first call keeps for good, such as a table, is there by now.
    before = model_contents(plain, code=False)
    outputs, ends = torch.cat([first[0], last[0]]), torch.cat([first[1], last[1]])
    sums = [a + b for a, b in zip(first[2], last[2], strict=True)]
    for n in batch_sizes(most)[1:]:
        batched, _, gradients = passed(torch.cat([x[:1], x[2:n], x[1:2]]), ends)
        if batched.shape != outputs.shape or not _close(batched, outputs, _ALONE):
            raise _mixing("The model", f"gives records other outputs in a batch of {n} than alone")
        for name, alone, together in zip(names, sums, gradients, strict=True):
            if not _close(together, alone, _SUMS):
                raise _mixing("The model", f"gives records another gradient of {name} in a batch of {n} than alone")
    if model_contents(plain, code=False) != before:
        raise _keeping("The model")


def refuse_mixing_loss(
    loss: nn.Module, labels: Shaped[Tensor, "rows ..."], outputs: Tensor, stated: Cotangent, most: int
) -> None:
    """Refuse a loss in which the records of a batch change each other's gradients, or that disproves its constant.

    The gradient in drawn outputs, for labels in a random order, must be row by row that of each row alone, in batches
    of all `batch_sizes`, and what is stated of it must hold there. The loss must hold the same afterwards as before: no
    running averages, no counts.

    Guarantee: none for other outputs. Cost: some hundred evaluations of the loss.

    Args:
        loss: The loss.
        labels: The labels of all records, on the device of the outputs.
        outputs: Outputs of the model; only their shape, type and device count.
        stated: What is stated of the gradient of one record.
        most: How many records are in a batch at most.
    """
    generator = torch.Generator().manual_seed(2)
    order = torch.randperm(len(labels), generator=generator)
    if not len(labels):
        return
    _end(loss, outputs[:1].clone(), labels[:1])
    before = model_contents(loss, code=False)
    for n in batch_sizes(most):
        y = labels[order[torch.arange(n) % len(order)].to(labels.device)]
        for size in _OUTPUTS:
            drawn = size * torch.randn(n, *outputs.shape[1:], generator=generator, dtype=torch.float64)
            z = drawn.to(outputs)
            some = torch.randperm(n, generator=generator)[:_COMPARED].to(z.device)
            together = _end(loss, z, y)[some]
            alone = torch.cat([_end(loss, z[k : k + 1], y[k : k + 1]) for k in some.tolist()])
            if not _close(together, alone, _ALONE):
                raise _mixing(type(loss).__name__, f"gives records other gradients in a batch of {n} than alone")
            _refuse_statement(loss, alone.flatten(1).double(), stated)
    if model_contents(loss, code=False) != before:
        raise _keeping(type(loss).__name__)


def _refuse_statement(loss: nn.Module, rows: Tensor, stated: Cotangent) -> None:
    allowed = 1 + _ALONE
    longest = float(torch.linalg.vector_norm(rows, dim=1).max())
    mixture = stated.spread is None or (
        float(rows.clamp(min=0).sum(1).max()) <= stated.spread * allowed
        and float(rows.sum(1).abs().max()) <= stated.spread * _ALONE
    )
    if not (longest <= stated.norm * allowed and mixture):
        raise UnsupportedError(
            f"{type(loss).__name__} has a gradient of norm {longest:.6g} in the outputs, where {stated.norm:.6g} is "
            "stated of it, or one that is no mixture of differences as stated; correct logit_constant, or derive from "
            "nn.Module if the loss is not that of its base class."
        )


def _end(loss: nn.Module, z: Tensor, y: Tensor) -> Tensor:
    """The gradient in the outputs, with zero for rows in which it is not a number."""
    ends = z.detach().requires_grad_()
    with torch.enable_grad():
        (found,) = torch.autograd.grad(summed(loss, ends, y), ends)
    rows = found.reshape(len(found), -1)
    return torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, 0.0).reshape(found.shape)


def _close(found: Tensor, expected: Tensor, share: float) -> bool:
    size = float(torch.linalg.vector_norm(expected.double()))
    return float(torch.linalg.vector_norm((found - expected).double())) <= share * size


def _mixing(what: str, how: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} {how}, so one record moves the gradients of all; let it look at one record at a time, whatever the "
        "size of the batch."
    )


def _keeping(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"{what} changes its own state when it is called, by which records of one batch reach all later ones; keep no "
        "counts, averages or samples in it."
    )
