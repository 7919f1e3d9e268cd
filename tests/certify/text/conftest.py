"""Every single edit of a word, by enumeration."""

from collections.abc import Callable

import pytest

Word = tuple[int, ...]


@pytest.fixture
def single_edits() -> Callable[[Word, int], set[Word]]:
    """All words at distance one from a word over the letters 1..n."""

    def edits(word: Word, letters: int) -> set[Word]:
        found = {word[:i] + word[i + 1 :] for i in range(len(word))}
        for letter in range(1, letters + 1):
            found |= {(*word[:i], letter, *word[i:]) for i in range(len(word) + 1)}
            found |= {(*word[:i], letter, *word[i + 1 :]) for i in range(len(word))}
        return found - {word}

    return edits
