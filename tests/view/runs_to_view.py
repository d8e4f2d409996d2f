"""Runs to look at: a small one of the real trainer, and made-up ones through the real store."""

import json
import random

from trainer.worlds import Memory, small_trainer, training
from turnwise.chat import TokenStream
from turnwise.episode import EpisodeResult
from turnwise.episode.types import AgentRecord, TurnRecord
from turnwise.inference import FinishReason
from turnwise.models.tiny import make_tiny_tokenizer
from turnwise.reward import Reward
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.metrics_log import MetricsLog
from turnwise.tools import ToolCall, ToolResult
from turnwise.types import EpisodeStatus

SMALL = (
    *training(
        "batch_size=4 num_epochs=2 steps_per_epoch=1 warm_start=null eval_episodes=2 "
        "adv_estimator=gae"
    ),
    "inference.max_tokens=3",
    "checkpoint.run_name=real",
)


def train(folder):
    """Two steps and two evaluations; three turns an episode."""
    with small_trainer(folder, Memory, *SMALL) as trainer:
        trainer.fit()
    return trainer.run_folder


TOKENIZER = make_tiny_tokenizer()


def encoded(text):
    """Its tokens; half of a surrogate pair has none."""
    return TOKENIZER.encode(text.encode("utf-8", "replace").decode())


def said(
    *texts,
    seed=0,
    reward=0.0,
    status=EpisodeStatus.DONE,
    tools=(),
    told="Go on.",
    error=None,
    group=0,
    ids=None,
    asked="Begin.",
    task=None,
    success=None,
    part="",
):
    """An episode in which the model was asked something and said these texts, and called a tool in
    each of the first turns."""
    stream, turns = TokenStream(), []
    messages = [{"role": "user", "content": asked}]
    stream.add_context(encoded(asked))
    for place, text in enumerate(texts):
        tokens = ids or encoded(text) or [5]
        stream.add_turn(tokens, [-0.5] * len(tokens))
        turn = TurnRecord(stream.turns[-1], text, FinishReason.STOP, 1, observation=told)
        turn.seconds, turn.started = {"engine": 0.25, "environment": 0.125}, place * 0.5
        if place < len(tools):
            turn.calls = [ToolCall(tools[place], {"what": text}, told, True)]
            turn.tool_results = [ToolResult(tools[place], True, told, seconds=0.0625)]
            turn.seconds["tools"] = 0.0625
        turns.append(turn)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": told}]
        stream.add_context(encoded(told))
    if turns and success is not None:
        turns[-1].info = {"success": success}
    score = None if status.is_error else Reward(reward, parts={"grade": reward})
    agent = AgentRecord("agent", stream, messages, turns, reward=score)
    agent.trajectory.task = task
    seconds = {"engine": 0.25 * len(texts), "total": 0.5 * len(texts) + 0.25}
    return EpisodeResult(
        seed, group, 0, status, error, agents=[agent], seconds=seconds, started=1000.5, part=part
    )


def write_run(folder, episodes_by_step, status="finished", metrics=None, kind="train"):
    """A run folder with these episodes: {step: [episodes]}."""
    folder.mkdir(parents=True, exist_ok=True)
    store = EpisodeStore(folder / "episodes", 1e9)
    log = MetricsLog(folder / "metrics.jsonl")
    for step, episodes in episodes_by_step.items():
        phases = [("play", 0.0, 3.0), ("update", 3.0, 4.0)]
        store.write(step, episodes, kind=kind, began=1000.0, phases=phases)
        if kind == "train":
            log.append({"step": step, "reward": step / 10, "time/step": 4.5, **(metrics or {})})
    last = max(episodes_by_step, default=0)
    about = {"status": status, "step": last, "num_steps": 9, "environment": "talk"}
    (folder / "run.json").write_text(json.dumps(about))
    (folder / "tokenizer.json").write_text(TOKENIZER.backend_tokenizer.to_str())
    return folder


WORDS = ["lamp", "Door", "KEY", "north", 'a"b', "AND", "NEAR(", "x*", "50%", "_", "Größe", "数字"]


def crowd(number, seed=0):
    """Many episodes of all sorts."""
    rng = random.Random(seed)
    statuses = list(EpisodeStatus)
    return [
        said(
            *(" ".join(rng.choices(WORDS, k=rng.randint(1, 5))) for _ in range(rng.randint(0, 4))),
            seed=rng.choice([1, 2, 3, 2**63 - 1, -5]),
            reward=rng.choice([-1.0, 0.0, 0.25, 0.5, 1.0]),
            status=rng.choice(statuses),
            tools=rng.choices(["look", "take", "drop it, now"], k=rng.randint(0, 3)),
            told=rng.choice(["Go on.", "You see a lamp.", "Nothing."]),
        )
        for _ in range(number)
    ]
