"""Word errors between what was said and what was recognised."""

from collections.abc import Mapping, Sequence
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


Pair = tuple[int | None, int | None]
"""The places of a word of the reference and one of the hypothesis that belong together; None for none."""


def aligned(reference: Sequence[str], hypothesis: Sequence[str]) -> Sequence[Pair]:
    """Return the pairs, in order, with the fewest errors: Levenshtein's distance of words."""
    # rows[i][j]: errors between the first i words of the reference and the first j of the hypothesis.
    rows = [list(range(len(hypothesis) + 1))]
    for count, said in enumerate(reference, start=1):
        before, row = rows[-1], [count]
        for place, word in enumerate(hypothesis):
            row.append(min(before[place] + (word != said), before[place + 1] + 1, row[place] + 1))
        rows.append(row)
    pairs: list[Pair] = []
    i, j = len(reference), len(hypothesis)
    while i or j:
        same = i and j and rows[i][j] == rows[i - 1][j - 1] + (reference[i - 1] != hypothesis[j - 1])
        if same:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif i and rows[i][j] == rows[i - 1][j] + 1:
            i -= 1
            pairs.append((i, None))
        else:
            j -= 1
            pairs.append((None, j))
    return pairs[::-1]


def word_errors(reference: Sequence[str], hypothesis: Sequence[str]) -> WordErrors:
    """Return the errors of `hypothesis`."""
    return sum((_error(reference, hypothesis, pair) for pair in aligned(reference, hypothesis)), WordErrors())


Kind = str
"""What a word is counted under, such as the model that heard it, or the noise in which it was said."""


def word_errors_by(
    reference: Sequence[tuple[str, Kind]], hypothesis: Sequence[tuple[str, Kind]]
) -> Mapping[tuple[Kind, Kind], WordErrors]:
    """Return the errors by the kinds of the words said and heard.

    Both are sequences of words with their kinds. A word that is missing on one side has there the kind of the word
    before it, or of the first; without any word, "".
    """
    said, heard = [word for word, _ in reference], [word for word, _ in hypothesis]
    found: dict[tuple[Kind, Kind], WordErrors] = {}
    of_said, of_heard = (words[0][1] if words else "" for words in (reference, hypothesis))
    for pair in aligned(said, heard):
        if pair[0] is not None:
            of_said = reference[pair[0]][1]
        if pair[1] is not None:
            of_heard = hypothesis[pair[1]][1]
        found[of_said, of_heard] = found.get((of_said, of_heard), WordErrors()) + _error(said, heard, pair)
    return found


def _error(reference: Sequence[str], hypothesis: Sequence[str], pair: Pair) -> WordErrors:
    said, heard = pair
    if said is None:
        return WordErrors(insertions=1)
    if heard is None:
        return WordErrors(deletions=1, words=1)
    return WordErrors(substitutions=int(reference[said] != hypothesis[heard]), words=1)
