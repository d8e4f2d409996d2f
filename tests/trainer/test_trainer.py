"""`Trainer`: every algorithm, what goes wrong in a run, and checkpoints by hand."""

import math

import pytest
import torch

from trainer.runs import Listener, metrics_of, newest_files
from trainer.worlds import QUICK, Echo, Memory, Several, small_model, small_trainer, training
from turnwise import CheckpointError, ConfigError, Trainer
from turnwise.algo.choose import ADVANTAGE_ESTIMATORS, POLICY_LOSSES
from turnwise.errors import TrainingStopped
from turnwise.runs.checkpoints import CheckpointStore

LONG = (*QUICK, "training.num_epochs=9")


def weights(trainer):
    return {name: x.clone() for name, x in trainer.components.learner.model.named_parameters()}


def have_changed(before, after):
    return any(not torch.equal(before[name], after[name]) for name in before)


def parts_of_reward(trajectory):
    """Something else for each text and each seed, in two parts."""
    text, luck = float(sum(map(ord, "".join(trajectory.actions))) % 11), trajectory.seed % 3
    return {"text": text, "luck": luck}


class TestAlgorithms:
    @pytest.mark.parametrize("name", ADVANTAGE_ESTIMATORS)
    def test_every_estimator(self, tmp_path, name):
        settings = (*QUICK, f"training.adv_estimator={name}")
        if ADVANTAGE_ESTIMATORS[name].needs_groups:
            settings += ("training.group_size=3", "training.batch_size=2")
        self.check(small_trainer(tmp_path, Several, *settings, reward_fn=parts_of_reward))

    @pytest.mark.parametrize("name", POLICY_LOSSES)
    def test_every_policy_loss(self, tmp_path, name):
        more = training(f"policy_loss={name} update_epochs=2 entropy_coef=0.01")
        self.check(small_trainer(tmp_path, Several, *QUICK, *more, reward_fn=parts_of_reward))

    def check(self, trainer):
        with trainer:
            before = weights(trainer)
            history = trainer.fit()
            assert have_changed(before, weights(trainer))
        assert [metrics["step"] for metrics in history] == [1, 2]
        for metrics in history:
            assert all(math.isfinite(value) for value in metrics.values())
            assert metrics["num_skipped_steps"] == 0
            assert {"loss", "policy_loss", "entropy", "grad_norm", "reward/luck"} <= set(metrics)
        assert metrics_of(trainer.run_folder) == history

    def test_a_group_of_one_has_nobody_to_compare_with(self, tmp_path):
        settings = (*QUICK, "training.adv_estimator=grpo", "training.group_size=1")
        with pytest.raises(ConfigError, match=r"group_size got 1.*estimator grpo compares"):
            small_trainer(tmp_path, Echo, *settings).fit()


class TestNotFinite:
    def test_steps_are_skipped_and_the_run_ends_with_the_reason(self, tmp_path):
        listener = Listener()
        with small_trainer(tmp_path, Several, *LONG, reporter=listener) as trainer:
            before = weights(trainer)
            parameter = next(trainer.components.learner.model.parameters())
            parameter.register_hook(lambda gradient: gradient * math.nan)
            with pytest.raises(TrainingStopped, match=r"5 steps in a row.*not a finite number"):
                trainer.fit()
            assert not have_changed(before, weights(trainer))
        history = metrics_of(trainer.run_folder)
        assert [m["num_skipped_steps"] for m in history] == [1] * 5  # the last one is kept too
        assert all("loss" not in m for m in history)
        assert listener.outcomes[0].startswith("stopped: 5 steps in a row changed nothing")

    def test_weights_that_are_not_finite_are_never_saved(self, tmp_path):
        with small_trainer(tmp_path, Several, *QUICK) as trainer:
            trainer.fit()
            good = newest_files(trainer.run_folder)
            with torch.no_grad():
                next(trainer.components.learner.model.parameters())[0] = math.inf
            with pytest.raises(CheckpointError, match=r"weights are not finite .*: not saved"):
                trainer.save_checkpoint(tmp_path / "mine")
            assert not (tmp_path / "mine").exists()
            with pytest.raises(CheckpointError, match="weights are not finite"):
                trainer.fit()
        assert newest_files(trainer.run_folder) == good


