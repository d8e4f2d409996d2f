"""The store of episodes: what goes in comes back, and never stops a run."""

import itertools
import json
import logging
import math
import re
import tracemalloc
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from pyarrow import parquet

from episode.worlds import model, tokenizer
from runs.stored_examples import episodes
from turnwise import ConfigError, EpisodeLimits, EpisodeStatus, LocalEngine, collect
from turnwise.chat import TokenStream
from turnwise.episode import EpisodeResult
from turnwise.episode.types import AgentRecord, TurnRecord
from turnwise.inference import FinishReason
from turnwise.reward import Reward
from turnwise.runs.episode_store import EpisodeStore, read_table
from turnwise.runs.episode_table import FORMAT_KEY, episodes_to_table
from turnwise.runs.plain_json import json_text

NO_LIMIT = 1e12
SHORT = EpisodeLimits(max_turns=4, max_tokens_per_turn=16)


@pytest.fixture
def store(tmp_path):
    return EpisodeStore(tmp_path / "episodes", NO_LIMIT)


def rows_of(results):
    return [agent for result in results for agent in result.agents]


def random_columns(results, *names, seed=0):
    generator = torch.Generator().manual_seed(seed)
    width = max((len(agent.stream) for agent in rows_of(results)), default=0)
    shape = (len(rows_of(results)), width)
    return {name: torch.randn(shape, generator=generator) for name in names}


def assert_same(result, stored):
    for name in ("seed", "group", "member", "status", "error", "attempt"):
        assert getattr(stored, name) == getattr(result, name), name
    assert stored.seconds == pytest.approx(dict(result.seconds), abs=1e-6)
    assert [agent.name for agent in stored.agents] == [agent.name for agent in result.agents]
    for agent, kept in zip(result.agents, stored.agents, strict=True):
        assert kept.ids.tolist() == list(agent.stream.ids)
        assert kept.mask.tolist() == list(agent.stream.mask)
        np.testing.assert_array_equal(
            kept.columns["sampler_log_probs"], np.array(agent.stream.log_probs, np.float32)
        )
        assert kept.messages == agent.messages
        assert kept.reward == agent.reward
        assert list(map(tuple, kept.branches)) == list(agent.stream.branches)
        assert kept.result == agent.trajectory.result
        assert len(kept.turns) == len(agent.turns)
        for turn, kept_turn in zip(agent.turns, kept.turns, strict=True):
            assert_same_turn(turn, kept_turn)
            assert kept_turn.follows == turn_before(agent, turn)


def turn_before(agent, turn):
    """The last turn in the context of another one."""
    context = {n for span in agent.stream.context(turn.tokens[0]) for n in range(*span)}
    before = [n for n, other in enumerate(agent.turns) if other.tokens[0] in context]
    return before[-1] if before else None


def assert_same_turn(turn, kept):
    names = ("tokens", "text", "finish_reason", "weight_version", "state", "malformed")
    for name in (*names, "observation", "reward", "done", "info"):
        assert getattr(kept, name) == getattr(turn, name), name
    assert kept.seconds == pytest.approx(turn.seconds, abs=1e-6)
    assert len(kept.calls) == len(turn.calls)
    for number, (call, kept_call) in enumerate(zip(turn.calls, kept.calls, strict=True)):
        for name in ("name", "arguments", "result", "success"):
            assert getattr(kept_call, name) == getattr(call, name), name
        if number < len(turn.tool_results):
            assert kept_call.failure == turn.tool_results[number].failure


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(results=st.lists(episodes(), max_size=4), seed=st.integers(0, 99))
def test_what_is_stored_comes_back(tmp_path_factory, results, seed):
    store = EpisodeStore(tmp_path_factory.mktemp("store"), NO_LIMIT)
    columns = random_columns(results, "log_probs", "values", "advantages", seed=seed)
    store.write(7, results, columns)
    stored = store.read(7)
    assert len(stored) == len(results)
    for result, kept in zip(results, stored, strict=True):
        assert_same(result, kept)
    kept_rows = rows_of(stored)
    for row, agent in enumerate(kept_rows):
        for name, column in columns.items():
            expected = np.where(agent.mask, column[row, : len(agent.ids)].numpy(), np.nan)
            np.testing.assert_array_equal(agent.columns[name], expected)
        assert "returns" not in agent.columns
    store.write(8, results, {name: column.numpy() for name, column in columns.items()})
    tables = [read_table(store.folder / f"step-00000{step}.parquet") for step in (7, 8)]
    assert tables[0].drop_columns("step").equals(tables[1].drop_columns("step"))


