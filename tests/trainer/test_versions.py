"""Each token's label names the weights that sampled it: their log-probs are the recorded ones."""

import copy
import time

import pytest
import torch

from trainer.runs import Listener
from trainer.worlds import Uneven, small_model, small_trainer, training
from turnwise.episode import sampling as episode_sampling
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.run_folder import RunFolder

SETTINGS = (
    *training(
        "batch_size=4 group_size=2 adv_estimator=grpo num_epochs=1 steps_per_epoch=4 "
        "learning_rate=1e-2 warm_start=null max_staleness=2"
    ),
    "inference.max_tokens=16",
)
ONE_STEP = ()
MINIBATCHES = ("training.mini_batch_size=3",)
TWO_EPOCHS = ("training.mini_batch_size=4", "training.update_epochs=2")


def num_vowels(trajectory):
    return sum(letter in "aeiou" for text in trajectory.actions for letter in text)


class KeepsWeights(Listener):
    """Copies the weights after each update, while nothing changes them."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        self.versions = [copy.deepcopy(model)]

    def step(self, metrics):
        super().step(metrics)
        self.versions.append(copy.deepcopy(self.model))


class Slow:
    """A learner's updates after which something else is done, as after those of a large model."""

    def __init__(self, update, *seconds):
        self.update, self.seconds = update, iter(seconds)

    def __call__(self, batch):
        metrics = self.update(batch)
        time.sleep(next(self.seconds, 0.03))
        return metrics


def train(folder, *overrides):
    """Return the weights of each version, and the conversations of all agents."""
    model, tokenizer = small_model()
    listener = KeepsWeights(model)
    given = {"model": model, "tokenizer": tokenizer, "reporter": listener}
    given["reward_fn"] = num_vowels
    with small_trainer(folder, Uneven, *SETTINGS, *overrides, **given) as trainer:
        learner = trainer.components.learner
        learner.update = Slow(learner.update)
        history = trainer.fit()
    assert any("weights_behind" in metrics for metrics in history)
    assert all(metrics["grad_norm"] > 0 for metrics in history)
    store = EpisodeStore(RunFolder(trainer.run_folder).episodes, 1)
    played = [episode for step in store.steps("train") for episode in store.read(step, "train")]
    return listener.versions, [agent for episode in played for agent in episode.agents]


def versions_of(agent):
    """Return the version of each token's label; -1 where none was sampled."""
    versions = torch.full((len(agent.ids),), -1)
    for turn in agent.turns:
        start, end = turn.tokens
        for first, version in [(0, turn.weight_version), *turn.later_versions]:
            versions[start + first : end] = version
    return versions


@torch.no_grad()
def log_probs(model, ids):
    ids = torch.tensor(ids, dtype=torch.long)
    chosen = torch.log_softmax(model(ids[None, :-1]).logits[0], -1).gather(1, ids[1:, None])
    return torch.cat([torch.zeros(1), chosen[:, 0]])


@pytest.mark.parametrize(
    ("backend", "update"),
    [
        ("local", ONE_STEP),
        ("local", MINIBATCHES),
        ("local", TWO_EPOCHS),
        ("transformers", ONE_STEP),
    ],
    ids=["1", "3", "2x3", "transformers"],
)
def test_a_token_has_the_log_prob_of_the_version_in_its_label(tmp_path, backend, update):
    engine = (f"inference.backend={backend}", "inference.stale_kv=recompute")
    weights, agents = train(tmp_path, *engine, *update)
    num_tokens = 0
    for agent in agents:
        labels, recorded = versions_of(agent), torch.from_numpy(agent.columns["sampler_log_probs"])
        for version in labels[labels >= 0].unique().tolist():
            own = labels == version
            expected = log_probs(weights[version], agent.ids)
            torch.testing.assert_close(recorded[own], expected[own], atol=1e-4, rtol=0)
            num_tokens += int(own.sum())
    assert num_tokens > 300


@pytest.mark.parametrize("update", [ONE_STEP, TWO_EPOCHS], ids=["1", "2x3"])
def test_so_have_tokens_on_a_kept_cache_before_the_weights_change(tmp_path, update):
    weights, agents = train(tmp_path, "inference.stale_kv=keep", *update)
    for agent in agents:
        labels, recorded = versions_of(agent), torch.from_numpy(agent.columns["sampler_log_probs"])
        first = int(labels[labels >= 0][0])
        changed = (labels > first).nonzero()
        end = int(changed[0]) if len(changed) else len(labels)
        own = torch.tensor(agent.mask[:end])
        expected = log_probs(weights[first], agent.ids)[:end]
        torch.testing.assert_close(recorded[:end][own], expected[own], atol=1e-4, rtol=0)


def test_time_in_which_an_update_pauses_the_engine_is_on_no_deadline(tmp_path, monkeypatch):
    limits = ("limits.generation_timeout=2", "limits.max_seconds=3", "inference.stall_timeout=2")
    monkeypatch.setattr(episode_sampling, "_GRACE_SECONDS", 0.5)  # beyond the engine's own
    steps = ("training.steps_per_epoch=2", "training.learning_rate=1e-4")
    with small_trainer(tmp_path, Uneven, *SETTINGS, *limits, *steps) as trainer:
        learner = trainer.components.learner
        learner.update = Slow(learner.update, 4.0)
        history = trainer.fit()
    assert [metrics["errors"] for metrics in history] == [0.0] * 2
    assert [metrics["truncated"] for metrics in history] == [0.0] * 2
