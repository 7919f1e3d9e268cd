"""The weights of equal layers, computed together."""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lipkit.nn.core.constrained import Site, refuse_complex, sites
from lipkit.nn.core.precision import in_full_precision


@contextmanager
def batched(model: nn.Module) -> Iterator[nn.Module]:
    """Within this block the constrained weights of equal shape, method and type are computed in one call each.

    Many small products become a few batched ones: it pays where layers are narrow and many. Weights are computed once,
    on entry, and keep their graph: run the forward pass inside, the backward pass inside or after, and leave the block
    before the optimizer steps. A weight whose free numbers were changed inside is computed again, alone, at its use;
    other threads compute their own. Autocast, where it is used, must be on already.
    """
    groups: dict[object, list[Site]] = {}
    for site in sites(model):
        geometry = dataclasses.replace(site.constraint.geometry, groups=1)
        key = (site.constraint.method, geometry, site.raw.dtype, site.raw.device)
        groups.setdefault(key, []).append(site)
    held = [one for members in groups.values() for one in zip(members, _compute_together(members), strict=True)]
    entered = [site.constraint for site, _ in held if site.constraint.held is None]
    for site, weight in held:
        site.constraint.take(site.constraint.hold(fills=False), (site.raw,), weight)
    try:
        yield model
    finally:
        for constraint in entered:
            constraint.release()


def _compute_together(members: list[Site]) -> list[Tensor]:
    geometries = [site.constraint.geometry for site in members]
    counts = [geometry.groups for geometry in geometries]
    whole = dataclasses.replace(geometries[0], groups=sum(counts))
    method = members[0].constraint.method
    refuse_complex(method, whole, members[0].raw.dtype)
    raw = torch.cat([g.blocks(site.raw) for g, site in zip(geometries, members, strict=True)])
    blocks = in_full_precision(lambda wide: method(wide, whole), raw).split(counts)
    return [g.join(block) for g, block in zip(geometries, blocks, strict=True)]
