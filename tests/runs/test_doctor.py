"""The doctor: each finding is said, once, at its step, and never about a healthy run."""

import math
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.runs.doctor import CHECKS, DAMAGED, STOPPED, Doctor, diagnose, findings

NUM_EPISODES = 32


def healthy_run(length=120, seed=0, **ways):
    """The metrics of a run that learns to 95%, with the noise of 32 episodes a step.

    `ways` replaces a metric: a value for all steps, or a function of the step (1, 2, ...).
    """
    rng = random.Random(seed)
    run = []
    for step in range(1, length + 1):
        solved = 0.95 / (1 + math.exp(-(step - 35) / 9))
        success = sum(rng.random() < solved for _ in range(NUM_EPISODES)) / NUM_EPISODES
        metrics = {
            "step": step,
            "reward": success,
            "reward_std": math.sqrt(success * (1 - success)) or 0.05,
            "success": success,
            "truncated/turns": 0.7 * (1 - solved),
            "truncated/tokens": 0.0,
            "truncated/time": 0.0,
            "cut_turns": 0.6 * (1 - solved) ** 2,
            "errors": 0.0,
            "tool_calls": 1.5 + 0.2 * rng.random(),
            "malformed_calls": 0.7 * (1 - solved) ** 2,
            "invalid_actions": 0.8 * (1 - solved),
            "zero_variance": 0.4 + 0.5 * abs(solved - 0.5),
            "entropy": 1.2 * (1 - 0.95 * solved) * rng.uniform(0.9, 1.1),
            "kl": 0.008 * rng.uniform(0.3, 2.0),
            "clip_fraction": 0.06 * rng.random(),
            "explained_variance": 0.7 - 1.2 * math.exp(-step / 6) + rng.uniform(-0.2, 0.2),
            "grad_norm": rng.lognormvariate(0.0, 0.5),
            "gap_kl": 1e-9,
            "gap_max": 2e-6,
            "num_steps": 4,
            "num_skipped_steps": 0,
        }
        for name, way in ways.items():
            metrics[name.replace("__", "/")] = way(step) if callable(way) else way
        run.append(metrics)
    return run


def codes(run):
    return [(step, finding.code) for step, finding in diagnose(run)]


def after(change, then, before=None):
    """`before` (or a healthy value) until step `change`, `then` from it on."""
    return lambda step: then if step >= change else before


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_is_left_in_peace(seed):
    assert codes(healthy_run(seed=seed)) == []


@pytest.mark.parametrize("seed", range(10))
def test_a_slow_run_is_left_in_peace(seed):
    rng = random.Random(seed)
    rewards = [0.003 * step + rng.gauss(0, 0.08) for step in range(301)]
    run = healthy_run(
        300, seed, reward=lambda s: rewards[s], success=lambda s: 0.003 * s, entropy=0.8
    )
    assert codes(run) == []


FLAT = {"success": 0.4, "reward": lambda step: 0.4 + 0.05 * math.sin(2.1 * step)}
FLAT |= {"reward_std": 0.5, "truncated__turns": 0.2, "cut_turns": 0.1, "malformed_calls": 0.1}
FLAT |= {"invalid_actions": 0.1, "entropy": 1.0}

HARD = {"success": 0.0, "reward": 0.01, "reward_std": 0.1, "zero_variance": 0.9}
SOLVED = {"success": 1.0, "reward": 1.0, "reward_std": 0.0}
UNSOLVED = {"success": 0.0, "reward": 0.0, "reward_std": 0.0}
LAG = {"weights_behind": 4, "is_ess": after(20, 0.4, 0.95), "gap_kl": 0.05, "gap_max": 3.0}
IDLE = {"idle__learner": 0.8, "idle__engine": 0.7, "idle__episodes": 0.5, "weights_behind": 1}
UNREAD = {"unread_calls": 0.6, "unread_calls__kimi": 0.6, "tool_calls": 0.0}
IN_KIMI = "60% of the turns hold a tool call in the format 'kimi'"
SHOWN = {"success": 1.0, "answers_shown": 1.0, "zero_variance": 1.0}
AT_FIRST = "100% of the episodes succeed with their first action"
TOO_FAST = {"grad_norm": lambda step: {1: 2.0, 2: 40.0}.get(step, 12860.0)}
GREW = "norm of the gradient went from 2 to 1.29e+04 (step 3)"
IN_TOOLS = {"errors": after(20, 0.2, 0.0), "errors__tool": after(20, 0.2, 0.0)}
MOST = "13% of the episodes failed, most in the tool"
LATER = {"eval__greedy__errors": lambda step: 0.25 if step == 20 else math.nan}

