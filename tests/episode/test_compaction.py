"""Context compaction: the policy summarises its conversation, and continues in a branch."""

import asyncio

import pytest
from hypothesis import given, settings, strategies as st

from chat.families import make_format
from chat.thinkers import thinking_format
from episode.recorder import Recorder, check_exact, check_log_probs
from episode.worlds import Counting, model, tokenizer
from turnwise import EpisodeLimits, ScriptedEngine, run_episode
from turnwise.episode import EpisodeCollector
from turnwise.inference import GenerationRequest, create_inference_engine
from turnwise.runs.episode_store import EpisodeStore
from turnwise.trainer.learning import AgentRow, make_batch, turn_ids
from turnwise.types import EpisodeStatus
from turnwise.view.payloads import episode_payload

FORMATS = {
    **dict.fromkeys(("chatml", "llama-3.1", "mistral-tools", "hermes"), make_format),
    **dict.fromkeys(("qwen3", "deepseek-r1", "gpt-oss"), thinking_format),
}


class Longer(Counting):
    length = 6
    max_steps = 7


class Taking(Longer):
    """Two players who take turns."""

    players = ("one", "two")

    @property
    def current_player(self):
        return self.players[len(self.heard) % 2]


def limits(**more):
    return EpisodeLimits(**{"max_tokens_per_turn": 12, "max_context_tokens": 120, **more})


@settings(max_examples=25)
@given(
    name=st.sampled_from(list(FORMATS)),
    seed=st.integers(0, 99),
    context=st.integers(1, 400),
    tokens=st.sampled_from([None, 250, 400]),
    thinking=st.sampled_from([None, 4]),
)
def test_every_sampled_token_stands_once_in_its_context(name, seed, context, tokens, thinking):
    chat = FORMATS[name](name)
    engine = Recorder(chat.tokenizer)
    environment = Longer()
    bounds = limits(max_context_tokens=context, max_tokens=tokens, max_thinking_tokens=thinking)
    result = run_episode(engine, environment, chat_format=chat, limits=bounds, seed=seed)
    check_exact(result.stream, engine.requests)
    agent = result.agent
    assert len(agent.stream.turns) == len(agent.turns)
    assert len(agent.actions) == len(environment.heard) == len(agent.trajectory.actions)
    assert agent.turn_rewards == [float(n + 1) for n in range(len(agent.actions))]
    assert [turn.tokens for turn in agent.turns] == list(agent.stream.turns)
    if tokens is not None:
        assert max(len(prompt) + len(ids) for prompt, ids, _ in engine.requests) <= tokens
    num_summaries = len(agent.turns) - len(agent.actions)
    assert len(agent.stream.branches) <= num_summaries <= len(agent.actions)


def play(policy, **options):
    prompts = []

    def answer(text):
        prompts.append(text)
        return policy(text)

    bounds = options.pop("limits", None) or limits(max_tokens_per_turn=40, max_context_tokens=90)
    environment = options.pop("environment", Longer)()
    engine = ScriptedEngine(tokenizer(), answer)
    return run_episode(engine, environment, limits=bounds, **options), prompts


def test_the_episode_goes_on_from_the_task_the_summary_and_the_observation(tmp_path):
    result, prompts = play(
        lambda text: "seen it all" if "Sum up." in text else "go", summary_prompt="Sum up."
    )
    turns = result.turns
    kinds = [turn.kind for turn in turns]
    first = kinds.index("summary")
    assert turns[first].text == "seen it all"
    number = first  # actions until then
    after = prompts[first + 1]
    begin = result.trajectory.prompts[1]
    assert (
        f"{begin}\n\nSummary of the conversation so far:\nseen it all\n\nThat was {number}."
        in after
    )
    assert after.startswith(prompts[0][: prompts[0].index(begin) + len(begin)])
    assert "go" not in after
    start, shared = result.stream.branches[0]
    assert 0 < shared < start, "the task is shared"
    assert result.status is EpisodeStatus.DONE
    assert result.num_turns == 6 == len(result.responses)
    assert result.reward.total == 21.0
    store = EpisodeStore(tmp_path / "episodes", 10**9)
    store.write(1, [result])
    (stored,) = store.read(1)
    assert [turn.kind for turn in stored.agent.turns] == kinds
    shown = episode_payload("train", 1, 0, stored)["agents"][0]["reward"]["turns"]
    assert [earned for earned in shown if earned] == result.agent.turn_rewards
    assert [bool(earned) for earned in shown] == [kind == "action" for kind in kinds]


def test_summaries_are_no_turns_and_carry_no_thoughts():
    chat = thinking_format("qwen3")
    engine = ScriptedEngine(chat.tokenizer, "<think>\nhello\n</think>\n\nbed")
    bounds = limits(max_turns=4, max_tokens_per_turn=40, max_context_tokens=60)
    result = run_episode(engine, Longer, chat_format=chat, limits=bounds)
    assert result.status is EpisodeStatus.TRUNCATED_BY_TURNS
    assert result.num_turns == 4
    summaries = [turn for turn in result.turns if turn.kind == "summary"]
    assert summaries
    assert all("<think>" in turn.text for turn in summaries)
    assert all("so far:\nbed\n\nThat was" in turn.observation for turn in summaries)


def test_summaries_have_the_credit_of_the_action_after_them():
    result, _ = play(lambda text: "go")
    rows = [AgentRow(result, result.agent)] * 2
    batch = make_batch(rows)
    agent = result.agent
    numbers = agent.action_numbers
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(len(agent.actions)))
    ids = turn_ids(batch, rows)
    for number, (start, end) in zip(numbers, agent.stream.turns, strict=True):
        assert set(ids[0, start:end].tolist()) == {number}


@pytest.fixture(scope="module")
def collected():
    """Episodes of the real engine, alone and with little memory next to others."""
    found = []
    for cache_tokens, concurrency in ((None, 1), (1024, 4)):
        engine = create_inference_engine(
            model(), "local", {"cache_tokens": cache_tokens}, tokenizer=tokenizer()
        )
        with engine:
            collector = EpisodeCollector(
                engine, Longer, max_concurrency=concurrency, limits=limits(max_context_tokens=150)
            )
            found.append(collector.collect_sync(3))
            for _ in range(2):  # the engine's thread forgets sessions before its next turn
                asyncio.run(engine.sample(GenerationRequest([5], 1)))
            assert engine._runner.kv_cache.num_allocated == 0
    return found


def test_episodes_do_not_depend_on_memory_and_neighbours(collected):
    for one, other in zip(*collected, strict=True):
        assert one.stream.branches
        assert one.stream == other.stream


def test_the_learner_computes_the_log_probs_of_the_sampling(collected):
    check_log_probs(model(), make_batch([AgentRow(r, r.agent) for r in collected[0]]))
