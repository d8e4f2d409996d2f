"""Every token of an episode is the one that the engine gave or that the template wrote."""

import pytest

from chat.families import FAMILIES, make_format
from episode.worlds import Awaited, Counting, InThreads, Recording, tokenizer
from turnwise import (
    ChatFormat,
    Conversation,
    EpisodeLimits,
    EpisodeStatus,
    ScriptedEngine,
    run_episode,
)


def check_stream(result, engine):
    """The stream is prompt, sampled, context, sampled ...; the mask is set on what was sampled."""
    stream = result.stream
    assert len(stream.turns) == len(engine.given) == len(result.turns)
    mask = [False] * len(stream)
    for (start, end), asked, given, turn in zip(
        stream.turns, engine.asked, engine.given, result.turns, strict=True
    ):
        assert list(asked.prompt_ids) == list(stream.ids[:start])
        assert list(stream.ids[start:end]) == list(given.ids)
        assert list(stream.log_probs[start:end]) == list(given.log_probs)
        assert turn.tokens == (start, end)
        mask[start:end] = [True] * (end - start)
    assert list(stream.mask) == mask


@pytest.mark.parametrize("world", [Counting, InThreads, Awaited])
def test_the_stream_is_what_the_engine_gave(world):
    engine = Recording()
    result = run_episode(engine, world, seed=4)
    assert result.status is EpisodeStatus.DONE
    check_stream(result, engine)
    assert result.responses == ["go", "go", "go"]
    assert [turn.observation for turn in result.turns] == [f"That was {i}." for i in (1, 2, 3)]
    assert [turn.state for turn in result.turns] == [f"{i} heard" for i in range(3)]


def test_the_stream_is_the_conversation_as_the_template_writes_it():
    chat = ChatFormat(tokenizer())
    result = run_episode(Recording(), Counting, seed=4, prompt="Please.", system_prompt="Be good.")
    messages = result.messages
    assert messages[0] == {"role": "system", "content": "Be good.\n\nCount."}
    assert messages[1]["content"].startswith("Please.\n\nBegin ")
    assert chat.difference(messages, result.stream.ids) is None
    assert [message["role"] for message in messages[2:]] == ["assistant", "user"] * 2 + [
        "assistant"
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_random_tokens_stay_as_they_are_in_every_family(family):
    chat = make_format(family)

    class Chance(ScriptedEngine):
        given = ()

        async def sample(self, request):
            result = await super().sample(request)
            self.given += (list(result.ids),)
            return result

    engine = Chance(chat.tokenizer)
    limits = EpisodeLimits(max_tokens_per_turn=9)
    result = run_episode(engine, Counting, chat_format=chat, limits=limits, seed=2)
    assert result.status is EpisodeStatus.DONE
    ids = result.stream.ids
    assert [list(ids[start:end]) for start, end in result.stream.turns] == list(engine.given)
    # The same conversation by hand.
    by_hand = Conversation(chat, result.messages[: -2 * len(engine.given) + 1])
    for turn, (sampled, message) in enumerate(
        zip(engine.given, [*result.messages[-2 * len(engine.given) + 2 :: 2], None], strict=True)
    ):
        by_hand.answer(sampled, [-1.0] * len(sampled))
        if message is not None:
            by_hand.add([message])
        assert by_hand.stream.turns[turn] == result.stream.turns[turn]
    assert by_hand.stream.ids == ids


def test_it_is_told_once_where_the_template_would_write_otherwise(caplog):
    chat = ChatFormat(make_format("reasoning").tokenizer)
    engine = ScriptedEngine(chat.tokenizer, lambda text: "<think>hm</think>go")
    for _ in range(2):
        assert run_episode(engine, Counting, chat_format=chat).status is EpisodeStatus.DONE
    assert caplog.text.count("not append-only") == 1


def test_a_turn_that_is_cut_gets_its_end_as_context():
    engine = Recording(lambda text: "a long answer")
    result = run_episode(engine, Counting, limits=EpisodeLimits(max_tokens_per_turn=4))
    assert result.responses == ["a lo"] * 3
    check_stream(result, engine)
    end = tokenizer().eos_token_id
    for _, after in result.stream.turns[:-1]:
        assert result.stream.ids[after] == end
        assert not result.stream.mask[after]
    assert len(result.stream) == result.stream.turns[-1][1]


def test_rewards_sit_on_the_last_sampled_token_of_their_turn():
    result = run_episode(Recording(), Counting)
    agent = result.agent
    assert agent.reward_positions == [end - 1 for _, end in result.stream.turns]
    assert agent.turn_rewards == [1.0, 2.0, 3.0]
    placed = {i: r for i, r in enumerate(agent.token_rewards) if r}
    assert placed == dict(zip(agent.reward_positions, [1.0, 2.0, 3.0], strict=True))
    assert all(result.stream.mask[position] for position in placed)
    scored = run_episode(Recording(), Counting, reward_fn=lambda trajectory: 7.0)
    assert scored.agent.turn_rewards == [0.0, 0.0, 7.0]


def test_the_session_is_ended_and_the_environment_closed():
    engine = Recording()
    made = []

    def make():
        made.append(Counting())
        return made[-1]

    run_episode(engine, make)
    assert engine.ended == [engine.asked[0].session]
    assert len({request.session for request in engine.asked}) == 1
    assert [environment.num_closed for environment in made] == [1]


def test_an_environment_that_is_given_is_played_on_and_left_open():
    environment = Counting()
    run_episode(Recording(), environment)
    assert environment.heard == ["go"] * 3
    assert environment.num_closed == 0


def test_each_turn_has_a_seed_of_its_own():
    engine = Recording()
    run_episode(engine, Counting, seed=1)
    run_episode(engine, Counting, seed=2)
    run_episode(engine, Counting, seed=1)
    seeds = [request.seed for request in engine.asked]
    assert len(set(seeds)) == 6
    assert seeds[:3] == seeds[6:]
