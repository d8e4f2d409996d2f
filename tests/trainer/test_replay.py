"""A replay learns from the recorded episodes of a run, and comes to the same weights."""

import json
import shutil

import pytest

from trainer.runs import Listener, fit_to_the_end, newest_files
from trainer.worlds import Uneven, small_model, small_trainer, training
from turnwise import ConfigError
from turnwise.config import ConfigStore
from turnwise.errors import TrainingStopped
from turnwise.trainer.replay import replay_run

AHEAD = (
    *training(
        "batch_size=3 num_epochs=2 steps_per_epoch=3 warm_start_steps=2 adv_estimator=grpo "
        "group_size=2 max_staleness=2"
    ),
    "checkpoint.run_name=run",
)


def replayed(run, *overrides, reporter=None):
    """Replays a run of `Uneven` with a fresh model."""
    config = ConfigStore.load(run / "config.yaml", ["checkpoint.run_name=again", *overrides])
    model, tokenizer = small_model()
    given = {"environment": Uneven, "model": model, "tokenizer": tokenizer}
    return replay_run(run, config, reporter, **given)


def files(folder):
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def assert_same_weights(run, again):
    (step, left), (same_step, right) = newest_files(run), newest_files(again)
    assert step == same_step
    for name in ("weights.safetensors", "learner.safetensors"):
        assert left[name] == right[name], name


@pytest.mark.parametrize(
    "more",
    [
        (),
        ("training.adv_estimator=gae", "training.group_size=1", "training.mini_batch_size=2"),
        ("training.adv_estimator=remax", "training.group_size=1", "training.kl_loss_coef=0.1"),
        ("training.lora_rank=2", "training.lora_dropout=0.1"),
        ("training.max_staleness=0", "training.adv_estimator=gigpo", "training.eval_episodes=2"),
    ],
    ids=["grpo", "critic", "remax", "lora", "synchronous"],
)
def test_a_run_is_replayed_to_the_same_weights(tmp_path, more):
    more = (*more, "training.steps_per_epoch=2")
    with small_trainer(tmp_path, Uneven, *AHEAD, *more, reporter=None) as trainer:
        trainer.fit()
    assert all(metrics["grad_norm"] > 0 for metrics in trainer.metrics_history)
    before, listener = files(trainer.run_folder), Listener()
    outcome = replayed(trainer.run_folder, reporter=listener)
    assert files(trainer.run_folder) == before
    assert (outcome.num_steps, outcome.num_equal) == (4, 4)
    assert outcome.equal_checkpoints == [2, 4]
    assert not outcome.other_checkpoints
    assert_same_weights(trainer.run_folder, outcome.folder)
    assert sum("metrics as recorded" in line for line in listener.said) == 4
    assert "bit for bit" in str(outcome)


def test_a_run_that_was_resumed_with_other_settings(tmp_path):
    changes = iter(["training.clip_ratio=0.3", "training.learning_rate=1e-3"])
    settings, resume = list(AHEAD), iter(["auto", *["always"] * 9])

    def make(listener):
        trainer = small_trainer(tmp_path, Uneven, *settings, reporter=listener, resume=next(resume))
        settings.append(next(changes, "training.max_staleness=0"))
        return trainer

    stops = {("step", 2), ("step", 4), ("warm start", 1)}
    folder, _, listeners = fit_to_the_end(make, lambda *moment: moment in stops)
    assert len(listeners) == 4
    changed = [json.loads(line) for line in (folder / "changes.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in changed] == [0, 2, 4]
    outcome = replayed(folder)
    assert (outcome.num_steps, outcome.num_equal) == (6, 6)
    assert_same_weights(folder, outcome.folder)


def test_a_run_that_is_not_finished_is_replayed_as_far_as_it_went(tmp_path):
    listener = Listener(lambda what, number: (what, number) == ("step", 2))
    with (
        small_trainer(tmp_path, Uneven, *AHEAD, reporter=listener) as trainer,
        pytest.raises(KeyboardInterrupt),
    ):
        trainer.fit()
    outcome = replayed(trainer.run_folder)
    assert outcome.num_equal == 2
    assert_same_weights(trainer.run_folder, outcome.folder)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    with small_trainer(folder, Uneven, *AHEAD, "training.num_epochs=1", reporter=None) as trainer:
        trainer.fit()
    return trainer.run_folder


@pytest.fixture
def run(finished, tmp_path):
    """A copy of a finished run of three steps."""
    return shutil.copytree(finished, tmp_path / "run")


def change_metric(run, step, name, change):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[step - 1][name] = change(lines[step - 1][name])
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_it_stops_where_it_diverges(run):
    change_metric(run, 2, "entropy", lambda value: 2 * value)
    with pytest.raises(TrainingStopped, match=r"diverges .* in step 2: entropy .*was.*settings"):
        replayed(run, f"checkpoint.output_dir={run.parent}")


def test_rounding_is_reported_and_is_no_divergence(run):
    change_metric(run, 2, "entropy", lambda value: value * (1 + 1e-5))
    listener = Listener()
    outcome = replayed(run, f"checkpoint.output_dir={run.parent}", reporter=listener)
    assert (outcome.num_steps, outcome.num_equal) == (3, 2)
    assert any("1 of" in line and "differ by rounding: entropy" in line for line in listener.said)
    assert "up to rounding" in str(outcome)


def test_what_is_missing_is_named(run):
    (run / "episodes" / "step-000002.parquet").unlink()
    with pytest.raises(ConfigError, match=r"no episodes of .*step 2.*logging.episodes_gb"):
        replayed(run)
    (run / "metrics.jsonl").unlink()
    with pytest.raises(ConfigError, match="nothing to replay"):
        replayed(run)
