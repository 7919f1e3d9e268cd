"""How many records may be added up in float32 before rounding is as large as the room that limits have for it."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lipkit.errors import UnsupportedError
from lipkit.privacy.batch_sampling import Poisson
from lipkit.privacy.input_ball import Inputs
from lipkit.privacy.plan import Plan
from lipkit.privacy.private_steps.separate_records import batch_sizes
from lipkit.privacy.record_limits.captured_sensitivity import FLOAT_SLACK
from lipkit.privacy.record_limits.public_records import public_records

# Two sums differ by one record and by the errors of both; half of the room is left for records that are worse.
_ALLOWED = FLOAT_SLACK / 4
# A gradient far below its limit, by cancellation for example, is measured against this part of the limit.
_LEAST = 2.0**-6
# Fewer records a pass than this are too slow to be meant.
_FEWEST = 8


def most_rows(plan: Plan, chunk: int) -> int:
    """The largest piece that a plan asks for, from public numbers: Poisson batches are larger once in 1e9 steps."""
    more = 6 * plan.batch**0.5 if isinstance(plan.sampling, Poisson) else 0.0
    return min(chunk, int(plan.batch + more))


def piece_size(plain: nn.Module, inputs: Inputs, limits: Mapping[str, float], end: float, most: int) -> int:
    """The most records, up to `most`, whose gradients a pass may add up, by a measurement on public records.

    n copies of one record have n times its gradient; what a pass gives for them differs by the rounding of its sums,
    which is systematic there: in convolutions on a CPU it grows as n^2 2^-24. The largest n for which that is at most a
    quarter of 2^-7 of one record's gradient is taken, tensor by tensor, so the room in the limits covers the sums with
    and without a record. Products of matrices, which are summed in blocks, grow as n instead: 2^-9 at 1,400.

    No proof allows as many. The classical bound of the rounding of n terms is n^2 2^-24 of one record: all the room for
    two sums at 256, a whole record at 4,096.

    Guarantee: none; measured for one record, with the weights of the start. Cost: about four passes of the result.

    Args:
        plain: The condensed model.
        inputs: Where records lie.
        limits: The limits of the trained tensors.
        end: The limit of the gradient in the outputs, to which `limits` belong.
        most: How many records a piece has at most.
    """
    tensors = {name: p for name, p in plain.named_parameters() if p.requires_grad}
    if all(p.dtype == torch.float64 for p in tensors.values()):
        return most
    # Entries of one sign, as in images: their sums grow without cancellation.
    x = public_records(inputs, 1, next(iter(tensors.values()))).abs()
    with torch.no_grad():
        outputs = plain(x)
    drawn = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ends = (drawn * end / torch.linalg.vector_norm(drawn)).to(outputs)

    def gradients(n: int) -> list[Tensor]:
        with torch.enable_grad():
            values = plain(x.repeat(n, *(1,) * len(inputs.shape)))
        copies = ends.repeat(n, *(1,) * (ends.ndim - 1))
        found = torch.autograd.grad(values, list(tensors.values()), copies, materialize_grads=True)
        return [gradient.double().nan_to_num(0.0, 0.0, 0.0) for gradient in found]

    one = gradients(1)
    units = [
        max(float(torch.linalg.vector_norm(g)), _LEAST * limits[name]) for name, g in zip(tensors, one, strict=True)
    ]

    def fits(n: int) -> bool:
        errors = [float(torch.linalg.vector_norm(g - n * a)) for g, a in zip(gradients(n), one, strict=True)]
        return all(error <= _ALLOWED * unit for error, unit in zip(errors, units, strict=True))

    size = 1
    for n in batch_sizes(most)[1:]:
        if not fits(n):
            # Between two sizes there is room for a quarter or a half more, which is a pass less in four.
            size = next(
                (between for between in (size * 3 // 2, size * 5 // 4) if size < between < n and fits(between)), size
            )
            break
        size = n
    if size < min(_FEWEST, most):
        raise UnsupportedError(
            f"Sums of {2 * size} records' gradients are rounded by more than the limits allow for on this device; set "
            "torch's precision of products to 'highest' or 'ieee', or train in float64."
        )
    return size
