"""A training of the library with a bar and a checkpoint in the folder of its run; Ctrl-C ends it with one."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

from lipkit.cli.console import bar
from lipkit.cli.training import checkpoint
from lipkit.cli.training.interrupts import interrupts
from lipkit.errors import InterruptedRun

_FILE = "checkpoint.safetensors"
# Seconds between checkpoints at least; writing them may take one part in so many of the training.
_SAVE, _SHARE = 5.0, 20


@contextmanager
def kept_training(what: str, folder: Path, settle: Callable[[], None]) -> Iterator["KeptTraining"]:
    """A training in a folder, with a bar that says `what`; `settle` is called before the first checkpoint is there.

    Within the block hand it to the training as its `sdf.Checkpoints`, and store what was learned: the checkpoint is
    removed when the block ends well.
    """
    with bar(what) as show, ExitStack() as signals:
        yield KeptTraining(show, folder / _FILE, settle, signals)
        (folder / _FILE).unlink(missing_ok=True)


@contextmanager
def shown_training(what: str) -> Iterator["KeptTraining"]:
    """A training that is only shown, by a bar that says `what`; it leaves nothing behind."""
    with bar(what) as show, ExitStack() as signals:
        yield KeptTraining(show, None, lambda: None, signals)


@final
class KeptTraining:
    """`sdf.Checkpoints` in a file, whole or not at all; None for no file."""

    def __init__(
        self,
        show: Callable[[int, int | None, str], None],
        file: Path | None,
        settle: Callable[[], None],
        signals: ExitStack,
    ) -> None:
        self._show, self._file, self._settle, self._signals = show, file, settle, signals
        self._stopped: Callable[[], bool] = lambda: False
        self._saved = self._spent = 0.0

    def load(self) -> Mapping[str, Any] | None:
        """The state in the file, if there is one; from here on Ctrl-C waits for the end of an update."""
        if self._file is None:
            return None
        self._stopped = self._signals.enter_context(interrupts())
        self._saved = time.monotonic()
        return checkpoint.load(self._file) if self._file.is_file() else None

    def after_update(self, done: int, steps: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Show how far it is; write the state now and then, and before an `InterruptedRun`."""
        self._show(done, steps, "")
        if self._file is None:
            return
        begin, stop = time.monotonic(), self._stopped()
        if stop or (done < steps and begin - self._saved > max(_SAVE, _SHARE * self._spent)):
            self._settle()
            checkpoint.save(self._file, state())
            self._saved = time.monotonic()
            self._spent = self._saved - begin
        if stop:
            raise InterruptedRun(f"Interrupted after step {done} of {steps}; run the same command again to continue.")
        if done == steps:
            # What comes after the updates is a part by itself, so Ctrl-C acts at once again.
            self._signals.close()
