"""Warm start: imitation before reinforcement learning.

The examples are episodes like any other, with the same token streams and masks, but played by the
environment's expert or at random, or read from a file of conversations.
"""

import asyncio
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from turnwise.bounded_files import parse_json
from turnwise.chat import ChatFormat, Conversation, Message, TokenStream
from turnwise.config import TrainingConfig
from turnwise.data.order import rows_for_step
from turnwise.env import expert_player, random_player
from turnwise.episode import EpisodeCollector, EpisodeResult
from turnwise.episode.collector import EpisodeSource
from turnwise.episode.player_engine import player_episode
from turnwise.episode.types import EpisodeTask
from turnwise.errors import ConfigError, TrainingStopped
from turnwise.learner import PPOBatch
from turnwise.reward.function import RewardFunction
from turnwise.trainer.learning import RunComponents
from turnwise.trainer.state import restore_generators_if_interrupted
from turnwise.trainer.stopping import Interrupted, StopRequest, run_unless_stopped

PLAYERS = ("expert", "random")


def played_streams(
    collector: EpisodeCollector,
    player: str,
    tasks: Sequence[EpisodeTask],
    stop: StopRequest,
) -> list[TokenStream]:
    """Return the token streams of episodes that the expert or the random player plays."""

    async def play() -> list[EpisodeResult]:
        source = collector.source
        if isinstance(source, EpisodeSource):  # an agent, whose replies are its expert's
            setup = collector.setup.in_this_loop()
            setup.reward = RewardFunction.of(lambda trajectory: 0.0)  # not used, as below
            async with asyncio.TaskGroup() as group:
                playing = [
                    group.create_task(source.expert_episode(setup, task).run()) for task in tasks
                ]
            return [task.result() for task in playing]
        results = []
        for task in tasks:
            part = collector.part(task.part)
            act = expert_player if player == "expert" else random_player(task.seed)
            setup = copy.copy(part.setup)
            setup.reward = RewardFunction.of(None)  # it is not used, and a judge may be expensive
            result = await player_episode(setup, part.make_environment, act, task).run()
            result.part = task.part
            results.append(result)
        return results

    with restore_generators_if_interrupted():
        results = run_unless_stopped(play(), stop)
    for result in results:
        if result.status.is_error:
            where = f" in {result.part}" if result.part else ""
            raise ConfigError(
                f"the {player} player's episode{where} with seed {result.seed} failed: "
                f"{result.error}"
            )
    agents = [agent for result in results for agent in result.agents]
    calls = [call for agent in agents for turn in agent.turns for call in turn.tool_results]
    if calls and not any(call.success for call in calls):  # the model would learn such calls
        raise ConfigError(
            f"each of the {len(calls)} tool calls of the {player} player failed, as the first one: "
            f"{calls[0].text.rstrip('.')}. Expected calls that work. Try one by hand, "
            "ToolRegistry([...]).execute_tool(name, ...), or let the player act without tools."
        )
    return [agent.stream for agent in agents if agent.turns]


def read_conversations(path: Path, chat: ChatFormat) -> list[TokenStream]:
    """Read conversations from a JSONL file, one `{"messages": [...]}` per line."""
    streams = []
    try:
        # Not by `splitlines`, which also cuts at U+2028 and the like: JSON may contain these.
        lines = path.read_bytes().decode("utf-8-sig").split("\n")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8: {error}. Save the file as UTF-8.") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            streams.append(conversation_stream(_messages(line, path, number), chat))
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


def _messages(line: str, path: Path, number: int) -> Sequence[Message]:
    try:
        row: Any = parse_json(line, "it")
        messages = row["messages"] if isinstance(row, dict) else row
        roles = [message["role"] for message in messages]
        contents = [message["content"] for message in messages]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'{path}, line {number}: expected {{"messages": [{{"role": ..., "content": ...}}]}}, '
            f"got {line[:80]!r} ({type(error).__name__}: {error})"
        ) from None
    if "assistant" not in roles or not all(isinstance(text, str) for text in contents):
        raise ConfigError(
            f"{path}, line {number}: a conversation needs a message of the assistant, "
            f"and text in each; its roles are {', '.join(map(str, roles))}"
        )
    checked: Sequence[Message] = messages
    return checked


def imitation_batches(
    training: TrainingConfig,
    collector: EpisodeCollector,
    tasks: Callable[[int], Sequence[EpisodeTask]],
    steps: range,
    stop: StopRequest,
) -> Iterator[PPOBatch]:
    """Yield the batches of these steps: from a file, or of a player who plays `tasks(step)`."""
    source = str(training.warm_start)
    if source in PLAYERS:
        for step in steps:
            yield PPOBatch.from_streams(played_streams(collector, source, tasks(step), stop))
        return
    streams = read_conversations(Path(source), collector.setup.chat)
    for step in steps:
        rows = rows_for_step(len(streams), step, training.batch_size, training.seed)
        yield PPOBatch.from_streams([streams[row] for row in rows])


def imitate(
    training: TrainingConfig,
    components: RunComponents,
    tasks: Callable[[int], Sequence[EpisodeTask]],
    steps: range,
    stop: StopRequest,
    on_step: Callable[[], None],
) -> float:
    """Imitate the expert, a random player or a file; return the loss of the last step."""
    batches = imitation_batches(training, components.collector, tasks, steps, stop)
    for step, batch in zip(steps, batches, strict=True):
        metrics = components.learner.imitate(batch, training.warm_start_learning_rate)
        on_step()
        if stop.is_requested and step + 1 < steps.stop:
            raise Interrupted
    if "policy_loss" not in metrics:
        raise TrainingStopped(
            "the loss of the warm start is not a finite number. Lower "
            "training.warm_start_learning_rate."
        )
    return metrics["policy_loss"]
