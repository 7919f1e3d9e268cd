"""The ledger: a file that knows of every step before it is released, and that no crash can lower."""

import os
import secrets
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self, final

from lipkit._checksums import from_sealed_json, to_sealed_json
from lipkit._locks import has_locks, take_lock
from lipkit.errors import ArgumentError, RecordError, UnsupportedError
from lipkit.privacy.accounting._base import Accountant
from lipkit.privacy.accounting.loss_distributions import PLD
from lipkit.privacy.plan import Plan, difference

# At most so many steps are lost to a crash, and so rarely is the disk waited for.
MOST_RESERVED = 256
_REMEDY = "restore the whole file, or count all planned steps as spent"


@final
@dataclass(frozen=True)
class Spent:
    """What a training has cost so far."""

    steps: int
    plan: Plan

    @property
    def delta(self) -> float:
        """The delta of the plan."""
        return self.plan.delta

    @cached_property
    def epsilon(self) -> float:
        """What the accountant of the plan proves for these steps, rounded up."""
        return self.plan.epsilon_after(self.steps)

    def __str__(self) -> str:
        return f"epsilon {self.epsilon:.4g} at delta {self.delta:g} after {self.steps} of {self.plan.steps} steps"


@final
class Ledger:
    """Counts the steps of one plan in a file, each before it is released.

        with Ledger.open(path, plan) as ledger:
            ledger.charge()          # returns when the step is on the disk
            ...                      # now the step may be released

    The file has a first line with the plan, and a line for every reservation of up to 256 steps, flushed to the disk
    before the first of them is released. Every line has a checksum and the checksum of the line before. Closing gives
    back what was reserved and not charged; a process that is killed gives nothing back.

    Guarantee: whatever happens to the process, the file counts at least as many steps as `charge` returned, and never
    more than planned. One process at a time: the lock ends with it. A file that is damaged, cut inside a line, edited
    or of another plan is refused. What no file can notice: that it was replaced by an older copy of itself, or removed;
    `at_least`, from a checkpoint, does, and so does the next `charge` if the file was in use. Threads may share a
    ledger; copies of the object are refused. Cost: one look at the file a step, one flush to the disk for 256 steps.
    """

    def __init__(self, path: Path, plan: Plan, handle: int, state: "_State", reserve: int) -> None:
        self._path, self._plan, self._handle, self._reserve = path, plan, handle, reserve
        self._state = state
        self._process = os.getpid()
        self._turn = threading.Lock()

    @classmethod
    def open(cls, path: Path, plan: Plan, at_least: int = 0, reserve: int = MOST_RESERVED) -> Self:
        """The ledger of a plan, made if there is none.

        Args:
            path: The file.
            plan: Must be the plan of the file, to the last digit of sigma.
            at_least: How many steps a checkpoint knows of; a ledger with fewer is an older copy, and refused.
            reserve: How many steps to reserve at once, 1 to 256.
        """
        if not 1 <= reserve <= MOST_RESERVED:
            raise ArgumentError(f"1 to {MOST_RESERVED} steps are reserved at once, got reserve={reserve}.")
        if not has_locks():
            raise UnsupportedError("A ledger needs a lock on its file, which Windows has not; use another system.")
        if not path.exists() and at_least == 0:
            _create(path, plan)
        try:
            handle = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise RecordError(f"The ledger {path} cannot be opened ({error.strerror}); {_REMEDY}.") from error
        try:
            take_lock(
                handle,
                f"The ledger {path} is in use by another process; wait until that has ended.",
                f"The ledger {path} cannot be locked ({{}}); keep it on another file system.",
            )
            state = _read(path, plan)
            if state.steps < at_least:
                raise RecordError(
                    f"The ledger {path} counts {state.steps} steps where {at_least} are known to be released: it is an "
                    f"older copy; restore the newest."
                )
            state.steps = min(plan.steps, plan.sampling.steps_after_restart(state.steps, plan.records, plan.batch))
            state.reserved = max(state.reserved, state.steps)
            return cls(path, plan, handle, state, reserve)
        except BaseException:
            os.close(handle)
            raise

    @classmethod
    def read(cls, path: Path, accountant: Accountant = PLD()) -> Spent:
        """What a ledger says was spent, its plan included, from the file alone; nothing is locked or changed.

        Steps that were reserved count as spent, as they do for `open`. A damaged, cut or edited file is refused.

        Args:
            path: The file.
            accountant: Who computes epsilon; a ledger has the noise and the number of steps, not who counts.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise RecordError(f"The ledger {path} cannot be read ({error.strerror}); {_REMEDY}.") from error
        try:
            facts = from_sealed_json(content.split(b"\n")[0], f"Line 1 of the ledger {path}", _REMEDY)["plan"]
            plan = Plan.from_facts(facts, accountant)
        except (KeyError, TypeError, ValueError, ArgumentError) as error:
            raise RecordError(f"Line 1 of the ledger {path} states no plan; {_REMEDY}.") from error
        return Spent(_read(path, plan).steps, plan)

    @property
    def plan(self) -> Plan:
        """The plan that the ledger is bound to."""
        return self._plan

    @property
    def steps(self) -> int:
        """How many steps count as released."""
        return self._state.steps

    def charge(self) -> int:
        """Count one step, and return its number, from 1. When this returns, the step is on the disk."""
        with self._turn:
            self._require_open()
            state = self._state
            if state.steps >= self._plan.steps:
                raise RecordError(
                    f"All {self._plan.steps} planned steps are spent; a longer training needs another plan."
                )
            self._require_same_file()
            if state.steps >= state.reserved:
                self._append({"reserved": min(self._plan.steps, state.steps + self._reserve)})
                state.reserved = min(self._plan.steps, state.steps + self._reserve)
            state.steps += 1
            return state.steps

    def spent(self) -> Spent:
        """What the steps so far have cost: .epsilon, .delta, .steps."""
        return Spent(self._state.steps, self._plan)

    def close(self) -> None:
        """Give back what was reserved and not charged, and let go of the file."""
        if os.getpid() != self._process:
            # A copy by fork gives nothing back, and lets the file be.
            return
        with self._turn:
            if self._handle < 0:
                return
            handle = self._handle
            try:
                if self._state.steps < self._state.reserved:
                    self._require_same_file()
                    self._append({"released": self._state.steps})
            finally:
                self._handle = -1
                os.close(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise RecordError(
            f"The ledger {self._path} cannot be copied: a copy would count its steps once more from here."
        )

    def _require_open(self) -> None:
        if self._handle < 0:
            raise RecordError(f"The ledger {self._path} is closed; open it again.")
        if os.getpid() != self._process:
            raise RecordError(f"The ledger {self._path} belongs to the process that opened it, not to a copy of it.")

    def _require_same_file(self) -> None:
        try:
            before, here = os.fstat(self._handle), self._path.stat()
        except OSError as error:
            raise RecordError(f"The ledger {self._path} is gone ({error.strerror}); {_REMEDY}.") from error
        if (before.st_dev, before.st_ino, before.st_size) != (here.st_dev, here.st_ino, self._state.size):
            raise RecordError(f"The ledger {self._path} was changed or replaced while it was in use; {_REMEDY}.")

    def _append(self, entry: dict[str, Any]) -> None:
        line = _line({"before": self._state.last, **entry})
        try:
            written = os.write(self._handle, line)
            if written == len(line):
                os.fsync(self._handle)
        except OSError as error:
            self._take_back()
            raise RecordError(f"The ledger {self._path} cannot be written ({error.strerror}); free space.") from error
        if written != len(line):
            self._take_back()
            raise RecordError(f"The ledger {self._path} cannot be written whole; free space.")
        self._state.size += len(line)
        self._state.last = _checksum(line)

    def _take_back(self) -> None:
        """Remove a line that did not reach the disk for certain; nothing was released for it."""
        os.ftruncate(self._handle, self._state.size)


@dataclass
class _State:
    """What the lines so far say."""

    steps: int
    reserved: int
    last: str
    size: int


def _line(entry: dict[str, Any]) -> bytes:
    return to_sealed_json(entry) + b"\n"


def _checksum(line: bytes) -> str:
    # Where `to_sealed_json` puts it: in the first field.
    return line.decode().split('"')[3]


def _create(path: Path, plan: Plan) -> None:
    """A ledger with its first line, there whole or not at all, and never in the place of another."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        try:
            with scratch.open("xb") as file:
                file.write(_line({"plan": plan.facts()}))
                file.flush()
                os.fsync(file.fileno())
            os.link(scratch, path)
        finally:
            scratch.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError:
        # Another process was faster; who gets the lock is decided next.
        return
    except OSError as error:
        raise RecordError(f"The ledger {path} cannot be made ({error.strerror}); name another file.") from error


