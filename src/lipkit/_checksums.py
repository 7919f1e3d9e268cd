"""A checksum inside a file: a byte that changes later, by a bad disk or a careless editor, is noticed when it is read.

The field `"sha256"` of a JSON object, or of the header of a safetensors file, holds the SHA-256 of all bytes around it.
This is no signature: whoever changes a file on purpose can compute a new one. `lipkit audit` finds that.
"""

import hashlib
import json
import mmap
import re
from collections.abc import Mapping
from typing import Any, Final

from lipkit.errors import RecordError

# The name of the field, and what stands in it while the checksum is computed.
FIELD: Final = "sha256"
BLANK: Final = "0" * 64
_PLACE = re.compile(rb'"sha256": ?"([0-9a-f]{64})"')


def seal(content: bytes) -> bytes:
    """The content with the checksum of all its bytes in its first field `"sha256"`, which must be `BLANK` before."""
    found = _PLACE.search(content)
    assert found is not None, "whoever writes a file gives it a blank field"
    assert found[1] == BLANK.encode(), "whoever writes a file gives it a blank field"
    return content[: found.start(1)] + hashlib.sha256(content).hexdigest().encode() + content[found.end(1) :]


def require_seal(content: bytes | mmap.mmap, where: str, remedy: str) -> None:
    """Refuse content whose bytes are not those that `seal` saw, with a `RecordError`. Cost: one pass.

    Args:
        content: All bytes of a file, or of a line.
        where: Names the file, and the line, in the message.
        remedy: Says what to do about damage, as the end of the message.
    """
    found = _PLACE.search(content)
    if found is None:
        raise RecordError(f"{where} has no checksum: it is damaged, or of an earlier version; {remedy}.")
    with memoryview(content) as view:
        digest = hashlib.sha256(view[: found.start(1)])
        digest.update(BLANK.encode())
        digest.update(view[found.end(1) :])
    if digest.hexdigest().encode() != found[1]:
        raise RecordError(f"{where} does not fit its checksum: it was changed after it was written; {remedy}.")


def to_sealed_json(data: Mapping[str, Any], indent: int | None = None) -> bytes:
    """Plain data as a JSON object with its checksum in front; NaN and infinities as Python writes them."""
    return seal(json.dumps({FIELD: BLANK, **data}, indent=indent, ensure_ascii=False).encode())


def from_sealed_json(content: bytes, where: str, remedy: str) -> dict[str, Any]:
    """The data that `to_sealed_json` wrote, without the checksum; anything else is refused with a `RecordError`."""
    require_seal(content, where, remedy)
    try:
        data = json.loads(content)
        del data[FIELD]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RecordError(f"{where} is no JSON object with a checksum; {remedy}.") from error
    return data
