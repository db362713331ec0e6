"""Which modules run on fused ops, that they then give the same, and that what does not is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import cache as stock
from mlx_lm.models.rope_utils import initialize_rope
from mlx_lm.tuner.lora import LoRALinear
from mlx_lm.utils import load_model
from tests.worker.small_models import model_types, small_model

from pomona import _ops
from pomona.config import WorkerOptions
from pomona.kv import seam
from pomona.kv.layout import read_layout
from pomona.kv.readers import Reader
from pomona.worker.model import load
from pomona.worker.probe import choose_reader
from pomona.worker.substitutions import Installer, Substitutions, float32_activations
from pomona.worker.substitutions.modules import class_name
from pomona.worker.substitutions.proofs import Proofs
from pomona.worker.substitutions.table import LAYERS, TABLE

DOCS = Path(__file__).resolve().parents[2] / "docs" / "models.md"

# What runs on ops in each tiny model, so that one which falls back to slow code is noticed.
EXPECTED = {
    "llama": "1 embedding, 4 decoder layers, 1 norm",
    "qwen3": "1 embedding, 4 decoder layers, 1 norm",
    "gemma3_text": "1 embedding, 4 decoder layers, 1 norm, 1 linear layer",
    "gpt_oss": "1 embedding, 1 norm, 4 decoder layers, 1 linear layer",
    "qwen3_moe": "1 embedding, 4 decoder layers, 1 norm",
    "deepseek_v3": "1 embedding, 17 linear layers, 17 norms, 4 rotary embeddings, 4 gated MLPs, "
    "3 switch GLUs",
    "gemma2": "1 embedding, 16 linear layers, 4 rotary embeddings, 4 gated MLPs, 17 norms",
    "phi": "1 embedding, 4 attention blocks, 4 gated MLPs, 1 linear layer",
    "qwen3_next": "1 embedding, 13 linear layers, 11 norms, 4 expert MLPs, 1 rotary embedding",
    "qwen3_5": "1 embedding, 19 linear layers, 11 norms, 4 gated MLPs, 1 rotary embedding",
    "falcon_h1": "1 embedding, 4 gated MLPs, 8 linear layers, 4 attention blocks, 9 norms",
    "granitemoehybrid": "1 embedding, 9 norms, 6 linear layers, 4 gated MLPs, 4 expert MLPs, "
    "1 attention block",
    "mamba2": "1 embedding, 8 linear layers, 5 norms",
}
READERS = {"deepseek_v3": Reader.GATHERED, "gemma2": Reader.GATHERED}

FORMATS: dict[str, tuple[mx.Dtype, dict[str, Any] | None]] = {
    "bfloat16": (mx.bfloat16, None),
    "float16": (mx.float16, None),
    "4 bit": (mx.float32, {"group_size": 64, "bits": 4}),
    "8 bit": (mx.float32, {"group_size": 32, "bits": 8}),
    "bfloat16 4 bit": (mx.bfloat16, {"group_size": 64, "bits": 4}),
    "float16 8 bit": (mx.float16, {"group_size": 32, "bits": 8}),
    "bfloat16 mxfp4": (mx.bfloat16, {"group_size": 32, "bits": 4, "mode": "mxfp4"}),
}


@pytest.fixture(autouse=True)
def _seam() -> None:
    seam.install()


@pytest.fixture
def llama(tiny_model: Callable[[str], Path]) -> nn.Module:
    return load_model(tiny_model("llama"))[0]


def in_format(model: nn.Module, dtype: mx.Dtype, quantization: dict[str, Any] | None) -> nn.Module:
    model.update(tree_map(lambda a: a.astype(dtype) if a.dtype == mx.float32 else a, model.parameters()))
    if quantization:
        group = quantization["group_size"]
        nn.quantize(
            model,
            **quantization,
            class_predicate=lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % group == 0,
        )
    mx.eval(model.parameters())
    return model


def logits(model: Any, cache: list[Any] | None = None) -> mx.array:
    ids = mx.array([[5, 12, 19, 26, 33, 40, 47]])
    return model(ids, cache=cache if cache is not None else stock.make_prompt_cache(model))


def classes(model: nn.Module) -> list[type]:
    return [type(module) for module in model.modules()]


# ---------------------------------------------------------------------------------------- what is substituted


@pytest.mark.parametrize("name", EXPECTED)
def test_what_runs_on_ops(tiny_model: Callable[[str], Path], name: str) -> None:
    loaded = load(WorkerOptions(model=str(tiny_model(name)), pool_tokens=1024))
    assert loaded.notes[-1] == f"fused ops run {EXPECTED[name]}"
    assert loaded.reader is READERS.get(name, Reader.PAGED)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", EXPECTED)
def test_formats(tiny_model: Callable[[str], Path], name: str, form: str) -> None:
    """The same modules in every format, and mlx-lm's logits with float32 activations. Experts in half
    precision run too, which mlx-lm itself can't on the CPU.
    """
    model = in_format(load_model(tiny_model(name))[0], *FORMATS[form])
    choice = choose_reader(model, read_layout(model))
    assert choice.reader is READERS.get(name, Reader.PAGED)
    assert not choice.ops.failed
    if (name, FORMATS[form][0]) == ("gemma3_text", mx.float16):
        # Its residuals are clipped in float16, which the op does not do.
        assert choice.ops.counts["attention block"] == 4
    else:
        assert choice.ops.summary == EXPECTED[name]


def test_nothing_is_substituted_when_switched_off(tiny_model: Callable[[str], Path]) -> None:
    loaded = load(WorkerOptions(model=str(tiny_model("llama")), pool_tokens=1024, fused_ops="off"))
    assert loaded.notes == []
    assert class_name(loaded.model.layers[0]) == "llama.TransformerBlock"


def test_nothing_is_substituted_on_another_device(llama: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    assert not Installer(llama).install(paged=True).done


def test_attention_stays_where_it_is_not_paged(llama: nn.Module) -> None:
    found = Installer(llama).install(paged=False)
    assert found.summary == "1 embedding, 16 linear layers, 4 rotary embeddings, 4 gated MLPs, 9 norms"


# ---------------------------------------------------------------------------------------- all types of mlx-lm


@pytest.fixture(scope="module")
def survey() -> dict[str, Substitutions]:
    """What is substituted in a small model of each type that could be built."""
    seam.install()
    found = {}
    for name in model_types():
        if (model := small_model(name)) is not None:
            found[name] = Installer(model).install(paged=True)
    return found


def test_small_models_of_most_types_could_be_built(survey: dict[str, Substitutions]) -> None:
    assert len(survey) > 80


def test_no_pattern_fails_its_trial(survey: dict[str, Substitutions]) -> None:
    assert not {name: found.failed for name, found in survey.items() if found.failed}


def test_every_layer_class_of_the_table_is_met(survey: dict[str, Substitutions]) -> None:
    met = {done.original for found in survey.values() for done in found.done}
    assert set(LAYERS) <= {
        f"{cls.__module__.removeprefix('mlx_lm.models.')}.{cls.__qualname__}" for cls in met
    }


def test_the_page_says_what_runs(survey: dict[str, Substitutions]) -> None:
    """Each type stands in its row of docs/models.md; those that could not be built stand in some row."""
    page = dict(_documented())
    types = {name for name in model_types() if _has_model(name)}
    assert set(page) == types, "docs/models.md lists other types than mlx-lm has"
    assert {name: page[name] for name in survey} == {name: _row(found) for name, found in survey.items()}


def _documented() -> Iterator[tuple[str, str]]:
    for line in DOCS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in ("whole layers", "whole layers, but experts apart", "blocks", "single modules"):
            yield from ((name, cells[0]) for name in re.findall(r"`([^`]+)`", cells[1]))


def _row(found: Substitutions) -> str:
    if "decoder layer" in found.counts:
        return "whole layers, but experts apart" if found.unfit else "whole layers"
    return "blocks" if "attention block" in found.counts else "single modules"


def _has_model(name: str) -> bool:
    path = Path(stock.__file__).with_name(f"{name}.py")
    names_it = r"^(class|from \S+ import) (.*\b)?Model\b"
    return re.search(names_it, path.read_text(encoding="utf-8"), re.MULTILINE) is not None


# ---------------------------------------------------------------------------------------- the same results


@pytest.mark.parametrize("name", EXPECTED)
def test_other_caches_get_mlx_lms_results(tiny_model: Callable[[str], Path], name: str) -> None:
    """Calls that are not paged: attention is mlx-lm's own, and what runs on ops gives the same."""
    model = load_model(tiny_model(name))[0]
    expected = logits(model)
    Installer(model).install(paged=True)
    ours = logits(model)
    assert mx.abs(ours - expected).max().item() < 1e-4 * mx.abs(expected).max().item()