# What goes wrong, the finding, the step at which it is said, and a piece of its words.
SICK = [
    (UNSOLVED, "constant-reward", 5, "exactly 0, "),
    (HARD, "too-hard", 20, "90% of the groups"),
    (SOLVED, "too-easy", 5, "success 100%"),
    (SOLVED | {"success": 0.3, "reward": 2.0}, "constant-reward", 5, "exactly 2, "),
    (SOLVED | {"success": 0.0}, "constant-reward", 5, "none of them succeeded"),
    ({"success": 0.4, "zero_variance": 0.85}, "alike-groups", 5, "85% of the groups"),
    ({"entropy": after(20, 0.02, 1.0)}, "entropy-collapse", 24, "from 1 to 0.02 at a success of"),
    ({"entropy": after(20, 3.0, 1.0)}, "entropy-explosion", 22, "from 1 to 2.2"),
    ({"tool_calls": after(20, 0.0, 2.0)}, "tools-unused", 24, "0 calls an episode, once 2."),
    ({"malformed_calls": after(20, 0.6, 0.1)}, "malformed-calls", 37, "60% of the turns"),
    ({"invalid_actions": after(20, 0.9, 0.1)}, "invalid-actions", 34, "90% of the actions"),
    ({"cut_turns": after(20, 0.8, 0.1)}, "cut-turns", 35, "80% of the model's turns"),
    ({"truncated__turns": after(20, 0.7, 0.1)}, "out-of-turns", 36, "70% of the episodes ran"),
    ({"truncated__tokens": after(20, 0.7, 0.0)}, "out-of-tokens", 37, "model's context"),
    ({"truncated__time": after(20, 0.7, 0.0)}, "out-of-time", 37, "ran out of time"),
    ({"truncated__tool_calls": after(20, 0.7, 0.0)}, "out-of-tool-calls", 37, "as many tool calls"),
    ({"explained_variance": after(10, -0.3, 0.5)}, "value-useless", 30, "variance -0.3"),
    ({"gap_kl": after(20, 0.05, 1e-9)}, "sampler-gap", 21, "divergence 0.05"),
    ({"gap_max": 7.0}, "sampler-gap", 3, "worst log-prob 7 apart"),
    ({"gap_max": after(20, 0.7, 1e-6)}, "stale-engine", 21, "up to 0.7 apart"),
    (LAG, "policy-lag", 22, "up to 4 updates old"),
    (IDLE, "slow-episodes", 10, "80% of the time"),
    (UNREAD, "unread-calls", 3, IN_KIMI),
    ({"reward_if_success": 0.1, "reward_if_failure": 0.3}, "success-unpaid", 5, "earn 0.1"),
    ({"misplaced_reward": 1.0}, "misplaced-reward", 5, "In 100% of the successful episodes"),
    (SHOWN, "answer-shown", 3, AT_FIRST),
    (TOO_FAST, "learning-rate-too-high", 3, GREW),
    (IN_TOOLS, "errors", 21, MOST),
    (LATER, "failed-evaluation", 20, "25% of its episodes failed"),
    ({"num_skipped_steps": after(20, 2, 0)}, "skipped-steps", 20, "2 steps were skipped"),
    ({"grad_norm": lambda s: 80.0 if s == 20 else 1.0}, "gradient-jump", 20, "to 80, where 1 is"),
    ({"kl": after(15, 0.3, 0.01)}, "steps-too-large", 20, "KL 0.3"),
    ({"clip_fraction": after(15, 0.6, 0.1)}, "steps-too-large", 20, "60% of the tokens clipped"),
    ({"weights_changed": 0.0004}, "updates-lost", 10, "moves 0.04% of the weights"),
    ({"kl": 1e-7, "clip_fraction": 0.0}, "steps-too-small", 20, "KL 1e-07 an update"),
]


