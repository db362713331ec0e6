"""What a request may look like before anybody parses it: its headers about the body, and the JSON in it.

The JSON checks are a few passes at C speed over the bytes, so that a small body can never become millions of
Python objects. Whether the JSON is valid is the parser's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message

import numpy as np
from numpy.typing import NDArray
from sanic import Request

from pomona.config import ServeSettings
from pomona.conversation.errors import InvalidRequestError
from pomona.server.errors import RequestRefused

# Looking through more than this holds the event loop up for milliseconds.
MAX_INLINE_BYTES = 1 << 20
# Values and strings in one body, whatever its shape: as Python objects these are some hundred megabytes.
MAX_JSON_VALUES = 2_000_000

UTF8_NAMES = ("utf-8", "utf8", "us-ascii", "ascii")
STRUCTURE = b"[]{},"
# Letters occur outside strings in true, false, null and exponents; these two only in NaN and Infinity.
NOT_A_NUMBER = b"NI"
KEPT = STRUCTURE + NOT_A_NUMBER
DROPPED = bytes(byte for byte in range(256) if byte not in KEPT)


def check_body_headers(request: Request) -> None:
    """Raises RequestRefused. A JSON body is taken under any type that does not contradict it, as curl and
    simple clients send none or a form's."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise RequestRefused(
            415,
            "Compressed request bodies are not supported; send the body without Content-Encoding.",
            "unsupported_content_encoding",
        )
    given = request.headers.get("content-type", "")
    message = Message()
    message["content-type"] = given.replace("\n", " ").replace("\r", " ")
    charset = message.get_content_charset("utf-8")
    if message.get_content_maintype() == "multipart" or charset not in UTF8_NAMES:
        raise RequestRefused(
            415,
            "The body must be JSON in UTF-8 (Content-Type: application/json).",
            "unsupported_content_type",
        )


@dataclass(frozen=True, slots=True)
class JsonLimits:
    depth: int
    items: int
    values: int = MAX_JSON_VALUES

    @staticmethod
    def of(settings: ServeSettings) -> JsonLimits:
        return JsonLimits(settings.max_json_depth, settings.max_array_items)

    def check(self, data: bytes) -> None:
        """Raises InvalidRequestError. Linear in the size of the body, whatever it holds."""
        if data.count(b'"') > 2 * self.values:
            raise _too_many(self.values)
        structure = _structure(data)
        if any(byte in structure for byte in NOT_A_NUMBER):
            raise InvalidRequestError(
                "The body is not valid JSON: NaN and Infinity are not numbers there.", code="invalid_json"
            )
        if len(structure) > 2 * self.values:
            raise _too_many(self.values)
        if not structure:
            return
        bytes_ = np.frombuffer(structure, np.uint8)
        depths = _depths(bytes_)
        if int(depths.max()) > self.depth:
            raise InvalidRequestError(
                f"The body is nested more than {self.depth} levels deep; send a flatter one, or raise the "
                "setting max_json_depth.",
                code="json_too_deep",
            )
        if structure.count(b",") >= self.items and _longest(bytes_, depths) > self.items:
            raise InvalidRequestError(
                f"The body has an array of more than {self.items:,} items; send less at once, or raise the "
                "setting max_array_items.",
                code="array_too_long",
            )


def _too_many(values: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"The body holds more than {values:,} values; send less at once.", code="too_many_values"
    )


def _structure(data: bytes) -> bytes:
    """The bytes outside strings that matter here."""
    if b"\\" in data:
        # Pairs first, so that a backslash before a quote is one that escapes it.
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(data.split(b'"')[::2]).translate(None, DROPPED)


def _depths(structure: NDArray[np.uint8]) -> NDArray[np.int32]:
    """The level at each byte: an opening one belongs to what it opens, a closing one to what is around it."""
    opens = (structure == ord("[")) | (structure == ord("{"))
    closes = (structure == ord("]")) | (structure == ord("}"))
    return np.cumsum(opens.astype(np.int8) - closes.astype(np.int8), dtype=np.int32)


def _longest(structure: NDArray[np.uint8], depths: NDArray[np.int32]) -> int:
    """Items of the longest array or object. Sorted by level, each container is one run: its opening byte,
    then its commas."""
    opens = (structure == ord("[")) | (structure == ord("{"))
    kept = np.flatnonzero(opens | (structure == ord(",")))
    order = kept[np.argsort(depths[kept], kind="stable")]
    starts = np.flatnonzero(np.append(opens[order], True))
    return int(np.diff(starts, prepend=0).max())