def test_activations_are_widened_as_mlx_does(tiny_model: Callable[[str], Path]) -> None:
    """With norms in float32 everything after the first is float32, though weights are bfloat16."""
    model = in_format(load_model(tiny_model("llama"))[0], mx.bfloat16, None)
    for module in model.modules():
        if isinstance(module, nn.RMSNorm):
            module.weight = module.weight.astype(mx.float32)
    mx.eval(model.parameters())
    assert logits(model).dtype == mx.float32
    choice = choose_reader(model, read_layout(model))
    assert choice.ops.summary == EXPECTED["llama"]
    assert model.layers[0]._dtype == mx.float32
    x = mx.zeros((1, 1, 128), mx.bfloat16)
    assert model.model.norm(x).dtype == mx.float32


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096},
        {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0 + i for i in range(16)]},
        {"rope_type": "proportional", "partial_rotary_factor": 0.5},
        {"rope_type": "dynamic", "factor": 2.0},
    ],
    ids=lambda scaling: scaling["rope_type"] if scaling else "default",
)
@pytest.mark.parametrize("traditional", [False, True])
def test_rotary_embeddings_far_away(scaling: dict[str, Any] | None, traditional: bool) -> None:
    """Frequencies are MLX's to the last bit: at position 30,000 another rounding would show."""
    if scaling and scaling["rope_type"] == "longrope":
        scaling = scaling | {"original_max_position_embeddings": 4096}
    rope = initialize_rope(32, 10000.0, traditional, scaling, 40_000)
    x = mx.random.normal((2, 3, 5, 48), key=mx.random.key(1))
    op = TABLE.patterns[class_name(rope)].describe(rope, TABLE)
    for offset in (0, 77, 30_000):
        difference = mx.abs(_ops.rope(x, op, offset) - rope(x, offset=offset)).max().item()
        assert difference < 2e-5


