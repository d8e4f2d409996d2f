"""Models by name, folder and id; every mistake is one message with its fix."""

import json

import huggingface_hub.constants
import pytest
import torch
from safetensors.torch import save_file

from turnwise import ConfigError
from turnwise.models import load_model, load_tokenizer, model_folder
from turnwise.models.tiny import make_tiny
from turnwise.models.weight_files import WeightFiles


@pytest.fixture
def folder(tmp_path):
    """A model that somebody has saved."""
    place = tmp_path / "saved"
    model, tokenizer = make_tiny(seed=5)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_tiny_by_name():
    loaded = load_model("tiny", device="cpu")
    assert not loaded.model.training
    assert loaded.model.dtype is torch.float32
    assert loaded.tokenizer.decode(load_tokenizer("tiny").encode("hé")) == "hé"


def test_a_folder_gives_what_was_saved(folder):
    loaded = load_model(folder, device="cpu")
    expected = make_tiny(seed=5)[0].state_dict()
    assert all(torch.equal(expected[k], v) for k, v in loaded.model.state_dict().items())
    assert not loaded.model.training
    assert str(folder) == model_folder(folder)


def test_a_built_in_name_has_a_folder_for_other_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = model_folder("tiny")
    assert place.startswith(str(tmp_path))
    expected = load_model("tiny", device="cpu").model.state_dict()
    found = load_model(place, device="cpu").model.state_dict()
    assert all(torch.equal(expected[k], found[k]) for k in expected)


@pytest.mark.parametrize(
    ("asked", "given"),
    [("auto", torch.float32), ("bfloat16", torch.bfloat16), (torch.float16, torch.float16)],
)
def test_precision(folder, asked, given):
    for name in ("tiny", folder):
        assert load_model(name, dtype=asked, device="cpu").model.dtype is given


def test_without_a_padding_token_the_end_token_pads(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["pad_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id is not None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float8"}, "dtype got 'float8', expected auto, float32"),
        ({"dtype": torch.int8}, "dtype got 'int8'"),
        ({"device": "gpu"}, "device got 'gpu', expected auto, cpu, cuda"),
        ({"device": "cuda:99"}, "device got 'cuda:99', and torch .* sees"),
    ],
)
def test_options_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=message):
        load_model("tiny", **options)


@pytest.mark.parametrize(
    "name", ["./nowhere", "/nowhere/at/all", "a/b/c", "with space", "saved/last"]
)
def test_a_folder_that_is_not_there(name, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    with pytest.raises(ConfigError, match=f"there is no folder {name}.*smollm2-135m, tiny"):
        load_model(name)


def test_a_folder_without_a_model(folder):
    for path in (folder.parent, folder / "config.json"):
        with pytest.raises(ConfigError, match=r"it has no config\.json"):
            load_model(path)


def test_a_folder_with_a_broken_model(folder):
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(ConfigError, match=r"cannot load the model in .*saved") as raised:
        load_model(folder)
    assert raised.value.__cause__ is not None
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        load_model(folder)


def test_code_that_comes_with_a_model_is_run_only_when_asked(folder):
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text("raise SystemExit('the code ran')\n")
    with pytest.raises(ConfigError, match="trust_remote_code=True"):
        load_model(folder)
    with pytest.raises(SystemExit, match="the code ran"):
        load_model(folder, trust_remote_code=True)


@pytest.mark.parametrize("name", ["tinny", "nobody/nothing"])
def test_the_hub_out_of_reach(offline, caplog, name):
    with pytest.raises(ConfigError, match="a built-in name, works offline") as raised:
        load_model(name)
    assert ("Did you mean 'tiny'?" in str(raised.value)) == (name == "tinny")
    assert ("hub is asked. Did you mean" in caplog.text) == (name == "tinny")
    assert raised.value.__cause__ is not None


def test_the_index_says_which_file_has_a_weight(tmp_path):
    for file, value in (("first.safetensors", 1.0), ("last.safetensors", 2.0)):
        save_file({"w": torch.full((3,), value)}, tmp_path / file)
    index = {"metadata": {}, "weight_map": {"w": "first.safetensors", "v": "last.safetensors"}}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    files = WeightFiles.find(str(tmp_path))
    assert files.read("w", 1, 3).tolist() == [1.0, 1.0]
    (tmp_path / "last.safetensors").write_bytes(b"cut off")
    with pytest.raises(ConfigError, match=r"cannot read .*last\.safetensors.*Is the file complete"):
        WeightFiles.find(str(tmp_path))
