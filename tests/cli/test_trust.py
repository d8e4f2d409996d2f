"""A run folder from somebody else: no command runs its code unless the user says so."""

import shutil
from pathlib import Path

import pytest
import yaml

from turnwise import user_code
from turnwise.cli import main
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.models import model_folder
from turnwise.runs.checkpoints import MANIFEST, read_manifest, write_manifest
from turnwise.trainer import load_trained_model

SETTINGS = {
    "environment": {"name": "guess-number", "params": {"low": 1, "high": 3}, "max_steps": 2},
    "inference": {"max_turns": 2, "max_tokens": 2},
    "training": {"num_epochs": 1, "steps_per_epoch": 1, "batch_size": 2, "eval_episodes": 0},
    "checkpoint": {"run_name": "theirs"},
}
# It does its harm when it is imported.
ENVIRONMENT = """
from pathlib import Path
Path({marker!r}).write_text("environment")
from turnwise.env.games import GuessNumberEnvironment as Env
def reward(*arguments, **more):
    return 0.0
"""
MODEL = """
from pathlib import Path
Path({marker!r}).write_text("model")
from transformers import LlamaConfig, LlamaForCausalLM
class EvilConfig(LlamaConfig):
    model_type = "evil"
class EvilModel(LlamaForCausalLM):
    config_class = EvilConfig
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("elsewhere")
    (folder / "my.yaml").write_text(yaml.safe_dump(SETTINGS))
    with pytest.raises(SystemExit) as left:
        main(["train", str(folder / "my.yaml"), "--output", str(folder / "runs")])
    assert not left.value.code
    return folder / "runs/theirs"


@pytest.fixture(autouse=True)
def a_user_who_has_run_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(user_code, "_remembered", set())


@pytest.fixture
def received(trained, tmp_path, monkeypatch):
    """The folder as it came, and the user in the folder that holds it."""
    shutil.copytree(trained, tmp_path / "got/theirs")
    monkeypatch.chdir(tmp_path / "got")
    return tmp_path / "got/theirs"


def change(run: Path, **settings) -> None:
    """Settings of the run and of its checkpoint, sealed anew."""
    checkpoints = [path.parent for path in run.glob(f"checkpoints/*/{MANIFEST}")]
    for folder in [run, *checkpoints]:
        config = ConfigStore.load(folder / "config.yaml")
        for name, value in settings.items():
            section, _, key = name.rpartition("__")
            setattr(getattr(config, section) if section else config, key, value)
        config.save(folder / "config.yaml")
        if folder != run:
            manifest = read_manifest(folder)
            (folder / MANIFEST).unlink()
            write_manifest(folder, manifest.step)


def with_evil_environment(run: Path, marker: Path, place: Path | None = None) -> None:
    place = place or run
    (place / "evil.py").write_text(ENVIRONMENT.format(marker=str(marker)))
    change(run, environment__name=f"{place}/evil.py:Env")


def with_evil_model(run: Path, marker: Path) -> None:
    import json

    folder = run / "model"
    shutil.copytree(model_folder("tiny"), folder)
    (folder / "evil.py").write_text(MODEL.format(marker=str(marker)))
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "evil",
        "architectures": ["EvilModel"],
        "auto_map": {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    change(run, model__local_path=str(folder), model__trust_remote_code=True)


def commands(run: Path) -> list[list[str]]:
    """Every command that reads a run folder or plays with it."""
    checkpoint = str(next(run.glob("checkpoints/step-*")))
    return [
        ["train", str(run), "--estimate"],
        ["train", str(run), "--resume"],
        ["train", str(run), "training.num_epochs=2"],
        ["train", str(run / "config.yaml"), "--fresh"],
        ["train", str(run), "--engine", "verl", "--dry-run"],
        ["eval", str(run), "--episodes", "1"],
        ["eval", str(run), "--episodes", "1", "--checkpoint", "best"],
        ["eval", checkpoint, "--episodes", "1"],
        ["eval", "tiny", "--env", "guess-number", "--checkpoint", checkpoint, "--episodes", "1"],
        ["export", str(run), "exported"],
        ["export", checkpoint, "exported-2"],
    ]


def test_no_command_runs_an_environment_that_comes_with_a_folder(turnwise, received, tmp_path):
    marker = tmp_path / "marker"
    with_evil_environment(received, marker)
    for command in commands(received):
        ran = turnwise(*command)
        assert not marker.exists(), command
        if "export" not in command and "--env" not in command:
            assert ran.code != 0, command
            if "verl" not in command:  # which says first that VERL is missing, where it is
                assert "name code that would be run" in ran.err, (command, ran.err)
                assert "--trust-remote-code" in ran.err


def test_no_command_runs_the_code_of_a_model_that_comes_with_a_folder(turnwise, received, tmp_path):
    marker = tmp_path / "marker"
    with_evil_model(received, marker)
    for command in commands(received):
        ran = turnwise(*command)
        assert not marker.exists(), command
        assert ran.code != 0, command
        if "verl" not in command:
            assert "--trust-remote-code" in ran.err, (command, ran.err)
    with pytest.raises(ConfigError, match="trust_remote_code=True"):
        load_trained_model(received)
    assert not marker.exists()


def test_reading_commands_read(turnwise, received, tmp_path):
    marker = tmp_path / "marker"
    with_evil_environment(received, marker)
    with_evil_model(received, marker)
    ran = turnwise("train", str(received), "--dry-run")
    assert (ran.code, "evil.py:Env" in ran.out) == (0, True), ran.err
    assert turnwise("doctor", str(received)).code == 0
    assert turnwise("plot", str(received)).code == 0
    assert not marker.exists()


def test_the_user_can_allow_it(turnwise, received, tmp_path):
    marker = tmp_path / "marker"
    with_evil_environment(received, marker)
    ran = turnwise("eval", str(received), "--episodes", "1", "--trust-remote-code")
    assert ran.code == 0, ran.err
    assert marker.read_text() == "environment"
    marker.unlink()
    # Allowed for that command; what lies in the folder may be exchanged together with it.
    user_code._remembered.clear()
    assert turnwise("eval", str(received), "--episodes", "1").code != 0
    assert not marker.exists()
    with_evil_model(received, marker)
    change(received, environment__name="guess-number")
    ran = turnwise("export", str(received), "exported", "--trust-remote-code")
    assert (ran.code, marker.read_text()) == (0, "model"), ran.err
    user_code._remembered.clear()
    model, config = load_trained_model(received, trust_remote_code=True)
    assert type(model.model).__name__ == "EvilModel"
    assert config.model.trust_remote_code


@pytest.mark.parametrize(
    "settings",
    [
        {"environment__name": "os:getcwd"},
        {"environment__name": "turnwise.cli:main"},
        {"reward": "os:system"},
        {"reward": "subprocess:call"},
        {"environment__name": "gym:evil:Env-v0"},
        {"environment__name": "openenv:touch evil {port}"},
        {"environment__name": "openenv:http://192.0.2.1"},
        {"ray__use_ray": True, "ray__address": "192.0.2.1:6379"},
        {"inference__backend": "vllm", "inference__url": "http://127.0.0.1:9"},
        {"inference__backend": "sglang", "inference__options": {"weights_dir": "/tmp/theirs"}},
    ],
)
def test_installed_code_is_not_named_by_a_folder_either(turnwise, received, settings):
    """A reward `os:system` would be called with what the folder's model says."""
    Path("evil.py").write_text("raise SystemExit('imported')")
    change(received, **settings)
    for command in (["train", str(received), "training.num_epochs=2"], ["eval", str(received)]):
        is_for_training = any(name.startswith(("ray", "inference")) for name in settings)
        if is_for_training and command[0] == "eval":
            continue
        ran = turnwise(*command)
        assert ran.code == 2
        assert "add --trust-remote-code" in ran.err, ran.err