# ---------------------------------------------------------------------------------------- what is left alone


def test_undoing_leaves_no_trace(tiny_model: Callable[[str], Path]) -> None:
    for name in EXPECTED:
        model = load_model(tiny_model(name))[0]
        before, parameters = classes(model), tree_flatten(model.parameters())
        attributes = [sorted(vars(module)) for module in model.modules()]
        expected = logits(model)
        found = Installer(model).install(paged=True)
        assert classes(model) != before
        assert [path for path, _ in tree_flatten(model.parameters())] == [path for path, _ in parameters]
        found.undo()
        assert classes(model) == before
        assert [sorted(vars(module)) for module in model.modules()] == attributes
        assert all(
            a is b for (_, a), (_, b) in zip(tree_flatten(model.parameters()), parameters, strict=True)
        )
        assert mx.array_equal(logits(model), expected)


def test_a_subclass_is_left_alone(llama: nn.Module) -> None:
    """An adapter in one projection: its layer runs in parts, the others whole."""
    attention = llama.layers[1].self_attn
    attention.q_proj = LoRALinear.from_base(attention.q_proj, r=4)
    attention.q_proj.lora_b = mx.random.normal(attention.q_proj.lora_b.shape)
    mx.eval(llama.parameters())
    choice = choose_reader(llama, read_layout(llama))
    assert choice.ops.counts["decoder layer"] == 3
    assert choice.ops.counts["gated MLP"] == 1
    assert (
        choice.ops.unfit["llama.TransformerBlock"] == "mlx_lm.tuner.lora.LoRALinear is no known linear layer"
    )
    assert not choice.ops.failed


