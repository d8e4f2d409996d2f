"""An estimator and a policy loss of one's own: what they declare decides, not what arguments are
called."""

import pytest
import yaml

from trainer.worlds import QUICK, Echo, small_trainer
from turnwise import AdvantageEstimator, ConfigError, PolicyLoss
from turnwise.algo import aggregate_loss, compute_policy_loss

ONE_STEP = (*QUICK, "training.batch_size=2", "training.num_epochs=1")
SEEN = {}


def centered(token_level_rewards, response_mask, values=None, index=None):
    """Neither `values` nor `index` make a critic or groups: nothing is declared."""
    SEEN["estimator"] = (values is None, index)
    advantages = (token_level_rewards.sum(1, keepdim=True) - 0.5) * response_mask
    return advantages, advantages


def compares(token_level_rewards, response_mask, values, index):
    found = centered(token_level_rewards, response_mask)
    SEEN["estimator"] = (values is None, index)
    return found


COMPARES = AdvantageEstimator(compares, needs_critic=True, needs_groups=True)


def plain(old_log_probs, log_probs, advantages, response_mask, *, totals=None, **options):
    SEEN["loss"] = options
    loss = aggregate_loss(-log_probs * advantages, response_mask, "token-mean", totals)
    return loss, {"kl": (old_log_probs - log_probs).mean().detach()}


def clipped(*arguments, **options):
    SEEN["loss"] = options
    return compute_policy_loss(*arguments, **options)


CLIPPED = PolicyLoss(clipped, has_clip_range=True)


def fit(folder, *settings, **given):
    SEEN.clear()
    with small_trainer(folder, Echo, *ONE_STEP, *settings, **given) as trainer:
        (metrics,) = trainer.fit()
        has_critic = trainer.components.learner.model.has_critic
    recorded = yaml.safe_load((trainer.run_folder / "config.yaml").read_text())["training"]
    return metrics, has_critic, recorded


def test_functions_get_what_is_declared_and_are_recorded_by_name(tmp_path):
    metrics, has_critic, recorded = fit(tmp_path, adv_estimator=centered, policy_loss=plain)
    assert metrics["num_episodes"] == 2
    assert not has_critic
    assert SEEN["estimator"][0]
    assert len(set(SEEN["estimator"][1])) == 2
    assert "clip_ratio" not in SEEN["loss"]
    assert recorded["adv_estimator"].endswith("test_own_algorithm:centered")
    assert recorded["policy_loss"].endswith("test_own_algorithm:plain")

    metrics, has_critic, recorded = fit(tmp_path, adv_estimator=COMPARES, policy_loss=CLIPPED)
    assert metrics["num_episodes"] == 16
    assert has_critic
    assert not SEEN["estimator"][0]
    assert len(set(SEEN["estimator"][1])) == 2
    assert SEEN["loss"]["clip_ratio"] == 0.2
    assert recorded["adv_estimator"].endswith("test_own_algorithm:COMPARES")
    assert recorded["policy_loss"].endswith("test_own_algorithm:CLIPPED")


def test_a_file_names_them(tmp_path):
    text = (
        "from turnwise import AdvantageEstimator\n"
        "def compares(token_level_rewards, response_mask, index):\n"
        "    return token_level_rewards, token_level_rewards\n"
        "own = AdvantageEstimator(compares, needs_groups=True)\n"
    )
    (tmp_path / "own.py").write_text(text)
    settings = f"training.adv_estimator={tmp_path}/own.py:own"
    metrics, _, recorded = fit(tmp_path, settings, "training.group_size=2")
    assert metrics["num_episodes"] == 4
    assert recorded["adv_estimator"] == f"{tmp_path}/own.py:own"
    with pytest.raises(ConfigError, match=r"AdvantageEstimator\(compares, needs_groups=True\)"):
        fit(tmp_path, f"training.adv_estimator={tmp_path}/own.py:compares")


def test_a_wrong_function_says_what_is_expected(tmp_path):
    def no_rewards(scores):
        return scores, scores

    def one_tensor(token_level_rewards, response_mask):
        return token_level_rewards

    def per_episode(token_level_rewards, response_mask):
        return token_level_rewards.sum(1), token_level_rewards

    def three(log_probs, advantages, response_mask):
        return log_probs.sum(), {}

    def no_metrics(old_log_probs, log_probs, advantages, response_mask, **options):
        return log_probs.sum()

    refused = [
        ({"adv_estimator": no_rewards}, r"takes 'scores'.*Expected some of: token_level_rewards"),
        ({"adv_estimator": compares}, r"takes 'values'.*\(compares, needs_critic=True\)"),
        ({"adv_estimator": one_tensor}, r"returned Tensor, expected \(advantages, returns\)"),
        (
            {"adv_estimator": per_episode},
            r"returned \[\(2,\), .*advantages\[:, None\] \* response_mask",
        ),
        ({"policy_loss": three}, r"Expected \(old_log_probs, log_probs, advantages, response_mask"),
        ({"policy_loss": no_metrics}, r"returned Tensor, expected \(loss, metrics\)"),
        ({"adv_estimator": 3}, r"training.adv_estimator got 3 \(int\), expected a function"),
        ({"policy_loss": "gppo"}, r"no policy loss 'gppo'. Did you mean 'ppo'"),
    ]
    for given, message in refused:
        with pytest.raises(ConfigError, match=message):
            fit(tmp_path, **{"adv_estimator": centered, **given})