@cache
def play(environment="guess-number"):
    """Episodes of an untrained model, with its real log-probs."""
    engine = LocalEngine(model(), tokenizer())
    try:
        return list(collect(engine, environment, 2, group_size=2, limits=SHORT))
    finally:
        engine.close()


def single_turns(num_episodes, num_tokens):
    """Episodes of one turn, in which every token was sampled."""
    random = np.random.default_rng(0)
    results = []
    for seed in range(num_episodes):
        stream = TokenStream()
        ids = random.integers(0, 50_000, num_tokens).tolist()
        stream.add_turn(ids, (-random.standard_exponential(num_tokens)).tolist())
        text = " ".join(map(str, ids))
        turn = TurnRecord((0, num_tokens), text, FinishReason.STOP, 3, reward=1.0, done=True)
        messages = [{"role": "user", "content": "Speak."}, {"role": "assistant", "content": text}]
        agent = AgentRecord("agent", stream, messages, [turn], reward=Reward(1.0))
        results.append(EpisodeResult(seed, agents=[agent], seconds={"engine": random.random()}))
    return results


class Odd:
    pass


def test_infos_that_are_no_json_and_huge_ones(store):
    infos = {
        "number": np.float32(0.5),
        "count": np.int64(3),
        "flag": np.bool_(True),
        "nothing": math.nan,
        "array": np.arange(1000),
        "tensor": torch.ones(2),
        "set": {3, 1, 2},
        "object": Odd(),
        "status": EpisodeStatus.DONE,
        5: (1, [2]),
        "long": "x" * 1_000_000,
    }
    result = single_turns(1, 4)[0]
    result.turns[0].info = infos
    store.write(1, [result])
    info = store.read(1)[0].agent.turns[0].info
    assert (info["number"], info["count"], info["flag"]) == (0.5, 3, True)
    assert info["nothing"] == "nan"
    assert info["array"].startswith("array([")
    assert info["tensor"] == "tensor([1., 1.])"
    assert info["set"] == "{1, 2, 3}"
    assert re.fullmatch(r"<.*Odd object>", info["object"])
    assert info["status"] == "done"
    assert info["5"] == [1, [2]]
    assert info["long"].startswith("xxx")
    assert info["..."] == "[cut after 4,000 characters]"
    assert len(json.dumps(info)) < 6000


class Endless(list):
    """A list of more items than any machine has room for."""

    def __iter__(self):
        return itertools.count()


