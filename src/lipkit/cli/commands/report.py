"""`lipkit report`: the page of a run, drawn again."""

from dataclasses import dataclass
from pathlib import Path
from typing import final

from lipkit.certify import smoothing as rs
from lipkit.cli.commands.run_commands import read_command
from lipkit.cli.commands.smooth_request import SmoothRequest
from lipkit.cli.console import terminal
from lipkit.cli.inputs import option_words
from lipkit.cli.options import argument, option
from lipkit.cli.runs.anomaly_files import plain_anomalies
from lipkit.cli.runs.folder_identity import Identity, command_in
from lipkit.cli.runs.result_files import plain, print_warnings, write_json
from lipkit.cli.runs.smoothing_files import VOTES, gather_report, plain_smoothing, publish_smoothing
from lipkit.cli.runs.stored_bound import StoredBound
from lipkit.cli.runs.surface_files import plain_surface
from lipkit.cli.training.profile import read_profile
from lipkit.errors import ArgumentError
from lipkit.report.html.fields.anomaly_page import write_anomaly_page
from lipkit.report.html.fields.surface_page import write_surface_page
from lipkit.report.html.page import write_report
from lipkit.report.html.profile_section import write_profile_page
from lipkit.report.html.spectral_page import write_spectral_page
from lipkit.report.results.anomaly_contents import ANOMALY, AnomalyContents
from lipkit.report.results.recount import read_report
from lipkit.report.results.spectral_contents import SPECTRAL, SpectralContents
from lipkit.report.results.surface_contents import SURFACE, SurfaceContents


@final
@dataclass(frozen=True)
class ReportRequest:
    """Draw the report of a run again from its report.json."""

    run: Path = argument("The --out of train, certify, attack, smooth, anomaly or surface; or a report.json.", "RUN")
    out: Path | None = option("Folder for report.html; by default that of the run.", None)
    json: Path | None = option("File for the shares.", None)


def redraw_report(request: ReportRequest) -> None:
    """Draw the page of a report.json again, beside it or elsewhere, and write its shares where --json says."""
    option_words.check_json(request.json)
    if (request.run / VOTES).is_dir():
        _redraw_smoothing(request)
        return
    if (request.run / SPECTRAL).is_file():
        _redraw_spectral(request)
        return
    if (request.run / ANOMALY).is_file():
        _redraw_anomalies(request)
        return
    if (request.run / SURFACE).is_file():
        _redraw_surface(request)
        return
    run, source = request.run, request.run / "report.json" if request.run.is_dir() else request.run
    if run.is_dir() and not source.exists() and (profile := read_profile(run)) is not None:
        page = write_profile_page(profile, Identity.read(run).recipe, run if request.out is None else request.out)
        terminal().print(f"profile in {page}; nothing is certified", soft_wrap=True, markup=False, highlight=False)
        return
    if run.is_dir() and not source.exists() and (begun := command_in(run)):
        raise ArgumentError(f"{run} has no report.json; this command continues to it: {begun}")
    contents = read_report(source)
    page, _ = write_report(contents, source.parent if request.out is None else request.out)
    write_json(request.json, plain(contents, contents.warnings))
    print_warnings(contents.warnings)
    terminal().print(f"report in {page}", soft_wrap=True, markup=False, highlight=False)


def _redraw_spectral(request: ReportRequest) -> None:
    """Draw the page of a spectral game again, from its stored values."""
    file = request.run / SPECTRAL
    contents = SpectralContents.from_json(file.read_bytes(), str(file))
    page = write_spectral_page(contents, request.run if request.out is None else request.out)
    terminal().print(f"page in {page}; nothing is certified", soft_wrap=True, markup=False, highlight=False)


def _redraw_anomalies(request: ReportRequest) -> None:
    """Draw the page of a detector again, from its stored result."""
    file = request.run / ANOMALY
    contents = AnomalyContents.from_json(file.read_bytes(), str(file))
    page = write_anomaly_page(contents, request.run if request.out is None else request.out)
    write_json(request.json, plain_anomalies(contents))
    terminal().print(f"page in {page}", soft_wrap=True, markup=False, highlight=False)


def _redraw_surface(request: ReportRequest) -> None:
    """Draw the page of a learned surface again, from its stored result."""
    file = request.run / SURFACE
    contents = SurfaceContents.from_json(file.read_bytes(), str(file))
    page = write_surface_page(contents, request.run if request.out is None else request.out)
    write_json(request.json, plain_surface(contents))
    terminal().print(f"page in {page}", soft_wrap=True, markup=False, highlight=False)


def _redraw_smoothing(request: ReportRequest) -> None:
    """Draw the page of a smoothing run again, from its votes; nothing that is written down is believed."""
    asked = read_command(Identity.read(request.run).command)
    if not isinstance(asked, SmoothRequest):
        raise ArgumentError(f"{request.run} holds votes, and its run.json is of another command; name another run.")
    path = request.run / "bound.safetensors"
    bound = None if asked.lipschitz is None else StoredBound.read(path).bound
    contents = gather_report(request.run, asked.radii, asked.alpha, asked.method, asked.statistics, bound)
    page = publish_smoothing(request.run if request.out is None else request.out, contents)
    found = rs.recertify(
        request.run / VOTES, asked.radii, alpha=asked.alpha, method=asked.statistics, bound=bound, p=asked.p
    )
    write_json(request.json, plain_smoothing(found))
    terminal().print(f"report in {page}", soft_wrap=True, markup=False, highlight=False)
