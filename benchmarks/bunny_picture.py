"""The picture of docs/guides/surfaces.md: the bunny as a network, a ball cut out of it.

Every pixel is a ray that provably met no zero of the field before the surface it shows (`sdf.trace`).

    python benchmarks/bunny_picture.py --mesh stanford-bunny.obj [--weights surfaces-stanford-bunny.pt] --out bunny.png
    python benchmarks/bunny_picture.py --mesh stanford-bunny.obj --weights W.pt --size 512 --device cuda --out bunny.png

The weights are those that benchmarks/surfaces.py leaves; without them the network is trained, two minutes of one core.
The time that is printed is of a picture of the network alone, with one ray a pixel and without its file: the median of
three after one that is not counted. The aim on an H200 is 0.25 s at size 512.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from lipkit import sdf
from lipkit.sdf.surfaces.folded_network import folded_network, sorting_network


def bunny(path: Path, weights: Path | None, device: torch.device) -> tuple[sdf.Field, Tensor, float]:
    """The field of a mesh whose holes are capped, on a device, the middle of it and its diagonal."""
    found = sdf.read_mesh(path)
    closed = sdf.close_holes(found.vertices, found.faces)
    middle = (closed.vertices.amin(0) + closed.vertices.amax(0)) / 2
    recipe = sdf.Surface()
    if weights is None:
        model = recipe(closed).model
    else:
        model = sorting_network(
            folded_network(3, recipe.width, recipe.depth, 0), torch.zeros(3, dtype=torch.float64), 1.0
        )
        model.load_state_dict(torch.load(weights, weights_only=True))
    return sdf.Network(model.to(device), middle[None].to(device)), middle, closed.diagonal


def picture_time(f: sdf.Field, camera: sdf.Camera, far: float, size: int, device: torch.device) -> float:
    """Seconds of a picture, from the camera to colours in the memory of the processor."""

    def draw() -> float:
        started = time.perf_counter()
        sdf.render(f, camera, far, size, size, tolerance=far / 3e4, device=device)
        return time.perf_counter() - started

    draw()
    return statistics.median(draw() for _ in range(3))


def main() -> None:
    """Train, cut, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path, default=Path("bunny.png"))
    parser.add_argument("--size", type=int, default=400, help="pixels along each side")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"), help="where pictures are computed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    f, middle, size = bunny(args.mesh, args.weights, args.device)
    print(f"K = {float(f.bound.value):.6f}; {time.process_time() - started:.0f} s of the processor", flush=True)
    x, y, z = (middle + size * torch.tensor([0.35, 0.3, 1.35], dtype=torch.float64)).tolist()
    camera = sdf.Camera((x, y, z), tuple(middle.tolist()), up=(0.0, 1.0, 0.0), angle=36.0)
    seconds = picture_time(f, camera, 3 * size, args.size, args.device)
    print(f"the network alone, {args.size} x {args.size} on {args.device}: {seconds:.3f} s a picture", flush=True)
    hollow = middle + size * torch.tensor([0.08, -0.06, 0.22], dtype=torch.float64)
    scene = sdf.Difference(f, sdf.Sphere(hollow, 0.14 * size))
    picture = sdf.render(
        scene, camera, 3 * size, args.size, args.size, samples=2, tolerance=1e-4 * size, device=args.device
    )
    picture.save(args.out)
    print(f"drawn: {time.process_time() - started:.0f} s of the processor")


if __name__ == "__main__":
    main()
