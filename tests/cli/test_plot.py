"""`turnwise plot`: seeds become a mean and a band, experiments become curves, slips are told."""

import json
from pathlib import Path

import pytest

from turnwise import ConfigStore

pytest.importorskip("matplotlib")


def make_run(name: str, rewards, seed: int = 0, extra=None, **training) -> None:
    """A run's folder as the trainer leaves it."""
    folder = Path("runs", name)
    folder.mkdir(parents=True)
    config = ConfigStore()
    config.training.seed = seed
    for key, value in training.items():
        setattr(config.training, key, value)
    config.save(folder / "config.yaml")
    rows = [
        {
            "step": step,
            "num_episodes": 10,
            "num_sampled_tokens": 100 + seed,
            "reward": reward,
            "success": reward / 2,
            "time/step": 30.0,
            **(extra or {}),
        }
        for step, reward in enumerate(rewards, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def drawn(turnwise, *arguments):
    """What is said of each curve."""
    ran = turnwise("plot", *arguments)
    assert ran.code == 0, ran.err
    return [line for line in ran.out.splitlines() if " at last" in line]


@pytest.mark.parametrize(
    ("ending", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")]
)
def test_the_ending_chooses_the_format_and_the_same_runs_give_the_same_bytes(
    turnwise, ending, start
):
    make_run("a", [0.1, 0.5, 0.9])
    for name in ("one", "two"):
        ran = turnwise("plot", "runs/a", "-o", f"figures/{name}.{ending}")
        assert ran.code == 0, ran.err
        assert "reward 0.9 at last" in ran.out
        assert f"figures/{name}.{ending}" in ran.out
    one, two = (Path(f"figures/{name}.{ending}").read_bytes() for name in ("one", "two"))
    assert one.startswith(start)
    assert one == two


def test_runs_that_differ_in_their_seed_are_one_curve(turnwise):
    for seed in range(3):
        make_run(f"gae-{seed}", [seed, 1.0 + seed], seed=seed, num_epochs=3 + seed)
        make_run(f"grpo-{seed}", [0.0, 0.5], seed=seed, adv_estimator="grpo")
    runs = sorted(str(path) for path in Path("runs").iterdir())
    assert drawn(turnwise, *runs) == [
        "adv_estimator gae (3 seeds): reward 2 at last, success 1 at last",
        "adv_estimator grpo (3 seeds): reward 0.5 at last, success 0.25 at last",
    ]
    # The legend says what the band is.
    turnwise("plot", *runs, "-o", "c.svg", "--label", "PPO", "--label", "GRPO")
    picture = Path("c.svg").read_text(encoding="utf-8")
    for words in ("band: min to max", "PPO (3 seeds)", "GRPO (3 seeds)", "training step"):
        assert words in picture
    turnwise("plot", runs[0], "-o", "c.svg")
    assert "band" not in Path("c.svg").read_text(encoding="utf-8")


def test_a_mean_ends_with_its_shortest_run(turnwise):
    make_run("a", [0, 1, 2, 3, 4, 5], seed=0)
    make_run("b", [0, 1, 2, 3], seed=1)
    (line,) = drawn(turnwise, "runs/a", "runs/b", "-m", "reward")
    assert line.endswith("reward 3 at last")


def test_a_metric_that_is_not_there_in_every_step_is_drawn_where_it_is(turnwise):
    make_run("a", [1, 2, 3, 4])
    file = Path("runs/a/metrics.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["eval/greedy/reward"], rows[3]["eval/greedy/reward"] = 0.5, 0.75
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (line,) = drawn(turnwise, "runs/a", "-m", "eval/greedy/reward")
    assert line.endswith("eval/greedy/reward 0.75 at last")


def test_smoothing_takes_the_noise(turnwise):
    make_run("a", [step % 2 for step in range(100)])
    (line,) = drawn(turnwise, "runs/a", "-m", "reward", "-o", "c.svg")
    assert 0.3 < float(line.split()[-3]) < 0.7
    assert "smoothed over 5 points" in Path("c.svg").read_text(encoding="utf-8")


def test_metrics_without_settings_are_drawn_too(turnwise):
    make_run("a", [1, 2])
    Path("metrics.jsonl").write_text(Path("runs/a/metrics.jsonl").read_text())
    assert len(drawn(turnwise, "metrics.jsonl")) == 1
    assert len(drawn(turnwise, "runs/a", "runs/a")) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs/empty"], "no step of this run was finished yet"),
        (["runs/a", "-m", "rewrad"], "Did you mean 'reward'?"),
        (["runs/a", "runs/other", "-m", "odd"], "runs/a has no metric 'odd'"),
        (["runs/a", "-o", "a.gif"], "expected a name that ends in .png, .svg or .pdf"),
        (["runs/a", "-o", "runs/a/metrics.jsonl/a.png"], "runs/a/metrics.jsonl"),
        (["runs/a", "--label", "a", "--label", "b"], "there are 1 curves"),
        ([], "Missing argument"),
    ],
)
def test_a_mistake_is_a_message_and_no_picture(turnwise, arguments, message):
    make_run("a", [1, 2])
    make_run("other", [1, 2], extra={"odd": 1.0}, adv_estimator="grpo")
    make_run("empty", [])
    ran = turnwise("plot", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert "Traceback" not in ran.err
    assert not Path("curve.png").exists()
