"""The built-in model `tiny`: small enough for a CPU, generated from a seed, untrained.

Its tokens are bytes, so it can read and write any text.
"""

from typing import Any

import torch

from turnwise.chat import TEMPLATES

RECIPE = 2
"""Version of the recipe: a cached copy of another version is not used."""
PAD, START, TURN, END = "<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"


def make_tiny(seed: int = 0) -> tuple[Any, Any]:
    """Return a Llama of 0.8 million weights, which `seed` determines, and its tokenizer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tiny_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=768,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        # A token is a byte: ten turns of a built-in game have about 2,500 of them.
        max_position_embeddings=4096,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        # With the usual 0.02 so small a model learns three times slower.
        initializer_range=128**-0.5,
    )
    # The caller's random state is preserved.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    return model.eval(), tokenizer


def make_tiny_tokenizer() -> Any:
    """Return a tokenizer with one token for each byte, four special ones, and ChatML."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = [PAD, START, TURN, END]
    # The alphabet has one character for each byte; sorted, since it is a set.
    symbols = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    core = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(symbols)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in special])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=START,
        eos_token=END,
        additional_special_tokens=[TURN],
        chat_template=TEMPLATES["chatml"],
        clean_up_tokenization_spaces=False,
    )
