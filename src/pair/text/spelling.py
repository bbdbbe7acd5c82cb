"""Edit distances between a word and many others, for misspelled words of a query."""

from collections.abc import Sequence

import numpy as np


def allow_edits(word: str) -> int:
    """Return how many edits may separate a misspelled word from the word that was meant."""
    return 0 if len(word) < 5 or not word.isalpha() else 1 if len(word) < 8 else 2


def count_edits(word: str, others: Sequence[str]) -> list[int]:
    """Return the edits from this word to each other word: replace, insert or drop a letter, or swap two."""
    if not others:
        return []
    size = max(map(len, others))
    letters = np.array([[*map(ord, other.ljust(size, "\0"))] for other in others], np.int32).T
    # Each row of the table has an entry for each prefix of the other words; all words are computed together.
    table = [np.tile(np.arange(size + 1, dtype=np.int16)[:, None], len(others))]
    for row, letter in enumerate(map(ord, word), 1):
        last, current = table[-1], np.empty_like(table[0])
        current[0] = row
        differs = letters != letter
        for column in range(1, size + 1):
            cheapest = np.minimum(last[column] + 1, current[column - 1] + 1)
            np.minimum(cheapest, last[column - 1] + differs[column - 1], out=current[column])
            if row > 1 and column > 1:
                is_swapped = (letters[column - 2] == letter) & (letters[column - 1] == ord(word[row - 2]))
                swapped = table[-2][column - 2] + 1
                np.copyto(current[column], np.minimum(current[column], swapped), where=is_swapped)
        table.append(current)
    ends = np.array([len(other) for other in others])
    return [int(count) for count in table[-1][ends, np.arange(len(others))]]
