"""A page of a run against the page that its data give."""

from pathlib import Path

from lipkit.cli.audit.findings import Findings
from lipkit.report.html.claims import read_claims
from lipkit.report.html.page import has_same_drawer


def check_page(file: Path, wanted: str, folder: Path, findings: Findings) -> None:
    """Compare a stored page with `wanted`, what its data give: claims first, then every byte.

    Drawings of another version of the library that draws are not compared.
    """
    page = file.read_text(encoding="utf-8", errors="replace")
    said, known = read_claims(page), read_claims(wanted)
    if said != known:
        apart = [one for one in said if one not in known]
        words = f"{apart[0].name}: {apart[0].words}" if apart else "less than its data"
        findings.refuse(file, f"{file} says {words}, which its data do not; draw it again: lipkit report {folder}")
    elif not has_same_drawer(page):
        findings.skipped.append(f"The drawings of {file} are of another version of the library; draw it again.")
    elif page != wanted:
        findings.refuse(file, f"{file} is not what its data give; draw it again: lipkit report {folder}")
    else:
        findings.confirm(f"page: {file.name} says what its data say")
