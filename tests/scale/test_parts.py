"""Learners that load a model in parts: none ever has all of it, and together they have the same."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from inference.tiny_models import make_model
from scale.children import run_learners
from scale.parts_child import LARGE
from turnwise import ConfigError
from turnwise.config import ConfigStore
from turnwise.models import load_tokenizer
from turnwise.models.empty import is_empty, load_empty_model
from turnwise.models.weight_files import NotLoadableInParts
from turnwise.trainer.state import load_configured_model_in_parts

SMALL = ("llama", "gemma", "qwen2", "qwen3", "gpt2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parts")
    tokenizer = load_tokenizer("tiny")
    models = {f"small-{name}": make_model(name) for name in SMALL}
    models["small-narrow"] = make_model("llama").bfloat16()
    for name, model in models.items():
        # Several files, but for the first.
        model.save_pretrained(
            folder / name, max_shard_size="20KB" if name != "small-llama" else "1GB"
        )
        tokenizer.save_pretrained(folder / name)
    write_large_model(folder / LARGE)
    return folder


def write_large_model(folder):
    """A model of some 50 MB in layers of 4 MB."""
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=12,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="20MB")


def weights_of(folder):
    found = {}
    for path in folder.glob("*.safetensors"):
        found |= load_file(path)
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory of a process from /proc")
@pytest.mark.parametrize("world", [2, 4])
def test_no_learner_has_all_weights_and_all_have_the_same(folder, world):
    # So that glibc, or mimalloc in torch for Arm, gives the memory of freed tensors back, and it
    # can be measured.
    give_back = {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MIMALLOC_PURGE_DELAY": "0",
        "MIMALLOC_ARENA_EAGER_COMMIT": "0",
    }
    run_learners("parts_child.py", world, folder, **give_back)
    size = sum(x.numel() * x.element_size() for x in weights_of(folder / LARGE).values())
    for rank in range(world):
        memory = json.loads((folder / f"memory-{world}-{rank}.json").read_text())
        assert memory["own"] == pytest.approx(size / world, rel=0.02)
        # Its shard, and a few times one gathered layer. All weights and a shard would be more.
        assert memory["own"] < memory["grown"] < memory["own"] + 0.5 * size


@pytest.fixture
def model(folder, tmp_path):
    """A copy of a model in several files, to be damaged."""
    return Path(shutil.copytree(folder / "small-qwen2", tmp_path / "model"))


def test_a_file_that_is_not_there_is_named(model):
    lost = sorted(model.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(ConfigError, match=f"cannot read .*{lost.name}"):
        load_empty_model(model)


def test_a_model_that_only_transformers_can_load_is_loaded_whole(folder, tmp_path):
    model = Path(shutil.copytree(folder / "small-llama", tmp_path / "model"))
    # As files of the body alone have them, which transformers knows how to read.
    renamed = {k.removeprefix("model."): x for k, x in weights_of(model).items()}
    save_file(renamed, model / "model.safetensors", {"format": "pt"})
    with pytest.raises(NotLoadableInParts, match=r"no weight model\.embed_tokens\.weight"):
        load_empty_model(model)
    config = ConfigStore()
    config.model.local_path = str(model)
    loaded = load_configured_model_in_parts(config)
    assert not is_empty(loaded)
    expected = make_model("llama").state_dict()
    assert all(torch.equal(x, expected[name]) for name, x in loaded.state_dict().items())
