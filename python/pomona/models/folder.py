"""A model folder as mlx-lm reads it: config.json, safetensors weights, a tokenizer.

Checks that a folder can be a model before a worker is started for it, and reads the few values of its
config that the server needs. The weights themselves are not opened.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pomona.models.errors import ModelError

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "vocab.txt")
CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "n_ctx")

# transformers writes a huge number for "not known".
UNKNOWN_LENGTH = 10**9


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A checked folder. `name` is what clients call the model."""

    path: Path
    name: str
    config: dict[str, Any] = field(repr=False)

    @staticmethod
    def open(path: Path, name: str | None = None) -> ModelFolder:
        """Check the folder; a ModelError says what is missing and what to do."""
        path = path.expanduser()
        if not path.is_dir():
            raise ModelError(
                f"There is no folder {path}; give the folder that holds {CONFIG} and the weights."
            )
        path = path.resolve()
        config = _read_config(path)
        _check_weights(path)
        if not any((path / file).is_file() for file in TOKENIZER_FILES):
            raise ModelError(f"{path} holds no tokenizer; put the model's tokenizer.json beside its weights.")
        return ModelFolder(path=path, name=name or _name_of(path), config=config)

    @property
    def model_type(self) -> str:
        return str(self.config["model_type"])

    @property
    def context_tokens(self) -> int | None:
        """The longest text the model was made for, or None where its files do not say (recurrent models)."""
        for config in (self.config, self._text_config):
            for key in CONTEXT_KEYS:
                if _is_length(config.get(key)):
                    return int(config[key])
        for config in (self.config, self._optional("tokenizer_config.json")):
            if _is_length(config.get("model_max_length")):
                return int(config["model_max_length"])
        return None

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends an answer, by the generation config, the config and the tokenizer."""
        ids: list[int] = []
        for config in (self._optional("generation_config.json"), self.config, self._text_config):
            value = config.get("eos_token_id")
            ids += [i for i in (value if isinstance(value, list) else [value]) if isinstance(i, int)]
        ids += self._tokenizer_eos_ids()
        return tuple(dict.fromkeys(ids))

    @property
    def weights_bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.glob("*.safetensors"))

    @property
    def _text_config(self) -> dict[str, Any]:
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else {}

    def _tokenizer_eos_ids(self) -> list[int]:
        eos = self._optional("tokenizer_config.json").get("eos_token")
        text = eos.get("content") if isinstance(eos, dict) else eos
        added = self._optional("tokenizer.json").get("added_tokens") or []
        return [token["id"] for token in added if text and token.get("content") == text]

    def _optional(self, file: str) -> dict[str, Any]:
        path = self.path / file
        return _read_object(path) if path.is_file() else {}


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        if sorted(folder.glob("*.gguf")):
            raise ModelError(f"{folder} holds a GGUF file but no {CONFIG}; give the .gguf file itself.")
        raise ModelError(f"{folder} is not a model folder: it has no {CONFIG}; give the folder that has it.")
    config = _read_object(path)
    if not isinstance(config.get("model_type"), str):
        raise ModelError(
            f"{path} names no model_type, so its architecture is not known; fetch the model again."
        )
    return config


def _check_weights(folder: Path) -> None:
    present = {file.name for file in folder.glob("*.safetensors")}
    if not present:
        if any(folder.glob("*.bin")) or any(folder.glob("*.pth")):
            raise ModelError(
                f"{folder} has PyTorch weights only; convert it first: "
                f"python -m mlx_lm convert --hf-path {folder} --mlx-path NEW_FOLDER."
            )
        raise ModelError(f"{folder} has no *.safetensors weights; fetch the model again, with its weights.")
    if empty := sorted(name for name in present if (folder / name).stat().st_size == 0):
        raise ModelError(f"{folder / empty[0]} is empty; fetch the model again.")
    if (folder / INDEX).is_file():
        weight_map = _read_object(folder / INDEX).get("weight_map")
        named = set(weight_map.values()) if isinstance(weight_map, dict) else set()
        if missing := sorted(named - present):
            raise ModelError(
                f"{folder} lacks {len(missing)} of its {len(named)} weight files "
                f"({missing[0]} is the first); fetch the model again."
            )


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read ({error}); fetch the model again.") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} does not hold a JSON object; fetch the model again.")
    return value


def _is_length(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < UNKNOWN_LENGTH


def _name_of(folder: Path) -> str:
    """The folder's name; inside a hub cache (models--OWNER--NAME/snapshots/REVISION) the model's own."""
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return folder.name
