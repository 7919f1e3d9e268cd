"""The picture of docs/guides/surfaces.md: the bunny as a network, a ball cut out of it.

Every pixel is a ray that provably met no zero of the field before the surface it shows (`sdf.trace`).

    python benchmarks/bunny_picture.py --mesh stanford-bunny.obj [--weights surfaces-stanford-bunny.pt] --out bunny.png

The weights are those that benchmarks/surfaces.py leaves; without them the network is trained, two minutes of one core.
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from lipkit import sdf
from lipkit.sdf.surfaces.folded_network import folded_network, sorting_network

SIZE = 400


def bunny(path: Path, weights: Path | None) -> tuple[sdf.Field, Tensor, float]:
    """The field of a mesh whose holes are capped, the middle of it and its diagonal."""
    found = sdf.read_mesh(path)
    closed = sdf.close_holes(found.vertices, found.faces)
    middle = (closed.vertices.amin(0) + closed.vertices.amax(0)) / 2
    recipe = sdf.Surface()
    if weights is None:
        return recipe(closed), middle, closed.diagonal
    model = sorting_network(folded_network(3, recipe.width, recipe.depth, 0), torch.zeros(3, dtype=torch.float64), 1.0)
    model.load_state_dict(torch.load(weights, weights_only=True))
    return sdf.Network(model, middle[None]), middle, closed.diagonal


def main() -> None:
    """Train, cut, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mesh", type=Path, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--out", type=Path, default=Path("bunny.png"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    f, middle, size = bunny(args.mesh, args.weights)
    print(f"K = {float(f.bound.value):.6f}; {time.process_time() - started:.0f} s of the processor", flush=True)
    hollow = middle + size * torch.tensor([0.08, -0.06, 0.22], dtype=torch.float64)
    scene = sdf.Difference(f, sdf.Sphere(hollow, 0.14 * size))
    x, y, z = (middle + size * torch.tensor([0.35, 0.3, 1.35], dtype=torch.float64)).tolist()
    camera = sdf.Camera((x, y, z), tuple(middle.tolist()), up=(0.0, 1.0, 0.0), angle=36.0)
    picture = sdf.render(scene, camera, 3 * size, SIZE, SIZE, samples=2, tolerance=1e-4 * size)
    picture.save(args.out)
    print(f"drawn: {time.process_time() - started:.0f} s of the processor")


if __name__ == "__main__":
    main()
