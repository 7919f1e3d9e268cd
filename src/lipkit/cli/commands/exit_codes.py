"""How a command ends: a code for the shell, and one sentence on standard error where something is wrong."""

import sys
from collections.abc import Callable
from enum import IntEnum

from lipkit.errors import (
    ArgumentError,
    BrokenCertificateError,
    CaptureError,
    InterruptedRun,
    LipkitError,
    NeedsRegion,
)


class Code(IntEnum):
    """How the command ends."""

    OK = 0
    OTHER = 1
    USAGE = 2
    UNSUPPORTED = 3
    NEEDS_REGION = 4
    BROKEN = 5
    INTERRUPTED = 130


_CODES: tuple[tuple[type[LipkitError], Code], ...] = (
    (ArgumentError, Code.USAGE),
    (CaptureError, Code.UNSUPPORTED),
    (NeedsRegion, Code.NEEDS_REGION),
    (BrokenCertificateError, Code.BROKEN),
    (InterruptedRun, Code.INTERRUPTED),
)


def ended(act: Callable[[], None]) -> Code:
    """How an action ends; its errors are printed, with the code that belongs to them."""
    try:
        act()
    except LipkitError as error:
        return _said(error, next((code for kind, code in _CODES if isinstance(error, kind)), Code.OTHER))
    except ModuleNotFoundError as missing:
        return _said(f"This needs {missing.name}; pip install 'lipkit[cli,data,plot]' brings it.", Code.USAGE)
    except KeyboardInterrupt:
        return _said(
            "Interrupted; with --out what was done is kept, and the same command continues it.", Code.INTERRUPTED
        )
    return Code.OK


def _said(error: object, code: Code) -> Code:
    print(error, file=sys.stderr)
    return code
