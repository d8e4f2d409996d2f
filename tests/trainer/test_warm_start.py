"""Imitation first: whose words are learned, and that they are the tokens of real episodes."""

import json

import pytest
import torch

from trainer.runs import Listener
from trainer.worlds import Echo, Memory, Several, small_trainer, training
from turnwise import ChatFormat, ScriptedEngine
from turnwise.episode.collector import EpisodeCollector
from turnwise.episode.types import EpisodeTask
from turnwise.errors import TrainingStopped
from turnwise.models.tiny import make_tiny_tokenizer
from turnwise.trainer.stopping import StopRequest
from turnwise.trainer.warm_start import played_streams, read_conversations

QUICK = (
    *training("batch_size=8 num_epochs=1 steps_per_epoch=1 warm_start_steps=3"),
    "inference.max_tokens=3",
    "logging.episodes_gb=0",
)
STOP = StopRequest(lambda text: None)
CHAT = ChatFormat(make_tiny_tokenizer())
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Yes."},
    {"role": "user", "content": "Who?"},
    {"role": "assistant", "content": "Me."},
]


def policy_weights(trainer):
    return [x.clone() for x in trainer.components.learner.model.policy.parameters()]


class TestPlayers:
    @pytest.mark.parametrize("world", [Echo, Memory, Several])
    def test_the_streams_are_those_of_an_engine_that_says_the_same(self, tmp_path, world):
        trainer = small_trainer(tmp_path, world, *QUICK, system_prompt="Play well.")
        tasks = [EpisodeTask(seed) for seed in range(6)]
        streams = played_streams(trainer.components.collector, "expert", tasks, STOP)
        letters = {seed: iter(self.expert_words(world, seed)) for seed in range(6)}
        for seed, stream in enumerate(streams):
            engine = ScriptedEngine(
                policy=lambda text, seed=seed: next(letters[seed]), tokenizer=make_tiny_tokenizer()
            )
            collector = EpisodeCollector(engine, world, system_prompt="Play well.")
            (played,) = collector.collect_sync([seed])
            assert stream.ids == played.agents[0].stream.ids
            assert stream.turns == played.agents[0].stream.turns

    def expert_words(self, world, seed):
        environment = world()
        environment.seed(seed)
        environment.reset()
        while not environment.is_done():
            word = environment.expert_action()
            yield word
            environment.step(word)

    def test_it_learns_what_the_expert_does(self, tmp_path):
        settings = (*QUICK, "training.warm_start=expert", "training.warm_start_steps=60")
        listener = Listener()
        settings += ("training.batch_size=16", "training.learning_rate=1e-9")
        with small_trainer(tmp_path, Echo, *settings, reporter=listener) as trainer:
            trainer.fit()
            assert trainer.evaluate(16)["success"] > 0.9
        assert any(
            line.startswith("warm start on expert: 60 steps, loss") for line in listener.said
        )

    def test_the_learner_begins_anew_afterwards(self, tmp_path):
        with small_trainer(tmp_path, Echo, *QUICK, "training.warmup_steps=4") as trainer:
            before = policy_weights(trainer)
            (metrics,) = trainer.fit()
            assert any(
                not torch.equal(a, b) for a, b in zip(before, policy_weights(trainer), strict=True)
            )
        assert metrics["learning_rate"] == pytest.approx(3e-3 / 4)
        assert (trainer.run_folder / "checkpoints" / "step-00000000").is_dir()

    def test_a_reward_function_is_not_asked(self, tmp_path):
        asked = []

        def judge(trajectory):
            asked.append(trajectory.seed)
            return 0.0

        with small_trainer(tmp_path, Echo, *QUICK, reward_fn=judge) as trainer:
            trainer.fit()
        assert len(asked) == 8  # by the one step of reinforcement

    def test_a_loss_that_is_no_number(self, tmp_path):
        trainer = small_trainer(tmp_path, Echo, *QUICK)
        parameter = next(trainer.components.learner.model.parameters())
        parameter.register_hook(lambda gradient: gradient * torch.nan)
        with pytest.raises(TrainingStopped, match="loss of the warm start is not finite"):
            trainer.fit()


class TestFiles:
    def write(self, folder, *lines):
        file = folder / "talks.jsonl"
        file.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
        return file

    def test_conversations(self, tmp_path):
        file = self.write(tmp_path, {"messages": TALK}, "", TALK[1:3])
        long, short = read_conversations(file, CHAT)
        assert [CHAT.decode(long.ids[a:b]) for a, b in long.turns] == ["Yes.", "Me."]
        assert [CHAT.decode(short.ids[a:b]) for a, b in short.turns] == ["Yes."]
        # As the template writes it, and as an engine would have gone on from it.
        tokenizer = CHAT.tokenizer
        prompt = tokenizer.apply_chat_template(TALK[:2], add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(long.ids[: long.turns[0][0]]) == prompt
        prompt = tokenizer.apply_chat_template(TALK[:4], add_generation_prompt=True, tokenize=False)
        assert tokenizer.decode(long.ids[: long.turns[1][0]]) == prompt
        assert sum(long.mask) == len(CHAT.answer_ids("Yes.")) + len(CHAT.answer_ids("Me."))

    def test_they_are_learned(self, tmp_path):
        talk = {"messages": [*TALK[1:2], {"role": "assistant", "content": "zz"}]}
        file = self.write(tmp_path, talk)
        settings = (*QUICK, "training.warm_start_steps=30", f"training.warm_start={file}")
        listener = Listener()
        with small_trainer(tmp_path, Echo, *settings, reporter=listener) as trainer:
            trainer.fit()
        (line,) = [line for line in listener.said if line.startswith("warm start")]
        assert float(line.rpartition(" ")[2]) < 0.5
