"""Word errors between what was said and what was recognised."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WordErrors:
    """The fewest substitutions, deletions and insertions that make the hypothesis of `words` reference words."""

    substitutions: int = 0
    deletions: int = 0
    insertions: int = 0
    words: int = 0

    @property
    def rate(self) -> float | None:
        """Return the word error rate, a fraction that may exceed 1; None without reference words."""
        if not self.words:
            return None
        return (self.substitutions + self.deletions + self.insertions) / self.words

    def __add__(self, other: "WordErrors") -> "WordErrors":
        return WordErrors(
            substitutions=self.substitutions + other.substitutions,
            deletions=self.deletions + other.deletions,
            insertions=self.insertions + other.insertions,
            words=self.words + other.words,
        )


def word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Return the errors of `hypothesis` by the Levenshtein distance of words."""
    # One row per word of the reference: (errors, substitutions, deletions, insertions) for each part of the hypothesis.
    row = [(count, 0, 0, count) for count in range(len(hypothesis) + 1)]
    for said in reference:
        before, row = row, [_more(row[0], deletions=1)]
        for place, word in enumerate(hypothesis):
            kept = before[place] if word == said else _more(before[place], substitutions=1)
            row.append(min(kept, _more(before[place + 1], deletions=1), _more(row[place], insertions=1)))
    _, substitutions, deletions, insertions = row[-1]
    return WordErrors(substitutions=substitutions, deletions=deletions, insertions=insertions, words=len(reference))


def _more(
    errors: tuple[int, int, int, int], *, substitutions: int = 0, deletions: int = 0, insertions: int = 0
) -> tuple[int, int, int, int]:
    total, *counts = errors
    substituted, deleted, inserted = counts
    return total + 1, substituted + substitutions, deleted + deletions, inserted + insertions
