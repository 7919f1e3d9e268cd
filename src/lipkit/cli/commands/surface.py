"""`lipkit surface`: the signed distance of a mesh as a network, and a proof of how far its surface is off."""

from functools import partial
from pathlib import Path

from lipkit.cli.commands.surface_request import SurfaceRequest
from lipkit.cli.console import terminal
from lipkit.cli.inputs import option_words
from lipkit.cli.inputs.mesh_file import ClosedMesh
from lipkit.cli.runs.folder_identity import Identity
from lipkit.cli.runs.folder_lock import lock_folder
from lipkit.cli.runs.kept_training import kept_training
from lipkit.cli.runs.result_files import write_json
from lipkit.cli.runs.surface_files import (
    EXTRACTED,
    MODEL,
    SurfaceMeasures,
    plain_surface,
    publish_surface,
    read_field,
    store_field,
)


def learn_surface(request: SurfaceRequest) -> None:
    """Train a field, prove and measure how far it is off, print the result, and write it with a page.

    The folder of `--out` then holds: run.json, model.safetensors, surface.ply, parts/ with a file for each thing that
    was measured, surface.json and surface.html. Whatever is there already is used again, and a training that was
    stopped goes on from its checkpoint.
    Cost: `sdf.Surface`, `sdf.deviation` and `sdf.render`.
    """
    option_words.check_json(request.json)
    request.check()
    mesh = ClosedMesh.read(Path(request.mesh), request.close_holes)
    identity = Identity("", "", {**request.options, **mesh.hashes}, request.command)
    identity.check(request.out)
    with lock_folder(request.out, leads=True):
        if not (request.out / MODEL).is_file():
            # Settings that fail leave the folder free.
            settle = partial(identity.settle, request.out, writes=True)
            with kept_training("training", request.out, settle) as kept:
                field = request.training(mesh.mesh, checkpoints=kept)
                settle()
                store_field(field, request.out)
        # What is measured is what is stored.
        measures = SurfaceMeasures(request, mesh, read_field(request, request.out), request.out)
        contents = measures.gather(measures.extract())
        page = publish_surface(request.out, contents)
    write_json(request.json, plain_surface(contents))
    say = terminal().print
    for line in (*contents.lines(), f"surface in {request.out / EXTRACTED}", f"page in {page}"):
        say(line, soft_wrap=True, markup=False, highlight=False)
