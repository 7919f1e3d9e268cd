"""An attack inside a certified radius: proof that something is wrong, kept for whoever has to find it."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from lipkit._files import write_whole
from lipkit.certify.radii.forward import Logits
from lipkit.errors import BrokenCertificateError
from lipkit.rounding.float64 import vector_norms
from lipkit.rounding.slacks import ROUNDINGS_8, ROUNDINGS_8192

# Float64 loses less than this part of the largest logit in every network that can be trained at all: an experience, no
# theorem. Norms multiply in what is proven of deep networks without constraints, and say nothing there.
EXPERIENCE = 2.0**-20


def provably_changed(after: Logits, labels: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """Where some rival's logit exceeds the label's by more than both may be off."""
    return _ahead(after.value, after.error, labels)


def seen_changed(after: Logits, labels: Int[Tensor, " batch"]) -> Bool[Tensor, " batch"]:
    """The same, also where the lead is a millionth of the largest logit but what is proven of rounding is more."""
    usual = EXPERIENCE * after.value.abs().amax(1)
    return _ahead(after.value, torch.minimum(after.error, usual), labels)


def _ahead(
    z: Float64[Tensor, "batch classes"], error: Float64[Tensor, " batch"], labels: Int[Tensor, " batch"]
) -> Bool[Tensor, " batch"]:
    gap = (z - z.gather(1, labels[:, None].long())).amax(1) - 2 * error * (1 + ROUNDINGS_8192)
    return gap > ROUNDINGS_8 * z.abs().amax(1)


def refuse_contradiction(
    x: Float[Tensor, "batch ..."],
    moved: Float[Tensor, "batch ..."],
    labels: Int[Tensor, " batch"],
    after: Logits,
    radii: Float64[Tensor, " batch"],
    p: float,
    indices: Sequence[int],
    folder: Path,
) -> None:
    """Stop with a `BrokenCertificateError` if a moved input is inside its radius and provably of another class.

    The first such input is saved as `counterexample-<index>.npz` with both inputs, logits, error, label, radius and
    distance. Numbers of a type that numpy does not have, and of float16, are saved as float32, which has them all;
    `input_dtype` and `moved_dtype` say what they were.
    """
    z = after.value
    distance = vector_norms((moved.double() - x.double()).flatten(1), p) * (1 + ROUNDINGS_8)
    wrong = (provably_changed(after, labels) & (distance < radii)).nonzero().flatten().tolist()
    if not wrong:
        return
    i = wrong[0]
    path = folder / f"counterexample-{indices[i]}.npz"
    buffer = io.BytesIO()
    np.savez(
        buffer,
        input=_array(x[i]), moved=_array(moved[i]), input_dtype=str(x.dtype), moved_dtype=str(moved.dtype),
        label=int(labels[i]),
        logits=z[i].numpy(force=True), error=float(after.error[i]), radius=float(radii[i]),
        distance=float(distance[i]), p=p,
    )  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue())
    raise BrokenCertificateError(
        f"Sample {indices[i]} is certified as class {int(labels[i])} within {float(radii[i]):.6g} in l{p:g}, and an "
        f"attack at distance {float(distance[i]):.6g} makes it class {int(z[i].argmax())}: the constant, or one that a "
        f"module declared, is wrong. Both inputs are in {path}; please report them."
    )


def _array(tensor: Float[Tensor, "..."]) -> np.ndarray:
    """The numbers themselves; those of fewer bits become float32, exactly."""
    return (tensor.float() if tensor.element_size() < 4 else tensor).numpy(force=True)
