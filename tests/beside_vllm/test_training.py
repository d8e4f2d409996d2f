"""Training through vLLM, in this process and behind a URL: a game of several turns with a tool."""

import asyncio

import torch

from beside_vllm.cases import TOLERANCE
from turnwise import BaseEnvironment, ConfigStore, Trainer
from turnwise.tools import ActionParser, ParseResult, ToolCall
from turnwise.types import Trajectory

NUM_STEPS = 3
SETTINGS = (
    "inference.backend=vllm",
    "inference.max_tokens=6",
    "inference.max_turns=4",
    "inference.temperature=0.9",
    "training.adv_estimator=grpo",
    "training.batch_size=8",
    "training.group_size=4",
    "training.learning_rate=1e-2",
    "training.max_log_prob_gap=1e-3",
)


class Riddle(BaseEnvironment):
    """Takes three answers; each is an observation for the next one."""

    def reset(self):
        self._done, self.step_count = False, 0
        return "What is it?"

    def step(self, action):
        self.step_count += 1
        self._done = self.step_count == 3
        return f"Not {action}.", len(action) / 10, self._done, {}

    def get_state_description(self):
        return "a riddle"


def look(at: str) -> str:
    """Look at something."""
    return f"You see {at}."


class OddIsACall(ActionParser):
    """Texts of odd length call the tool: a random model writes no JSON."""

    def parse(self, text):
        if len(text) % 2:
            return ParseResult([ToolCall("look", {"at": text[:3]})])
        return ParseResult(text=text)

    def render(self, call):
        return "look"


def vary(trajectory: Trajectory) -> float:
    return sum(map(ord, "".join(trajectory.actions))) / 1000


def train(folder, model, *settings):
    """Train for three steps; return the metrics, and the gap of the last weights."""
    overrides = [
        *SETTINGS,
        *settings,
        f"model.local_path={model}",
        f"checkpoint.output_dir={folder}",
    ]
    config = ConfigStore.load(overrides=overrides)
    with Trainer(config, Riddle, vary, tools=[look], parser=OddIsACall()) as trainer:
        trainer.fit(1, NUM_STEPS)
        engine, policy = trainer.components.engine, trainer.components.learner.model.policy
        ids = list(range(40, 90))
        scores = torch.tensor(asyncio.run(engine.score(ids, 1)))
        with torch.no_grad():
            logits = policy(torch.tensor([ids])).logits[0, :-1]
        expected = torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        return trainer.metrics_history, engine.weight_version, (scores - expected).abs().max()


def check(history, gap):
    assert len(history) == NUM_STEPS
    for metrics in history:
        assert 0.0 < metrics["gap_max"] < 10 * TOLERANCE
        assert metrics["grad_norm"] > 0
        assert metrics["errors"] == 0
        assert metrics["tool_calls"] > 0
        assert metrics["turns"] > 1
        assert "weights_behind" not in metrics  # each step is played by the newest weights
    assert gap < TOLERANCE


def test_grpo_through_vllm_in_this_process(tmp_path, first):
    options = "inference.options={block_size: 32, kv_cache_memory_bytes: 268435456, sleep: true}"
    history, version, gap = train(tmp_path, first.folder, options)
    check(history, gap)
    assert version == NUM_STEPS


def test_grpo_through_a_server(tmp_path, first, servers):
    url = f"inference.url={servers[0].url}"
    history, version, gap = train(tmp_path, first.folder, url)
    check(history, gap)
    assert version == NUM_STEPS + 1  # the first brings what the run starts from


def train_asynchronously(folder, model, *settings):
    stale = ("training.max_staleness=2", "training.max_log_prob_gap=null")
    history, version, gap = train(folder, model, *settings, *stale)
    assert len(history) == NUM_STEPS
    for metrics in history:
        assert metrics["errors"] == 0
        assert metrics["grad_norm"] > 0
        assert metrics.get("weights_behind", 0) <= 2
    assert any("weights_behind" in metrics for metrics in history)
    assert gap < TOLERANCE
    return version


def test_asynchronous_training_through_a_server(tmp_path, first, servers):
    """Its turns are long enough to be under way when weights arrive."""
    settings = (f"inference.url={servers[0].url}", "inference.max_tokens=60")
    assert train_asynchronously(tmp_path, first.folder, *settings) == NUM_STEPS + 1
