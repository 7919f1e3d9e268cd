"""Exit codes: errors become a code for the shell and one sentence on standard error."""

import sys
from collections.abc import Callable
from enum import IntEnum

from lipkit.errors import (
    ArgumentError,
    AuditError,
    BrokenCertificateError,
    CaptureError,
    InterruptedRun,
    LipkitError,
    NeedsRegion,
    NotProvenError,
    PartialAudit,
)


class Code(IntEnum):
    """Exit codes of the command."""

    OK = 0
    OTHER = 1
    USAGE = 2
    UNSUPPORTED = 3
    NEEDS_REGION = 4
    BROKEN = 5
    NOT_PROVEN = 6
    AUDIT_FAILED = 7
    AUDIT_PARTIAL = 8
    INTERRUPTED = 130


_CODES: tuple[tuple[type[LipkitError], Code], ...] = (
    (ArgumentError, Code.USAGE),
    (CaptureError, Code.UNSUPPORTED),
    (NeedsRegion, Code.NEEDS_REGION),
    (BrokenCertificateError, Code.BROKEN),
    (NotProvenError, Code.NOT_PROVEN),
    (AuditError, Code.AUDIT_FAILED),
    (PartialAudit, Code.AUDIT_PARTIAL),
    (InterruptedRun, Code.INTERRUPTED),
)


def exit_code_of(act: Callable[[], None]) -> Code:
    """Run an action and give the code it ends with; its errors are printed on standard error."""
    try:
        act()
    except LipkitError as error:
        return _print_error(error, next((code for kind, code in _CODES if isinstance(error, kind)), Code.OTHER))
    except ModuleNotFoundError as missing:
        return _print_error(f"This needs {missing.name}; pip install 'lipkit[cli,data,plot]' brings it.", Code.USAGE)
    except KeyboardInterrupt:
        return _print_error(
            "Interrupted; with --out what was done is kept, and the same command continues it.", Code.INTERRUPTED
        )
    return Code.OK


def _print_error(error: object, code: Code) -> Code:
    print(error, file=sys.stderr)
    return code
