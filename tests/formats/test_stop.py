import itertools
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pomona.formats.stop import StopMatcher

# Few letters, so that strings overlap, contain and follow each other.
texts = st.text("ab", max_size=30) | st.text("abc\n é😀", max_size=30)
stop_strings = st.lists(st.text("ab", min_size=1, max_size=5) | st.text("abc\n é😀", min_size=1, max_size=6),
                        min_size=1, max_size=4)  # fmt: skip


def cut(text: str, strings: list[str]) -> tuple[str, bool]:
    """By looking at the whole text."""
    found = [start for string in strings if (start := text.find(string)) >= 0]
    return (text[: min(found)], True) if found else (text, False)


def run(pieces: list[str], strings: list[str]) -> tuple[list[str], bool]:
    matcher = StopMatcher(strings)
    given = [matcher.feed(piece) for piece in pieces]
    return [*given, matcher.flush()], matcher.stopped


def pieces_of(text: str, sizes: list[int]) -> list[str]:
    rest = iter(text)
    return ["".join(itertools.islice(rest, size)) for size in [*sizes, len(text)]]


@given(texts, stop_strings, st.lists(st.integers(0, 4), max_size=20))
@settings(max_examples=600)
@example("abab", ["abb", "ba"], [1, 1, 1])
@example("aabaab", ["aabaaa", "ab"], [])
def test_any_pieces_of_any_text(text: str, strings: list[str], sizes: list[int]) -> None:
    given_, stopped = run(pieces_of(text, sizes), strings)
    assert ("".join(given_), stopped) == cut(text, strings)


@given(st.text("ab", max_size=8), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_every_way_to_cut_a_short_text(text: str, strings: list[str]) -> None:
    for ends in itertools.product([False, True], repeat=max(0, len(text) - 1)):
        starts = [0, *(i + 1 for i, end in enumerate(ends) if end), len(text)]
        pieces = [text[a:b] for a, b in itertools.pairwise(starts)]
        given_, stopped = run(pieces, strings)
        assert ("".join(given_), stopped) == cut(text, strings)


def can_still_come(held: str, strings: list[str]) -> bool:
    """Whether a stop string, or the longer one around one, may begin where `held` does."""
    return any(string.startswith(held) or (held.startswith(string)) for string in strings)


@given(texts, stop_strings)
@settings(max_examples=400)
def test_nothing_is_held_back_without_need(text: str, strings: list[str]) -> None:
    matcher = StopMatcher(strings)
    given_ = ""
    for i, char in enumerate(text):
        given_ += matcher.feed(char)
        if matcher.stopped:
            break
        held = text[len(given_) : i + 1]
        assert not held or can_still_come(held, strings)


def test_the_end_of_a_text_decides_for_what_was_found() -> None:
    """ "b" was there, but "abc" might have begun before it."""
    matcher = StopMatcher(["b", "abc"])
    assert matcher.feed("xab") == "x"
    assert not matcher.stopped
    assert matcher.flush() == "a"
    assert matcher.stopped


def test_nothing_comes_after_a_stop_string() -> None:
    matcher = StopMatcher(["."])
    assert matcher.feed("one. two") == "one"
    assert matcher.stopped
    assert (matcher.feed(" three"), matcher.flush()) == ("", "")


@pytest.mark.parametrize("tail", ["", "b"])
def test_time_is_linear(tail: str) -> None:
    """A string that stays almost complete all the time, one character at a time."""

    def seconds(size: int) -> float:
        matcher = StopMatcher(["a" * size + "b", "a" * (size - 1) + "c"])
        start = time.process_time()
        for _ in range(2 * size):
            matcher.feed("a")
        matcher.feed(tail)
        matcher.flush()
        return time.process_time() - start

    seconds(100)
    few = min(seconds(3_000) for _ in range(3))
    assert min(seconds(24_000) for _ in range(3)) < 25 * few
