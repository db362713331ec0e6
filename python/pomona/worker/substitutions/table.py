"""The table of substitutions: which classes of mlx-lm and MLX have the form of which op.

Only exact classes count, so a subclass (a LoRA layer, say) is left alone. A class belongs here when its
source does what its pattern says; the trial at load is the second look, not the first. The modules are never
imported from here: instances are known by the names of their classes.
"""

from __future__ import annotations

from typing import Any

from pomona.worker.substitutions.layers import Attention, DecoderLayer
from pomona.worker.substitutions.mlps import ExpertMlp, GatedMlp, SwitchGlu
from pomona.worker.substitutions.pattern import Pattern, Table, UnfitError
from pomona.worker.substitutions.single import (
    Embedding,
    Linear,
    Norm,
    NoRope,
    Rope,
    Stack,
    by_base,
    by_wavelengths,
)


def swiglu_oai(activation: Any) -> str:
    if (activation._alpha, activation._limit) != (1.702, 7.0):
        raise UnfitError("its activation has other constants")
    return "swiglu_oai"


def nemotron_activation(mlp: Any) -> str:
    names = {"silu": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh"}
    if mlp.act_fn not in names:
        raise UnfitError(f"activation {mlp.act_fn} is unknown")
    return names[mlp.act_fn]


def norm_topk_prob(moe: Any) -> bool:
    return bool(moe.norm_topk_prob)


def minicpm_scale(layer: Any) -> float:
    return float(layer.scale_depth / layer.num_hidden_layers**0.5)


def residual_multiplier(layer: Any) -> float:
    return float(layer.residual_multiplier)


def each(pattern: Pattern, *classes: str) -> dict[str, Pattern]:
    return dict.fromkeys(classes, pattern)


SINGLE = {
    **each(Linear(), "nn.Linear", "nn.QuantizedLinear"),
    **each(Embedding(), "nn.Embedding", "nn.QuantizedEmbedding"),
    **each(Stack(), "switch_layers.SwitchLinear", "switch_layers.QuantizedSwitchLinear"),
    **each(
        SwitchGlu(
            {
                "switch_layers.SwiGLU": lambda _: "silu",
                "activations.SwigluOAI": swiglu_oai,
                "gemma4_text.GeGLU": lambda _: "gelu_tanh",
            }
        ),
        "switch_layers.SwitchGLU",
    ),
}

NORMS = {
    **each(Norm(), "nn.RMSNorm", "step3p5.ZeroCenteredRMSNorm"),
    **each(
        Norm(centered=True),
        "gear.GearRMSNorm",
        "gemma.RMSNorm",
        "gemma2.RMSNorm",
        "gemma3_text.RMSNorm",
        "minimax_m3_vl.GemmaRMSNorm",
        "muse_glimmer.CenteredRMSNorm",
        "recurrent_gemma.RMSNorm",
    ),
    **each(Norm(weight=None), "gemma4_text.RMSNormNoScale", "muse_spark.WeightlessRMSNorm"),
    # `scale` is the weight plus a constant of the layer.
    **each(Norm(weight="scale", eps="variance_epsilon"), "plamo3.RMSNorm"),
}

ROPES = {
    # The base of a dynamic one grows only past the context that rows are limited to.
    **each(Rope(by_base), "nn.RoPE", "rope_utils.DynamicNTKScalingRoPE"),
    **each(Rope(by_wavelengths()), "rope_utils.Llama3RoPE", "rope_utils.ProportionalRoPE"),
    **each(Rope(by_wavelengths(scale="mscale")), "rope_utils.YarnRoPE"),
    **each(Rope(by_wavelengths(traditional=False, scale="_scale")), "rope_utils.SuScaledRoPE"),
    **each(
        Rope(by_wavelengths(traditional=False)),
        "hunyuan.DynamicNTKAlphaRoPE",
        "hunyuan_v1_dense.DynamicNTKAlphaRoPE",
    ),
    **each(NoRope(), "smollm3.NoPE"),
}

MLPS = {
    **each(
        GatedMlp(),
        "Klear.KlearMLP",
        "afm7.MLP",
        "afmoe.MLP",
        "baichuan_m1.MLP",
        "bailing_hybrid.MLP",
        "bailing_moe.BailingMoeMLP",
        "bailing_moe_linear.MLP",
        "bailing_moe_v3.BailingMLP",
        "cohere.MLP",
        "cohere2.MLP",
        "deepseek.DeepseekMLP",
        "deepseek_v2.DeepseekV2MLP",
        "deepseek_v3.DeepseekV3MLP",
        "deepseek_v32.DeepseekV32MLP",
        "dots1.Dots1MLP",
        "ernie4_5.MLP",
        "ernie4_5_moe.Ernie4_5_MLP",
        "exaone4.MLP",
        "exaone_moe.MLP",
        "falcon_h1.FalconH1MLP",
        "glm4_moe.MLP",
        "glm4_moe_lite.Glm4MoeLiteMLP",
        "granite.MLP",
        "granitemoehybrid.GraniteMoeHybridMLP",
        "helium.HeliumMLP",
        "hunyuan.MLP",
        "hunyuan_v1_dense.MLP",
        "internlm3.MLP",
        "jamba.JambaMLP",
        "kimi_linear.KimiMLP",
        "laguna.MLP",
        "lfm2_moe.MLP",
        "llama.MLP",
        "llama4.MLP",
        "llama4_text.MLP",
        "longcat_flash.LongcatFlashMLP",
        "mimo.MLP",
        "mimo_v2_flash.MLP",
        "minicpm.MLP",
        "minicpm3.MLP",
        "ministral3.MLP",
        "muse_glimmer.MLP",
        "nanbeige.MLP",
        "olmo2.MLP",
        "olmo3.Olmo3MLP",
        "olmo_hybrid.MLP",
        "plamo.MLP",
        "qwen2.MLP",
        "qwen2_moe.MLP",
        "qwen3.MLP",
        "qwen3_moe.MLP",
        "qwen3_next.Qwen3NextMLP",
        "seed_oss.MLP",
        "stablelm.MLP",
        "telechat3.Telechat3MLP",
        "youtu_llm.YoutuLLMMLP",
    ),
    **each(
        GatedMlp(activation="gelu_tanh"),
        "gemma2.MLP",
        "gemma3_text.MLP",
        "gemma4_text.MLP",
        "recurrent_gemma.MLPBlock",
    ),
    **each(GatedMlp(activation="gelu"), "gemma.MLP", "spark2_5.MLP"),
    **each(GatedMlp(activation=nemotron_activation), "nemotron-nas.MLP"),
    **each(
        GatedMlp(gate_up="gate_up_proj"),
        "glm.GLMMLP",
        "glm4.Glm4MLP",
        "phi3.MLP",
        "plamo2.MLP",
        "plamo3.MLP",
    ),
    **each(
        GatedMlp(gate_up="input_linear", down="output_linear"),
        "granitemoehybrid.GraniteMoeHybridSharedMLP",
    ),
    **each(GatedMlp(gate_up="proj_1", down="proj_2"), "openelm.MLP"),
    **each(GatedMlp(gate="w1", up="w3", down="w2"), "internlm2.MLP", "lfm2.MLP"),
    **each(GatedMlp(gate="w2", up="w1", down="c_proj"), "qwen.MLP"),
    **each(GatedMlp(gate="c_fc_0", up="c_fc_1", down="c_proj"), "exaone.MLP"),
    # Without a gate.
    **each(GatedMlp(gate=None, activation="relu2"), "nemotron.MLP", "nemotron_h.NemotronHMLP"),
    **each(GatedMlp(gate=None, up="c_fc", down="c_proj", activation="relu2"), "nanochat.MLP"),
    **each(
        GatedMlp(gate=None, up="c_fc", down="c_proj", activation="gelu"), "gpt_bigcode.MLP", "starcoder2.MLP"
    ),
    **each(GatedMlp(gate=None, up="c_fc", down="c_proj", activation="gelu_tanh"), "gpt2.MLP"),
    **each(GatedMlp(gate=None, up="fc1", down="fc2", activation="gelu_tanh"), "phi.PhiMLP"),
    **each(GatedMlp(gate=None, up="fc_in", down="fc_out", activation="gelu_tanh"), "gptj.GPTJMLP"),
    **each(
        GatedMlp(gate=None, up="dense_h_to_4h", down="dense_4h_to_h", activation="gelu_tanh"), "gpt_neox.MLP"
    ),
}

EXPERT_MLPS = {
    **each(
        ExpertMlp(normalise=norm_topk_prob),
        "mellum.MellumSparseMoeBlock",
        "olmoe.OlmoeSparseMoeBlock",
        "qwen3_moe.Qwen3MoeSparseMoeBlock",
    ),
    **each(
        ExpertMlp(normalise=norm_topk_prob, shared="shared_expert", shared_gate="shared_expert_gate"),
        "qwen3_next.Qwen3NextSparseMoeBlock",
    ),
    **each(
        ExpertMlp(shared="shared_expert", shared_gate="shared_expert_gate"),
        "qwen2_moe.Qwen2MoeSparseMoeBlock",
    ),
    **each(ExpertMlp(top_k="gate.top_k", shared="shared_experts"), "deepseek.DeepseekMoE"),
    **each(ExpertMlp(router="gate.wg", shared="shared_mlp"), "hunyuan.MoeBlock"),
    **each(
        ExpertMlp(top_k="num_experts_per_tok", scoring="topk_softmax"),
        "mixtral.MixtralSparseMoeBlock",
    ),
    **each(
        ExpertMlp(router="router", top_k="num_experts_per_tok", scoring="topk_softmax"),
        "jamba.JambaSparseMoeBlock",
    ),
    **each(ExpertMlp("router", "experts", "num_experts_per_tok", scoring="topk_softmax"), "gpt_oss.MLPBlock"),
    **each(
        ExpertMlp(router="router.layer", top_k="router.top_k", scoring="topk_softmax"),
        "granitemoe.GraniteMoeMoE",
        "granitemoehybrid.GraniteMoeHybridMoE",
    ),
    **each(
        ExpertMlp(
            top_k="k", scoring=lambda moe: moe.args.moe_gate_act, normalise=True, shared="shared_experts"
        ),
        "ernie4_5_moe.Ernie4_5_MoeMLP",
    ),
}

CONFIG_HEADS = {"heads": "num_attention_heads", "kv_heads": "num_key_value_heads"}
NUM_HEADS = {"heads": "num_heads", "kv_heads": "num_key_value_heads"}
HEAD_NORMS = {"q_norm": "q_norm", "k_norm": "k_norm"}

ATTENTIONS = {
    **each(
        Attention(),
        "ernie4_5.Attention",
        "ernie4_5_moe.Attention",
        "gemma.Attention",
        "glm4.Glm4Attention",
        "granite.Attention",
        "granitemoe.GraniteMoeAttention",
        "granitemoehybrid.GraniteMoeHybridAttention",
        "helium.HeliumAttention",
        "internlm3.Attention",
        "llama.Attention",
        "mimo.Attention",
        "nanbeige.Attention",
        "nemotron-nas.Attention",
        "nemotron.Attention",
        "phimoe.Attention",
        "qwen2.Attention",
        "qwen2_moe.Attention",
        "seed_oss.Attention",
        "starcoder2.Attention",
    ),
    **each(
        Attention(**HEAD_NORMS),
        "dots1.Dots1Attention",
        "gemma3_text.Attention",
        "mellum.Attention",
        "qwen3.Attention",
        "qwen3_moe.Attention",
    ),
    **each(Attention(**HEAD_NORMS, rope_if="use_rope"), "exaone4.Attention", "exaone_moe.Attention"),
    **each(Attention(**HEAD_NORMS, norms_if="use_qk_norm"), "cohere.Attention", "glm4_moe.Attention"),
    **each(Attention(**HEAD_NORMS, **CONFIG_HEADS), "Klear.KlearAttention", "apertus.ApertusAttention"),
    **each(Attention(rope_if="use_sliding_window"), "cohere2.Attention"),
    # Its norms come after the rotary embedding.
    **each(Attention(unfit_if="use_qk_norm"), "hunyuan_v1_dense.Attention"),
    **each(
        Attention(q_norm="q_layernorm", k_norm="k_layernorm", o="out_proj"),
        "lfm2.Attention",
        "lfm2_moe.Attention",
    ),
    **each(Attention(**CONFIG_HEADS), "glm.GLMAttention", "telechat3.Telechat3Attention"),
    **each(Attention(heads="num_attention_heads", kv_heads="num_kv_heads"), "deepseek.DeepseekAttention"),
    **each(Attention(**CONFIG_HEADS, rope=None), "jamba.JambaAttention"),
    **each(Attention(**NUM_HEADS), "minicpm.Attention", "mixtral.MixtralAttention"),
    **each(Attention(**NUM_HEADS, rope=None), "nemotron_h.NemotronHAttention"),
    **each(Attention(**NUM_HEADS, o="dense", scale=None), "phi.PhiAttention"),
    **each(
        Attention(
            **NUM_HEADS, scale=None, q_norm="q_layernorm", k_norm="k_layernorm", norms_if="qk_layernorm"
        ),
        "stablelm.Attention",
    ),
    **each(Attention(heads="num_heads", kv_heads="num_kv_heads"), "falcon_h1.FalconH1Attention"),
    **each(Attention(**CONFIG_HEADS, scale="sm_scale", sinks="sinks"), "gpt_oss.AttentionBlock"),
    **each(Attention(o="out_proj"), "exaone.AttentionModule"),
    # One matrix for q, k and v.
    **each(Attention(qkv="qkv_proj"), "phi3.Attention"),
    **each(
        Attention(**HEAD_NORMS, qkv="qkv_proj", o="out_proj", norms_if="normalize_qk_projections"),
        "openelm.Attention",
    ),
    **each(
        Attention(**HEAD_NORMS, qkv="qkv_proj", heads="q_num_heads", kv_heads="k_num_heads"),
        "plamo3.Attention",
    ),
    **each(
        Attention(
            **CONFIG_HEADS,
            qkv="query_key_value",
            o="dense",
            q_norm="query_layernorm",
            k_norm="key_layernorm",
            norms_if="use_qk_norm",
        ),
        "bailing_moe.BailingMoeAttention",
        "bailing_moe_linear.Attention",
    ),
    **each(
        Attention(qkv="c_attn", o="c_proj", heads="num_attention_heads", kv_heads=None, rope="rotary_emb"),
        "qwen.Attention",
    ),
    **each(Attention(qkv="c_attn", o="c_proj", heads="n_head", kv_heads=None, rope=None), "gpt2.Attention"),
    **each(Attention(qkv="c_attn", o="c_proj", rope=None), "gpt_bigcode.Attention"),
}

LAYERS = {
    **each(
        DecoderLayer(),
        "deepseek.DeepseekDecoderLayer",
        "dots1.Dots1DecoderLayer",
        "ernie4_5.DecoderLayer",
        "ernie4_5_moe.Ernie4_5_DecoderLayer",
        "exaone_moe.DecoderLayer",
        "gemma.TransformerBlock",
        "glm.GLMBlock",
        "glm4_moe.DecoderLayer",
        "gpt_oss.TransformerBlock",
        "helium.HeliumDecoderLayer",
        "hunyuan_v1_dense.TransformerBlock",
        "internlm3.TransformerBlock",
        "llama.TransformerBlock",
        "mellum.MellumDecoderLayer",
        "mimo.TransformerBlock",
        "nanbeige.TransformerBlock",
        "nemotron-nas.TransformerBlock",
        "phi3.TransformerBlock",
        "qwen2.TransformerBlock",
        "qwen2_moe.Qwen2MoeDecoderLayer",
        "qwen3.TransformerBlock",
        "qwen3_moe.Qwen3MoeDecoderLayer",
        "seed_oss.TransformerBlock",
        "telechat3.Telechat3DecoderLayer",
    ),
    **each(DecoderLayer(mlp="block_sparse_moe"), "mixtral.MixtralDecoderLayer"),
    **each(DecoderLayer(residual_scale=residual_multiplier), "granite.TransformerBlock"),
    **each(DecoderLayer(residual_scale=residual_multiplier), "granitemoehybrid.GraniteMoeHybridLayer"),
    **each(
        DecoderLayer(mlp="block_sparse_moe", residual_scale=residual_multiplier),
        "granitemoe.GraniteMoeDecoderLayer",
    ),
    **each(DecoderLayer(residual_scale=minicpm_scale), "minicpm.DecoderLayer"),
    **each(DecoderLayer(mlp="feed_forward", before_mlp="pre_ff_layernorm"), "jamba.JambaDecoderLayer"),
    **each(
        DecoderLayer(mlp="feed_forward", before_attention="operator_norm", before_mlp="ffn_norm"),
        "lfm2.Lfm2DecoderLayer",
        "lfm2_moe.Lfm2DecoderLayer",
    ),
    **each(DecoderLayer("attn", before_attention="ln_1", before_mlp="ln_2"), "qwen.TransformerBlock"),
    **each(
        DecoderLayer("attn.attention", before_attention="ln_1", before_mlp="ln_2"), "exaone.TransformerBlock"
    ),
    **each(
        DecoderLayer("attn", "ffn", before_attention="attn_norm", before_mlp="ffn_norm"),
        "openelm.TransformerBlock",
    ),
    # Norms after the blocks.
    **each(
        DecoderLayer(
            before_attention=None,
            before_mlp=None,
            after_attention="post_attention_layernorm",
            after_mlp="post_feedforward_layernorm",
        ),
        "exaone4.TransformerBlock",
    ),
    # Norms before and after.
    **each(
        DecoderLayer(
            before_mlp="pre_feedforward_layernorm",
            after_attention="post_attention_layernorm",
            after_mlp="post_feedforward_layernorm",
            clips_float16=True,
        ),
        "gemma3_text.TransformerBlock",
    ),
    **each(
        DecoderLayer(after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"),
        "glm4.Glm4DecoderLayer",
    ),
    **each(
        DecoderLayer(
            "mixer",
            before_attention="pre_mixer_norm",
            before_mlp="pre_mlp_norm",
            after_attention="post_mixer_norm",
            after_mlp="post_mlp_norm",
        ),
        "plamo3.Plamo3DecoderLayer",
    ),
}

TABLE = Table(SINGLE | NORMS | ROPES | MLPS | EXPERT_MLPS | ATTENTIONS | LAYERS)
