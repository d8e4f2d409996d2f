"""Sub-agents: a tool asks the policy, and what it samples is a branch of the episode."""

import asyncio

import pytest
import torch
from hypothesis import given, settings, strategies as st

from chat.families import make_format
from chat.thinkers import thinking_format
from episode.recorder import Recorder, check_log_probs
from episode.worlds import Counting, model, tokenizer
from turnwise import EpisodeLimits, ScriptedEngine, ToolError, run_episode, tool
from turnwise.episode import EpisodeCollector
from turnwise.inference import GenerationRequest, create_inference_engine
from turnwise.learner import Learner, PolicyValueModel, PPOBatch
from turnwise.runs.episode_store import EpisodeStore
from turnwise.tools import ActionParser, ToolCall, ToolContext
from turnwise.tools.parsers.base import ParseResult
from turnwise.trainer.learning import AgentRow, make_batch, turn_ids
from turnwise.types import EpisodeStatus, StepResult
from turnwise.view.payloads import episode_payload

FORMATS = {
    **dict.fromkeys(("chatml", "llama-3.1", "mistral-tools", "hermes"), make_format),
    **dict.fromkeys(("qwen3", "deepseek-r1"), thinking_format),
}
CALL = '{"tool": "research", "arguments": {"question": "why"}}'


