"""Players of one environment that have models of their own."""

import pytest
import torch

from trainer.worlds import small_config, small_model, small_trainer, training
from turnwise import BaseEnvironment, Trainer, load_trained_model
from turnwise.errors import ConfigError
from turnwise.inference.local.engine import LocalEngine

SETTINGS = (
    *training(
        "warm_start=null adv_estimator=grpo group_size=4 batch_size=2 learning_rate=0.01 "
        "num_epochs=1 steps_per_epoch=3"
    ),
    "checkpoint.save_steps=1",
)


class Two(BaseEnvironment):
    """Each player writes once; what a player earns depends on its own letters."""

    quick = True
    max_steps = 2
    players = ("first", "second")

    @property
    def current_player(self):
        return self.players[min(self.step_count, 1)]

    def reset(self):
        self.earned = {}
        return "Write"

    def step(self, action):
        self.earned[self.current_player] = len(set(action)) / 10
        self.step_count += 1
        is_over = self.step_count == 2
        return "Write", 0.0, is_over, {"rewards": self.earned if is_over else {}}

    def get_state_description(self):
        return ""


def weights(policy):
    return {name: p.detach().clone() for name, p in policy.learner.model.named_parameters()}


def changed(before, after):
    return any(not torch.equal(before[name], after[name]) for name in before)


def test_engines_end_when_a_later_part_of_the_run_cannot_be_made(tmp_path, monkeypatch):
    closed = []

    def close(engine):
        closed.append(engine)

    monkeypatch.setattr(LocalEngine, "close", close)
    missing = f"policies.second.model={tmp_path / 'missing'}"
    with (
        small_trainer(tmp_path, Two, *SETTINGS, missing) as trainer,
        pytest.raises(ConfigError, match="missing"),
    ):
        _ = trainer.components
    assert len(closed) == 1


def test_each_player_learns_with_its_own_model(tmp_path):
    with small_trainer(tmp_path, Two, *SETTINGS, "policies.second.trains=true") as trainer:
        first, second = trainer.components, trainer.components.others["second"]
        before = weights(first), weights(second)
        assert first.engine is not second.engine
        history = trainer.fit()
        assert changed(before[0], weights(first))
        assert changed(before[1], weights(second))
        assert changed(weights(first), weights(second))
    for metrics in history:
        assert metrics["gap_max"] < 1e-4
        assert metrics["second/gap_max"] < 1e-4
        assert 0 <= metrics["second/reward"] <= 2


def test_a_frozen_player_stays_as_it_is(tmp_path):
    with small_trainer(tmp_path, Two, *SETTINGS, "policies.second.trains=false") as trainer:
        engine = trainer.components.collector.options.engines["second"]
        before = {name: p.clone() for name, p in engine.model.named_parameters()}
        history = trainer.fit()
        assert not changed(before, dict(engine.model.named_parameters()))
        assert engine.weight_version == 0
        assert trainer.components.engine.weight_version > 0
    assert not any(name.startswith("second/") for metrics in history for name in metrics)
    assert all("weights_behind" not in metrics for metrics in history)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    for part in small_model():
        part.save_pretrained(tmp_path / "model")
    settings = (*SETTINGS, f"model.local_path={tmp_path / 'model'}", "policies.second.trains=true")
    with Trainer(small_config(tmp_path / "whole", *settings), Two) as trainer:
        whole = trainer.fit()
        expected = weights(trainer.components.others["second"])
        folder = trainer.run_folder
    part = (*settings, "training.max_steps=1")
    with Trainer(small_config(tmp_path / "parts", *part), Two) as trainer:
        trainer.fit()
    with Trainer(small_config(tmp_path / "parts", *settings), Two) as trainer:
        history = trainer.fit()
        assert not changed(expected, weights(trainer.components.others["second"]))
    stable = [name for name in whole[-1] if not name.startswith(("time/", "memory/"))]
    assert {n: history[-1][n] for n in stable} == {n: whole[-1][n] for n in stable}
    first, _ = load_trained_model(folder)
    second, _ = load_trained_model(folder, policy="second")
    saved = {f"policy.{name}": p for name, p in second.model.named_parameters()}
    assert not changed({name: expected[name] for name in saved if name in expected}, saved)
    assert changed(dict(first.model.named_parameters()), dict(second.model.named_parameters()))
    with pytest.raises(ConfigError, match=r"no policy 'secnod'. Did you mean 'second'"):
        load_trained_model(folder, policy="secnod")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policies": {"eval": {}}}, "cannot stand in the metrics"),
        ({"policies": {"a/b": {}}}, "cannot stand in the metrics"),
        ({"policies": {"x": {"modle": "tiny"}}}, "policies"),
        ({"policies": {"secnd": {}}}, r"no such player. Did you mean 'second'"),
        ({"policies": {"x": {}}, "ray": {"use_ray": True}}, "ray.use_ray to false"),
        ({"policies": {"x": {}}, "training": {"max_staleness": 1}}, "max_staleness to 0"),
        ({"policies": {"x": {}}, "training": {"warm_start": "expert"}}, "warm_start to null"),
    ],
)
def test_what_cannot_be_played_with_is_refused(tmp_path, settings, message):
    settings = {"checkpoint": {"output_dir": str(tmp_path)}, **settings}
    with pytest.raises(ConfigError, match=message):
        Trainer(settings, Two).fit()