@pytest.mark.parametrize(("ways", "code", "step", "words"), SICK, ids=lambda x: str(x)[:24])
def test_each_finding_is_said_once_at_its_step(ways, code, step, words):
    run = healthy_run(45, **FLAT | ways)
    said = diagnose(run)
    assert [(when, finding.code) for when, finding in said] == [(step, code)]
    finding = said[0][1]
    assert words in finding.text
    assert len(finding.fix) > 20
    assert str(finding) == f"{finding.text} {finding.fix}"


def test_a_flat_reward_gets_a_gentle_word():
    said = codes(healthy_run(70, **FLAT))
    assert [code for _, code in said] == ["not-rising"]
    assert 50 <= said[0][0] < 70


def test_falling_far_below_its_best_is_forgetting():
    def reward(step):
        wave = 0.02 * math.sin(2.1 * step)
        return wave + (0.1 + 0.02 * step if step <= 30 else max(0.7 - 0.04 * (step - 30), 0.2))

    run = healthy_run(60, **FLAT | {"reward": reward, "success": reward})
    assert [code for _, code in codes(run)] == ["forgetting"]
    assert "it was 0.6" in diagnose(run)[0][1].text


def test_reward_without_success_is_suspect():
    ways = {
        "reward": lambda step: 0.3 + 0.01 * step + 0.01 * math.sin(2.1 * step),
        "success": lambda step: max(0.6 - 0.01 * step, 0.0),
    }
    said = codes(healthy_run(60, **FLAT | ways))
    assert [code for _, code in said] == ["reward-hacking"]


def test_every_finding_is_tested():
    others = {"not-rising", "forgetting", "reward-hacking"}
    assert {check.code for check in CHECKS} == {code for _, code, _, _ in SICK} | others


def test_what_a_step_leaves_out_counts_as_none():
    run = healthy_run(45, **FLAT | {"tool_calls": 2.0, "zero_variance": 0.1})
    for metrics in run[19:]:
        del metrics["tool_calls"], metrics["malformed_calls"]
    assert codes(run) == [(24, "tools-unused")]


def explained(run):
    """Each finding of the last step, and those that it explains."""
    return {one.code: [other.code for other in one.consequences] for one in present(run)}


def present(run):
    """What is wrong as of the last step."""
    doctor = Doctor()
    for metrics in run:
        doctor.add(metrics)
    return doctor.present()


LOST = {"success": after(3, 0.0, 0.4), "reward": after(3, 0.0, 0.4)}
LOST |= {"reward_std": after(3, 0.0, 0.5), "cut_turns": after(3, 1.0, 0.1)}
EXPLODES = {"grad_norm": lambda step: 2.0 if step < 3 else 12860.0, "learning_rate": 0.01}


def test_what_another_finding_explains_stands_under_it():
    """A gradient norm that goes from 2 to 12,860 is a learning rate, not a task too hard."""
    run = healthy_run(12, **FLAT | LOST | EXPLODES)
    assert explained(run) == {"learning-rate-too-high": ["cut-turns", "constant-reward"]}
    assert codes(run) == [(3, "learning-rate-too-high")]
    (finding,) = present(run)
    assert "a learning rate of 0.01, and the reward fell from 0.4 to 0" in finding.text
    assert "Because of this: cut-turns, constant-reward." in str(finding)


def test_what_was_so_before_the_first_update_is_not_explained_by_updates():
    run = healthy_run(12, **FLAT | UNSOLVED | EXPLODES)
    assert explained(run) == {"learning-rate-too-high": [], "constant-reward": []}


