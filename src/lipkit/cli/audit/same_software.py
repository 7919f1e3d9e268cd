"""Whether a training can be repeated here to the bit."""

from lipkit.cli.audit.findings import Findings
from lipkit.cli.runs.software import describe_software


def rounds_as_here(software: str, findings: Findings) -> bool:
    """Whether a run was trained by the software that runs here; if not, that it is skipped is noted."""
    here = describe_software()
    if software != here:
        findings.skipped.append(f"The training was on {software}, which rounds otherwise than {here}; repeat it there.")
    return software == here