def test_code_beside_the_folder_is_not_trusted_either(turnwise, received, tmp_path):
    """An archive may hold a whole project: the run, and the environment beside it."""
    marker = tmp_path / "marker"
    with_evil_environment(received, marker, place=received.parent)
    change(received, environment__name="evil.py:Env")
    (received.parent / "numpy.py").write_text(f"open({str(marker)!r}, 'w')")
    for command in (["eval", str(received)], ["train", str(received), "--resume"]):
        assert turnwise(*command).code == 2
        assert not marker.exists()


def test_what_the_user_ran_before_needs_no_word(turnwise, received, tmp_path):
    """Own runs go on as ever: the environment is the one that the user trained with."""
    marker = tmp_path / "marker"
    own = received.parent / "own"
    own.mkdir()
    with_evil_environment(received, marker, place=own)  # not evil: the user's
    with pytest.raises(SystemExit):
        main(["check-env", f"{own}/evil.py:Env", "--episodes", "1"])
    marker.unlink()
    user_code._remembered.clear()  # as in another process, which knows only what was written
    ran = turnwise("eval", str(received), "--episodes", "1")
    assert ran.code == 0, ran.err


def test_another_function_of_a_known_file_is_not_known(turnwise, received, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    with_evil_environment(received, tmp_path / "marker", place=own)
    with pytest.raises(SystemExit):
        main(["check-env", f"{own}/evil.py:Env", "--episodes", "1"])
    change(received, reward=f"{own}/evil.py:reward")
    assert turnwise("eval", str(received), "--episodes", "1").code == 2


def test_an_environment_that_the_user_names_is_his_own(turnwise, received, tmp_path):
    marker = tmp_path / "marker"
    with_evil_environment(received, marker, place=tmp_path)
    ran = turnwise("eval", str(received), "--episodes", "1", "--env", f"{tmp_path}/evil.py:Env")
    assert ran.code == 0, ran.err
    assert marker.exists()