def test_a_gradient_that_follows_an_extreme_reward_is_no_learning_rate():
    rewards = {"reward_max": lambda step: 1.0 if step < 3 else 900.0, "reward_min": 0.0}
    assert "learning-rate-too-high" not in explained(healthy_run(9, **FLAT | rewards | EXPLODES))


def without_success(run):
    return [{k: v for k, v in metrics.items() if k != "success"} for metrics in run]


def test_a_reward_that_all_have_learned_to_earn_is_solved_though_success_is_not_reported():
    ways = {"reward": lambda step: min(0.2 * step, 1.0), "reward_max": 1.0}
    ways |= {"reward_std": after(5, 0.0, 0.3), "entropy": after(5, 0.001, 1.0)}
    assert explained(without_success(healthy_run(30, **FLAT | ways))) == {"too-easy": []}


def test_where_no_success_is_reported_none_is_mentioned():
    for ways in ({"reward": 0.0, "reward_std": 0.0}, {"entropy": after(20, 0.02, 1.0)}, {}):
        run = without_success(healthy_run(70, **FLAT | ways))
        found = [finding for _, finding in diagnose(run)]
        assert found
        assert not [finding.text for finding in found if "succe" in finding.text]


PERFECT = {"reward": lambda step: 0.97 + 0.02 * math.sin(2.1 * step), "reward_std": 0.1}
PERFECT |= {"success": 0.97, "explained_variance": -0.2, "reward_min": 0.0, "reward_max": 1.0}
PERFECT |= {"zero_variance": 0.9, "entropy": after(10, 0.01, 0.5), "kl": 1e-7, "clip_fraction": 0.0}
PERFECT |= {"truncated__turns": 0.0, "cut_turns": 0.0, "malformed_calls": 0.0}


def test_a_perfect_run_is_left_in_peace_though_success_is_not_reported():
    """Its value function has nothing to explain, and nothing is left to learn."""
    assert {code for _, code in codes(healthy_run(120, **PERFECT))} <= {"too-easy"}
    assert codes(without_success(healthy_run(120, **PERFECT))) == []


@pytest.mark.parametrize("seed", range(5))
def test_a_hard_task_whose_reward_rises_is_not_too_hard(seed):
    rng = random.Random(seed)
    rewards = [max(0.001 * step + rng.gauss(0, 0.004), 0.0) for step in range(46)]
    ways = {"success": lambda s: rewards[s], "reward": lambda s: rewards[s], "zero_variance": 0.9}
    assert codes(healthy_run(45, **FLAT | {"reward_std": 0.1} | ways)) == []


def fixes(config, **ways):
    return " ".join(finding.fix for _, finding in diagnose(healthy_run(45, **FLAT | ways), config))


def test_nothing_is_advised_that_the_settings_have():
    config, skipped = ConfigStore(), {"num_skipped_steps": after(20, 2, 0)}
    assert "set training.warm_start=expert" in fixes(config, **HARD)
    assert "max_grad_norm" not in fixes(config, **skipped)  # it is set
    assert "take model.dtype=float32" in fixes(config, **skipped)
    config.training.warm_start, config.training.max_grad_norm = "expert", None
    config.model.dtype = "float32"
    advised = fixes(config, **HARD)
    assert "warm" not in advised
    assert advised.startswith("Begin with an easier task (environment.params, a curriculum); ")
    assert "max_grad_norm" in fixes(config, **skipped)
    assert "float32" not in fixes(config, **skipped)


def test_an_agent_is_told_nothing_of_environments():
    assert "environment.params" in fixes(ConfigStore(), **HARD)
    advised = fixes(ConfigStore(agent="solve.py:solve"), **HARD)
    assert "training.group_size" in advised
    assert "environment." not in advised


def test_a_consequence_is_not_reported_while_its_cause_is_there():
    run = healthy_run(60, **FLAT | {"malformed_calls": 0.9, "cut_turns": 0.8})
    assert codes(run) == [(20, "cut-turns")]
    assert explained(run) == {"cut-turns": ["malformed-calls", "not-rising"]}
    run = healthy_run(60, **FLAT | {"malformed_calls": 0.9, "cut_turns": after(35, 0.1, 0.8)})
    assert [code for _, code in codes(run)] == ["cut-turns", "malformed-calls"]


