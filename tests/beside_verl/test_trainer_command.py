"""`turnwise train --engine` and `--dry-run`, beside a VERL that is really there."""

import pytest
import yaml

from turnwise.cli import main

SETTINGS = {
    "environment": {"name": "guess-number"},
    "training": {"adv_estimator": "grpo", "batch_size": 4, "group_size": 2},
    "ray": {"use_ray": True},
}


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """`run("--dry-run")` is `turnwise train my.yaml --dry-run`: its exit code and two texts."""
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(SETTINGS))
    monkeypatch.chdir(tmp_path)

    def train(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["train", "my.yaml", *words])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return train


def test_a_dry_run_prints_verls_config_and_starts_nothing(run, tmp_path):
    import ray

    code, out, err = run(
        *("--engine", "verl", "--dry-run", "--name", "first"),
        *("training.learning_rate=3e-5", "trainer.nnodes=2", "+ray_kwargs.ray_init.address=auto"),
    )
    assert code == 0, err
    config = yaml.safe_load(out)
    assert config["actor_rollout_ref"]["rollout"]["n"] == 2
    assert config["actor_rollout_ref"]["actor"]["optim"]["lr"] == 3e-5
    assert config["algorithm"]["adv_estimator"] == "grpo"
    # What is of none of our sections is VERL's.
    assert config["trainer"]["nnodes"] == 2
    assert config["ray_kwargs"]["ray_init"]["address"] == "auto"
    assert config["trainer"]["default_local_dir"] == str(tmp_path / "runs/first/verl")
    assert not ray.is_initialized()
    assert [path.name for path in tmp_path.iterdir()] == ["my.yaml"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trainer.nnode=2"], "trainer.nnode"),
        (["training.resample=2"], "training.resample is 2, and VERL has no such setting"),
        (["training.batch_sice=2"], "batch_size"),
        (["--json"], "--json"),
        (["--estimate"], "--estimate"),
    ],
)
def test_what_verl_cannot_do_is_said_at_once(run, words, message):
    code, _, err = run("--engine", "verl", "--dry-run", *words)
    assert code == 2
    assert message in err
    assert "Traceback" not in err


def test_verls_settings_are_unknown_to_other_engines(run):
    code, _, err = run("--engine", "local", "--dry-run", "trainer.nnodes=2")
    assert code == 2
    assert "trainer" in err
