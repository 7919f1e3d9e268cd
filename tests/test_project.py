"""The files around the package agree with each other: versions, extras, and what a developer installs."""

import re
import tomllib

import pytest
import yaml

import lipkit
from lipkit.cli.main import main
from support.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
DEVELOPERS = {"tests", "lint", "docs", "packaging"}


def pinned() -> dict[str, str]:
    """Versions in constraints.txt by package name, spelled as the package index compares names."""
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in (line.split("==") for line in lines)}


def parts(extra: str) -> set[str]:
    """The extras that an extra of extras, such as all = ["lipkit[cli,data]"], is made of."""
    (whole,) = EXTRAS[extra]
    return set(whole.removeprefix("lipkit[").removesuffix("]").split(","))


def test_the_command_prints_the_version(capsys: pytest.CaptureFixture[str]):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"lipkit {lipkit.__version__}\n"


def test_the_files_name_the_same_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == lipkit.__version__
    released = re.findall(r"^## \[(\d[^\]]*)\]", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert released[0] == lipkit.__version__


def test_all_has_every_user_extra_and_dev_has_the_rest():
    assert parts("dev") == DEVELOPERS
    assert parts("all") == EXTRAS.keys() - DEVELOPERS - {"all", "dev"}


def test_every_requirement_has_an_exact_version():
    wanted = {*PROJECT["dependencies"], *(one for extra in EXTRAS.values() for one in extra)}
    names = {re.split(r"[\[>=<]", one)[0] for one in wanted} - {"lipkit"}
    assert names - pinned().keys() == set()


def test_the_commit_hook_and_the_checks_use_the_same_ruff():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {repo["repo"]: repo["rev"] for repo in hooks}["https://github.com/astral-sh/ruff-pre-commit"] == (
        f"v{pinned()['ruff']}"
    )
