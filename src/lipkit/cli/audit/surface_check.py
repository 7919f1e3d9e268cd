"""The constant, the proven deviation and everything else of a learned surface, computed again from weights and mesh."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import torch

from lipkit import sdf
from lipkit.bounds.certificates.json_codec import to_plain
from lipkit.cli.audit.audited_run import ANEW, check_settings
from lipkit.cli.audit.findings import Findings, find_differences
from lipkit.cli.audit.json_check import check_json
from lipkit.cli.audit.page_check import check_page
from lipkit.cli.audit.same_software import rounds_as_here
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.commands.surface_request import SurfaceRequest
from lipkit.cli.inputs.mesh_file import ClosedMesh
from lipkit.cli.runs.kept_training import shown_training
from lipkit.cli.runs.software import describe_software
from lipkit.cli.runs.surface_files import (
    EXTRACTED,
    MODEL,
    SurfaceMeasures,
    part_file,
    plain_surface,
    read_field,
    read_part,
)
from lipkit.report.html.fields.surface_page import render_surface_page
from lipkit.report.results.surface_contents import SURFACE, Render, Slice, SurfaceContents
from lipkit.sdf import Deviation

# Another machine sums in another order. Relative, and of coordinates and values in parts of the diagonal.
_ROUNDING = 1e-9
# Cubes are marched through values in single precision, so vertices, and distances from them, are coarser than that.
_SINGLE = 1e-6


@final
@dataclass(frozen=True, eq=False)
class SurfaceRun:
    """A run of `lipkit surface` as its folder describes it, with its mesh."""

    folder: Path
    request: SurfaceRequest
    mesh: ClosedMesh

    @classmethod
    def rebuild(
        cls, folder: Path, request: SurfaceRequest, mesh: str | None, findings: Findings
    ) -> "SurfaceRun | None":
        """The run of a folder; settings that contradict its run.json are noted. None if the mesh is another.

        Args:
            folder: The --out of the run.
            request: That of its run.json.
            mesh: Where the mesh lies now, None for where the run says.
            findings: Takes what differs.
        """
        found = ClosedMesh.read(Path(mesh or request.mesh), request.close_holes)
        before = len(findings.mismatches)
        check_settings(folder, {**request.options, **found.hashes}, findings)
        # With other settings, or another mesh, no number would come out again.
        return cls(folder, request, found) if len(findings.mismatches) == before else None


def check_surface(run: SurfaceRun, findings: Findings, retrain: bool, shares: Path | None) -> None:
    """Measure a stored field again, and note all in which its surface, its numbers, its parts and its page differ.

    The constant and the deviation are proven anew, and nothing that was measured is read before. With `retrain` the
    training is repeated, whose weights are the same to the bit on the same machine.
    Cost: that of the run without its training; and the training.
    """
    file, claims, field = run.folder / SURFACE, None, None
    with findings.reading(file):
        claims = SurfaceContents.from_json(file.read_bytes(), str(file))
    with findings.reading(run.folder / MODEL):
        field = read_field(run.request, run.folder)
    if field is None:
        return
    if retrain:
        with findings.reading(run.folder / MODEL):
            _check_training(run, field, claims, findings)
    with findings.reading(file):
        measures = SurfaceMeasures(run.request, run.mesh, field, None)
        extracted = measures.extract()
        with findings.reading(run.folder / EXTRACTED):
            _check_extracted(run, extracted, findings)
        if claims is not None:
            _check_contents(run, claims, measures.gather(extracted), findings)
    if claims is None:
        return
    _check_parts(run, claims, findings)
    page = run.folder / "surface.html"
    with findings.reading(page):
        check_page(page, render_surface_page(claims), run.folder, findings)
    if shares is not None:
        check_json(shares, plain_surface(claims), SURFACE, findings)


def _check_training(
    run: SurfaceRun, field: sdf.Network, claims: SurfaceContents | None, findings: Findings
) -> None:  # fmt: skip
    if claims is not None and not rounds_as_here(claims.software, findings):
        return
    with shown_training("training again") as shown:
        again = run.request.training(run.mesh.mesh, checkpoints=shown).model.state_dict()
    stored = field.model.state_dict()
    wrong = [name for name in again if not torch.equal(again[name], stored[name])]
    if wrong:
        file = run.folder / MODEL
        findings.refuse(
            file,
            f"{file} has other weights in {len(wrong)} of {len(again)} tensors, {wrong[0]} first, than the training "
            f"gives when it is done again; {ANEW}.",
        )
    else:
        findings.confirm(f"training: {len(again)} tensors came out again bit for bit")


def _check_extracted(run: SurfaceRun, found: sdf.Triangles, findings: Findings) -> None:
    """Compare the mesh file with the surface of the field, extracted anew."""
    path = run.folder / EXTRACTED
    if not path.is_file():
        raise FileNotFoundError(2, "there is no such file", str(path))
    stored = sdf.read_mesh(path)
    sizes = [(len(one.vertices), len(one.faces)) for one in (stored, found)]
    says, here = (f"of {v} vertices and {f} faces" for v, f in sizes)
    if sizes[0] != sizes[1] or not torch.equal(stored.faces, found.faces):
        findings.differ(path, "the surface", says, here if says != here else f"{here}, others", ANEW)
        return
    apart = float((stored.vertices - found.vertices).abs().max())
    if apart > _SINGLE * run.mesh.mesh.triangles.diagonal:
        findings.refuse(path, f"{path}: a vertex is {apart:.3g} from where the field has it; {ANEW}.")
    else:
        findings.confirm(f"mesh: {len(found.faces)} faces of {EXTRACTED} were extracted again")


def _check_contents(run: SurfaceRun, claims: SurfaceContents, found: SurfaceContents, findings: Findings) -> None:
    file = run.folder / SURFACE
    before = len(findings.mismatches)
    if not abs(claims.constant - found.constant) <= _ROUNDING * found.constant:
        findings.differ(file, "the constant", claims.constant, found.constant, ANEW)
    else:
        findings.confirm(f"constant: {claims.constant:.6g} was proven again")
    said = read_command(claims.command)
    if not isinstance(said, SurfaceRequest) or said.options != run.request.options:
        findings.differ(file, "the command", claims.command, run.request.command, ANEW)
    same = claims.software == found.software
    # Words of the command and the name of its mesh are on record, and so is the software.
    found = replace(
        found, command=claims.command, software=claims.software, constant=claims.constant,
        mesh=Path(said.mesh if isinstance(said, SurfaceRequest) else run.request.mesh).name,
    )  # fmt: skip
    if not same:
        found = _without_machine(file, claims, found, findings)
    for place, says, here in _differences(claims, found):
        findings.differ(file, place, says, here, ANEW)
    if len(findings.mismatches) == before:
        low, high = (100 * one / claims.diagonal for one in (claims.deviation.lower, claims.deviation.upper))
        findings.confirm(f"deviation: between {low:.4f} and {high:.4f} % of the diagonal, proven again")
        findings.confirm(f"result: every number of {SURFACE} was measured again, and its slice")


def _without_machine(
    file: Path, claims: SurfaceContents, found: SurfaceContents, findings: Findings
) -> SurfaceContents:  # fmt: skip
    """Compare what must agree where roundings differ: the ends of the deviation must hold, pictures are left out.

    Where triangles tie, another machine may cut others first, so its ends may be others; both enclose the same number.
    """
    said, here = claims.deviation, found.deviation
    room = 1 + _ROUNDING
    if said.lower > here.upper * room or said.upper * room < here.lower:
        # Left as it is, which names the end that is wrong.
        wanted = here
    else:
        wanted = said
        if said.upper * room < here.upper or said.lower > here.lower * room:
            findings.unproven.append(
                f"{file}: another machine found the deviation between {said.lower:.6g} and {said.upper:.6g}; here only "
                f"{here.lower:.6g} to {here.upper:.6g} is proven."
            )
    if claims.picture != found.picture:
        findings.skipped.append(
            f"The picture was drawn on {claims.software}, which rounds otherwise than {describe_software()}; draw it "
            "there."
        )
    return replace(found, deviation=wanted, picture=claims.picture)


def _differences(claims: SurfaceContents, found: SurfaceContents) -> list[tuple[str, Any, Any]]:
    """Where two results differ by more than rounding; values of the slice may be near 0."""
    stored, here = (to_plain(one, SurfaceContents) for one in (claims, found))
    assert isinstance(stored, dict), "a dataclass becomes an object"
    assert isinstance(here, dict), "a dataclass becomes an object"
    wrong: list[tuple[str, Any, Any]] = []
    for name in here:
        near = found.diagonal * {"cut": _ROUNDING, "distances": _SINGLE}.get(name, 0.0)
        apart = list(find_differences(stored[name], here[name], _ROUNDING, name, near))
        # One node of a slice says enough.
        wrong += apart[:1] if name == "cut" else apart
    return wrong


def _check_parts(run: SurfaceRun, claims: SurfaceContents, findings: Findings) -> None:
    """Compare the parts that a stopped run would go on with; they are the numbers of the result."""
    known = (
        (Deviation, claims.deviation), (sdf.SurfaceMean, claims.mean), (sdf.SurfaceDistances, claims.distances),
        (Render, claims.picture), (Slice, claims.cut),
    )  # fmt: skip
    before = len(findings.mismatches)
    for hint, wanted in known:
        file = part_file(run.folder, hint)
        with findings.reading(file):
            if read_part(file, hint) != wanted:
                findings.refuse(file, f"{file} has other numbers than {SURFACE}; {ANEW}.")
    if len(findings.mismatches) == before:
        findings.confirm(f"parts: {len(known)} files say what {SURFACE} says")