def test_one_trial_for_each_kind(llama: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    trial = Proofs._trial

    def counted(proofs: Proofs, module: nn.Module, *rest: Any) -> Any:
        tried.append(class_name(module))
        return trial(proofs, module, *rest)

    monkeypatch.setattr(Proofs, "_trial", counted)
    installer = Installer(llama)
    for _ in range(2):
        installer.install(paged=True).undo()
    assert sorted(tried) == ["llama.TransformerBlock", "nn.Embedding", "nn.RMSNorm", "nn.RoPE"]


def test_other_settings_are_another_kind(llama: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer whose module does something else than the others is tried on its own, and fails alone."""
    monkeypatch.setattr(type(llama.layers[2].self_attn), "__call__", _scaled(llama.layers[2].self_attn))
    llama.layers[2].self_attn.extra = 1.5
    choice = choose_reader(llama, read_layout(llama))
    assert choice.ops.counts["decoder layer"] == 3
    assert set(choice.ops.failed) == {"llama.TransformerBlock", "llama.Attention"}


def _scaled(attention: Any) -> Callable[..., mx.array]:
    call = type(attention).__call__

    def scaled(self: Any, *args: Any, **kwargs: Any) -> mx.array:
        return call(self, *args, **kwargs) * vars(self).get("extra", 1.0)

    return scaled


@pytest.mark.parametrize("fault", ["wrong", "raises", "not finite"])
def test_a_faulty_op_is_not_used(
    tiny_model: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
) -> None:
    op = _ops.decoder_layer

    def faulty(*args: Any) -> mx.array:
        if fault == "raises":
            raise ValueError("no such layer")
        return op(*args) * (1.001 if fault == "wrong" else mx.nan)

    monkeypatch.setattr(_ops, "decoder_layer", faulty)
    loaded = load(WorkerOptions(model=str(tiny_model("llama")), pool_tokens=1024))
    assert loaded.reader is Reader.PAGED
    reason = {"wrong": "outputs differ by", "raises": "ValueError: no such layer", "not finite": "not finite"}
    assert "4 attention blocks" in loaded.notes[0]
    assert "llama.TransformerBlock is left to mlx-lm: " in loaded.notes[1]
    assert reason[fault] in loaded.notes[1]
    assert "llama.TransformerBlock runs slowly" in caplog.text


def test_a_model_that_disagrees_gets_no_ops(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever slips through the trials: the whole model is compared, and then serves as it is."""
    op, honest = _ops.decoder_layer, [True]
    monkeypatch.setattr(_ops, "decoder_layer", lambda *args: op(*args) * (1.0 if honest[0] else 1.01))
    install = Installer.install

    def installed(installer: Installer, paged: bool) -> Substitutions:
        honest[0] = True
        found = install(installer, paged)
        honest[0] = False
        return found

    monkeypatch.setattr(Installer, "install", installed)
    loaded = load(WorkerOptions(model=str(tiny_model("llama")), pool_tokens=1024))
    assert loaded.reader is Reader.PAGED
    assert class_name(loaded.model.layers[0]) == "llama.TransformerBlock"
    refused = "paged reader with fused ops and row selection not used"
    assert re.match(rf"{refused} \(logits differ by", loaded.notes[0])
    assert refused in caplog.text


def test_a_head_that_is_not_used_costs_no_ops(llama: nn.Module) -> None:
    """The tied embedding gives the logits, but the model has an lm_head as well."""
    llama.lm_head = nn.Linear(128, 512, bias=False)
    choice = choose_reader(llama, read_layout(llama))
    assert choice.wanted is None
    assert choice.ops.counts["decoder layer"] == 4
    [note] = choice.notes
    assert note.startswith("paged reader with fused ops and row selection not used (logits differ by")


def test_float32_activations_are_temporary(tiny_model: Callable[[str], Path]) -> None:
    model = in_format(load_model(tiny_model("llama"))[0], mx.bfloat16, {"group_size": 64, "bits": 4})
    before = classes(model)
    with float32_activations(model):
        assert logits(model).dtype == mx.float32
    assert logits(model).dtype == mx.bfloat16
    assert classes(model) == before
