"""Episodes of agents that own their loop: the tree of their turns, and what they returned."""

import itertools

import pytest

from chat.families import make_format
from chat.thinkers import thinking_format
from episode.worlds import Counting
from turnwise.episode import EpisodeCollector, EpisodeLimits
from turnwise.inference.scripted import ScriptedEngine
from turnwise.runs.episode_store import EpisodeStore
from view.agent_runs import FAILS, write_agent_run
from view.runs_to_view import write_run
from view.serving import serving


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_agent_run(tmp_path_factory.mktemp("agents") / "agent")


@pytest.fixture(scope="module")
def client(folder):
    with serving(folder) as client:
        yield client


def test_each_turn_says_its_branch_and_which_turn_it_follows(folder, client):
    stored = EpisodeStore(folder / "episodes", 0).read(1)[0].agent
    places = [(turn.branch, turn.follows) for turn in stored.turns]
    assert places == [
        *((0, None), (0, 0), (0, 1), (0, 2), (1, 2)),
        *((0, 3), (1, 4), (1, 6), (2, None)),
    ]
    episode = client.get("/api/runs/agent/episodes/train-1-0")
    (agent,) = episode["agents"]
    assert agent["num_branches"] == 3
    assert [(turn["branch"], turn["follows"]) for turn in agent["turns"]] == places
    drawn = [(turn["row"], turn["column"]) for turn in agent["turns"]]
    assert len(set(drawn)) == len(drawn)
    for turn in agent["turns"]:  # a call has the result that its own branch sent
        assert agent["messages"][turn["message"]]["content"] == turn["text"]
    assert agent["turns"][0]["calls"][0]["result"] == FAILS
    assert agent["turns"][4]["calls"][0]["result"] == "2 passed in 0.01s"


def test_each_token_says_its_branch(client):
    episode = client.get("/api/runs/agent/episodes/train-1-0")
    tokens = client.get("/api/runs/agent/episodes/train-1-0/tokens")
    for number, turn in enumerate(episode["agents"][0]["turns"]):
        start, end = turn["tokens"]
        assert set(tokens["branch"][start:end]) == {turn["branch"]}
        assert set(tokens["turn"][start:end]) == {number}
    for start, after in tokens["branches"]:
        assert 0 < after < start


def test_what_an_agent_returned_and_why_it_failed(client):
    results = [
        client.get(f"/api/runs/agent/episodes/train-1-{n}")["agents"][0]["result"] for n in (0, 1)
    ]
    assert results == [{"tests": 1.0, "length": -0.25}, 0.5]
    failed = client.get("/api/runs/agent/episodes/train-1-2")
    assert failed["status"] == "agent_error"
    assert "raise ValueError" in failed["traceback"]
    command = client.get("/api/runs/agent/episodes/train-1-4")["agents"][0]["result"]
    assert command == {"exit_code": 3, "output": "no such file\n", "reward": None}
    found = client.get("/api/runs/agent/episodes", text="no such file")["episodes"]
    assert [one["id"] for one in found] == ["train-1-4"]


def test_episodes_are_filtered_and_sorted_by_their_branches(client):
    def listed(**query):
        return [one["id"] for one in client.get("/api/runs/agent/episodes", **query)["episodes"]]

    assert client.get("/api/runs/agent")["branched"] == 2
    assert sorted(listed(min_branches=2)) == ["train-1-0", "train-1-1"]
    assert sorted(listed(max_branches=1)) == ["train-1-2", "train-1-3", "train-1-4"]
    assert listed(sort="-branches")[:2] == ["train-1-0", "train-1-1"]
    shown = client.get("/api/runs/agent/episodes", sort="index")["episodes"]
    assert [one["branches"] for one in shown] == [3, 3, 1, 1, 1]
    assert [one["turns"] for one in shown] == [9, 3, 1, 2, 0]


def test_an_exported_episode_has_the_tree(client):
    _, _, body = client.request("/export/agent/train-1-0.html")
    page = body.decode()
    for number in range(1, 10):
        assert page.count(f'href="#agent-0-turn-{number}"') == 1
        assert page.count(f'id="agent-0-turn-{number}"') == 1
    assert "Branch 2 · follows turn 3" in page
    assert "Branch 3 · from the start" in page
    assert "returned by the agent" in page
    _, _, body = client.request("/export/agent/train-1-3.html")
    assert 'class="branches"' not in body.decode()
    assert "Branch" not in body.decode()


def test_calls_that_overlap_count_once_in_the_time_of_a_step(client):
    drawn = client.get("/api/runs/agent/steps/1/timeline")
    rows = {row["id"]: row for row in drawn["episodes"]}
    kinds = {span["kind"] for row in rows.values() for span in row["spans"]}
    assert kinds == {"agent", "generate", "reward"}
    for row in rows.values():
        spans = row["spans"]
        assert spans[0]["start"] == row["start"]
        assert spans[-1]["end"] == pytest.approx(row["end"])
        for one, other in itertools.pairwise(spans):
            assert one["end"] == pytest.approx(other["start"])


class Longer(Counting):
    length = 6
    max_steps = 7


@pytest.mark.parametrize("thoughts", ["keep", "as_template"])
def test_branches_of_an_environment(tmp_path, thoughts):
    """A summary has no reward of its own; a dropped thought begins a branch at each turn."""
    chat = thinking_format("qwen3") if thoughts == "as_template" else make_format("hermes")
    limits = EpisodeLimits(
        max_tokens_per_turn=20, max_context_tokens=120 if thoughts == "keep" else None
    )
    engine = ScriptedEngine(chat.tokenizer, lambda text: "<think>hm</think>go")
    collector = EpisodeCollector(engine, Longer, chat_format=chat, limits=limits, thoughts=thoughts)
    run = write_run(tmp_path / "own", {1: list(collector.collect_sync(1, 1))})
    with serving(run) as client:
        episode = client.get("/api/runs/own/episodes/train-1-0")
        tokens = client.get("/api/runs/own/episodes/train-1-0/tokens")
        assert client.request("/export/own/train-1-0.html")[0] == 200
    (agent,) = episode["agents"]
    turns, rewards = agent["turns"], agent["reward"]["turns"]
    assert agent["num_branches"] > 1
    assert len(tokens["branch"]) == tokens["count"]
    assert len(rewards) == len(turns)
    earned = [r for r, turn in zip(rewards, turns, strict=True) if turn["kind"] == "action"]
    assert earned == [float(n + 1) for n in range(len(earned))]
    assert any(turn["kind"] == "summary" for turn in turns) == (thoughts == "keep")
