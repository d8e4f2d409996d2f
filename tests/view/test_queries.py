"""Filters, sorts and searches give what a plain look at every stored episode gives."""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from turnwise import ConfigError
from turnwise.runs.episode_store import EpisodeStore
from turnwise.types import EpisodeStatus
from turnwise.view.episodes import find_episodes, snippet
from view.runs_to_view import WORDS, crowd, said, write_run
from view.serving import open_library

STEPS = (1, 2, 3)


class Everything:
    """A run, its index, and the same episodes as they are stored."""

    def __init__(self, folder):
        run = write_run(folder / "crowd", {step: crowd(30, step) for step in STEPS})
        self.run = open_library(run).get("crowd")
        store = EpisodeStore(run / "episodes", 0)
        self.episodes = {
            f"train-{step}-{place}": (step, place, episode)
            for step in STEPS
            for place, episode in enumerate(store.read(step))
        }

    def ask(self, **query):
        items = [(name, str(value)) for name, value in query.items()]
        return find_episodes(self.run.episodes, [("limit", "500"), *items])

    def ids(self, **query):
        found = self.ask(**query)
        assert found["total"] == len(found["episodes"])
        return [episode["id"] for episode in found["episodes"]]


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    return Everything(tmp_path_factory.mktemp("crowd"))


def tools_of(episode):
    return {call.name for turn in episode.agent.turns for call in turn.calls}


def texts_of(episode):
    yield from (message["content"] for message in episode.agent.messages)
    yield from (turn.observation for turn in episode.agent.turns)


def meets(step, episode, query):
    """The same in plain Python."""
    reward = None if episode.agent.reward is None else episode.agent.reward.total
    sizes = {"turns": len(episode.agent.turns), "tokens": len(episode.agent.ids), "step": step}
    checks = [
        "status" not in query or episode.status == query["status"],
        "tool" not in query or query["tool"] in tools_of(episode),
        "seed" not in query or episode.seed == query["seed"],
        "step" not in query or step == query["step"],
        "text" not in query
        or any(query["text"].lower() in text.lower() for text in texts_of(episode)),
        "min_reward" not in query or (reward is not None and reward >= query["min_reward"]),
        "max_reward" not in query or (reward is not None and reward <= query["max_reward"]),
    ]
    for name, size in sizes.items():
        checks.append(size >= query.get(f"min_{name}", size))
        checks.append(size <= query.get(f"max_{name}", size))
    return all(checks)


SMALL = st.integers(0, 6)
PIECES = st.sampled_from([*WORDS, *"aeo\"*%_'", "lamp Door", "Go", "ON.", "größe", "  ", "'; --"])
QUERIES = st.fixed_dictionaries(
    {},
    optional={
        "status": st.sampled_from([status.value for status in EpisodeStatus]),
        "tool": st.sampled_from(["look", "take", "none"]),
        "seed": st.sampled_from([1, 2, 2**63 - 1, -5, 99]),
        "step": st.sampled_from([1, 3, 9]),
        "text": st.lists(PIECES, min_size=1, max_size=2).map(" ".join),
        "min_reward": st.sampled_from([-2.0, 0.25, 1.0]),
        "max_reward": st.sampled_from([-1.0, 0.5, 1e300]),
        "min_turns": SMALL,
        "max_turns": SMALL,
        "min_tokens": st.integers(0, 120),
        "max_tokens": st.integers(0, 120),
        "min_step": st.integers(0, 4),
        "max_step": st.integers(0, 4),
    },
)


@given(query=QUERIES)
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_filter_is_a_plain_filter(everything, query):
    expected = {name for name, (step, _, e) in everything.episodes.items() if meets(step, e, query)}
    assert set(everything.ids(**query)) == expected


def test_where_a_text_was_found_is_shown(everything):
    for episode in everything.ask(text="DOOR")["episodes"]:
        snippet = episode["snippet"]
        assert snippet["text"][snippet["start"] : snippet["end"]] == "Door"


def test_places_are_counted_as_a_browser_counts():
    found = snippet("😀 lamp", "lamp")
    units = found["text"].encode("utf-16-le")
    assert units[2 * found["start"] : 2 * found["end"]].decode("utf-16-le") == "lamp"


def test_a_long_message_is_cut_around_the_place(tmp_path):
    long = f"{'before ' * 100}needle{' after' * 100}"
    run = write_run(tmp_path / "long", {1: [said(long)]})
    episodes = open_library(run).get("long").episodes
    (episode,) = find_episodes(episodes, [("text", "needle")])["episodes"]
    snippet = episode["snippet"]
    assert len(snippet["text"]) < 200
    assert snippet["text"][snippet["start"] : snippet["end"]] == "needle"
    assert snippet["text"][0] == snippet["text"][-1] == "…"


def value_of(name, step, place, episode):
    return {
        "step": step,
        "index": place,
        "reward": None if episode.agent.reward is None else episode.agent.reward.total,
        "turns": len(episode.agent.turns),
        "tokens": len(episode.agent.ids),
        "status": episode.status.value,
        "seconds": episode.seconds["total"],
        "tool_calls": sum(len(turn.calls) for turn in episode.agent.turns),
        "sampled_tokens": int(episode.agent.mask.sum()),
    }[name]


@pytest.mark.parametrize("way", [1, -1])
@pytest.mark.parametrize(
    "name", ["step", "index", "reward", "turns", "tokens", "status", "seconds", "tool_calls"]
)
def test_a_sort_is_a_plain_sort(everything, name, way):
    ids = everything.ids(sort=name if way == 1 else f"-{name}")
    values = [value_of(name, *everything.episodes[key]) for key in ids]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=way == -1)
    assert values == known + [None] * (len(values) - len(known))  # what has none is at the end
    assert sorted(ids) == sorted(everything.episodes)


