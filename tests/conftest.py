"""Settings of hypothesis, checks of annotations and of marks, and the order of tests. lipkit is not imported here."""

import gc
import os
from collections.abc import Generator

import jaxtyping
import pytest
from hypothesis import settings

from support import annotations, process_marks

# The same examples in every CI run; fresh ones on a developer's machine.
settings.register_profile("lipkit", deadline=None, derandomize="CI" in os.environ, print_blob=True)
settings.load_profile("lipkit")

# The import hook decorates every function of lipkit with what stands here when lipkit is imported.
jaxtyping.jaxtyped = annotations.jaxtyped
process_marks.install()

# Loading all tests makes millions of objects that stay; to look for garbage among them took a third of that time.
gc.disable()

# The longest tests begin first, so that no worker is left alone with them in the end.
_LONG = ("compile", "train", "process", "browser", "slow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        return next((i for i, name in enumerate(_LONG) if item.get_closest_marker(name)), len(_LONG))

    items.sort(key=place)
    count, half = sum(place(item) < len(_LONG) for item in items), len(items) // 2
    long, quick = items[:count], items[count:]
    # Two workers begin with the two halves of the list, so each half begins with the long tests of every other file.
    files = list(dict.fromkeys(item.path for item in long))
    first = [item for item in long if item.path in files[::2]][:half]
    chosen = set(first)
    items[:] = [*first, *quick[: half - len(first)], *(x for x in long if x not in chosen), *quick[half - len(first) :]]


def pytest_collection_finish() -> None:
    """Look for garbage again, but not among what is loaded by now, and less often: exports of models make little."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_runtest_setup() -> None:
    """Checks of annotations are counted in each test anew."""
    annotations.begin_test()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A test that starts processes without a mark fails; its fixtures count too."""
    process_marks.running.append(item)
    try:
        return (yield)
    finally:
        process_marks.running.pop()
