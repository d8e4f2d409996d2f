"""kill -9 in episodes with branches: the run resumes, and ends with the same bytes.

The branches are those of an agent that owns its loop, or of episodes that summarise their context.
"""

import itertools
import os
import signal
from pathlib import Path

import torch

from agents.serving import ask
from forked import fork_server
from trainer.runs import assert_same_run, episodes, metrics_of
from trainer.worlds import Memory, small_trainer
from turnwise.runs.checkpoints import CheckpointStore

ROWS = [{"word": word} for word in ("left", "right", "up", "down", "here", "there")]
SETTINGS = (
    *("training.batch_size=2", "training.num_epochs=2", "training.adv_estimator=grpo"),
    *("training.group_size=2", "training.warm_start=expert", "training.warm_start_steps=2"),
    *("training.eval_episodes=2", "checkpoint.run_name=run"),
)
FUSE = "TURNWISE_TEST_FUSE"
"""The episode in which this process dies, as a number of calls of the agent."""
CALLS = itertools.count(1)


def chats(task, llm):
    """Two turns of one conversation and one of another, then a reward from its length."""
    number = next(CALLS)
    messages = [{"role": "user", "content": task["word"]}]
    said = []
    for turn in range(3):
        body = {"model": llm.model, "messages": messages[: 1 if turn == 2 else 3]}
        said.append(ask(llm, "/chat/completions", body)[1]["choices"][0]["message"])
        if str(number) == os.environ[FUSE]:
            os.kill(os.getpid(), signal.SIGKILL)
        messages += [said[0], {"role": "user", "content": "more"}]
    return sum(len(message["content"]) for message in said) / 10


def echoes(messages, tools):
    return messages[-1]["content"][:2]


class Forgets(Memory):
    """Its episodes are summarised after every step; in the middle of one, its process dies."""

    def step(self, action):
        if str(next(CALLS)) == os.environ[FUSE]:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


COMPACTED = (
    *("training.batch_size=2", "training.num_epochs=4", "training.steps_per_epoch=1"),
    *("training.warm_start=null", "checkpoint.run_name=run"),
    *("limits.max_context_tokens=1", "inference.summary_prompt=So far?"),
)


def train(folder, fuse, kind="agent"):
    torch.set_num_threads(1)
    os.environ[FUSE] = str(fuse)
    if kind == "compacted":
        with small_trainer(folder, Forgets, *COMPACTED, reporter=None) as trainer:
            trainer.fit()
        return
    given = {"agent": chats, "expert": echoes, "dataset": ROWS, "reporter": None}
    with small_trainer(folder, None, *SETTINGS, **given) as trainer:
        trainer.fit()


def in_a_process(folder, fuse=0, kind="agent"):
    process = fork_server().Process(target=train, args=(folder, fuse, kind))
    process.start()
    process.join()
    return process.exitcode


def test_a_run_that_was_killed_in_its_episodes_is_the_run_that_was_not(tmp_path):
    assert in_a_process(tmp_path / "whole") == 0
    whole = tmp_path / "whole" / "run"
    assert len(metrics_of(whole)) == 6
    killed = tmp_path / "killed"
    # In the warm start, in the first step, in the evaluation after the third one.
    reached = []
    for fuse in (3, 6, 14):
        assert in_a_process(killed, fuse) == -signal.SIGKILL
        newest = CheckpointStore(killed / "run" / "checkpoints").newest()
        reached.append(newest.step if newest else None)
    assert reached == sorted(reached, key=lambda step: -1 if step is None else step)
    assert in_a_process(killed) == 0
    assert_same_run(whole, Path(killed / "run"))


def test_a_run_that_was_killed_in_summarised_episodes_is_the_run_that_was_not(tmp_path):
    assert in_a_process(tmp_path / "whole", kind="compacted") == 0
    whole = tmp_path / "whole" / "run"
    kinds = [
        turn["kind"]
        for (kind, _), played in episodes(whole).items()
        for episode in played
        for turn in episode["agents"][0]["turns"]
        if kind == "train"
    ]
    assert kinds == ["action", "summary", "action", "summary", "action"] * 2 * 4
    for fuse in (5, 11):  # six calls of `step` a training step
        assert in_a_process(tmp_path / "killed", fuse, "compacted") == -signal.SIGKILL
    assert in_a_process(tmp_path / "killed", kind="compacted") == 0
    assert_same_run(whole, tmp_path / "killed" / "run")
