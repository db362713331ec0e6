"""Loads a model folder through mlx-lm and makes it ready to run on the block pool."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from pomona.config import WorkerOptions
from pomona.kv import seam
from pomona.kv.layout import CacheLayout, read_layout
from pomona.kv.readers import ModelCaches, Reader, make_caches
from pomona.kv.store import KVStore
from pomona.worker import head
from pomona.worker.probe import ReaderChoice, choose_reader

log = logging.getLogger(__name__)

KV_SHARE_OF_MEMORY = 0.25
# Memory of recurrent snapshots, as a share of that for K and V and on top of it.
SNAPSHOT_SHARE = 0.25
MAX_POOL_TOKENS = 1 << 22
DEFAULT_CONTEXT = 8192
# What model code raises for a configuration that it can't run.
MODEL_ERRORS = (ValueError, TypeError, RuntimeError, IndexError, KeyError, AttributeError)
# Memory limits of a container, version 2 and 1 ("max" or a huge number: none).
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class ModelLoadError(Exception):
    """The model can't be served; the text is one sentence for the user."""


@dataclass(slots=True)
class LoadedModel:
    model: Any
    config: dict[str, Any]
    layout: CacheLayout
    reader: Reader
    wanted: head.WantedRows | None
    vocab_size: int
    store: KVStore
    caches: ModelCaches
    notes: list[str]

    @property
    def weights_bytes(self) -> int:
        return sum(array.nbytes for _, array in tree_flatten(self.model.parameters()))

    @property
    def context_tokens(self) -> int:
        return context_tokens(self.config)


def load(options: WorkerOptions) -> LoadedModel:
    """Load weights, read the cache layout, choose reader and ops, and make the pool.

    Raises ModelLoadError with a sentence.
    """
    seam.install()
    model, config = _load_weights(Path(options.model))
    try:
        choice = choose_reader(model, read_layout(model), options.reader, options.fused_ops == "auto")
    except MODEL_ERRORS as error:
        raise ModelLoadError(
            f"models of type {config.get('model_type')!r} don't run in mlx-lm "
            f"as this one is configured: {error}"
        ) from error
    if choice.reader is None:
        raise ModelLoadError(
            f"models of type {config.get('model_type')!r} can't be served yet: {'; '.join(choice.notes)}"
        )
    layout = choice.layout
    store = KVStore(layout, options.block_size, pool_blocks(options, layout), snapshot_bytes(options, layout))
    caches = make_caches(layout, store.slabs, choice.reader)
    notes = [*choice.notes, *choice.ops.notes]
    _log(choice, notes)
    return LoadedModel(
        model, config, layout, choice.reader, choice.wanted, choice.vocab_size, store, caches, notes
    )


def _log(choice: ReaderChoice, notes: list[str]) -> None:
    for name, reason in choice.ops.failed.items():
        log.warning("%s runs slowly: its fused op failed its trial (%s)", name, reason)
    if notes:
        log.info("%s", "; ".join(notes))


def _load_weights(folder: Path) -> tuple[Any, dict[str, Any]]:
    from mlx_lm.utils import load_model

    try:
        model, config = load_model(folder)
    except (FileNotFoundError, ValueError) as error:
        raise ModelLoadError(f"{folder.name} can't be loaded: {error}") from error
    model.eval()
    return model, config


def context_tokens(config: dict[str, Any]) -> int:
    """The model's own window, from its configuration (nested for multimodal ones)."""
    for section in (config, config.get("text_config") or {}):
        for key in ("max_position_embeddings", "max_sequence_length", "n_positions", "seq_length"):
            if isinstance(section.get(key), int):
                return int(section[key])
    return DEFAULT_CONTEXT


def pool_blocks(options: WorkerOptions, layout: CacheLayout) -> int:
    """Blocks of the pool: what the options say, else a share of the machine's memory."""
    limits = []
    if options.pool_tokens is not None:
        limits.append(options.pool_tokens)
    per_token = layout.bytes_per_token
    if options.kv_memory_bytes is not None and per_token:
        limits.append(options.kv_memory_bytes // per_token)
    if not limits:
        limits = [MAX_POOL_TOKENS]
        if per_token:
            limits.append(kv_bytes(options) // per_token)
    return max(2, min(limits) // options.block_size)


def kv_bytes(options: WorkerOptions) -> int:
    """Memory for K and V: what the options say, else a share of the machine's."""
    if options.kv_memory_bytes is not None:
        return options.kv_memory_bytes
    return int(machine_memory_bytes() * KV_SHARE_OF_MEMORY)


def snapshot_bytes(options: WorkerOptions, layout: CacheLayout) -> int:
    """Budget of the recurrent snapshots, beside that of K and V."""
    return int(kv_bytes(options) * SNAPSHOT_SHARE) if layout.recurrent else 0


def machine_memory_bytes() -> int:
    """Memory this process may use: the machine's, or its container's where that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = [
        int(text) for path in CGROUP_LIMITS if path.exists() and (text := path.read_text().strip()).isdigit()
    ]
    return min([machine, *limits])


def dtype_name(layout: CacheLayout) -> str:
    return str(layout.attention[0].dtype).removeprefix("mlx.core.") if layout.attention else "none"


def synchronize() -> None:
    """Wait for the device; a step in flight at interpreter exit would abort the process."""
    mx.synchronize()
