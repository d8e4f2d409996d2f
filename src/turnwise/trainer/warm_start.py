"""Warm start: imitation before reinforcement learning.

The examples are episodes like any other, with the same token streams and masks, but played by the
environment's expert or at random, or read from a file of conversations.
"""

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.chat import ChatFormat, Conversation, Message, TokenStream
from turnwise.config import ConfigStore, TrainingConfig
from turnwise.data.order import rows_for_step
from turnwise.data.sources import read_files
from turnwise.env import expert_player, random_player
from turnwise.episode import EpisodeCollector, EpisodeResult
from turnwise.episode.collector import EpisodeSource
from turnwise.episode.player_engine import player_episode
from turnwise.episode.types import EpisodeTask
from turnwise.errors import ConfigError, TrainingStopped
from turnwise.learner import PPOBatch
from turnwise.reward.function import RewardFunction
from turnwise.trainer.learning import RunComponents
from turnwise.trainer.reporter import Reporter
from turnwise.trainer.rollout import Rollout
from turnwise.trainer.schedule import Progress
from turnwise.trainer.state import restore_generators_if_interrupted
from turnwise.trainer.stopping import Interrupted, StopRequest, run_unless_stopped


def played_streams(
    collector: EpisodeCollector, player: str, tasks: Sequence[EpisodeTask], stop: StopRequest
) -> list[TokenStream]:
    """Return the token streams of episodes that the expert or the random player plays."""

    async def play() -> list[EpisodeResult]:
        source = collector.source
        if isinstance(source, EpisodeSource):  # an agent, whose replies are its expert's
            setup = collector.setup.in_this_loop()
            setup.reward = RewardFunction(lambda trajectory: 0.0)  # not used, as below
            episodes = [source.episode(setup, task, by_expert=True) for task in tasks]
            async with asyncio.TaskGroup() as group:
                playing = [group.create_task(episode.run()) for episode in episodes]
            return [task.result() for task in playing]
        results = []
        for task in tasks:
            part = collector.part(task.part)
            act = expert_player if player == "expert" else random_player(task.seed)
            setup = copy.copy(part.setup)
            setup.reward = RewardFunction(None)  # it is not used, and a judge may be expensive
            result = await player_episode(setup, part.make_environment, act, task).run()
            result.part = task.part
            results.append(result)
        return results

    with restore_generators_if_interrupted():
        results = run_unless_stopped(play(), stop)
    for result in results:
        if result.status.is_error:
            where = f" in {result.part}" if result.part else ""
            which = f"the {player} player's episode with seed {result.seed}"
            raise ConfigError(f"{which} failed{where}: {result.error}")
    agents = [agent for result in results for agent in result.agents]
    return [agent.stream for agent in agents if agent.turns]


def read_conversations(path: Path, chat: ChatFormat) -> list[TokenStream]:
    """Read conversations from a JSONL file, one `{"messages": [...]}` per line."""
    streams = []
    row: Any
    for line, row in read_files([path]):
        try:
            messages = row["messages"] if isinstance(row, dict) else row
            roles = {message["role"] for message in messages}
            is_right = all(isinstance(message["content"], str) for message in messages)
        except (KeyError, TypeError):
            is_right = False
        if not is_right or "assistant" not in roles:
            raise ConfigError(
                f'{line}: expected {{"messages": [{{"role": ..., "content": ...}}]}} with a text '
                f"in each message, and one of the assistant; got {row!r:.80}"
            )
        streams.append(conversation_stream(messages, chat))
    if not streams:
        raise ConfigError(f"{path} holds no conversations")
    return streams


def conversation_stream(messages: Sequence[Message], chat: ChatFormat) -> TokenStream:
    """Return the token stream of a conversation, as if the model had sampled its turns."""
    conversation: Conversation | None = None
    new: list[Message] = []
    for message in messages:
        if message["role"] != "assistant":
            new.append(message)
            continue
        if conversation is None:
            conversation = Conversation(chat, new)
        elif new:
            conversation.add(new)
        ids = chat.answer_ids(str(message["content"]))
        conversation.stream.add_turn(ids, [0.0] * len(ids))
        new = []
    assert conversation is not None
    return conversation.stream


def imitate(
    components: RunComponents,
    config: ConfigStore,
    rollout: Rollout,
    progress: Progress,
    reporter: Reporter,
    stop: StopRequest,
) -> bool:
    """Imitate, if the settings say so and no step was made; return whether it was done now."""
    training, num_steps = config.training, config.training.warm_start_steps
    if training.warm_start is None or progress.step or progress.num_imitated >= num_steps:
        return False
    steps = range(progress.num_imitated, num_steps)
    collector, tasks = components.collector, rollout.imitation_tasks
    for batch in imitation_batches(training, collector, tasks, steps, stop):
        metrics = components.learner.imitate(batch, training.warm_start_learning_rate)
        progress.num_imitated += 1
        reporter.progress("warm start", progress.num_imitated, num_steps)
        if stop.is_requested and progress.num_imitated < num_steps:
            raise Interrupted
    if "policy_loss" not in metrics:
        raise TrainingStopped(
            "the loss of the warm start is not finite: lower training.warm_start_learning_rate"
        )
    components.learner.restart()
    components.publish_weights()
    loss = f"loss {metrics['policy_loss']:.3f}"
    reporter.say(f"warm start on {training.warm_start}: {num_steps} steps, {loss}")
    return True


def imitation_batches(
    training: TrainingConfig,
    collector: EpisodeCollector,
    tasks: Callable[[int], Sequence[EpisodeTask]],
    steps: range,
    stop: StopRequest,
) -> Iterator[PPOBatch]:
    """Yield the batches of these steps: from a file, or of a player who plays `tasks(step)`."""
    source = str(training.warm_start)
    if source in ("expert", "random"):
        for step in steps:
            yield PPOBatch.from_streams(played_streams(collector, source, tasks(step), stop))
        return
    streams = read_conversations(Path(source), collector.setup.chat)
    for step in steps:
        rows = rows_for_step(len(streams), step, training.batch_size, training.seed)
        yield PPOBatch.from_streams([streams[row] for row in rows])
