"""Whether stored results are of these data and of this model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lipkit.bound import Bound
from lipkit.certify.evaluate.counterexample import EXPERIENCE, seen_changed
from lipkit.certify.evaluate.records import SampleResult
from lipkit.certify.evaluate.shards import Batch, Data, Place, batches, digests
from lipkit.certify.radii.forward import Logits
from lipkit.certify.radii.radius import check_classified, radius
from lipkit.errors import RecordError
from lipkit.rounding.slacks import MILLIONS_OF_ROUNDINGS

# More than the roundings of a division and of a change of norms.
_SLACK = MILLIONS_OF_ROUNDINGS


@final
@dataclass(frozen=True)
class Stored:
    """Samples of a folder by their index."""

    folder: Path
    samples: Mapping[int, SampleResult]

    def check_data(self, data: Data, place: Place) -> None:
        """Refuse samples whose input or label is another now, or that the data no longer have.

        Every process looks at its share. Cost: the stored part of the data is read once; nothing is evaluated.
        """
        seen: list[int] = []
        for indices, inputs, labels, _ in self.batches(data, place):
            for index, digest, label in zip(indices, digests(inputs), labels.tolist(), strict=True):
                known = self.samples.get(index)
                if known is not None and (known.digest, known.label) != (digest, label):
                    what = "input" if known.digest != digest else f"label ({known.label}, now {label})"
                    raise RecordError(
                        f"{self.folder} holds a result for sample {index} with another {what}; continue with the data "
                        "that it is of, or give another folder."
                    )
            seen += indices
        if gone := self.samples.keys() - set(place.gather(seen)):
            raise RecordError(
                f"{self.folder} holds a result for sample {min(gone)}, which the data do not have; continue with the "
                "data that it is of, or give another folder."
            )

    def batches(self, data: Data, place: Place) -> Iterator[Batch]:
        """The batches of this process with stored samples in them."""
        if self.samples:
            yield from batches(data, place, lambda places: any(i in self.samples for i in places))

    def has_all(self, places: Sequence[int]) -> bool:
        """Whether all of these samples are stored."""
        return all(i in self.samples for i in places)

    def check_found(
        self,
        indices: Sequence[int],
        x: Float[Tensor, "batch ..."],
        labels: Int[Tensor, " batch"],
        found: Logits,
        bound: Bound | None,
        p: float,
    ) -> None:
        """Refuse results that the model contradicts: another class, or a radius that no rounding explains.

        A constant that was computed for these samples alone (None) may have been drawn; then only classes are compared.
        """
        here = [i for i, index in enumerate(indices) if index in self.samples]
        old = [self.samples[indices[i]] for i in here]
        rows = torch.tensor(here, device=x.device)
        x, labels, found = x[rows], labels[rows], Logits(found.value[rows], found.error[rows])
        check_classified(found.value, labels)
        classes = torch.tensor([sample.predicted for sample in old], device=x.device)
        last = found.value.shape[1] - 1
        wrong = seen_changed(found, classes.clamp(max=last)) | (classes > last)
        if bound is not None:
            # The label's lead is as good as known to a millionth of the largest logit, on every machine.
            give = 4 * EXPERIENCE * found.value.abs().amax(1, keepdim=True)
            own = torch.nn.functional.one_hot(labels.long(), last + 1) * give
            size = x[0].numel()
            least, most = (
                radius(found.value + sign * own, labels, bound, error=found.error, at=x).in_norm(p, size).value
                for sign in (-1, 1)
            )
            known = torch.tensor([sample.radius for sample in old], dtype=torch.float64, device=x.device)
            # A proof near the sample may give more than the constant; it is not repeated here.
            near = torch.tensor([bool(sample.proof) for sample in old], device=x.device)
            wrong |= (known < least * (1 - _SLACK)) | (~near & (known > most * (1 + _SLACK)))
        if bool(wrong.any()):
            first = old[int(wrong.nonzero()[0])]
            raise RecordError(
                f"{self.folder} holds class {first.predicted} with radius {first.radius:.6g} for sample {first.index}, "
                "and the model gives others now: what it computes has changed; give another folder."
            )