@tool(timeout=None)
async def research(question: str, context: ToolContext) -> str:
    """Ask, ask two more at once, and continue the first conversation."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": question}]
    first = await context.ask(messages, max_tokens=9)
    others = await asyncio.gather(context.ask("left?"), context.ask("left?"))
    follow = {"role": "user", "content": "and then?"}
    last = await context.ask([*messages, {"role": "assistant", "content": first}, follow])
    return "|".join([first, *others, last])


class Research(ActionParser):
    """Reads every turn as a call, so that any policy calls the tool."""

    def parse(self, text):
        return ParseResult([ToolCall("research", {"question": "why"})])

    def render(self, call):
        return call.name


def limits(**more):
    return EpisodeLimits(**{"max_turns": 3, "max_tokens_per_turn": 12, **more})


@settings(max_examples=20, deadline=None)
@given(
    name=st.sampled_from(list(FORMATS)),
    seed=st.integers(0, 99),
    context=st.sampled_from([None, 150, 400]),
    thoughts=st.sampled_from(["keep", "as_template"]),
)
def test_every_sampled_token_stands_once_in_its_context(name, seed, context, thoughts):
    chat = FORMATS[name](name)
    engine = Recorder(chat.tokenizer)
    result = run_episode(
        engine,
        Counting,
        tools=[research],
        parser=Research(),
        chat_format=chat,
        thoughts=thoughts,
        limits=limits(max_context_tokens=context),
        seed=seed,
    )
    assert not result.status.is_error, result.error
    agent = result.agent
    stream = agent.stream
    found = sorted(
        (
            [i for a, b in stream.context(start) for i in stream.ids[a:b]],
            list(stream.ids[start:end]),
            list(stream.log_probs[start:end]),
        )
        for start, end in stream.turns
    )
    assert found == sorted(engine.requests)
    assert sum(stream.mask) == sum(len(ids) for _, ids, _ in engine.requests)
    kinds = [turn.kind for turn in agent.turns]
    assert kinds.count("action") == 3 == len(agent.trajectory.actions)
    # Nothing in a thought is a call, and a turn may be nothing else.
    assert kinds.count("sub_agent") == 4 * sum(len(turn.calls) for turn in agent.turns)
    assert [turn.tokens for turn in agent.turns] == list(stream.turns)
    for turn in agent.turns if "sub_agent" in kinds else ():
        assert agent.messages[turn.message] == {"role": "assistant", "content": turn.text}


def play(policy, tools=(research,), **options):
    engine = ScriptedEngine(tokenizer(), policy)
    options = {"limits": limits(max_tokens_per_turn=60), "parser": "json", **options}
    return run_episode(engine, None, tools=list(tools), **options)


def answer(prompt):
    if "Be brief." in prompt:
        return "since then" if "and then?" in prompt else "because"
    if "left?" in prompt:
        return "yes"
    return "done" if "because" in prompt else CALL


def test_a_tool_asks_the_policy_and_gets_its_answers(tmp_path):
    result = play(answer)
    assert result.status is EpisodeStatus.DONE
    (call,) = result.turns[0].calls
    assert call.result == "because|yes|yes|since then"
    assert [turn.text for turn in result.agent.actions] == [CALL, "done"]
    assert [turn.text for turn in result.turns] == [
        CALL,
        "because",
        "yes",
        "yes",
        "since then",
        "done",
    ]
    store = EpisodeStore(tmp_path / "episodes", 10**9)
    store.write(1, [result])
    (stored,) = store.read(1)
    assert [turn.follows for turn in stored.agent.turns] == [None, None, None, None, 1, 0]
    shown = episode_payload("train", 1, 0, stored)["agents"][0]
    assert [turn["kind"] for turn in shown["turns"]] == [turn.kind for turn in result.turns]
    assert shown["messages"][3]["content"] == "Be brief."


class Asking(Counting):
    """Its tool asks the policy, and ends the episode."""

    @tool(timeout=None)
    async def finish(self, context: ToolContext) -> StepResult:
        """Finish with a word of the policy."""
        word = await context.ask("left?")
        return StepResult(word, 1.0, terminated=True, truncated=False, info={})


def test_the_reward_of_an_action_reaches_the_sub_agents_that_it_called():
    result = run_episode(
        ScriptedEngine(
            tokenizer(),
            lambda text: "yes" if "left?" in text else '{"tool": "finish", "arguments": {}}',
        ),
        Asking,
        parser="json",
        limits=limits(max_tokens_per_turn=60),
    )
    agent = result.agent
    assert result.status is EpisodeStatus.DONE
    assert [turn.kind for turn in agent.turns] == ["action", "sub_agent"]
    assert agent.turn_rewards == [1.0]
    assert agent.reward_positions == [agent.turns[1].tokens[1] - 1], "after the sub-agent's turn"
    assert agent.action_numbers == [0, 0]
    rows = [AgentRow(result, agent)]
    batch = make_batch(rows)
    assert batch.rewards[0, agent.reward_positions[0]] == 1.0
    assert set(turn_ids(batch, rows)[batch.response_mask].tolist()) == {0}


def test_a_truncated_episode_is_bootstrapped_from_the_agents_own_conversation():
    result = play(answer, limits=limits(max_turns=1, max_tokens_per_turn=60))
    agent = result.agent
    assert result.status is EpisodeStatus.TRUNCATED_BY_TURNS
    assert [turn.kind for turn in agent.turns] == ["action"] + 4 * ["sub_agent"]
    start, end = agent.turns[0].tokens
    own = PPOBatch(torch.tensor([agent.stream.ids[:end]]), torch.tensor([agent.stream.mask[:end]]))
    policy = PolicyValueModel(model(), "shared")
    torch.nn.init.normal_(policy.value_head.weight)
    learner = Learner(policy)
    found = learner.score(make_batch([AgentRow(result, agent), AgentRow(result, agent)]))
    expected = learner.score(own)
    for row in (0, 1):  # the second shares its tokens with the first one
        torch.testing.assert_close(found.last_values[row], expected.last_values[0])
        torch.testing.assert_close(found.values[row, start:end], expected.values[0, start:end])


def test_what_cannot_be_asked_is_refused_and_a_failing_engine_fails_the_episode():
    with pytest.raises(ToolError, match="no model to ask"):
        asyncio.run(ToolContext().ask("left?"))
    kept = []

    @tool(timeout=None)
    async def research(question: str, context: ToolContext) -> str:
        """Ask too much, then keep the context."""
        kept.append(context)
        return await context.ask("long " * 3000)

    bounds = limits(max_tokens_per_turn=60, max_tokens=1000)
    result = play(lambda text: "done" if "tokens" in text else CALL, [research], limits=bounds)
    assert result.status is EpisodeStatus.DONE
    assert "a conversation may have" in result.turns[0].calls[0].result
    with pytest.raises(ToolError, match="until the episode ends"):
        asyncio.run(kept[0].ask("left?"))

    class Broken(ScriptedEngine):
        async def sample(self, request):
            if "left?" in self.tokenizer.decode(list(request.prompt_ids)):
                raise RuntimeError("no more electricity")
            return await super().sample(request)

    @tool(timeout=None)
    async def calm(question: str, context: ToolContext) -> str:
        """Ask, and hide what goes wrong."""
        try:
            return await context.ask("left?")
        except RuntimeError:
            return "nothing happened"

    engine = Broken(tokenizer(), CALL.replace("research", "calm"))
    bounds = limits(max_tokens_per_turn=60)
    result = run_episode(engine, None, tools=[calm], parser="json", limits=bounds)
    assert result.status is EpisodeStatus.ENGINE_ERROR
    assert "no more electricity" in result.error


def test_log_probs_are_the_learners_and_nothing_is_left_in_the_engine():
    loaded = model()
    engine = create_inference_engine(loaded, "local", tokenizer=tokenizer())
    collector = EpisodeCollector(
        engine, Counting, tools=[research], parser=Research(), limits=limits()
    )
    with engine:
        results = collector.collect_sync(3)
        for _ in range(2):  # the engine's thread forgets sessions before its next turn
            asyncio.run(engine.sample(GenerationRequest([5], 1)))
        assert engine._runner.kv_cache.num_allocated == 0
    check_log_probs(loaded, make_batch([AgentRow(r, r.agent) for r in results]))
