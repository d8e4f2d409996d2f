"""The metrics that come from episodes, on episodes that were played for them."""

import json

import pytest

from episode.worlds import Recording
from turnwise import BaseEnvironment, EpisodeCollector, EpisodeLimits
from turnwise.episode import Collection
from turnwise.trainer.episode_metrics import episode_metrics, split_seconds


class Counted(BaseEnvironment):
    """As many turns as the agent likes; `crash` and `odd` are words with a meaning."""

    quick = True

    def reset(self):
        self._done = False
        return "go"

    def step(self, action):
        if action == "crash":
            raise OSError("gone")
        self._done = action == "end"
        info = {"success": self._done, "invalid_action": action == "odd"}
        return "on", 1.0, self._done, info

    def get_state_description(self):
        return ""


def figures_of(*scripts, on_error="retry", **options):
    """Each script is one episode's turns."""
    results, dropped = [], []
    for number, script in enumerate(scripts):
        words = iter(script)
        collector = EpisodeCollector(
            Recording(lambda text, words=words: next(words)),
            Counted,
            limits=EpisodeLimits(max_turns=3),
            on_error=on_error,
            num_retries=0,
            **options,
        )
        collection = collector.collect_sync([number])
        results += collection
        dropped += collection.dropped
    collection = Collection(results, dropped)
    return episode_metrics(collection), collection


def test_rewards_lengths_and_endings():
    found, _ = figures_of(["end"], ["odd", "on", "on"], ["on", "end"])
    assert (found["num_episodes"], found["turns"]) == (3, 2.0)
    assert (found["reward"], found["reward_min"], found["reward_max"]) == (2.0, 1.0, 3.0)
    assert found["reward_std"] == pytest.approx((2 / 3) ** 0.5)
    assert found["reward_per_turn"] == 1.0
    assert found["success"] == pytest.approx(2 / 3)
    assert found["truncated"] == found["truncated/turns"] == pytest.approx(1 / 3)
    assert found["invalid_actions"] == pytest.approx(1 / 6)
    assert found["errors"] == 0
    assert found["tokens_per_turn"] * 6 == found["num_sampled_tokens"]
    assert found["tokens_per_episode"] * 3 == found["num_sampled_tokens"]
    assert "tool_calls" not in found


def test_failed_episodes_count_and_earn_nothing():
    found, _ = figures_of(["end"], ["crash"])
    assert found["errors"] == found["errors/environment"] == 0.5
    assert (found["reward"], found["num_episodes"]) == (1.0, 2)
    left_out, collection = figures_of(["end"], ["crash"], on_error="drop_group")
    assert len(collection.dropped) == 1
    assert (left_out["errors"], left_out["num_episodes"]) == (0.5, 2)


def test_where_all_failed_there_is_no_reward():
    found, _ = figures_of(["crash"])
    assert "reward" not in found
    assert found["errors"] == 1.0
    empty, _ = figures_of(["crash"], on_error="drop_group")
    assert (empty["errors"], empty["num_sampled_tokens"]) == (1.0, 0)


def test_tools_and_calls_that_cannot_be_read():
    def add(a: int, b: int) -> int:
        """Add two numbers.

        a: the one
        b: the other
        """
        return a + b

    def call(name, **arguments):
        return json.dumps({"name": name, "arguments": arguments})

    scripts = [call("add", a=1, b=2), call("subtract", a=1)], [call("add", a=1), "end"]
    found, _ = figures_of(*[[*script, "end"] for script in scripts], tools=[add], parser="json")
    assert found["tool_calls"] == 1.5
    assert found["tool_calls/add"] == 1.0
    assert "tool_calls/subtract" not in found  # the model's invention
    assert found["tool_failures"] == pytest.approx(2 / 3)
    assert found["malformed_calls"] == 0


def test_seconds_are_split_by_what_episodes_waited_for():
    _, collection = figures_of(["end"], ["on", "end"])
    for result, environment in zip(collection, (1.0, 3.0), strict=True):
        result.seconds = {"engine": 4.0, "environment": environment, "total": 10.0}
    found = split_seconds(collection, 5.0)
    assert found["time/generate"] == pytest.approx(2.0)
    assert found["time/environment"] == pytest.approx(1.0)
    assert found["time/idle"] == pytest.approx(2.0)
    assert sum(found.values()) == pytest.approx(5.0)
