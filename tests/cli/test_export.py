"""`turnwise export`: a folder that transformers loads, with the very weights of the run."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from forked import fork_server
from turnwise.cli import main
from turnwise.trainer.state import load_trained_model


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(20).unsqueeze(0)).logits


def test_transformers_loads_what_was_trained(turnwise, run):
    ran = turnwise("export", run, "models/mine")
    assert ran.code == 0, ran.err
    assert ran.out == (
        "models/mine has the model of step 1. Chat with it: turnwise chat models/mine\n"
    )
    trained, _ = load_trained_model(run)
    exported = AutoModelForCausalLM.from_pretrained("models/mine")
    assert torch.equal(logits(exported), logits(trained.model))
    tokenizer = AutoTokenizer.from_pretrained("models/mine")
    asked = [{"role": "user", "content": "Hello"}]
    options = {"add_generation_prompt": True, "tokenize": False}
    text = tokenizer.apply_chat_template(asked, **options)
    assert text == trained.tokenizer.apply_chat_template(asked, **options)
    assert len({os.stat(file).st_mode for file in Path("models/mine").iterdir()}) == 1
    assert [path.name for path in Path("models").iterdir()] == ["mine"]


def test_the_card_says_what_it_is_and_how_well_it_did(turnwise, run):
    turnwise("export", run, "mine")
    card = Path("mine/README.md").read_text()
    _, header, text = card.split("---\n", 2)
    assert yaml.safe_load(header)["library_name"] == "transformers"
    assert "`tiny` (0.8 million parameters)" in text
    assert "turnwise eval mine --env guess-number --param high=7 --max-steps 2\n" in text
    assert re.search(r"\*\*success .* greedy episodes on held-out seeds\*\*", text)
    assert "| eval/greedy/success | " in text
    assert "| adv_estimator | gae |" in text
    played = turnwise(
        *("eval", "mine", "--env", "guess-number", "--param", "high=7", "--max-steps", "2"),
        *("--episodes", "2"),
    )
    assert played.code == 0, played.err


def test_nothing_that_exists_is_overwritten(turnwise, run, tmp_path):
    Path("mine").mkdir()
    assert turnwise("export", run, "mine").code == 0  # an empty folder is none
    before = Path("mine/model.safetensors").stat()
    again = turnwise("export", run, "mine")
    assert (again.code, again.out) == (2, "")
    assert "mine exists already" in again.err
    assert "--checkpoint got 'newest'" in turnwise("export", run, "b", "--checkpoint", "newest").err
    assert Path("mine/model.safetensors").stat().st_mtime_ns == before.st_mtime_ns


def export_and_die(folder):
    os.chdir(folder)
    PreTrainedTokenizerBase.save_pretrained = lambda *_, **__: os.kill(os.getpid(), 9)
    main(["export", "runs/mine", "models/mine"])


def test_what_a_killed_export_left_is_removed_by_the_next_one(turnwise, run):
    killed = fork_server().Process(target=export_and_die, args=(os.getcwd(),))
    killed.start()
    killed.join()
    assert killed.exitcode == -9
    (draft,) = os.listdir("models")
    assert draft.startswith(".mine.saving-")
    Path("models/.mine-2.saving-00ab").touch()  # of another export, which may be running
    assert turnwise("export", run, "models/mine").code == 0
    assert sorted(os.listdir("models")) == [".mine-2.saving-00ab", "mine"]


@pytest.mark.skipif(find_spec("peft") is None, reason="needs peft")
def test_adapters_are_merged_into_the_weights(turnwise, run):
    lora = ("lora_rank=2", "lora_alpha=64", "lora_target_modules=[q_proj]", "use_rslora=true")
    given = [f"training.{setting}" for setting in lora]
    ran = turnwise("train", "my.yaml", *given, "--name", "adapted")
    assert ran.code == 0, ran.err
    assert turnwise("export", "runs/adapted", "mine").code == 0
    trained, _ = load_trained_model("runs/adapted")
    exported = AutoModelForCausalLM.from_pretrained("mine")
    assert not any("lora" in name for name, _ in exported.named_parameters())
    torch.testing.assert_close(logits(exported), logits(trained.model))