def test_several_statuses_and_tools(everything):
    either = everything.ids(status="done,tool_error")
    assert set(either) == {*everything.ids(status="done"), *everything.ids(status="tool_error")}
    assert set(everything.ids(tool="look,take")) == {
        *everything.ids(tool="look"),
        *everything.ids(tool="take"),
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", "0"),
        ("limit", "501"),
        ("offset", "-1"),
        ("seed", "1; DROP TABLE episodes"),
        ("min_reward", "nan"),
        ("min_reward", "high"),
        ("min_turns", "1.5"),
        ("sort", "rewrad"),
        ("colour", "red"),
    ],
)
def test_what_cannot_be_meant_is_told(everything, name, value):
    with pytest.raises(ConfigError, match=name):
        everything.ask(**{name: value})


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    long = "x" * 5000  # rows that differ only behind what is kept of them

    def row(n):
        return {"prompt": f"What is {n} plus {n}?", "answer": str(2 * n), "about": f"{long}{n}"}

    def played(n, words, right, seed):
        asked = row(n)["prompt"]
        return said(words, seed=seed, asked=asked, task=row(n), success=right, told="So?")

    first = [played(3, "<think>It is 6.</think>7", False, 1), played(4, "8", True, 2)]
    failed = said("3", seed=3, asked="none", status=EpisodeStatus.TOOL_ERROR, error="broke")
    second = [played(3, "6", True, 11), said("What is 3 plus 3?", seed=12), failed]
    run = write_run(tmp_path_factory.mktemp("tasks") / "sums", {1: first, 2: second})
    library = open_library(run)

    def ask(**query):
        items = [(name, str(value)) for name, value in query.items()]
        return find_episodes(library.get("sums").episodes, items)["episodes"]

    ask.run = library.get("sums")
    return ask


class TestTasks:
    """Rows of a dataset come again at other steps, with other seeds."""

    def ids(self, episodes):
        return {episode["id"] for episode in episodes}

    def test_what_was_asked_answered_and_reached(self, ask):
        told = {one["id"]: one for one in ask()}
        wrong = told["train-1-0"]
        assert wrong["task"] == "What is 3 plus 3?"
        assert wrong["answer"] == "7"  # not the thoughts before it
        reached = {name: one["success"] for name, one in told.items()}
        assert reached == {
            "train-1-0": False,
            "train-1-1": True,
            "train-2-0": True,
            "train-2-1": None,
            "train-2-2": None,
        }

    def test_the_same_row_is_the_same_task_at_every_step(self, ask):
        keys = {one["id"]: one["task_key"] for one in ask()}
        assert keys["train-1-0"] == keys["train-2-0"] != keys["train-1-1"]
        assert keys["train-2-1"] == "seed-12"  # without a row the seed is the task
        found = ask(task=keys["train-1-0"], kind="train", sort="step")
        assert [one["id"] for one in found] == ["train-1-0", "train-2-0"]
        assert self.ids(ask(task=keys["train-1-1"])) == {"train-1-1"}

    def test_success_is_counted_as_the_metrics_count_it(self, ask):
        assert self.ids(ask(success="yes")) == {"train-1-1", "train-2-0"}
        assert self.ids(ask(success="no")) == {"train-1-0", "train-2-1"}
        assert ask.run.detail()["successes"] == {"yes": 2, "no": 2}
        with pytest.raises(ConfigError, match="success got 'maybe'"):
            ask(success="maybe")

    def test_a_text_in_the_task_or_in_the_answer(self, ask):
        text = "3 plus 3"
        assert self.ids(ask(text=text)) == {"train-1-0", "train-2-0", "train-2-1"}
        assert self.ids(ask(text=text, **{"in": "task"})) == {"train-1-0", "train-2-0"}
        (found,) = ask(text=text, **{"in": "answer"})
        assert found["id"] == "train-2-1"
        assert "3 plus 3" in found["snippet"]["text"]
        assert self.ids(ask(text="8", **{"in": "answer"})) == {"train-1-1"}

    def test_the_environments_of_a_mix_have_tasks_of_their_own(self, tmp_path):
        mixed = [said("a", seed=1, part="chess"), said("b", seed=1, part="go/9"), said("c", seed=1)]
        run = open_library(write_run(tmp_path / "mix", {1: mixed})).get("mix")
        assert run.detail()["parts"] == {"chess": 1, "go/9": 1}
        every = find_episodes(run.episodes, [])["episodes"]
        (one,) = find_episodes(run.episodes, [("part", "go/9")])["episodes"]
        assert (one["id"], one["part"]) == ("train-1-1", "go/9")
        assert len({episode["task_key"] for episode in every}) == 3

    def test_any_kind_of_error(self, ask):
        assert self.ids(ask(status="error")) == {"train-2-2"}


def test_success_is_kept_however_large_the_rest_of_an_info_is(tmp_path):
    episode = said("Hello", success=True)
    episode.turns[0].info = {"board": "x" * 9000, "success": True}
    run = open_library(write_run(tmp_path / "run", {1: [episode]})).get("run")
    assert run.detail()["successes"] == {"yes": 1, "no": 0}


def test_what_is_empty_is_not_asked(everything):
    names = ("kind", "status", "tool", "min_reward", "text", "seed", "sort")
    assert len(everything.ids(**dict.fromkeys(names, ""))) == 90
