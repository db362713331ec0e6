"""Stop strings: cuts an answer's text exactly before the first of them, however the text comes in pieces.

What may still become a stop string is held back, and what turns out not to be one is given out at once.
Time is linear in the text: one Knuth-Morris-Pratt automaton per string.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """The first stop string is the one that starts first: one inside another that is still possible has to
    wait for the outcome.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        self._automata = [_Automaton(string) for string in strings]
        self._read = 0  # characters read
        self._given = 0  # of them given out; what lies between is held back
        self._found: int | None = None  # where the first stop string starts, as far as is known
        self.stopped = False
        """Whether a stop string has been found for good. Nothing is given out after it."""

    def feed(self, text: str) -> str:
        """The text that can be given out now."""
        # What is held back is the start of the string of which most has been seen.
        held, held_count = self._longest.string, self._read - self._given
        for char in text:
            if self.stopped:
                break
            self._step(char)
        count = self._safe() - self._given
        self._given += count
        # Copies what is given out and no more: what is held may be long and stay so.
        return held[: min(count, held_count)] + text[: max(0, count - held_count)]

    def flush(self) -> str:
        """What was held back, up to the first stop string, at the end of the text."""
        if self.stopped:
            return ""
        end = self._read if self._found is None else self._found
        self.stopped = self._found is not None
        rest = self._longest.string[: end - self._given]
        self._given = end
        return rest

    def _step(self, char: str) -> None:
        self._read += 1
        for automaton in self._automata:
            if automaton.step(char):
                start = self._read - len(automaton.string)
                self._found = start if self._found is None else min(self._found, start)
        self.stopped = self._found is not None and self._safe() == self._found

    def _safe(self) -> int:
        """Characters that are before any stop string, found or possible."""
        possible = self._read - self._longest.matched
        return possible if self._found is None else min(possible, self._found)

    @property
    def _longest(self) -> _Automaton:
        return max(self._automata, key=lambda automaton: automaton.matched)


class _Automaton:
    """`matched` is the length of the longest start of `string` at the end of the text so far."""

    def __init__(self, string: str) -> None:
        self.string = string
        self.matched = 0
        self._borders = _borders(string)

    def step(self, char: str) -> bool:
        """Whether the string is complete with `char`."""
        if self.matched == len(self.string):
            self.matched = self._borders[-1]
        while self.matched and self.string[self.matched] != char:
            self.matched = self._borders[self.matched - 1]
        if self.string[self.matched] == char:
            self.matched += 1
        return self.matched == len(self.string)


def _borders(string: str) -> list[int]:
    """For each prefix the length of its longest proper prefix that is also its end."""
    borders = [0] * len(string)
    length = 0
    for i in range(1, len(string)):
        while length and string[i] != string[length]:
            length = borders[length - 1]
        if string[i] == string[length]:
            length += 1
        borders[i] = length
    return borders