class TestCheckpoints:
    def test_one_of_another_model(self, tmp_path):
        path = small_trainer(tmp_path, Several, *QUICK).save_checkpoint(tmp_path / "mine")
        grpo = small_trainer(tmp_path, Several, *QUICK, "training.adv_estimator=grpo")
        with pytest.raises(CheckpointError, match="belongs to another model: value_head"):
            grpo.load_checkpoint(path)

    def test_to_a_place_of_the_users_and_back(self, tmp_path):
        with small_trainer(tmp_path / "a", Several, *LONG) as trainer:
            trainer.fit(num_epochs=2)
            saved = trainer.save_checkpoint(tmp_path / "mine" / "epoch_2")
            assert saved == tmp_path / "mine" / "epoch_2"
            then = weights(trainer)
            trainer.fit(num_epochs=2)
            assert [m["step"] for m in trainer.metrics_history] == [1, 2, 3, 4]
            after = newest_files(trainer.run_folder)
            trainer.load_checkpoint(saved)
            assert trainer.step == 2
            assert [m["step"] for m in trainer.metrics_history] == [1, 2]
            assert not have_changed(then, weights(trainer))
            trainer.fit(num_epochs=2)
            assert newest_files(trainer.run_folder) == after
            assert [m["step"] for m in metrics_of(trainer.run_folder)] == [1, 2, 3, 4]
        # In another process, as it were: a new run that goes on from there.
        with small_trainer(tmp_path / "b", Several, *LONG) as other:
            other.load_checkpoint(saved)
            other.fit(num_epochs=2)
            step, files = newest_files(other.run_folder)
        assert (step, files["weights.safetensors"]) == (4, after[1]["weights.safetensors"])
        assert [m["step"] for m in metrics_of(other.run_folder)] == [3, 4]

    def test_what_was_loaded_is_not_replaced_by_a_run_that_could_be_resumed(self, tmp_path):
        with small_trainer(tmp_path, Several, *LONG) as trainer:
            untouched = trainer.save_checkpoint(tmp_path / "untouched")
            parameter = next(trainer.components.learner.model.parameters())
            parameter.register_hook(lambda gradient: gradient * math.nan)
            with pytest.raises(TrainingStopped):
                trainer.fit()
        with small_trainer(tmp_path, Several, *LONG) as other:
            other.load_checkpoint(untouched)
            other.fit(num_epochs=1)
        assert other.run_folder != trainer.run_folder

    def test_in_the_runs_own_folder(self, tmp_path):
        with small_trainer(tmp_path, Several, *QUICK, "checkpoint.save_interval=9") as trainer:
            with pytest.raises(ConfigError, match="there is no run yet"):
                trainer.save_checkpoint()
            trainer.fit()
            saved = trainer.save_checkpoint()
        assert saved == trainer.run_folder / "checkpoints" / "step-00000002"
        assert [one.step for one in CheckpointStore(saved.parent).list()] == [2]

    def test_the_best_one_is_kept(self, tmp_path):
        rewards = iter([1.0, 5.0, 2.0, 3.0, 4.0, 0.0])
        now = [next(rewards)]

        def told(trajectory):
            return now[-1]

        class Changing(Listener):
            def progress(self, what, done, total):
                if what == "episodes" and done == total:
                    now.append(next(rewards))

        settings = (
            *QUICK,
            "training.num_epochs=5",
            "checkpoint.keep_last_n=1",
            "checkpoint.best_metric=reward",
        )
        trainer = small_trainer(tmp_path, Several, *settings, reward_fn=told, reporter=Changing())
        trainer.fit()
        store = CheckpointStore(trainer.run_folder / "checkpoints")
        assert (store.best.step, store.best.value, store.best.metric) == (2, 5.0, "reward")
        assert [checkpoint.step for checkpoint in store.list()] == [2, 5]


class TestEvaluation:
    def test_the_same_numbers_whenever_it_is_asked_for(self, tmp_path):
        with small_trainer(tmp_path, Memory, *QUICK) as trainer:
            first = trainer.evaluate(6, greedy=False)
            assert trainer.evaluate(6, greedy=False) == first
            assert trainer.evaluate(6) == trainer.evaluate(6)
            assert {"reward", "success", "turns", "errors"} <= set(first)

    def test_it_does_not_change_what_training_does(self, tmp_path):
        runs = []
        for number in (0, 3):
            folder, settings = tmp_path / str(number), f"training.eval_episodes={number}"
            with small_trainer(folder, Memory, *QUICK, settings) as trainer:
                trainer.fit()
            runs.append(newest_files(trainer.run_folder)[1]["weights.safetensors"])
        assert runs[0] == runs[1]


def test_cleanup_twice_and_a_model_without_a_tokenizer(tmp_path):
    trainer = small_trainer(tmp_path, Echo, *QUICK)
    trainer.fit(num_epochs=1)
    trainer.cleanup()
    trainer.cleanup()
    with pytest.raises(ConfigError, match="model= without tokenizer="):
        Trainer(trainer.config, Echo, model=small_model()[0]).evaluate(1)


def test_two_names_for_the_rows_are_one_too_many():
    with pytest.raises(ConfigError, match="got dataset and train_dataset, which mean the same"):
        Trainer(dataset=[{"prompt": "a"}], train_dataset=[{"prompt": "b"}])
