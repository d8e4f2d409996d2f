"""Plays an environment without a model: the expert, the random player, or any function."""

import inspect
import random
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from turnwise.deadlines import run_sync
from turnwise.env.base import BaseEnvironment
from turnwise.env.driver import reset_environment, step_environment
from turnwise.errors import ConfigError, TurnwiseError, describe_error
from turnwise.types import EpisodeStatus, StepResult, Trajectory

Player: TypeAlias = Callable[[BaseEnvironment, str], str | Awaitable[str]]
"""Takes the environment and the last observation, and returns the next action."""


def expert_player(env: BaseEnvironment, observation: str) -> str:
    """Plays the environment's expert actions: the upper bound, and the teacher of warm starts."""
    action = env.expert_action()
    if action is None:
        fix = "Give it an expert_action() method, or choose another player."
        raise ConfigError(f"{type(env).__name__} has no expert. {fix}")
    return action


def random_player(seed: int | None = None) -> Player:
    """Returns a player of valid random actions: the lower bound."""
    # Other random numbers than an environment of the same seed.
    rng = random.Random(None if seed is None else f"player {seed}")

    def play(env: BaseEnvironment, observation: str) -> str:
        action = env.sample_action(rng)
        if action is None:
            fix = "Give it a sample_action(rng) method, or choose another player."
            raise ConfigError(f"{type(env).__name__} has no random actions. {fix}")
        return action

    return play


async def play_episode_async(
    env: BaseEnvironment, player: Player, seed: int | None = None
) -> Trajectory:
    """Plays one episode; a failure of the environment is recorded in the trajectory.

    Exceptions of the player propagate.
    """
    trajectory = Trajectory(seed=seed)
    try:
        observation = await reset_environment(env, seed)
    except (Exception, SystemExit) as error:  # the boundary where a failure becomes data
        return _failed(trajectory, "reset", error)
    trajectory.prompts = [env.get_prompt_prefix(), observation]
    while True:
        action = player(env, observation)
        if inspect.isawaitable(action):
            action = await action
        try:
            trajectory.states.append(env.get_state_description())
            trajectory.actions.append(action)
            result = await step_environment(env, action)
        except (Exception, SystemExit) as error:
            return _failed(trajectory, "step", error)
        trajectory.observations.append(result.observation)
        trajectory.rewards.append(result.reward)
        trajectory.dones.append(result.done)
        trajectory.infos.append(result.info)
        if result.done:
            trajectory.status = final_status(result)
            return trajectory
        observation = result.observation


def play_episode(env: BaseEnvironment, player: Player, seed: int | None = None) -> Trajectory:
    """`play_episode_async` for synchronous code.

    >>> from turnwise.env import GuessNumberEnvironment
    >>> play_episode(GuessNumberEnvironment(), expert_player, seed=1).success
    True
    """
    return run_sync(play_episode_async(env, player, seed))


def final_status(result: StepResult) -> EpisodeStatus:
    """Returns the status of an episode that ended with this step."""
    if not result.truncated:
        return EpisodeStatus.DONE
    if result.info.get("truncated"):
        return EpisodeStatus.TRUNCATED_BY_ENVIRONMENT
    return EpisodeStatus.TRUNCATED_BY_TURNS


def _failed(trajectory: Trajectory, call: str, error: BaseException) -> Trajectory:
    trajectory.status = EpisodeStatus.ENVIRONMENT_ERROR
    is_ours = isinstance(error, TurnwiseError)
    trajectory.error = str(error) if is_ours else f"{call}() raised {describe_error(error)}"
    return trajectory
