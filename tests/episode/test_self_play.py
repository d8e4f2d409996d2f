"""Two agents in one environment: each has its own conversation, stream, mask and rewards."""

import pytest

from episode.worlds import Recording, TicTacToe, tokenizer
from turnwise import EpisodeStatus, ScriptedEngine, collect, run_episode


def play(moves, **options):
    left = iter(moves)
    return run_episode(Recording(lambda text: next(left)), TicTacToe, **options)


def test_each_player_has_a_conversation_of_its_own():
    result = play("03142")
    assert result.status is EpisodeStatus.DONE
    x, o = result.agents
    assert (x.name, o.name) == ("x", "o")
    assert [turn.text for turn in x.turns] == ["0", "1", "2"]
    assert [turn.text for turn in o.turns] == ["3", "4"]
    assert x.messages[0]["content"].startswith("You are x.")
    assert o.messages[0]["content"].startswith("You are o.")
    assert x.messages[1]["content"] == ".../.../..."
    assert o.messages[1]["content"] == "x../.../..."
    assert x.messages[3]["content"] == "x../o../..."
    assert len(x.stream.turns) == 3
    assert len(o.stream.turns) == 2
    for agent in (x, o):
        said = [tokenizer().decode(agent.stream.ids[a:b]) for a, b in agent.stream.turns]
        assert said == [f"{turn.text}<|im_end|>" for turn in agent.turns]
        assert sum(agent.stream.mask) == agent.num_sampled_tokens == 2 * len(agent.turns)


def test_rewards_go_to_whom_they_belong():
    x, o = play("03142").agents
    assert x.turn_rewards == [0.0, 0.0, 1.0]
    assert o.turn_rewards == [0.0, -1.0]
    assert x.trajectory.dones == [False, False, True]
    assert o.trajectory.dones == [False, True]
    x, o = play("00").agents
    assert (x.turn_rewards, o.turn_rewards) == ([1.0], [-1.0])


def test_through_the_collector_with_a_reward_for_each_player():
    def reward(trajectory):
        return float(sum(trajectory.rewards)) + 10.0

    engine = ScriptedEngine(tokenizer())
    collection = collect(engine, TicTacToe, 20, group_size=2, reward_fn=reward)
    assert collection.summary.statuses == {EpisodeStatus.DONE: 40}
    for result in collection:
        totals = [agent.reward.total for agent in result.agents]
        assert sum(totals) == pytest.approx(10.0 * len(totals) + (-1.0 if len(totals) == 1 else 0))
        assert len({agent.stream.ids[0] for agent in result.agents}) == 1


def test_a_player_who_does_not_exist_is_the_environments_mistake():
    class Confused(TicTacToe):
        def step(self, action):
            outcome = super().step(action)
            self.current_player = "z"
            return outcome

    result = run_episode(Recording(lambda text: "0"), Confused)
    assert result.status is EpisodeStatus.ENVIRONMENT_ERROR
    assert "current_player is 'z', expected one of its players: x, o" in result.error
