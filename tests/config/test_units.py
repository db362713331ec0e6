"""Sizes and times as people write them."""

from __future__ import annotations

import pytest

from pomona.config.units import exact_bytes, format_bytes, format_number, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GB", 8 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("800 mb", 8 * 10**8),
        ("64k", 64000),
        (f"{'9' * 400}.5", int("9" * 400)),
        ("512", 512),
        ("0", 0),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "8XB", "1iB", "1e9", "nan", "\u0663"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


@pytest.mark.parametrize("count", [0, 1, 1000, 1024, 1536, 999_999, 2**40 * 5, 10**13, 10**18 + 1])
def test_exact_sizes_read_back(count: int) -> None:
    assert parse_bytes(exact_bytes(count)) == count


def test_format_bytes() -> None:
    assert format_bytes(98_400_000) == "98.4 MB"
    assert format_bytes(12) == "12 B"


@pytest.mark.parametrize(
    ("text", "seconds"), [("10", 10), ("0.5", 0.5), ("10s", 10), ("500ms", 0.5), ("2 m", 120), ("1h", 3600)]
)
def test_times(text: str, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "ten", "10x", "nan", "inf", "1e999", "1.2.3"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse_seconds(text)


def test_numbers_are_written_short_and_exact() -> None:
    assert [format_number(n) for n in (10.0, 0.1, 1 / 3)] == ["10", "0.1", repr(1 / 3)]