@pytest.mark.parametrize(
    "huge",
    [
        Endless(),
        {"board": Endless()},
        {"pages": ["x" * 10_000_000] * 1000},
        {"image": bytes(100_000_000), "pages": ["x" * 10_000_000] * 1000},
        ["x" * 10_000_000] * 1000,
        "x" * 100_000_000,
    ],
    ids=range(6),
)
def test_a_huge_info_costs_no_more_than_what_is_kept_of_it(huge):
    tracemalloc.start()
    text = json_text(huge, 4000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 1_000_000
    assert len(text) < 6000
    assert "[cut after 4,000 characters]" in json.dumps(json.loads(text))


def test_kinds_and_rewinding(store):
    results = single_turns(1, 4)
    for step in (0, 2, 4, 6):
        store.write(step, results)
    store.write(4, results, kind="eval")
    store.write(6, results, kind="eval")
    (store.folder / "notes.txt").write_text("a user's own")
    assert (store.steps(), store.steps("eval")) == ([0, 2, 4, 6], [4, 6])
    store.rewind(4)
    assert (store.steps(), store.steps("eval")) == ([0, 2, 4], [4])
    assert (store.folder / "notes.txt").exists()
    assert store.read(4, kind="eval")[0].seed == 0


def test_no_folder_has_no_steps(store):
    assert store.steps() == []
    store.rewind(0)
    with pytest.raises(ConfigError, match="has no train episodes of step 3"):
        store.read(3)


@pytest.mark.parametrize("harm", ["cut", "flip", "empty", "other"])
def test_a_file_that_is_not_whole_is_named(store, harm):
    store.write(1, single_turns(1, 64))
    path = store.folder / "step-000001.parquet"
    data = bytearray(path.read_bytes())
    if harm == "cut":
        data = data[: len(data) // 2]
    elif harm == "flip":
        data[len(data) // 3] ^= 0xFF
    elif harm == "empty":
        data = bytearray()
    else:
        data = bytearray(b"hello")
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"step-000001\.parquet is no whole Parquet file"):
        store.read(1)


def test_the_budget_is_kept_and_told_once(tmp_path, caplog):
    results = single_turns(4, 64)
    probe = EpisodeStore(tmp_path / "probe", NO_LIMIT)
    probe.write(1, results)
    size = (probe.folder / "step-000001.parquet").stat().st_size
    store = EpisodeStore(tmp_path / "episodes", 3.5 * size)
    with caplog.at_level(logging.WARNING, "turnwise"):
        for step in range(1, 8):
            store.write(step, results)
        store.write(3, results)  # a step that is there takes no room of its own
    assert store.steps() == [1, 2, 3]
    assert len(caplog.records) == 1
    assert "logging.episodes_gb" in caplog.text
    again = EpisodeStore(store.folder, 3.5 * size)
    again.write(4, results)
    assert again.steps() == [1, 2, 3]
    again.rewind(1)
    again.write(2, results)
    assert again.steps() == [1, 2]


def test_a_folder_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path, caplog):
    (tmp_path / "file").touch()
    store = EpisodeStore(tmp_path / "file" / "episodes", NO_LIMIT)
    for step in range(3):
        store.write(step, single_turns(1, 4))
    assert len(caplog.records) == 1
    assert "could not be stored" in caplog.text
    assert "logged only once" in caplog.text


def test_a_write_that_fails_leaves_nothing_behind(store, caplog, monkeypatch):
    results = single_turns(1, 4)
    store.write(1, results)
    before = (store.folder / "step-000001.parquet").read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    store.write(1, single_turns(2, 4))
    store.write(2, results)
    monkeypatch.undo()
    assert "No space left on device" in caplog.text
    assert [path.name for path in store.folder.iterdir()] == ["step-000001.parquet"]
    assert (store.folder / "step-000001.parquet").read_bytes() == before
    store.write(2, results)  # there is room again
    assert store.steps() == [1, 2]


def test_pyarrow_alone_reads_a_file(store):
    results = play()
    store.write(1, results, random_columns(results, "advantages"))
    rows = parquet.read_table(store.folder / "step-000001.parquet").to_pylist()
    assert [row["reward"] for row in rows] == [result.reward.total for result in results]
    assert {(row["step"], row["kind"], row["num_turns"]) for row in rows} <= {
        (1, "train", result.num_turns) for result in results
    }
    for row, result in zip(rows, results, strict=True):
        (agent,) = row["agents"]
        assert agent["token_ids"] == list(result.stream.ids)
        assert agent["mask"] == list(result.stream.mask)
        is_known = [number is not None for number in agent["advantages"]]
        assert is_known == agent["mask"]
        assert agent["values"] is None
        said = [message["content"] for message in agent["messages"]]
        assert said == [message["content"] for message in result.messages]
        assert [turn["text"] for turn in agent["turns"]] == list(result.responses)


def test_a_message_has_all_of_its_keys(store):
    calls = [{"function": {"name": "look", "arguments": {"at": 1}}}]
    messages = [
        {"role": "system", "content": None},
        {"role": "assistant", "tool_calls": calls},
        {"role": "user", "content": [{"type": "text", "text": "See"}], "name": "me"},
    ]
    (result,) = single_turns(1, 4)
    result.agent.messages[:] = messages
    store.write(1, [result])
    assert store.read(1)[0].agent.messages == messages


def test_a_file_of_another_format_says_which(store):
    table = episodes_to_table(single_turns(1, 4))
    store.folder.mkdir()
    for about, words in (({FORMAT_KEY: "2"}, "has the format 2, expected 1"), (None, "unknown")):
        changed = table.replace_schema_metadata(about)
        parquet.write_table(changed, store.folder / "step-000001.parquet")
        with pytest.raises(ConfigError, match=words):
            store.read(1)


def test_a_file_of_format_1_is_read_by_later_versions():
    (episode, failed) = EpisodeStore(Path(__file__).parent / "format-1", 0).read(12)
    assert (episode.seed, episode.status, episode.agent.reward.total) == (3, "done", 1.0)
    assert failed.status == "environment_error"
