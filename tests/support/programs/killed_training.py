"""A private training that is killed at random moments and begun again: python killed_training.py FOLDER.

Prints how often it was killed before it came to its end. Every start is a copy of this process, which has loaded
everything: a fresh one would take longer to import torch than it lives.
"""

import multiprocessing
import random
import sys
import time
from pathlib import Path

import torch

from lipkit.cli.training.loop import train
from lipkit.cli.training.processes import Team
from lipkit.cli.training.steps.private_steps import LEDGER
from lipkit.privacy import RDP, Ledger
from support.programs.private_training import PrivateBlobs

STARTS = 20


def work(folder: Path) -> None:
    """The whole training, or what is left of it."""
    torch.set_num_threads(1)
    # Fields decide what a folder belongs to, so the pause is the same in every process.
    train(PrivateBlobs(pause=0.02), folder, Team(torch.device("cpu")))


def count(ledger: Path) -> int:
    """The steps of a ledger that another process may be writing to."""
    return Ledger.read(ledger, RDP()).steps if ledger.exists() else 0


def main(folder: Path) -> int:
    """The number of kills."""
    chance, before, ledger = random.Random(0), 0, folder / LEDGER
    for kills in range(STARTS):
        process = multiprocessing.get_context("fork").Process(target=work, args=(folder,))
        process.start()
        # A few steps, and a part of one: in steps and not in seconds, because the machine may be busy.
        wanted, deadline = before + chance.randint(1, 12), time.monotonic() + 120
        while process.is_alive() and time.monotonic() < deadline and count(ledger) < wanted:
            time.sleep(0.005)
        time.sleep(chance.random() * 0.05)
        ended = not process.is_alive()
        process.kill()
        process.join()
        now = count(ledger)
        assert before <= now <= 40, f"{now} steps are counted after {before}"
        before = now
        if ended:
            assert process.exitcode == 0
            return kills
    raise AssertionError(f"40 steps were killed {STARTS} times and never ended")


if __name__ == "__main__":
    print(main(Path(sys.argv[1])))
