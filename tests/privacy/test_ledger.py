"""The ledger: never below what was released, never beyond the plan, and no damaged file is believed."""

import copy
import pickle
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lipkit.errors import ArgumentError, RecordError
from lipkit.privacy import RDP, Ledger, Plan, Shuffled, epsilon


def plan(steps: int = 1_000, sigma: float = 2.0) -> Plan:
    return Plan(1_000, 10, steps, 1e-4, sigma=sigma, accountant=RDP())


def test_steps_are_counted_and_given_back(tmp_path: Path):
    path = tmp_path / "ledger"
    with Ledger.open(path, plan()) as ledger:
        assert [ledger.charge() for _ in range(300)] == list(range(1, 301))
        spent = ledger.spent()
        assert (spent.steps, spent.delta, spent.epsilon) == (300, 1e-4, epsilon(0.01, 2.0, 300, 1e-4, RDP()))
    with Ledger.open(path, plan(), at_least=300) as ledger:
        assert ledger.steps == 300
        assert ledger.charge() == 301


def test_what_was_reserved_counts_when_nobody_closed(tmp_path: Path):
    path = tmp_path / "ledger"
    ledger = Ledger.open(path, plan())
    ledger.charge()
    copy = tmp_path / "copy"
    copy.write_bytes(path.read_bytes())
    ledger.close()
    with Ledger.open(copy, plan()) as after:
        assert after.steps == 256


