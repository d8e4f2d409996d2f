"""Templates that drop earlier thoughts: kept by default, or dropped as a server would do it."""

import pytest
from hypothesis import given, settings, strategies as st

from chat.thinkers import THINKERS, thinking_format
from chat.zoo import zoo_format
from episode.recorder import Recorder, check_exact
from episode.worlds import Counting
from turnwise import ConfigError, EpisodeLimits, ScriptedEngine, run_episode, tool

LIMITS = EpisodeLimits(max_turns=4, max_tokens_per_turn=60)
NAMES = [name for name in THINKERS if name != "gpt-oss"]


def play(name, thoughts, **options):
    chat = thinking_format(name)
    said = "hello</think>\n\nbed" if THINKERS[name].opens else "<think>\nhello\n</think>\n\nbed"
    prompts = []
    engine = ScriptedEngine(chat.tokenizer, lambda text: prompts.append(text) or said)
    result = run_episode(
        engine, Counting(), chat_format=chat, limits=LIMITS, thoughts=thoughts, **options
    )
    return result, prompts


@pytest.mark.parametrize("name", NAMES)
def test_thoughts_stay_in_the_stream_unless_the_template_decides(name):
    kept, prompts = play(name, "keep")
    assert kept.stream.branches == []
    assert prompts[2].count("hello") == 2
    stripped, prompts = play(name, "as_template")
    assert len(stripped.stream.branches) == 2
    assert prompts[2].count("hello") == 0
    assert prompts[2].count("bed") == 2
    chat = thinking_format(name)
    messages = [{"role": "system", "content": "Count."}]
    for number, turn in enumerate(stripped.turns):
        shown = stripped.trajectory.prompts[1] if number == 0 else f"That was {number}."
        messages.append({"role": "user", "content": shown})
        assert prompts[number] == chat.render(messages), "a server would write another prompt"
        answer = f"\n\n{'bed'}" if "deepseek" in name else "bed"
        messages.append({"role": "assistant", "content": answer})
        assert turn.text.endswith("bed")


def test_thoughts_between_tool_results_stay_where_the_template_keeps_them():
    @tool(timeout=None)
    def look() -> str:
        """Look."""
        return "nothing"

    chat = thinking_format("qwen3")
    call = '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
    answers = iter(
        [f"<think>\nhello\n</think>\n\n{call}"] * 2 + ["<think>\nhello\n</think>\n\nbed"] * 9
    )
    engine = ScriptedEngine(chat.tokenizer, lambda text: next(answers))
    result = run_episode(
        engine,
        Counting(),
        chat_format=chat,
        limits=LIMITS,
        tools=[look],
        parser="hermes",
        thoughts="as_template",
    )
    assert [len(turn.calls) for turn in result.turns] == [1, 1, 0, 0]
    assert len(result.stream.branches) == 1  # after the answer to the user, not between calls


@settings(max_examples=25)
@given(
    name=st.sampled_from(NAMES),
    seed=st.integers(0, 99),
    context=st.sampled_from([None, 80, 200]),
    thinking=st.sampled_from([None, 5]),
)
def test_every_sampled_token_stands_once_in_its_context(name, seed, context, thinking):
    chat = thinking_format(name)
    engine = Recorder(chat.tokenizer, ends=0.3)
    limits = EpisodeLimits(
        max_turns=4,
        max_tokens_per_turn=20,
        max_context_tokens=context,
        max_thinking_tokens=thinking,
    )
    result = run_episode(
        engine, Counting(), chat_format=chat, limits=limits, thoughts="as_template", seed=seed
    )
    assert result.error is None
    check_exact(result.stream, engine.requests)
    assert len(result.stream.turns) == len(result.turns)


def test_harmony_is_refused():
    chat = zoo_format("harmony")
    with pytest.raises(ConfigError, match="has channels"):
        run_episode(
            ScriptedEngine(chat.tokenizer, "a"), Counting, chat_format=chat, thoughts="as_template"
        )
