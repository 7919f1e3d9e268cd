"""Records of tensors and regions, as a certificate keeps them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from lipkit.bounds.certificates.identity import sha256_of
from lipkit.errors import ArgumentError, CertificateError
from lipkit.linops import Shape
from lipkit.regions import Ball, Box, Everywhere, Region

# Tensors of up to this many entries are stored whole; of larger ones only the hash is.
_SMALL = 4096


@final
@dataclass(frozen=True)
class TensorRecord:
    """A tensor: its entries if there are at most 4096 and they are real, and always what tells it from another."""

    shape: Shape
    dtype: str
    sha256: str
    entries: tuple[int, ...] | tuple[float, ...] | None

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorRecord":
        """The record of a tensor."""
        small = tensor.numel() <= _SMALL and not tensor.is_complex()
        flat = tensor.detach().cpu().reshape(-1)
        # Integers do not fit into float64 beyond 2^53.
        wide = flat.to(torch.float64 if tensor.is_floating_point() else torch.int64)
        return cls(tuple(tensor.shape), str(tensor.dtype), sha256_of(tensor), tuple(wide.tolist()) if small else None)

    def restore(self, what: str) -> Tensor:
        """The tensor itself; refuses if only its hash was kept."""
        if self.entries is None:
            raise CertificateError(
                f"The certificate keeps only the hash of {what}, a tensor of shape {self.shape}; give it to verify."
            )
        dtype = dtype_of(self.dtype)
        wide = torch.float64 if dtype.is_floating_point else torch.int64
        if len(self.entries) != torch.Size(self.shape).numel():
            raise CertificateError(f"The certificate has {len(self.entries)} entries for {what} of shape {self.shape}.")
        tensor = torch.tensor(self.entries, dtype=wide).to(dtype).reshape(self.shape)
        self.require(tensor, what)
        return tensor

    def require(self, tensor: Tensor, what: str) -> None:
        """Refuse a tensor that is not the recorded one."""
        if (tuple(tensor.shape), str(tensor.dtype)) != (self.shape, self.dtype):
            raise CertificateError(
                f"The certificate was made for {what} of shape {self.shape} and {self.dtype}, "
                f"got {tuple(tensor.shape)} and {tensor.dtype}."
            )
        if sha256_of(tensor) != self.sha256:
            raise CertificateError(f"The certificate was made for {what} with other entries than these.")


class RegionRecord(ABC):
    """A region as a certificate keeps it."""

    @abstractmethod
    def restore(self, given: Region | None) -> Region:
        """The region itself: the recorded one, or `given` if it is the same."""

    @staticmethod
    def of(region: Region) -> "RegionRecord":
        """The record of a region; refuses regions of other types."""
        match region:
            case Everywhere():
                return EverywhereRecord()
            case Ball(center, radius, p):
                return BallRecord(TensorRecord.of(center), float(radius), float(p))
            case Box(low, high):
                return BoxRecord(TensorRecord.of(low), TensorRecord.of(high))
            case _:
                raise ArgumentError(f"A certificate holds everywhere, on a ball or on a box, got {region}.")


@final
@dataclass(frozen=True)
class EverywhereRecord(RegionRecord):
    """The whole input space."""

    def restore(self, given: Region | None) -> Region:
        return _same(given, Everywhere()) or Everywhere()

    def __str__(self) -> str:
        return "everywhere"


@final
@dataclass(frozen=True)
class BallRecord(RegionRecord):
    """A ball."""

    center: TensorRecord
    radius: float
    p: float

    def restore(self, given: Region | None) -> Region:
        if isinstance(given, Ball):
            self.center.require(given.center, "the center of the ball")
            return _same(given, Ball(given.center, self.radius, self.p)) or given
        return _same(given, None) or Ball(self.center.restore("the center of the ball"), self.radius, self.p)

    def __str__(self) -> str:
        return f"l{self.p:g} ball of radius {self.radius:g}"


@final
@dataclass(frozen=True)
class BoxRecord(RegionRecord):
    """A box."""

    low: TensorRecord
    high: TensorRecord

    def restore(self, given: Region | None) -> Region:
        if isinstance(given, Box):
            self.low.require(given.low, "the lower end of the box")
            self.high.require(given.high, "the upper end of the box")
            return given
        ends = (self.low.restore("the lower end of the box"), self.high.restore("the upper end of the box"))
        return _same(given, None) or Box(*ends)

    def __str__(self) -> str:
        return f"box in {self.low.shape}"


def _same(given: Region | None, known: Region | None) -> Region | None:
    if given is not None and given != known:
        raise CertificateError(f"The certificate holds on another region than the one given, {given}.")
    return given


def dtype_of(name: str) -> torch.dtype:
    """The dtype of a name such as "torch.float32"."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise CertificateError(f"The certificate names the dtype {name[:40]!r}, which torch does not have.")
    return found
