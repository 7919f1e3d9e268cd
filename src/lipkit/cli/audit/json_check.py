"""Compares the file that `--json` of a command wrote with the numbers that its folder gives."""

import json
from collections.abc import Mapping
from pathlib import Path

from lipkit.cli.audit.audited_run import ANEW
from lipkit.cli.audit.findings import Findings, find_differences
from lipkit.errors import RecordError


def check_json(file: Path, numbers: Mapping[str, object], source: str, findings: Findings) -> None:
    """Compare a file of `--json` with the numbers that the file `source` of the run gives."""
    with findings.reading(file):
        try:
            stored = json.loads(file.read_bytes())
        except ValueError as error:
            raise RecordError(f"{file} is no JSON ({error}); give the file that --json of the run wrote.") from error
        wrong = list(find_differences(stored, json.loads(json.dumps(numbers))))
        for place, says, here in wrong:
            findings.differ(file, place, says, here, ANEW)
        if not wrong:
            findings.confirm(f"shares: {file} says what {source} says")
