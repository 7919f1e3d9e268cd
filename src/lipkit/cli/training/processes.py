"""One process among those that train together, as torchrun starts them."""

import os
from dataclasses import dataclass
from typing import Any, final

import torch
import torch.distributed as dist
from torch import nn


@final
@dataclass(frozen=True)
class Team:
    """This process, how many there are, and its device; alone without torchrun."""

    device: torch.device
    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> "Team":
        """The team that torchrun's environment names; gloo on CPUs, nccl on GPUs, each process with its own."""
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls(device)
        rank = int(os.environ["RANK"])
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(device, rank, size)

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def distribute(self, model: nn.Module) -> nn.Module:
        """The model, wrapped so that gradients are averaged over the team."""
        if self.size == 1:
            return model
        devices = [self.device.index] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=devices)

    def maximum(self, number: float) -> float:
        """The largest of the numbers of all processes, so that one process can stop all."""
        if self.size == 1:
            return number
        found = torch.tensor([number], dtype=torch.float64, device=self.device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    def broadcast(self, value: Any) -> Any:
        """The value of the leading process, in all processes."""
        if self.size == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, 0)
        return found[0]

    def gather(self, value: Any) -> list[Any]:
        """The values of all processes, in the order of their ranks."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def leave(self) -> None:
        """Wait for all, then end the team."""
        if self.size > 1:
            dist.barrier()
            dist.destroy_process_group()
