"""Which samples this process evaluates, and how processes meet."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from lipkit.bounds.certificates.identity import sha256_of
from lipkit.data import Examples
from lipkit.errors import ArgumentError

Data = DataLoader[Any] | Dataset[Any] | Iterable[Sequence[Tensor]]
Batch = tuple[list[int], Tensor, Tensor, int | None]
Thing = TypeVar("Thing")

_BATCH = 256


@final
@dataclass(frozen=True)
class Place:
    """This process among those that evaluate together; alone without torch.distributed."""

    rank: int = 0
    size: int = 1

    @classmethod
    def here(cls) -> "Place":
        """As torch.distributed says."""
        running = dist.is_available() and dist.is_initialized()
        return cls(dist.get_rank(), dist.get_world_size()) if running else cls()

    def meet(self) -> None:
        """Wait for all."""
        if self.size > 1:
            dist.barrier()

    def gather(self, things: list[Thing]) -> list[Thing]:
        """The lists of all processes, joined in the order of their ranks."""
        if self.size == 1:
            return things
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, things)
        return [thing for part in found for thing in part]

    def agree(self, settings: Mapping[str, object]) -> None:
        """Refuse processes that evaluate different things."""
        if self.size == 1:
            return
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, settings)
        if apart := sorted({name for other in found for name, value in other.items() if found[0].get(name) != value}):
            raise ArgumentError(
                f"The processes evaluate different things (other {', '.join(apart)}); give all of them the model, the "
                "constant and the data of the first."
            )


def batches(data: Data, place: Place, wanted: Callable[[Sequence[int]], bool]) -> Iterator[Batch]:
    """(places in the data, inputs, labels, samples of this process or None) of batches that are wanted.

    Batch b belongs to process b mod size, and is the same whatever was done before and by however many processes, so
    that random numbers and roundings are too. A Dataset, or a DataLoader over one, is cut into batches in its own order
    and only what is needed is read; any other iterable is gone through from its start, so it must give the same batches
    every time.
    """
    source = data.dataset if isinstance(data, DataLoader) else data
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset) and isinstance(source, Sized):
        yield from _of_dataset(data, source, place, wanted)
        return
    start = 0
    for number, (inputs, labels) in enumerate(_pair(batch) for batch in data):
        places = range(start, start + len(labels))
        start += len(labels)
        if number % place.size == place.rank and wanted(places):
            yield list(places), inputs, labels, None


def check_repeatable(data: Data) -> None:
    """Refuse what can be gone through once only."""
    if isinstance(data, Iterator) or not isinstance(data, Iterable | Dataset):
        raise ArgumentError(
            f"Data are gone through more than once: give a DataLoader, a Dataset or a list of (inputs, labels), got "
            f"{type(data).__name__}."
        )


def first_batch(data: Data) -> tuple[Tensor, Tensor]:
    """Inputs and labels of the first batch; empty if there is none."""
    found = next(batches(data, Place(), lambda places: len(places) > 0), None)
    return (torch.zeros(0), torch.zeros(0)) if found is None else (found[1], found[2])


def describe_data(data: Data, first: tuple[Tensor, Tensor]) -> dict[str, Any]:
    """Describe a data set: a hash of all that is in memory, otherwise the number of samples and their first batch.

    Samples that were stored carry hashes of their own (`digests`).
    """
    source = data.dataset if isinstance(data, DataLoader) else data
    whole = source.tensors if isinstance(source, TensorDataset) else None
    if isinstance(source, Examples):
        whole = (source.inputs, source.labels)
    if whole is not None:
        return {"samples": len(whole[0]), "all": [sha256_of(part) for part in whole]}
    return {
        "samples": len(source) if isinstance(source, Sized) else None,
        "first": [sha256_of(part) for part in first],
    }


def digests(inputs: Tensor) -> list[str]:
    """A short hash for each input: its numbers, type and shape. Cost: one pass over their bytes."""
    kind = f"{inputs.dtype}{tuple(inputs.shape[1:])}".encode()
    rows = inputs.detach().cpu().contiguous().reshape(len(inputs), -1).view(torch.uint8).numpy()
    return [hashlib.sha256(kind + row.tobytes()).hexdigest()[:16] for row in rows]


def _whole(data: DataLoader[Any]) -> None:
    """Refuse a loader that leaves samples out or repeats some: its order does not matter, its choice would."""
    plain = isinstance(data.sampler, SequentialSampler | RandomSampler) and type(data.batch_sampler) is BatchSampler
    again = isinstance(data.sampler, RandomSampler) and (
        data.sampler.replacement or data.sampler.num_samples != len(data.dataset)  # pyright: ignore[reportArgumentType]
    )
    if not plain or again or data.drop_last:
        raise ArgumentError(
            "Every sample is evaluated once, in batches of a fixed order; give a DataLoader without sampler and "
            "drop_last, over a Subset if only some samples are meant."
        )


def _of_dataset(data: Data, source: Any, place: Place, wanted: Callable[[Sequence[int]], bool]) -> Iterator[Batch]:
    if isinstance(data, DataLoader):
        _whole(data)
    size = (data.batch_size if isinstance(data, DataLoader) else None) or _BATCH
    every = [range(start, min(start + size, len(source))) for start in range(0, len(source), size)]
    mine = [list(places) for places in every[place.rank :: place.size] if wanted(places)]
    workers, collate = (data.num_workers, data.collate_fn) if isinstance(data, DataLoader) else (0, default_collate)
    loader: DataLoader[Any] = DataLoader(source, batch_sampler=mine, num_workers=workers, collate_fn=collate)
    total = sum(len(places) for places in mine)
    for places, (inputs, labels) in zip(mine, (_pair(batch) for batch in loader), strict=True):
        if len(labels) != len(places):
            raise ArgumentError(f"The data gave {len(labels)} labels for {len(places)} samples; check its collate_fn.")
        yield places, inputs, labels, total


def _pair(batch: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    if len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise ArgumentError(
            f"A batch is a pair of tensors (inputs, labels), got {type(batch).__name__} of {len(batch)}."
        )
    inputs, labels = batch
    no_index = labels.is_floating_point() or labels.is_complex() or labels.dtype is torch.bool
    if not inputs.ndim or labels.ndim != 1 or len(labels) != len(inputs) or no_index:
        raise ArgumentError(
            f"Labels are one class index for each input, got shape {tuple(labels.shape)} and {labels.dtype} "
            f"for inputs of shape {tuple(inputs.shape)}."
        )
    return inputs, labels
