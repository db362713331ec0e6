"""The small JSON files of a model folder that say how it wants to be prompted, sampled and stopped.

Files that are missing count as empty; a file that is not JSON is an error in one sentence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomona.conversation.errors import ModelLoadError

JsonObject = dict[str, Any]

MAX_TOP_K = 1 << 20


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """What the model's authors recommend; used where a request says nothing."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def read_json(path: Path) -> JsonObject:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON ({error}).") from error
    return value if isinstance(value, dict) else {}


def sampling_defaults(folder: Path) -> SamplingDefaults:
    config = read_json(folder / "generation_config.json")
    if config.get("do_sample") is False:
        return SamplingDefaults()
    return SamplingDefaults(
        temperature=_number(config.get("temperature"), 0.0, 2.0, 1.0),
        top_p=_number(config.get("top_p"), 0.001, 1.0, 1.0),
        top_k=int(_number(config.get("top_k"), 0, MAX_TOP_K, 0)),
        min_p=_number(config.get("min_p"), 0.0, 1.0, 0.0),
        repetition_penalty=_number(config.get("repetition_penalty"), 0.1, 10.0, 1.0),
    )


def declared_stop_ids(folder: Path) -> list[int]:
    """The end-of-sequence ids of generation_config.json and config.json, each once, in that order."""
    config = read_json(folder / "config.json")
    places = [read_json(folder / "generation_config.json"), config, config.get("text_config")]
    found: list[Any] = []
    for place in places:
        value = place.get("eos_token_id") if isinstance(place, dict) else None
        found += value if isinstance(value, list) else [value]
    return list(dict.fromkeys(id_ for id_ in found if _is_id(id_)))


def token_text(value: Any) -> str | None:
    """A special token of tokenizer_config.json is a string or an object with `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _number(value: Any, low: float, high: float, default: float) -> float:
    """A recommended value, or the default where there is none that we could honour."""
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    return default
