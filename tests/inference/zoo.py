"""Tiny random models of many architectures, each with its odd features turned on."""

import torch
import transformers as hf
from transformers import AutoModelForCausalLM

VOCAB_SIZE = 97
WINDOW = 17
_BASE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_FOUR = _BASE | {"num_hidden_layers": 4}
_MIXED = _FOUR | {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
_ALL_HEADS = _BASE | {"num_key_value_heads": 4}
_GPT = {"vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
_LATENT = {
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
}


def _rope(kind, **parameters):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1e4, **parameters}}


SUPPORTED = {
    "llama": lambda: hf.LlamaConfig(
        **_BASE,
        **_rope(
            "llama3",
            factor=4.0,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
            original_max_position_embeddings=32,
        ),
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    ),
    "llama, linear rope": lambda: hf.LlamaConfig(**_BASE, **_rope("linear", factor=2.0)),
    "llama, yarn": lambda: hf.LlamaConfig(
        **_BASE, **_rope("yarn", factor=4.0, original_max_position_embeddings=32)
    ),
    "llama, dynamic rope": lambda: hf.LlamaConfig(**_BASE, **_rope("dynamic", factor=2.0)),
    "mistral": lambda: hf.MistralConfig(**_BASE, sliding_window=WINDOW),
    "mistral, no window": lambda: hf.MistralConfig(**_BASE, sliding_window=None, head_dim=16),
    "ministral": lambda: hf.MinistralConfig(**_MIXED, head_dim=8),
    "mixtral": lambda: hf.MixtralConfig(
        **_BASE, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen2": lambda: hf.Qwen2Config(**_MIXED, use_sliding_window=True),
    "qwen2, upper layers": lambda: hf.Qwen2Config(
        **_FOUR, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2
    ),
    "qwen2-moe": lambda: hf.Qwen2MoeConfig(**_BASE, **_EXPERTS, shared_expert_intermediate_size=24),
    "qwen3": lambda: hf.Qwen3Config(**_MIXED, use_sliding_window=True, head_dim=16),
    "qwen3-moe": lambda: hf.Qwen3MoeConfig(**_BASE, **_EXPERTS, head_dim=8),
    "gemma": lambda: hf.GemmaConfig(**_BASE, head_dim=16),
    "gemma3": lambda: hf.Gemma3TextConfig(
        **_MIXED, head_dim=16, query_pre_attn_scalar=10, final_logit_softcapping=5.0
    ),
    "phi": lambda: hf.PhiConfig(**_BASE, partial_rotary_factor=0.5, qk_layernorm=True),
    "phi3": lambda: hf.Phi3Config(**_BASE, sliding_window=WINDOW),
    "phi3, longrope": lambda: hf.Phi3Config(
        **_BASE,
        original_max_position_embeddings=80,
        **_rope(
            "longrope",
            short_factor=[1.0, 1.5, 2.0, 2.5],
            long_factor=[3.0] * 4,
            original_max_position_embeddings=80,
        ),
    ),
    "phi3, partial rope": lambda: hf.Phi3Config(
        **_BASE, partial_rotary_factor=0.5, tie_word_embeddings=True
    ),
    "gpt-neox": lambda: hf.GPTNeoXConfig(**_ALL_HEADS, rotary_pct=0.5, use_parallel_residual=True),
    "gpt-neox, serial": lambda: hf.GPTNeoXConfig(
        **_ALL_HEADS, rotary_pct=0.25, use_parallel_residual=False
    ),
    "gpt2": lambda: hf.GPT2Config(**_GPT, scale_attn_by_inverse_layer_idx=True),
    "opt": lambda: hf.OPTConfig(**_BASE, ffn_dim=48, word_embed_proj_dim=16),
    "granite": lambda: hf.GraniteConfig(
        **_BASE,
        attention_multiplier=0.3,
        embedding_multiplier=3.0,
        residual_multiplier=0.5,
        logits_scaling=2.0,
    ),
    "granite-moe": lambda: hf.GraniteMoeConfig(
        **_BASE, num_local_experts=4, num_experts_per_tok=2, attention_multiplier=0.3
    ),
    "cohere": lambda: hf.CohereConfig(**_BASE, use_qk_norm=True, logit_scale=0.3),
    "cohere2": lambda: hf.Cohere2Config(**_MIXED, logit_scale=0.3),
    "olmo": lambda: hf.OlmoConfig(**_BASE, clip_qkv=0.5),
    "olmo2": lambda: hf.Olmo2Config(**_BASE),
    "olmo3": lambda: hf.Olmo3Config(**_MIXED),
    "olmoe": lambda: hf.OlmoeConfig(**_BASE, num_experts=4, num_experts_per_tok=2),
    "smollm3": lambda: hf.SmolLM3Config(
        **_MIXED, no_rope_layers=[1, 0, 1, 0], use_sliding_window=True
    ),
    "starcoder2": lambda: hf.Starcoder2Config(**_BASE, sliding_window=WINDOW, use_bias=True),
    "deepseek-v2": lambda: hf.DeepseekV2Config(
        **_ALL_HEADS, **_LATENT, **_ROUTED, v_head_dim=6, n_group=1, topk_group=1
    ),
    "deepseek-v3": lambda: hf.DeepseekV3Config(
        **_ALL_HEADS, **_LATENT, **_ROUTED, v_head_dim=16, n_group=2, topk_group=1
    ),
    "glm": lambda: hf.GlmConfig(
        **_BASE, head_dim=8, partial_rotary_factor=0.5, attention_bias=True
    ),
    "glm4": lambda: hf.Glm4Config(
        **_BASE, head_dim=8, partial_rotary_factor=0.5, attention_bias=True
    ),
    "glm4-moe": lambda: hf.Glm4MoeConfig(
        **_BASE, **_ROUTED, head_dim=8, first_k_dense_replace=1, use_qk_norm=True
    ),
}
"""Configs of models that the local engine runs."""

_FIXED = "its attention cannot be replaced through transformers' attention interface"
_RECURRENT = "its layers keep a recurrent state, not only a cache"
_MIXED_OTHERWISE = (
    "its tokens reach each other in other ways than transformers' attention interface, such as a "
    "convolution, a recurrent state or an attention of its own"
)
_LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
REFUSED = {
    "bart": (
        lambda: hf.BartConfig(
            vocab_size=VOCAB_SIZE,
            d_model=32,
            encoder_layers=2,
            decoder_layers=2,
            decoder_attention_heads=4,
            decoder_ffn_dim=48,
            max_position_embeddings=128,
            is_decoder=True,
            is_encoder_decoder=False,
        ),
        "it takes no positions of tokens",
    ),
    "gemma2": (
        lambda: hf.Gemma2Config(**_MIXED, head_dim=16),
        "packed attention does not implement 'softcap'",
    ),
    "gpt-oss": (
        lambda: hf.GptOssConfig(**_MIXED, head_dim=8, num_local_experts=4, num_experts_per_tok=2),
        "packed attention does not implement 's_aux'",
    ),
    "stablelm": (
        lambda: hf.StableLmConfig(**_BASE, partial_rotary_factor=0.5, use_parallel_residual=True),
        _FIXED,
    ),
    "gpt-neo": (
        lambda: hf.GPTNeoConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            max_position_embeddings=128,
            attention_types=[[["global", "local"], 1]],
            window_size=WINDOW,
        ),
        _FIXED,
    ),
    "gptj": (lambda: hf.GPTJConfig(**_GPT, rotary_dim=4), _FIXED),
    "falcon": (lambda: hf.FalconConfig(**_ALL_HEADS, alibi=False), _FIXED),
    "falcon, alibi": (lambda: hf.FalconConfig(**_ALL_HEADS, alibi=True), _FIXED),
    "bloom": (
        lambda: hf.BloomConfig(vocab_size=VOCAB_SIZE, hidden_size=32, n_layer=2, n_head=4),
        _FIXED,
    ),
    "mpt": (
        lambda: hf.MptConfig(
            vocab_size=VOCAB_SIZE, d_model=32, n_layers=2, n_heads=4, max_seq_len=128
        ),
        _FIXED,
    ),
    "llama4": (
        lambda: hf.Llama4TextConfig(
            **_FOUR,
            head_dim=8,
            attention_chunk_size=8,
            intermediate_size_mlp=48,
            num_local_experts=2,
            interleave_moe_layer_step=1,
        ),
        "its mask is neither causal nor a sliding window",
    ),
    "mamba": (
        lambda: hf.MambaConfig(
            vocab_size=VOCAB_SIZE, hidden_size=32, num_hidden_layers=2, state_size=4
        ),
        _RECURRENT,
    ),
    "jamba": (
        lambda: hf.JambaConfig(
            **_FOUR,
            attn_layer_period=2,
            attn_layer_offset=1,
            num_experts=2,
            mamba_d_state=4,
            use_mamba_kernels=False,
        ),
        _RECURRENT,
    ),
    "qwen3-next": (
        lambda: hf.Qwen3NextConfig(
            **_FOUR, **_EXPERTS, head_dim=8, shared_expert_intermediate_size=24, **_LINEAR
        ),
        _RECURRENT,
    ),
    "qwen3.5": (lambda: hf.Qwen3_5TextConfig(**_FOUR, **_LINEAR, head_dim=8), _RECURRENT),
    "falcon-h1": (
        lambda: hf.FalconH1Config(
            **_BASE, mamba_d_ssm=32, mamba_n_heads=4, mamba_d_head=8, mamba_d_state=8
        ),
        _RECURRENT,
    ),
    "recurrent-gemma": (
        lambda: hf.RecurrentGemmaConfig(
            **_BASE,
            lru_width=32,
            block_types=["recurrent", "attention"],
            attention_window_size=WINDOW,
            logits_soft_cap=5.0,
        ),
        _RECURRENT,
    ),
    "lfm2": (
        lambda: hf.Lfm2Config(**_FOUR, full_attn_idxs=[1, 3], block_auto_adjust_ff_dim=False),
        _MIXED_OTHERWISE,
    ),
    "minimax": (
        lambda: hf.MiniMaxConfig(
            **_BASE,
            head_dim=8,
            num_local_experts=2,
            num_experts_per_tok=1,
            layer_types=["linear_attention", "full_attention"],
            block_size=8,
        ),
        _MIXED_OTHERWISE,
    ),
}
"""Configs of models that the local engine refuses, and why."""


def make(config):
    """A random model with logits that differ visibly, and no norm, bias or scale at its default."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(std=1.2 * parameter.shape[-1] ** -0.5)
        else:
            parameter.data.add_(0.2 * torch.randn(parameter.shape))
    return model
