"""The picture of docs/guides/surfaces.md: the bunny as a network, a ball cut out of it.

Every pixel is a ray that provably met no zero of the field before the surface it shows (`sdf.trace`).

    python benchmarks/bunny_picture.py --mesh stanford-bunny.obj [--steps 4500] --out docs/guides/bunny.png
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from lipkit import sdf

SIZE = 400


def bunny(path: Path, steps: int) -> tuple[sdf.Field, Tensor, float]:
    """The field of a mesh whose holes are capped, the middle of it and its diagonal."""
    found = sdf.read_mesh(path)
    closed = sdf.close_holes(found.vertices, found.faces)
    middle = (closed.vertices.amin(0) + closed.vertices.amax(0)) / 2
    return sdf.Surface(steps=steps)(closed), middle, closed.diagonal


def main() -> None:
    """Train, cut, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=sdf.Surface().steps)
    parser.add_argument("--out", type=Path, default=Path("bunny.png"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    f, middle, size = bunny(args.mesh, args.steps)
    print(f"trained: {time.process_time() - started:.0f} s of the processor", flush=True)
    hollow = middle + size * torch.tensor([0.08, -0.06, 0.22], dtype=torch.float64)
    scene = sdf.Difference(f, sdf.Sphere(hollow, 0.14 * size))
    x, y, z = (middle + size * torch.tensor([0.35, 0.3, 1.35], dtype=torch.float64)).tolist()
    camera = sdf.Camera((x, y, z), tuple(middle.tolist()), up=(0.0, 1.0, 0.0), angle=36.0)
    picture = sdf.render(scene, camera, 3 * size, SIZE, SIZE, samples=2, tolerance=1e-4 * size)
    picture.save(args.out)
    print(f"drawn: {time.process_time() - started:.0f} s of the processor")


if __name__ == "__main__":
    main()
