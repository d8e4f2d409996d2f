"""Plays episodes by a model or by a user's agent, and shows each turn when it is over."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from turnwise.cli.agents import AgentMaker
from turnwise.cli.eval_episodes import engine_of
from turnwise.cli.play_loop import Played, Rules
from turnwise.cli.play_screen import Screen
from turnwise.config import ConfigStore
from turnwise.env import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.episode import Episode, EpisodeCollector, EpisodeResult
from turnwise.episode.player_engine import player_episode
from turnwise.episode.types import AgentRecord, EpisodeTask, TurnRecord
from turnwise.models import LoadedModel
from turnwise.tools import answer_of
from turnwise.tools.thoughts import thought_of
from turnwise.trainer.components import UserComponents
from turnwise.trainer.evaluation import GREEDY
from turnwise.trainer.stopping import StopRequest, run_unless_stopped
from turnwise.types import StepResult, Trajectory


@dataclass(frozen=True)
class ModelPlayer:
    """The model or agent that plays, and the pause after each turn."""

    player: LoadedModel
    """For an agent, only the tokenizer, since its actions become tokens too."""
    agent: AgentMaker | None
    is_greedy: bool
    delay: float


def play_model(
    who: ModelPlayer,
    config: ConfigStore,
    parts: UserComponents,
    rules: Rules,
    seeds: Sequence[int],
    screen: Screen,
) -> Iterator[tuple[Played, EpisodeResult]]:
    """Play one episode per seed, and yield each when it is over."""
    stop = StopRequest(lambda text: None)
    factory = parts.factory(config)
    with contextlib.ExitStack() as closing:
        engine = closing.enter_context(engine_of(who.player))
        options = parts.episode_options(config, closing)
        if who.is_greedy:
            options = dataclasses.replace(options, sampling=GREEDY)
        collector = EpisodeCollector(engine, factory, options)
        rules = dataclasses.replace(rules, tools=collector.setup.tools)
        closing.enter_context(stop.listening(config.inference.stall_timeout))
        for seed in seeds:
            row = rules.row_of(seed)
            task = None if row is None or rules.rows is None else rules.rows[row]
            played = Played(Trajectory(seed=seed), row=row)
            watcher = ScreenWatcher(screen, played, rules, who.delay)

            async def play(asked: EpisodeTask, watcher: ScreenWatcher) -> EpisodeResult:
                episode = _episode(collector, factory, who.agent, asked, watcher)
                result = await episode.run()
                await collector.score_together([result])
                return result

            result = run_unless_stopped(play(EpisodeTask(seed, task=task), watcher), stop)
            yield watcher.finish(result, has_score=parts.reward_fn is not None), result


def _episode(
    collector: EpisodeCollector,
    factory: EnvironmentFactory,
    agent: AgentMaker | None,
    task: EpisodeTask,
    watcher: ScreenWatcher,
) -> Episode:
    def make() -> BaseEnvironment:
        watcher.environment = factory()
        return watcher.environment

    if agent is not None:
        return player_episode(collector.setup, make, agent(task.seed, 0), task, watcher)
    setup = collector.setup.in_this_loop()
    return Episode(setup, make, task, watcher=watcher)


class ScreenWatcher:
    """Prints an episode turn by turn."""

    def __init__(self, screen: Screen, played: Played, rules: Rules, delay: float) -> None:
        self.environment: BaseEnvironment | None = None
        self._screen = screen
        self._played = played
        self._rules = rules
        self._delay = delay
        self._num_agents = 0

    def on_start(self, agent: AgentRecord) -> None:
        self._num_agents += 1
        rules = "\n\n".join(
            str(message["content"]) for message in agent.messages if message["role"] == "system"
        )
        observation = "\n\n".join(
            str(message["content"]) for message in agent.messages if message["role"] != "system"
        )
        assert self.environment is not None
        limit = self._rules.max_turns(self.environment)
        self._screen.start(self._played, rules.strip(), observation, limit)
        time.sleep(self._delay)

    def on_turn(self, agent: AgentRecord, turn: TurnRecord) -> None:
        answer = answer_of(turn.text, in_thought=turn.in_thought)
        is_alone = self._num_agents == 1 and agent.name == "agent"
        self._screen.action(
            answer.strip() or "(nothing)",
            thought=thought_of(turn.text, in_thought=turn.in_thought),
            who="" if is_alone else agent.name,
        )
        trajectory = self._played.trajectory
        trajectory.actions.append(turn.text)
        trajectory.rewards.append(turn.reward)
        trajectory.infos.append(turn.info)
        self._played.calls.append(turn.calls)
        step = StepResult(turn.observation, turn.reward, turn.done, False, turn.info)
        self._screen.turn(step, turn.calls)
        time.sleep(self._delay)

    def finish(self, result: EpisodeResult, has_score: bool) -> Played:
        trajectory = self._played.trajectory
        trajectory.status, trajectory.error = result.status, result.error
        trajectory.task = result.trajectory.task
        if has_score and result.reward is not None:
            self._played.score = result.reward.total
        if not result.status.is_error:
            self._screen.ending(self._played)
        return self._played
