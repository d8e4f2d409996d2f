"""What can be tuned in Python can be written in YAML. A new option needs its setting here."""

import inspect

import pytest

from turnwise import AdvantageEstimator, ConfigError, ConfigStore, EpisodeLimits, Trainer
from turnwise.algo import ADVANTAGE_ESTIMATORS, POLICY_LOSSES, Algorithm, KLController
from turnwise.algo.choose import ESTIMATOR_ARGUMENTS, LOSS_ARGUMENTS
from turnwise.learner import LearnerOptions
from turnwise.learner.optimizer import muon

TRAINER = {
    "config": "the file itself",
    "environment": "environment.name",
    "environments": "environments",
    "agent": "agent",
    "expert": "expert",
    "reward_fn": "reward",
    "dataset": "dataset.path",
    "train_dataset": "dataset.path",
    "eval_dataset": "eval_dataset.path",
    "tools": "tools",
    "parser": "parser",
    "system_prompt": "system_prompt",
    "model": "model.model_name",
    "tokenizer": "model.model_name",
    "limits": "limits.max_turns",
    "adv_estimator": "training.adv_estimator",
    "policy_loss": "training.policy_loss",
    "curriculum": "Python only: an object that learns from the run",
    "callbacks": "Python only: objects whose methods are called",
    "reporter": "options of the command line",
    "resume": "options of the command line",
}
"""Where each argument of the trainer is written in a file."""


def options(**settings):
    config = ConfigStore()
    for name, value in settings.items():
        setattr(config.training, name, value)
    return LearnerOptions.from_config(config.validate() or config)


def test_every_option_of_the_learner_is_a_setting_and_reaches_it():
    settings, given = ConfigStore().training, options()
    added = {"total_steps", "horizon"}
    derived = {"optimizer", "policy_loss", "policy_loss_options"}
    assert vars(given).keys() == vars(settings).keys() | added == vars(LearnerOptions()).keys()
    for name in vars(settings).keys() - derived:
        assert getattr(given, name) == getattr(settings, name) == getattr(LearnerOptions(), name)
    given = options(optimizer="muon", optimizer_options={"momentum": 0.9}, value_clip=None)
    assert (given.optimizer, given.optimizer_options) == (muon, {"momentum": 0.9})
    assert given.value_clip is None
    given = options(clip_ratio=0.3, clip_ratio_high=0.4, policy_loss_options={"clip_ratio_c": 5.0})
    clip = {"clip_ratio": 0.3, "clip_ratio_low": None, "clip_ratio_high": 0.4, "clip_ratio_c": 5.0}
    assert given.policy_loss_options == clip


def test_the_defaults_of_python_and_of_the_settings_are_the_same():
    horizon = inspect.signature(KLController).parameters["horizon"].default
    assert ConfigStore().training.kl_horizon == horizon


def test_every_option_of_an_algorithm_can_be_written():
    training = ConfigStore().training
    for name, loss in POLICY_LOSSES.items():
        given = {
            key: parameter.default
            for key, parameter in inspect.signature(loss.function).parameters.items()
            if key not in (*LOSS_ARGUMENTS, "options", "selected", "generator")
        }
        training.policy_loss, training.policy_loss_options = name, given
        assert Algorithm.from_settings(training).policy_loss is loss
        config = ConfigStore(training=training)
        assert LearnerOptions.from_config(config).policy_loss_options.items() >= given.items()
    training = ConfigStore().training
    for name, estimator in ADVANTAGE_ESTIMATORS.items():
        given = {
            key: parameter.default
            for key, parameter in inspect.signature(estimator.function).parameters.items()
            if key not in ESTIMATOR_ARGUMENTS
        }
        training.adv_estimator, training.adv_options = name, given
        assert isinstance(Algorithm.from_settings(training).estimator, AdvantageEstimator)


def test_options_that_an_algorithm_does_not_have_are_refused():
    wrong = [
        ({"policy_loss_options": {"clip_ratio_d": 3}}, "no option 'clip_ratio_d'. Did you mean"),
        ({"policy_loss": "sapo", "clip_ratio_high": 0.3}, "'compute_sapo_loss' has no clip range"),
        ({"adv_options": {"norm_by_sd": True}}, "no option 'norm_by_sd'"),
        ({"adv_options": {"values": 1}}, "no option 'values'"),
        ({"importance_bounds": [1.0, 2.0, 3.0]}, r"bounds got \[1.0, 2.0, 3.0\], expected"),
        ({"adam_betas": [0.9]}, r"adam_betas got \[0.9\], expected two numbers"),
    ]
    for settings, message in wrong:
        config = ConfigStore()
        for name, value in settings.items():
            setattr(config.training, name, value)
        with pytest.raises(ConfigError, match=message):
            LearnerOptions.from_config(
                config, policy_loss=Algorithm.from_settings(config.training).policy_loss
            )


def test_limits_and_arguments_of_the_trainer_have_settings():
    assert vars(EpisodeLimits()).keys() == vars(ConfigStore().limits).keys()
    arguments = inspect.signature(Trainer).parameters
    assert arguments.keys() == TRAINER.keys()
    named = [place for place in TRAINER.values() if " " not in place]
    assert set(named) <= dict(ConfigStore().settings()).keys()
