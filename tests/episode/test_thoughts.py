"""Thoughts are recorded, and nothing in them is done."""

import pytest

from episode.worlds import Counting
from turnwise import EpisodeLimits, ScriptedEngine, run_episode, tool
from turnwise.chat import ChatFormat
from turnwise.models.tiny import make_tiny_tokenizer
from turnwise.tools import ToolCall, answer_of, get_parser
from turnwise.tools.thoughts import read_thought

HARMONY = "<|channel|>{}<|message|>{}"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("attack", "attack"),
        ("<think>attack?</think>\n\nwait", "wait"),
        ("attack?</think>wait", "wait"),
        ("<think>attack?", ""),
        ("wait <think>attack?", "wait"),
        ("<think>a</think>wait<think>attack</think> now", "wait now"),
        ("[THINK]attack?[/THINK]wait", "wait"),
        (HARMONY.format("final", "wait <now>") + "<|return|>", "wait <now>"),
        (
            f"{HARMONY.format('analysis', 'attack?')}<|end|><|start|>assistant"
            f"{HARMONY.format('final', 'wait')}<|return|>",
            "wait",
        ),
        ("<|channel|>final <|constrain|>json<|message|>{}", "{}"),
    ],
)
def test_the_answer_is_what_stands_outside_of_thoughts(text, answer):
    assert answer_of(text) == answer


def test_a_turn_that_begins_inside_of_a_thought():
    assert answer_of("attack, or", in_thought=True) == ""
    assert answer_of("attack?</think>wait", in_thought=True) == "wait"
    assert read_thought("attack, or", in_thought=True) == "attack, or"
    assert read_thought("attack?</think>wait", in_thought=True) == "attack?"


def play(text, environment, chat=None, **options):
    """An episode on an environment of that class, and that environment."""
    played = environment()
    tokenizer = make_tiny_tokenizer() if chat is None else chat.tokenizer
    engine = ScriptedEngine(tokenizer, lambda prompt: text)
    limits = EpisodeLimits(max_turns=1)
    result = run_episode(engine, played, chat_format=chat, limits=limits, **options)
    assert result.error is None
    return result, played


class Fight(Counting):
    """As many write it: looking for a word in what was said."""

    def step(self, action):
        self.heard.append(action)
        return "You hit it.", float("attack" in action), True, {}


def test_an_environment_gets_the_answer_and_the_record_all_of_it():
    text = "<think>I could attack. No.</think>\nwait"
    result, environment = play(text, Fight)
    assert environment.heard == ["wait"]
    assert result.reward.total == 0.0
    assert result.responses == [text]
    assert result.trajectory.actions == [text]
    assert result.turns[0].text == text


def test_an_environment_may_ask_for_the_thoughts():
    class Reader(Fight):
        sees_thoughts = True

    text = "<think>I could attack.</think>wait"
    result, environment = play(text, Reader)
    assert environment.heard == [text]
    assert result.reward.total == 1.0


OPENS_THOUGHT = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + "
    "'<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


@pytest.mark.parametrize("with_tools", [False, True])
def test_a_thought_that_the_template_opens_and_the_limit_cuts_is_no_action(with_tools):
    calls = []

    @tool(timeout=None)
    def attack() -> str:
        """Attack."""
        calls.append("attack")
        return "done"

    parser = get_parser("json")
    text = f"I could write {parser.render(ToolCall('attack'))} to attack, and"
    chat = ChatFormat(make_tiny_tokenizer(), OPENS_THOUGHT)
    options = {"tools": [attack], "parser": parser} if with_tools else {}
    result, environment = play(text, Fight, chat, **options)
    assert result.turns[0].in_thought
    assert result.turns[0].text == text
    assert environment.heard == [""]
    assert calls == []
    finished, environment = play(f"{text}</think>wait", Fight, chat, **options)
    assert environment.heard == ["wait"]
    assert calls == []
    assert finished.turns[0].text == f"{text}</think>wait"
