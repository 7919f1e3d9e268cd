"""The command lipkit, killed without warning in its training: python killed_command.py CHECKPOINTS WORDS...

A checkpoint is due after every update, but only that one is written; the process dies two updates later.
"""

import os
import signal
import sys
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from lipkit.cli.main import main
from lipkit.cli.runs import kept_training
from lipkit.cli.training import checkpoint

if __name__ == "__main__":
    wanted, due, save = int(sys.argv[1]), count(1), checkpoint.save

    def save_one(path: Path, state: Mapping[str, Any]) -> None:
        now = next(due)
        if now == wanted:
            save(path, state)
        if now == wanted + 2:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoint.save = save_one
    kept_training._SAVE, kept_training._SHARE = -1.0, 0
    sys.exit(main(sys.argv[2:]))
