"""reasoning-gym's tasks: one question by seed, one answer, the task's own score."""

import copy
import random

import pytest

from turnwise import (
    ConfigError,
    EnvironmentFault,
    EpisodeStatus,
    ReasoningGymEnvironment,
    check_env,
    expert_player,
    make_environment,
    play_episode,
    random_player,
)

pytest.importorskip("reasoning_gym")

TASKS = ["leg_counting", "chain_sum", "mini_sudoku", "basic_arithmetic", "word_sorting", "maze"]


def answer(text):
    return lambda env, observation: text


def question(env, seed):
    env.seed(seed)
    return env.reset()


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_is_right_and_the_random_player_mostly_wrong(task):
    env = ReasoningGymEnvironment(task)
    for seed in range(3):
        trajectory = play_episode(env, expert_player, seed=seed)
        assert trajectory.status is EpisodeStatus.DONE, trajectory.error
        assert (trajectory.total_reward, trajectory.num_turns, trajectory.success) == (1, 1, True)
    guesses = [play_episode(env, random_player(seed), seed=seed) for seed in range(5)]
    assert sum(trajectory.success for trajectory in guesses) < 5


# list_functions draws from the process's generators, leg_counting from its own.
@pytest.mark.parametrize("task", ["leg_counting", "list_functions"])
def test_the_seed_chooses_the_question_and_nothing_else_does(task):
    first = ReasoningGymEnvironment(task, size=20)
    questions = [question(first, seed) for seed in range(20)]
    before = random.getstate()
    other = ReasoningGymEnvironment(task, size=20)
    assert [question(other, seed) for seed in reversed(range(20))] == questions[::-1]
    assert len(set(questions)) > 15
    assert question(other, 20 + 3) == questions[3]
    assert random.getstate() == before


@pytest.mark.parametrize(
    "form",
    [
        "{}",
        "First I count.\n<answer>\n{}\n</answer> That is all.",
        "<answer>7777</answer> No, wait: <ANSWER>{}</ANSWER>",
    ],
)
def test_the_answer_is_found_in_what_the_agent_says(form):
    env = ReasoningGymEnvironment("leg_counting")
    question(env, 0)
    right = env.expert_action().removeprefix("<answer>").removesuffix("</answer>")
    assert play_episode(env, answer(form.format(right)), seed=0).total_reward == 1


def test_a_text_that_the_task_cannot_read_is_an_invalid_action():
    env = ReasoningGymEnvironment("prime_factorization")
    trajectory = play_episode(env, answer("no idea"), seed=0)
    assert trajectory.status is EpisodeStatus.DONE
    assert trajectory.total_reward == 0
    assert trajectory.infos[0]["invalid_action"]
    assert "ValueError" in trajectory.infos[0]["score_error"]


def test_a_task_whose_own_answer_cannot_be_scored_is_at_fault(monkeypatch):
    from reasoning_gym.arithmetic import LegCountingDataset

    def broken(self, answer, entry):
        raise ZeroDivisionError("broken scorer")

    monkeypatch.setattr(LegCountingDataset, "score_answer", broken)
    trajectory = play_episode(ReasoningGymEnvironment("leg_counting"), answer("4"), seed=0)
    assert trajectory.status is EpisodeStatus.ENVIRONMENT_ERROR
    assert "broken scorer" in trajectory.error


def test_options_come_as_arguments_or_from_the_config():
    easy = {"min_animals": 1, "max_animals": 1}
    by_config = make_environment("reasoning-gym:leg_counting", {"params": easy})
    by_argument = ReasoningGymEnvironment("leg_counting", **easy)
    assert question(by_config, 2) == question(by_argument, 2)
    assert question(by_config, 2) != question(ReasoningGymEnvironment("leg_counting"), 2)
    assert question(ReasoningGymEnvironment("leg_counting", seed=9, **easy), 2) != question(
        by_config, 2
    )


@pytest.mark.parametrize(
    ("task", "options", "words"),
    [
        ("leg_countin", {}, "Did you mean 'leg_counting'"),
        ("leg_counting", {"max_animal": 3}, "Did you mean 'max_animals'"),
        ("leg_counting", {"min_animals": 0}, "min_animals must be positive"),
    ],
)
def test_a_mistake_in_the_settings_says_the_cure(task, options, words):
    with pytest.raises(ConfigError, match=words):
        ReasoningGymEnvironment(task, **options)


def test_copies_and_spawned_environments_ask_by_their_own_seed():
    env = ReasoningGymEnvironment("chain_sum", size=50)
    with pytest.raises(EnvironmentFault, match="reset"):
        env.step("1")
    text = question(env, 1)
    twin, fresh = copy.deepcopy(env), env.spawn()
    assert question(env, 2) != text
    assert twin.step(twin.expert_action())[1] == 1
    assert question(fresh, 1) == text


def test_the_checker_finds_nothing():
    report = check_env(lambda: ReasoningGymEnvironment("prime_factorization"))
    assert report.ok, str(report)