def test_there_are_no_more_steps_than_planned(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger", plan(3)) as ledger:
        for _ in range(3):
            ledger.charge()
        with pytest.raises(RecordError, match="All 3 planned steps are spent"):
            ledger.charge()
        assert ledger.steps == 3


def test_a_restart_begins_a_new_shuffled_epoch(tmp_path: Path):
    shuffled = Plan(1_000, 300, 9, 1e-4, sigma=2.0, accountant=RDP(), sampling=Shuffled())
    for before, after in ((0, 1), (3, 4), (6, 7)):
        with Ledger.open(tmp_path / "ledger", shuffled) as ledger:
            assert ledger.steps == before
            assert ledger.charge() == after


def test_a_second_opening_is_refused(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger", plan()), pytest.raises(RecordError, match="in use by another process"):
        Ledger.open(tmp_path / "ledger", plan())


def test_damage_another_plan_and_older_copies_are_refused(tmp_path: Path):
    path = tmp_path / "ledger"
    with Ledger.open(path, plan(), reserve=10) as ledger:
        for _ in range(25):
            ledger.charge()
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    damaged = [whole[:-1], whole[: len(whole) - 20], b"", whole.replace(b'"released": 25', b'"released": 21'),
               b"".join(lines[:1] + lines[2:]), lines[0] + lines[2] + lines[1], whole + lines[-1]]  # fmt: skip
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(RecordError):
            Ledger.open(path, plan())
    path.write_bytes(whole)
    with pytest.raises(RecordError, match=r"sigma 2\.0 there and 1\.0 here"):
        Ledger.open(path, plan(sigma=1.0))
    path.write_bytes(b"".join(lines[:2]))
    with pytest.raises(RecordError, match="counts 10 steps where 25 are known"):
        Ledger.open(path, plan(), at_least=25)
    path.unlink()
    with pytest.raises(RecordError):
        Ledger.open(path, plan(), at_least=1)


def test_a_ledger_that_is_replaced_in_use_is_noticed(tmp_path: Path):
    path = tmp_path / "ledger"
    ledger = Ledger.open(path, plan(), reserve=1)
    ledger.charge()
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    with pytest.raises(RecordError, match="changed or replaced"):
        ledger.charge()
    ledger.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_ledger_that_is_gone_or_replaced_lets_no_reserved_step_pass(replaced: bool, tmp_path: Path):
    path = tmp_path / "ledger"
    ledger = Ledger.open(path, plan())
    ledger.charge()
    path.unlink()
    # Whoever comes now would count from zero while steps are left of the 256.
    other = Ledger.open(path, plan()) if replaced else None
    with pytest.raises(RecordError, match="replaced" if replaced else "gone"):
        ledger.charge()
    if other is not None:
        other.close()


def test_copies_of_an_open_ledger_are_refused(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger", plan()) as ledger:
        ledger.charge()
        for copied in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(RecordError, match="cannot be copied"):
                copied(ledger)


def test_threads_share_a_ledger_without_losing_a_step(tmp_path: Path):
    numbers: list[int] = []
    switch = sys.getswitchinterval()
    with Ledger.open(tmp_path / "ledger", plan(10_000)) as ledger:
        threads = [
            threading.Thread(target=lambda: numbers.extend(ledger.charge() for _ in range(500))) for _ in range(4)
        ]
        sys.setswitchinterval(1e-6)
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            sys.setswitchinterval(switch)
        assert sorted(numbers) == list(range(1, 2_001))
        assert ledger.steps == 2_000


_RELEASE = """
import sys
from pathlib import Path
from lipkit.privacy import RDP, Ledger, Plan
plan = Plan(1_000, 10, 100_000, 1e-4, sigma=2.0, accountant=RDP())
ledger = Ledger.open(Path(sys.argv[1]), plan, reserve=int(sys.argv[2]))
print("open", flush=True)
while True:
    print(ledger.charge(), flush=True)
"""


@pytest.mark.process
def test_no_kill_lowers_the_ledger(tmp_path: Path):
    path, chance = tmp_path / "ledger", random.Random(0)
    released = 0
    for reserve in (1, 7, 256):
        run = subprocess.Popen([sys.executable, "-c", _RELEASE, str(path), str(reserve)], stdout=subprocess.PIPE)
        assert run.stdout is not None
        assert run.stdout.readline() == b"open\n"
        time.sleep(chance.uniform(0.0, 0.2))
        run.kill()
        said = run.communicate()[0].split(b"\n")[:-1]
        released = int(said[-1]) if said else released
        with Ledger.open(
            path, Plan(1_000, 10, 100_000, 1e-4, sigma=2.0, accountant=RDP()), at_least=released
        ) as ledger:
            assert released <= ledger.steps <= released + 2 * 256
            released = ledger.steps


def test_a_ledger_is_read_without_its_plan(tmp_path: Path) -> None:
    made = Plan(240, 24, 40, 1e-3, sigma=1.5, accountant=RDP())
    with Ledger.open(tmp_path / "ledger", made, reserve=8) as ledger:
        for _ in range(5):
            ledger.charge()
        # Reserved steps count while somebody else may be making them.
        assert Ledger.read(tmp_path / "ledger", RDP()).steps == 8
    found = Ledger.read(tmp_path / "ledger", RDP())
    assert found.steps == 5
    assert found.plan.facts() == made.facts()
    # The plan itself has never seen the file.
    assert found.epsilon == made.epsilon_after(5)


@pytest.mark.parametrize("at", [30, -30])
def test_an_edited_or_cut_ledger_is_not_read(tmp_path: Path, at: int) -> None:
    path = tmp_path / "ledger"
    with Ledger.open(path, Plan(240, 24, 40, 1e-3, sigma=1.5, accountant=RDP())) as ledger:
        ledger.charge()
    content = bytearray(path.read_bytes())
    path.write_bytes(content[:-3])
    with pytest.raises(RecordError, match="cut"):
        Ledger.read(path, RDP())
    content[at] ^= 1
    path.write_bytes(content)
    with pytest.raises(RecordError):
        Ledger.read(path, RDP())
    with pytest.raises(RecordError, match="cannot be read"):
        Ledger.read(tmp_path / "none", RDP())


@pytest.mark.parametrize("wrong", [{}, {"records": 0}, {"sigma": "no"}, {"sampling": "Secret()"}])
def test_facts_that_are_no_plan_are_refused(wrong: dict[str, Any]) -> None:
    facts = Plan(240, 24, 40, 1e-3, sigma=1.5).facts() | wrong if wrong else {}
    with pytest.raises(ArgumentError):
        Plan.from_facts(facts)
