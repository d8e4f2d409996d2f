"""Rows of a dataset as tasks of episodes: who gets them, and conversations that began before."""

import asyncio

import pytest

from episode.worlds import Awaited, Counting, InThreads, Recording, tokenizer
from turnwise import (
    ChatFormat,
    EpisodeCollector,
    EpisodeStatus,
    PromptEnvironment,
    ScriptedEngine,
    environment_factory,
)
from turnwise.episode import Episode, EpisodeTask, make_setup

ROWS = [{"prompt": f"What is {n} plus {n}?", "answer": str(2 * n)} for n in range(3)]


def play(environment, tasks, **options):
    engine = options.pop("engine", None) or Recording()
    return asyncio.run(EpisodeCollector(engine, environment, **options).play(tasks))


def tasks(rows, group_size=1):
    return [
        EpisodeTask(seed=7, group=group, member=member, task=row)
        for group, row in enumerate(rows)
        for member in range(group_size)
    ]


def asking(world):
    """Asks what the row says; the row must be there when it is reset."""

    class Asking(world):
        length = 1

        async def reset(self):
            begun = super().reset()
            if asyncio.iscoroutine(begun):
                await begun
            return self.task["prompt"]

    class AskingPlainly(world):
        length = 1

        def reset(self):
            super().reset()
            return self.task["prompt"]

    return Asking if world is Awaited else AskingPlainly


@pytest.mark.parametrize("world", [Counting, InThreads, Awaited])
def test_the_environment_has_its_row_before_reset_and_the_trajectory_keeps_it(world):
    collection = play(asking(world), tasks(ROWS, group_size=2))
    assert [r.status for r in collection] == [EpisodeStatus.DONE] * 6
    assert [r.messages[1]["content"] for r in collection] == [
        row["prompt"] for row in ROWS for _ in range(2)
    ]
    assert [r.trajectory.task for r in collection] == [row for row in ROWS for _ in range(2)]


def test_what_an_environment_does_to_its_row_is_seen_by_no_other():
    answers = []

    class Careless(Counting):
        length = 1

        def reset(self):
            answers.append(self.task.pop("answer"))
            if len(answers) == 1:
                raise ConnectionError("not yet")
            return super().reset()

    row = dict(ROWS[0])
    collection = play(Careless, tasks([row], group_size=3), num_retries=1)
    assert [r.status for r in collection] == [EpisodeStatus.DONE] * 3
    assert answers == ["0"] * 4  # also a second try has it whole
    assert row == ROWS[0]
    assert all(r.trajectory.task == ROWS[0] for r in collection)


EARLIER = [{"role": "user", "content": "Say one."}, {"role": "assistant", "content": "One."}]


def test_an_episode_may_begin_in_the_middle_of_a_conversation():
    class Later(Counting):
        def get_history(self):
            return EARLIER

    (result,) = play(Later, [EpisodeTask(seed=1, prompt="Go on.")])
    told = result.messages[3]["content"]
    assert result.messages[:3] == [{"role": "system", "content": "Count."}, *EARLIER]
    assert told.startswith("Go on.\n\nBegin ")
    opening = [*result.messages[:3], {"role": "user", "content": told}]
    start, _ = result.turns[0].tokens
    ids = tokenizer().apply_chat_template(opening, add_generation_prompt=True, return_dict=False)
    assert list(result.stream.ids[:start]) == ids
    assert not any(result.stream.mask[:start])  # what was said before is not trained on


def test_without_a_system_role_the_system_prompt_stands_before_the_first_message():
    class Later(Counting):
        def get_history(self):
            return EARLIER

    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('none') }}"
        "{% endif %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    setup = make_setup(ScriptedEngine(tokenizer()), chat_format=ChatFormat(tokenizer(), template))
    result = asyncio.run(Episode(setup, environment_factory(Later)).run())
    assert result.status is EpisodeStatus.DONE
    assert result.messages[:2] == [
        {"role": "user", "content": "Count.\n\nSay one."},
        {"role": "assistant", "content": "One."},
    ]
    assert result.messages[2]["content"].startswith("Begin ")


class TestPrompts:
    def test_messages_open_the_conversation_as_they_are(self):
        messages = [
            {"role": "system", "content": "Be brief."},
            *EARLIER,
            {"role": "user", "content": "And two?"},
        ]
        (result,) = play(PromptEnvironment, tasks([{"prompt": messages}]))
        assert result.messages[:-1] == messages
        assert result.reward.total == 0.0

    def test_a_row_without_a_prompt_is_told(self):
        (result,) = play(PromptEnvironment, tasks([{"question": "Why?"}]), num_retries=0)
        assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
        assert "no 'prompt'" in result.error
        assert "question" in result.error
        (result,) = play(PromptEnvironment, [EpisodeTask(1)], num_retries=0)
        assert "no task to play" in result.error