def _read(path: Path, plan: Plan) -> _State:
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        raise RecordError(f"The ledger {path} ends inside a line: it was cut; {_REMEDY}.")
    first, *others = content[:-1].split(b"\n")
    header = from_sealed_json(first, f"Line 1 of the ledger {path}", _REMEDY)
    if header.get("plan") != plan.facts():
        raise RecordError(f"The ledger {path} belongs to another plan: {difference(header.get('plan'), plan)}.")
    state = _State(0, 0, _checksum(first), len(content))
    _follow(state, others, path, plan)
    # What was reserved when the process ended may have been released.
    state.steps = state.reserved
    return state


def _follow(state: _State, lines: Sequence[bytes], path: Path, plan: Plan) -> None:
    for number, line in enumerate(lines, 2):
        where = f"Line {number} of the ledger {path}"
        entry = from_sealed_json(line, where, _REMEDY)
        if entry.pop("before", None) != state.last:
            raise RecordError(f"{where} does not follow the line before it; {_REMEDY}.")
        match entry:
            case {"reserved": int(steps)} if state.reserved < steps <= plan.steps:
                state.steps, state.reserved = state.reserved, steps
            case {"released": int(steps)} if state.steps <= steps <= state.reserved:
                state.steps = state.reserved = steps
            case _:
                raise RecordError(f"{where} says {entry} after {state.reserved} steps; {_REMEDY}.")
        state.last = _checksum(line)
