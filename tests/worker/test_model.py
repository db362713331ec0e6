"""How much memory the pool takes, and how much context a model has."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from pomona.config import WorkerOptions
from pomona.kv.layout import AttentionLayer, CacheLayout
from pomona.worker import model

LAYOUT = CacheLayout((AttentionLayer(2, 64, 2, 64, mx.float32),) * 4)  # 4 KiB a token


@pytest.mark.parametrize(("text", "limited"), [("4294967296\n", True), ("max\n", False)])
def test_a_containers_limit_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, limited: bool
) -> None:
    machine = model.machine_memory_bytes()
    limit = tmp_path / "memory.max"
    limit.write_text(text)
    monkeypatch.setattr(model, "CGROUP_LIMITS", (limit, tmp_path / "missing"))
    assert model.machine_memory_bytes() == (min(machine, 1 << 32) if limited else machine)


def test_the_smaller_limit_of_the_pool_wins() -> None:
    def blocks(**options: int) -> int:
        return model.pool_blocks(WorkerOptions(model="", **options), LAYOUT)

    assert blocks(pool_tokens=6400) == 100
    assert blocks(kv_memory_bytes=4096 * 640) == 10
    assert blocks(pool_tokens=6400, kv_memory_bytes=4096 * 640) == 10
    assert blocks(pool_tokens=1) == 2
    assert 2 < blocks() <= model.machine_memory_bytes() // 4 // 4096 // 64


@pytest.mark.parametrize(
    ("config", "tokens"),
    [
        ({"max_position_embeddings": 4096}, 4096),
        ({"text_config": {"max_position_embeddings": 1024}}, 1024),
        ({"max_sequence_length": 77}, 77),
        ({}, model.DEFAULT_CONTEXT),
    ],
)
def test_context_comes_from_the_configuration(config: dict[str, object], tokens: int) -> None:
    assert model.context_tokens(config) == tokens


def test_a_model_that_cannot_run_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        layers = (None,)

        def __call__(self, ids: mx.array, cache: object) -> mx.array:
            raise ValueError("no head")

    monkeypatch.setattr(model, "_load_weights", lambda folder: (Broken(), {"model_type": "odd"}))
    with pytest.raises(model.ModelLoadError, match=r"models of type 'odd' don't run in mlx-lm .*: no head"):
        model.load(WorkerOptions(model="odd"))
