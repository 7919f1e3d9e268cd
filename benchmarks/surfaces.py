"""Meshes as networks: how near they come in two minutes, what is proven of it, and a SIREN of the same time beside.

For each mesh of a folder, holes capped, a network is trained by `sdf.Surface`. Measured, in percent of the diagonal:
mean and largest |f| at points of the surface; the largest |f| on all of it between two proven ends; the Chamfer and
Hausdorff distances (sampled) of its zero set, extracted by marching cubes, to the mesh.

Beside it a SIREN (Sitzmann et al. 2020: hidden layers of 256 sines of 30 x), trained by the same distances with Adam
for as much processor time. Renderers step by its values as if its constant were 1. So rays are traced through both with
the constant 1 for the SIREN and the proven one for ours; counted are those on which the sign changes before where they
ended.

Results are appended to a file as they come, meshes that stand there with the same seed are left out, and a table of all
is printed. Without scikit-image the two distances of the extracted surface are left out.

    python benchmarks/surfaces.py --meshes FOLDER [--names rocker-arm,spot] [--siren rocker-arm] [--out surfaces.json]
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from lipkit import sdf
from lipkit.errors import UnsupportedError
from lipkit.sdf.surfaces.surface_samples import SurfaceSamples, draw_around_mesh

# The proven ends of the deviation may be this far apart, as a part of the diagonal.
TOLERANCE, EVALUATIONS = 1e-3, 300_000
RESOLUTION, SAMPLES, RAYS, ALONG = 128, 50_000, 4_000, 32


class Sine(nn.Module):
    """x -> sin(30 x)."""

    def forward(self, x: Tensor) -> Tensor:
        """The sine of each entry."""
        return torch.sin(30 * x)


def siren(drawn: SurfaceSamples, seconds: float, seed: int) -> sdf.Field:
    """A SIREN with its published initial weights after so many seconds of the processor, in the mesh's units."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for k, (wide, out) in enumerate(((3, 256), (256, 256), (256, 256), (256, 256), (256, 1))):
        layer = nn.Linear(wide, out)
        limit = 1 / 3 if k == 0 else math.sqrt(6 / wide) / 30
        nn.init.uniform_(layer.weight, -limit, limit)
        layers += [layer, Sine()]
    model = nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters())
    # In the cube from -1 to 1, as the weights expect.
    points = (2 * (drawn.points - drawn.center) / drawn.diagonal).float()
    targets = (2 * drawn.values / drawn.diagonal).float()
    started = time.process_time()
    while (share := (time.process_time() - started) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = 1e-4 * (1 + math.cos(math.pi * share)) / 2
        chosen = torch.randint(len(points), (1024,))
        loss = (model(points[chosen]).flatten() - targets[chosen]).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.double().requires_grad_(False)
    half = drawn.diagonal / 2
    return sdf.Function(lambda x: half * model((x - drawn.center) / half).flatten(), 3, 1.0)


def overstepped(f: sdf.Field, mesh: sdf.Mesh, seed: int) -> int:
    """On how many rays from around to points of the surface the sign changes before where they end."""
    diagonal = mesh.triangles.diagonal
    source = torch.Generator().manual_seed(seed)
    away = torch.nn.functional.normalize(torch.randn(RAYS, 3, generator=source, dtype=torch.float64), dim=1)
    targets = sdf.sample_surface(mesh, RAYS, seed)
    middle = (mesh.vertices.amax(0) + mesh.vertices.amin(0)) / 2
    origins = middle + diagonal * away
    directions = torch.nn.functional.normalize(targets - origins, dim=1)
    found = sdf.trace(f, origins, directions, 2 * diagonal, 1e-5 * diagonal)
    bad = torch.zeros(RAYS, dtype=torch.bool)
    with torch.no_grad():
        first = f(origins) > 0
        for share in torch.linspace(0, 1, ALONG + 1, dtype=torch.float64)[:-1].tolist():
            bad |= (f(origins + share * found.distance[:, None] * directions) > 0) != first
    return int(bad.sum())


def read(path: Path) -> sdf.Mesh:
    """The mesh in a file, vertices of equal coordinates merged and holes capped."""
    surface = sdf.read_mesh(path)
    closed = sdf.close_holes(surface.vertices, surface.faces)
    return sdf.Mesh(closed.vertices, closed.faces)


def on_surface(f: sdf.Field, mesh: sdf.Mesh) -> tuple[float, float]:
    """Mean and largest |f| at points of the surface, in percent of the diagonal."""
    with torch.no_grad():
        points = sdf.sample_surface(mesh, SAMPLES, 1).split(2**13)
        values = torch.cat([f(part).abs() for part in points]) / mesh.triangles.diagonal
    return 100 * float(values.mean()), 100 * float(values.max())


def apart(f: sdf.Field, mesh: sdf.Mesh) -> dict[str, float]:
    """Chamfer and Hausdorff distance of the extracted surface, in percent of the diagonal; {} without scikit-image."""
    room, percent = 0.03 * mesh.triangles.diagonal, 100 / mesh.triangles.diagonal
    try:
        extracted = sdf.extract(f, mesh.vertices.amin(0) - room, mesh.vertices.amax(0) + room, RESOLUTION)
    except UnsupportedError as error:
        print(f"Chamfer and Hausdorff are left out ({error})", flush=True)
        return {}
    distances = sdf.surface_distances(mesh, extracted, SAMPLES)
    return {"chamfer": percent * distances.chamfer, "hausdorff": percent * distances.hausdorff}


def measured(path: Path, args: argparse.Namespace) -> dict[str, float | str]:
    """Train and measure one mesh."""
    mesh = read(path)
    percent = 100 / mesh.triangles.diagonal
    recipe = sdf.Surface(steps=args.steps, seed=args.seed) if args.steps else sdf.Surface(seed=args.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    f = recipe(mesh)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    torch.save(f.model.state_dict(), args.out.with_name(f"{args.out.stem}-{path.stem}.pt"))
    row: dict[str, float | str] = {"mesh": path.stem, "faces": len(mesh.faces), "cpu": cpu, "wall": wall}
    row |= {"steps": recipe.steps, "seed": args.seed, "constant": float(f.bound.value)}
    row["mean"], row["largest"] = on_surface(f, mesh)
    proven = sdf.deviation(f, mesh, TOLERANCE * mesh.triangles.diagonal, EVALUATIONS)
    row |= {"proven_lower": percent * proven.lower, "proven_upper": percent * proven.upper}
    row |= apart(f, mesh)
    row["overstepped"] = overstepped(f, mesh, args.seed)
    return row


def beside(path: Path, row: dict[str, float | str], args: argparse.Namespace) -> dict[str, float | str]:
    """What a SIREN does with the mesh in the same time."""
    mesh = read(path)
    # Ours has drawn its points in the same time.
    started = time.process_time()
    drawn = draw_around_mesh(mesh, sdf.Surface().samples, args.seed)
    wave = siren(drawn, float(row["cpu"]) - (time.process_time() - started), args.seed)
    mean, largest = on_surface(wave, mesh)
    return {"siren_mean": mean, "siren_largest": largest, "siren_overstepped": overstepped(wave, mesh, args.seed)}


def table(rows: list[dict[str, float | str]]) -> str:
    """The rows of docs/results.md."""
    head = (
        "| mesh | seed | faces | mean abs(f) | largest, sampled | proven: between | Chamfer | Hausdorff | constant "
        "| s of a core | rays overstepped | SIREN: mean, largest | SIREN: rays overstepped |"
    )
    lines = [head, "|" + "---|" * (head.count("|") - 1)]
    for row in rows:
        other = f"{row['siren_mean']:.3f}, {row['siren_largest']:.2f}" if "siren_mean" in row else ""
        surface = f"{row['chamfer']:.3f} | {row['hausdorff']:.2f}" if "chamfer" in row else "|"
        lines.append(
            f"| {row['mesh']} | {row['seed']} | {row['faces']:,} | {row['mean']:.3f} | {row['largest']:.2f} | "
            f"{row['proven_lower']:.2f} and {row['proven_upper']:.2f} | {surface} | "
            f" {row['constant']:.6f} | {row['cpu']:.0f} | {row['overstepped']:,} | {other} | "
            f"{row.get('siren_overstepped', '')} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--meshes", type=Path, required=True)
    parser.add_argument("--names", default="", help="separated by commas; all files if left out")
    parser.add_argument("--siren", default="all", help="meshes with a SIREN beside: names, or all")
    parser.add_argument("--out", type=Path, default=Path("surfaces.json"))
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = json.loads(args.out.read_text()) if args.out.exists() else []
    names = args.names.split(",") if args.names else sorted(path.stem for path in args.meshes.glob("*.obj"))
    for name in names:
        if all((row["mesh"], row["seed"]) != (name, args.seed) for row in rows):
            rows.append(measured(args.meshes / f"{name}.obj", args))
            args.out.write_text(json.dumps(rows, indent=1))
            print(rows[-1], flush=True)
    for row in rows:
        name = str(row["mesh"])
        if (
            "siren_mean" not in row
            and row["seed"] == args.seed
            and (args.siren == "all" or name in args.siren.split(","))
        ):
            row |= beside(args.meshes / f"{name}.obj", row, args)
            args.out.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
