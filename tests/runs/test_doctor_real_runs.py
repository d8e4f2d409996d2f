"""The doctor on real runs: each has one fault, and is found to have that one and no other."""

import copy
import re

import pytest

from runs.sick_worlds import Long, Password, SafeWord, Tooled, look, speaking_model, train
from trainer.worlds import Echo, Memory
from turnwise.inference import create_inference_engine
from turnwise.runs.doctor import diagnose, findings
from turnwise.runs.metrics_log import MetricsLog

GRPO = ("training.adv_estimator=grpo", "training.group_size=4")


def reports(folder):
    """All that was reported while the run went on."""
    return [finding.code for _, finding in diagnose(MetricsLog(folder / "metrics.jsonl").read())]


def the_finding(folder, code, *words):
    """The only finding of a run."""
    found = findings(folder)
    assert [finding.code for finding in found] == [code]
    assert reports(folder) == [code]
    for word in words:
        assert word in found[0].text
    return found[0]


@pytest.mark.parametrize(
    ("environment", "overrides"), [(Echo, ()), (Memory, ()), (Echo, GRPO)], ids=["a", "b", "c"]
)
def test_a_healthy_run_has_no_findings(tmp_path, environment, overrides):
    folder = train(tmp_path, environment, *overrides, steps=11)
    assert findings(folder) == []
    assert reports(folder) == []


@pytest.mark.parametrize("overrides", [(), GRPO], ids=["gae", "grpo"])
def test_a_learning_rate_a_hundred_times_too_high(tmp_path, overrides):
    batch = 8 if overrides else 32
    size = f"training.batch_size={batch}"
    folder = train(tmp_path, Echo, size, "training.learning_rate=0.3", *overrides)
    finding = the_finding(folder, "learning-rate-too-high", "learning rate of 0.3", "reward fell")
    assert "training.learning_rate" in finding.fix
    # The reward is lost and the turns have no end: the learning rate is why.
    assert {one.code for one in finding.consequences} >= {"constant-reward"}


@pytest.mark.parametrize("amount", [0.0, 0.5])
def test_a_constant_reward(tmp_path, amount):
    folder = train(tmp_path, Echo, reward_fn=lambda trajectory: amount)
    finding = the_finding(
        folder, "constant-reward", f"earned exactly {amount:g}", "All 40 episodes"
    )
    assert finding.fix.startswith("First look at the reward")
    assert finding.example == "train-6-0"


def test_a_reward_with_the_wrong_sign(tmp_path):
    folder = train(
        tmp_path, Echo, "training.batch_size=16", reward_fn=lambda trajectory: -trajectory.success
    )
    the_finding(folder, "success-unpaid", "succeed earn -1", "fail 0")


def test_a_reward_on_the_wrong_turn(tmp_path):
    def on_the_first(trajectory):
        return [float(trajectory.success), *[0.0] * (trajectory.num_turns - 1)]

    folder = train(tmp_path, Memory, "training.batch_size=16", reward_fn=on_the_first)
    finding = the_finding(folder, "misplaced-reward", "100% of the successful episodes")
    assert finding.example.startswith("train-6-")


def test_a_parser_of_another_format(tmp_path):
    parts = {"tools": (look,), "parser": "react"}
    model = speaking_model(Tooled, "expert", **parts)
    folder = train(tmp_path, Tooled, "inference.max_tokens=24", model=model, **parts)
    finding = the_finding(folder, "unread-calls", "in the format 'json'")
    assert "parser" in finding.fix
    assert [one.code for one in finding.consequences] == ["constant-reward"]


def test_too_few_tokens_for_a_turn(tmp_path):
    folder = train(tmp_path, Long, model=speaking_model(Long))
    finding = the_finding(folder, "cut-turns", "100% of the model's turns")
    assert [one.code for one in finding.consequences] == ["constant-reward"]
    assert finding.example == "train-6-0"


def test_an_entropy_that_collapses_while_the_run_learns(tmp_path):
    """With seeds 0 to 4 it collapses by step 24, to less than a tenth of what it was."""
    settings = (*GRPO, "training.learning_rate=5e-3")
    folder = train(tmp_path, SafeWord, *settings, steps=28)
    history = MetricsLog(folder / "metrics.jsonl").read()
    assert history[0]["entropy"] > 0.5 > 0.1 > history[-1]["entropy"]
    found = {finding.code: finding for _, finding in diagnose(history)}
    assert "learning-rate-too-high" not in found  # no single update did it
    assert re.match(
        r"The entropy fell from 0\.\d+ to 0\.0\d+ at a success of", found["entropy-collapse"].text
    )
    assert "training.entropy_coef" in found["entropy-collapse"].fix


def keep_old_weights(trainer):
    """An engine with a model of its own, as a server has, that no update reaches."""
    parts = trainer.components
    model = copy.deepcopy(parts.learner.model.policy)
    parts.engine.close()
    parts.engine = create_inference_engine(model, "local", tokenizer=parts.tokenizer)
    parts.collector.setup.engine = parts.engine


def test_a_stale_engine(tmp_path):
    allowed = "training.max_log_prob_gap=null"
    folder = train(tmp_path, Echo, allowed, prepare=keep_old_weights)
    the_finding(folder, "stale-engine", "In the first step", "samples from old weights")


def test_a_run_that_stopped_says_why(tmp_path):
    folder = train(tmp_path, Echo, prepare=keep_old_weights)
    (finding,) = findings(folder)
    assert finding.code == "stopped"
    assert finding.text.startswith("After step ")
    assert "the run stopped: the learner's log-probs differ from" in finding.text


def test_an_environment_that_shows_its_answer(tmp_path):
    slow = "training.learning_rate=1e-5"
    folder = train(tmp_path, Password, slow, model=speaking_model(Password))
    finding = the_finding(folder, "answer-shown", "of the episodes succeed with their first action")
    assert [one.code for one in finding.consequences] == ["too-easy"]
