"""A bound on paper: the number, what it was computed from and by what, in a form that can be checked again."""

import hashlib
import json
import math
import platform
import re
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from lipkit._files import write_whole
from lipkit._version import __version__
from lipkit.bound import Kind, Metric
from lipkit.bounds._base import Method
from lipkit.bounds.certificates.json_codec import Plain, from_plain, to_plain
from lipkit.bounds.certificates.provenance import Inputs, ModelRecord
from lipkit.bounds.certificates.region_record import RegionRecord
from lipkit.bounds.fold.layer_table import LayerRow
from lipkit.errors import ArgumentError, CertificateError, KindError

SCHEMA = "lipkit certificate 2"
# The numbers that are written in hexadecimal too.
_HEXES = ("value", "log_value", "log_lower")
SCOPE = (
    "For the function of real arithmetic that the model computes in evaluation mode on one sample of the recorded "
    "shapes; rounding errors of the model's own evaluation are not part of it. Computed in float64 and rounded up."
)
# Added where samples cannot be tested for mixing: nothing is known of an evaluation on several of them.
ALONE = (
    " The model raises for batches of several samples, or was exported for one, so that nothing is said of evaluating "
    "several together."
)


@final
@dataclass(frozen=True)
class Assumption:
    """A constant that a module declared of itself and that was believed: `module` is its path, "" the model."""

    module: str
    statement: str
    log_value: float


@final
@dataclass(frozen=True)
class Software:
    """The versions of the software that computed the bound, and what else decides the last bits of a sum."""

    lipkit: str
    torch: str
    python: str
    platform: str
    processor: str
    threads: int

    @classmethod
    def here(cls) -> "Software":
        """The versions and the machine that run now."""
        versions = (__version__, str(torch.__version__), platform.python_version(), platform.platform())
        return cls(*versions, _processor(), torch.get_num_threads())

    def against(self, other: "Software") -> str:
        """The versions of both, where they differ."""
        mine, yours = ((one.lipkit, one.torch) for one in (self, other))
        if mine == yours:
            return ""
        return f" (made with lipkit {mine[0]} and torch {mine[1]}, checked with lipkit {yours[0]} and torch {yours[1]})"


@final
@dataclass(frozen=True)
class Certificate:
    """An EXACT or UPPER bound of a model with its provenance; JSON both ways, exactly.

    `method` are the settings that `verify` runs again: of several methods, the one that won; `asked` is what was asked
    for. `draws` are the random bits that this method drew, in hexadecimal and in order: they reproduce the number and
    prove nothing, because they can be chosen after the fact. `cut` says where linear regions were cut, `table` what
    each layer contributes to the fold over the network, and `assumptions` list every constant that a module declared
    of itself: the bound is worth as much as they are. Of `value` and `log_value` the latter is the precise one where
    floats end.

    `to_json` ends with a digest over everything else, so that a file with any change is refused. The digest is no
    signature: a forger can make a new one. What a forged file says of the bound, `verify` finds out.
    """

    value: float
    log_value: float
    kind: Kind
    metric: Metric
    region: RegionRecord
    failure: float
    log_lower: float | None
    method: Method
    asked: Method
    found_by: str
    draws: tuple[str, ...]
    cut: str
    inputs: Inputs
    model: ModelRecord
    table: tuple[LayerRow, ...]
    assumptions: tuple[Assumption, ...]
    software: Software
    seconds: float
    scope: str = SCOPE

    def __post_init__(self) -> None:
        if not self.kind.certifies:
            raise KindError(f"Only exact and upper bounds can be certified, got: {self.kind.value}.")
        if not 0 <= self.failure < 1:
            raise CertificateError(f"The certificate has the failure probability {self.failure}, expected in [0, 1).")
        # exp is good to an ulp of its argument, and infinite or clamped where floats end.
        exact = abs(self.log_value) > 700 or abs(math.log(self.value) - self.log_value) <= 1e-9
        if not (self.log_value == -math.inf and self.value == 0) and not exact:
            raise CertificateError(f"The certificate says {self.value} and exp({self.log_value}), which do not agree.")
        if not all(re.fullmatch("0x[0-9a-f]{1,32}", draw) for draw in self.draws):
            raise CertificateError("The certificate has draws that are no hexadecimal numbers of up to 128 bits.")
        if self.log_lower is not None and not self.log_lower <= self.log_value:
            raise CertificateError(f"The lower bound exp({self.log_lower}) is above the bound {self.value}.")

    def to_json(self) -> str:
        """The certificate as text. Floats are decimals that read back to the last bit; the values are in hex too."""
        body = _body(self)
        return json.dumps({**body, "digest": _digest(body)}, indent=1, ensure_ascii=True, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """Read what `to_json` wrote; anything else (cut off, edited, of another schema) is a `CertificateError`."""
        data = _parsed(text)
        schema, digest = data.get("schema"), data.pop("digest", None)
        if schema != SCHEMA:
            raise CertificateError(f"The file is of the schema {str(schema)[:60]!r}; this version reads {SCHEMA!r}.")
        if digest != _digest(data):
            raise CertificateError(
                "The certificate was changed after it was made: its digest does not fit its content. Take the "
                "original, or issue it again with `lipkit bound --json` or `lipkit.certificate`."
            )
        hexes = {name: data.pop(f"{name}_hex", None) for name in _HEXES}
        del data["schema"]
        found = from_plain(data, cls)
        if hexes != {name: _hex(getattr(found, name)) for name in hexes}:
            raise CertificateError("The hexadecimal and the decimal numbers of the certificate do not agree.")
        return found

    def save(self, path: str | Path) -> None:
        """Write it to a file, all or nothing: a crash on the way leaves what was there before."""
        write_whole(Path(path), self.to_json().encode())

    @classmethod
    def load(cls, path: str | Path) -> "Certificate":
        """Read it from a file."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ArgumentError(f"{path} cannot be read ({error.strerror}); name a certificate.") from error
        except UnicodeDecodeError as error:
            raise CertificateError(f"{path} is no text, so it is no certificate.") from error

    def __str__(self) -> str:
        sure = f", failure <= {self.failure:.0e}" if self.failure else ""
        given = f", assuming {len(self.assumptions)} declared constants" if self.assumptions else ""
        said = f"{self.kind.value}, {self.metric}, {self.region}, {self.found_by}{sure}{given}"
        return f"{self.value:.10g} ({said})"


def _processor() -> str:
    """The processor by name, where the system tells it, and the instructions that torch uses of it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def _body(found: Certificate) -> dict[str, Plain]:
    data = to_plain(found, Certificate)
    assert isinstance(data, dict)
    exact: dict[str, Plain] = {f"{name}_hex": _hex(getattr(found, name)) for name in _HEXES}
    return {"schema": SCHEMA, **exact, **data}


def _hex(value: float | None) -> str | None:
    return None if value is None else value.hex()


def _digest(body: dict[str, Plain]) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _parsed(text: str) -> dict[str, Plain]:
    try:
        data = json.loads(text, object_pairs_hook=_unique, parse_constant=_refused)
    except (json.JSONDecodeError, RecursionError) as error:
        raise CertificateError(f"The text is no JSON ({error}): it is cut off, or it is no certificate.") from error
    if not isinstance(data, dict):
        raise CertificateError(f"The text is JSON, but no certificate: it holds a {type(data).__name__}.")
    return data


def _unique(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CertificateError("The certificate has a key twice, so it was changed after it was made.")
    return found


def _refused(constant: str) -> None:
    raise CertificateError(f"The certificate contains {constant}, which is no number, so it was changed.")
