"""Whatever an episode holds, it can be listed, found, looked at and exported."""

import json

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from runs.stored_examples import episodes
from turnwise.runs.episode_store import EpisodeStore
from turnwise.view.episodes import find_episodes
from turnwise.view.export import export_episode
from turnwise.view.payloads import episode_payload, json_bytes, timeline, tokens_payload
from view.runs_to_view import write_run
from view.serving import open_library, refresh


class Shelf:
    """One run, whose only step is written again for each example."""

    def __init__(self, folder):
        self.folder = write_run(folder / "run", {1: []})
        self.run = open_library(self.folder).get("run")

    def put(self, results):
        EpisodeStore(self.folder / "episodes", 1e9).write(1, results, began=0.0)
        refresh(self.run)
        return self.run


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    return Shelf(tmp_path_factory.mktemp("shelf"))


@given(results=st.lists(episodes(), min_size=1, max_size=3))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_episode_is_shown(shelf, results):
    run = shelf.put(results)
    listed = find_episodes(run.episodes, [])["episodes"]
    assert [episode["seed"] for episode in listed] == [str(result.seed) for result in results]
    decoded, phases = run.step_episodes(("train", 1))
    json.loads(json_bytes(timeline("train", 1, decoded, phases, run.metrics.at(1))))
    for place, (result, episode) in enumerate(zip(results, decoded, strict=True)):
        told = json.loads(json_bytes(episode_payload("train", 1, place, episode)))
        assert [len(agent["turns"]) for agent in told["agents"]] == [
            len(agent.turns) for agent in result.agents
        ]
        for number, agent in enumerate(result.agents):
            tokens = json.loads(json_bytes(tokens_payload(episode, number, run.token_texts)))
            assert tokens["ids"] == list(agent.stream.ids)
            assert [t["text"] for t in told["agents"][number]["turns"]] == [
                turn.text for turn in agent.turns
            ]
        page = export_episode("run", "train", 1, place, episode, run.token_texts)
        page.encode()
        assert page.count('class="stream"') == len(result.agents)


@given(result=episodes())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_message_is_found_by_any_part_of_it(shelf, result):
    run = shelf.put([result])
    for agent in result.agents:
        for message in agent.messages:
            text = message["content"]
            if text:
                assert find_episodes(run.episodes, [("text", text)])["total"] == 1