def test_a_lasting_finding_is_said_again_every_fifty_steps():
    run = healthy_run(120, **FLAT | UNSOLVED)
    assert codes(run) == [(step, "constant-reward") for step in (5, 55, 105)]


@pytest.mark.parametrize(("num_gone", "again"), [(9, []), (10, [32])])
def test_one_that_returns_is_said_again_only_after_a_while(num_gone, again):
    sick = {21, 21 + num_gone + 1}
    run = healthy_run(40, **FLAT | {"num_skipped_steps": lambda step: float(step in sick)})
    said = [step for step, code in codes(run) if code == "skipped-steps"]
    assert said == [21, *again]


def test_where_lasting_until_the_end_is_success_the_cut_is_no_fault():
    assert codes(healthy_run(45, **FLAT | {"truncated__turns": 1.0, "success": 0.6})) == []


def test_one_step_an_update_says_nothing_about_the_step_size():
    run = healthy_run(45, **FLAT | {"kl": 0.0, "clip_fraction": 0.0, "num_steps": 1})
    assert codes(run) == []


def test_a_resumed_run_hears_the_same():
    run = healthy_run(90, **FLAT | {"entropy": after(20, 0.02, 1.0), "errors": after(60, 1.0, 0)})
    whole = diagnose(run)
    assert whole
    for stop in (1, 23, 24, 50, 89):
        doctor = Doctor()
        for metrics in run[:stop]:
            doctor.look(metrics)
        heard = [(m["step"], finding) for m in run[stop:] for finding in doctor.look(m)]
        assert heard == [(step, finding) for step, finding in whole if step > stop]


NAMES = [
    *healthy_run(1)[0],
    "weights_behind",
    "is_ess",
    "idle/learner",
    "idle/engine",
    "errors/tool",
    "reward/format",
    "eval/greedy/success",
]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from(NAMES), st.floats() | st.integers(-5, 5)), max_size=70)
)
def test_no_metrics_whatever_upset_it(run):
    for step, finding in diagnose(run):
        assert isinstance(step, int)
        assert finding.text.endswith(".")
        assert "nan" not in finding.text.split()


def test_the_guide_explains_every_finding():
    guide = (Path(__file__).parents[2] / "docs" / "debugging.md").read_text()
    told = re.findall(r"^\| `([a-z-]+)` \|", guide, re.M)
    assert sorted(told) == sorted(
        [STOPPED, DAMAGED, "shared-rows", *(check.code for check in CHECKS)]
    )
    a_setting = r"\b(?:training|inference|model|environment|limits)\.[a-z_]+"
    settings_named = set(re.findall(a_setting, guide))
    settings_named |= {name for check in CHECKS for name in re.findall(a_setting, check.advise())}
    for name in settings_named:
        section, setting = name.split(".")
        assert hasattr(getattr(ConfigStore(), section), setting), name


def test_findings_that_explain_each_other_are_told_as_one():
    """Chance moves the policy of a reward without spread until its turns are cut."""
    doctor = Doctor()
    for step in range(14):
        doctor.add(
            {
                "reward": 0.0,
                "reward_std": 0.0,
                "entropy": 1.0 + 0.3 * min(step, 10),
                "cut_turns": min(0.2 * step, 1.0),
            }
        )
    (finding,) = doctor.present()
    assert finding.code == "cut-turns"
    consequences = {one.code for one in finding.consequences}
    assert consequences == {"constant-reward", "entropy-explosion"}


def test_no_run_and_a_damaged_one_are_not_healthy(tmp_path):
    with pytest.raises(ConfigError, match="is not a run"):
        findings(tmp_path / "nowhere")
    (tmp_path / "run.json").write_text("{bad")
    assert [finding.code for finding in findings(tmp_path)] == [DAMAGED]
