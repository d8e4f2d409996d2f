"""Commands that take a run play it with the run's own environment, tools, dataset and reward."""

import json
import subprocess
import sys

import pytest

SCRIPT = '''
import sys
from turnwise import BaseEnvironment, ConfigStore, RayPPOTrainer, tool


class Greenhouse(BaseEnvironment):
    max_steps = 3

    def reset(self):
        return f"Open the door with the word {self.task['word']}."

    @tool
    def say_word(self, word: str) -> str:
        """Say the word."""
        self.said = word
        return "ok"

    said = ""

    def step(self, action):
        success = self.said == self.task["word"]
        return "", float(success), success, {"success": success}

    def get_state_description(self):
        return self.said

    def expert_action(self):
        if self.said:
            return "done"
        return '{"name": "say_word", "arguments": {"word": "%s"}}' % self.task["word"]


def double(trajectory):
    return 2.0 * trajectory.total_reward


def train(**parts):
    config = ConfigStore()
    config.training.num_epochs = 1
    config.training.batch_size = 2
    config.inference.max_tokens = 4
    RayPPOTrainer(config, Greenhouse, parser="json", **parts).fit()


if __name__ == "__main__":
    if sys.argv[1] == "file":
        train(reward_fn=double, dataset="rows.jsonl")
    else:
        train(reward_fn=lambda trajectory: 1.0, dataset=[{"word": "a"}, {"word": "b"}])
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder in which a script trained twice: with things in files, and with things in memory."""
    place = tmp_path_factory.mktemp("greenhouse")
    (place / "greenhouse.py").write_text(SCRIPT)
    rows = [{"word": "lily"}, {"word": "rose"}]
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for kind in ("file", "memory"):
        subprocess.run([sys.executable, "greenhouse.py", kind], cwd=place, check=True)
    return place


def test_a_run_names_everything_that_played_a_part(folder):
    run = json.loads((folder / "runs" / "Greenhouse" / "run.json").read_text())
    assert set(run["identity"]) == {"environment", "reward", "system_prompt", "tools", "dataset"}
    told = run["provenance"]
    assert told["command"] == "python greenhouse.py file"
    assert told["working_directory"] == str(folder)
    assert set(told["packages"]) >= {"torch", "transformers"}
    text = (folder / "runs" / "Greenhouse" / "config.yaml").read_text()
    for line in (
        "name: greenhouse.py:Greenhouse",
        "reward: greenhouse.py:double",
        "parser: json",
        "- rows.jsonl",
    ):
        assert line in text


@pytest.mark.parametrize("where", [".", "/"])
def test_eval_plays_with_the_runs_own_parts(folder, turnwise, monkeypatch, where):
    monkeypatch.chdir(folder if where == "." else where)
    done = turnwise("eval", str(folder / "runs" / "Greenhouse"), "--episodes", "2", "--json")
    scores = json.loads(done.out)
    assert scores["environment"].endswith("greenhouse.py:Greenhouse")
    # The expert can only solve it with the tool and the row's word, and the reward is doubled.
    assert scores["expert"]["success"] == 1.0
    assert scores["expert"]["reward"] == 2.0


def test_what_cannot_be_found_again_is_named_with_its_option(folder, turnwise, monkeypatch):
    monkeypatch.chdir(folder)
    done = turnwise("eval", "runs/Greenhouse-2", "--episodes", "2")
    assert done.code == 2
    assert "<lambda>" in done.out + done.err
    assert "--reward" in done.out + done.err
    done = turnwise(
        "eval", "runs/Greenhouse-2", "--episodes", "2", "--reward", "greenhouse.py:double"
    )
    assert done.code == 2
    assert "--dataset" in done.out + done.err
    options = ("--reward", "greenhouse.py:double", "--dataset", "rows.jsonl")
    done = turnwise("eval", "runs/Greenhouse-2", "--episodes", "2", "--json", *options)
    assert json.loads(done.out)["expert"]["reward"] == 2.0
