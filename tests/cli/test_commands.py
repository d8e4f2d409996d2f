"""`turnwise check-env`, `envs`, `config`, `--version` and the help texts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from turnwise import __version__
from turnwise.config import ConfigStore


def test_check_env_on_a_sound_environment(turnwise, coins, tmp_path):
    file = tmp_path / "coins.py"
    file.write_text(file.read_text().replace("{}[action]", '"Ouch.", 0.0, False, {}'))
    ran = turnwise("check-env", coins)
    assert ran.code == 0, ran.out
    assert "✓ passed: make, signature" in ran.out
    assert ran.out.endswith("coins.py:Coins: no findings\n")


def test_check_env_says_what_is_wrong_and_the_cure(turnwise, coins, tmp_path):
    (tmp_path / "leaky.py").write_text(
        "from coins import Coins\n"
        "class Leaky(Coins):\n"
        "    total = 0\n"
        "    def reset(self):\n"
        "        self.total += 1\n"
        "        return super().reset() + f' Game {self.total}.'\n"
    )
    ran = turnwise("check-env", "leaky.py:Leaky", "--episodes", "3")
    assert ran.code == 1
    assert "✗ error  leaked-state\n" in ran.out
    assert "\n  fix: Write `self.total = 1` in reset()." in ran.out
    assert "- not run until the above is fixed: " in ran.out
    assert ran.out.endswith("leaky.py:Leaky: 1 error\n")


def test_envs_lists_every_name_with_a_line(turnwise):
    ran = turnwise("envs")
    assert ran.code == 0
    for name in ("guess-number", "grid-world", "simple-game", "gym:", "textarena:"):
        line = next(line for line in ran.out.splitlines() if line.startswith(name))
        assert len(line.split(maxsplit=1)[1]) > 10
    assert "path/to/file.py:ClassName" in ran.out


def test_config_prints_a_file_that_loads(turnwise, tmp_path):
    ran = turnwise("config", "training.learning_rate=3e-5")
    assert ran.code == 0
    assert "  # Learning rate.\n  learning_rate: 3.0e-05\n" in ran.out
    file = tmp_path / "my.yaml"
    file.write_text(ran.out)
    assert ConfigStore.load(file) == ConfigStore.load(overrides=["training.learning_rate=3e-5"])


def test_config_reads_a_file_both_ways(turnwise, tmp_path):
    (tmp_path / "small.yaml").write_text("training:\n  batch_size: 3\n")
    by_path = turnwise("config", f"{tmp_path}/small.yaml", "training.seed=9")
    assert yaml.safe_load(by_path.out)["training"]["batch_size"] == 3
    assert yaml.safe_load(by_path.out)["training"]["seed"] == 9
    by_name = turnwise("config", "--config-path", str(tmp_path), "--config-name", "small")
    assert yaml.safe_load(by_name.out)["training"]["batch_size"] == 3


def test_version_and_help(turnwise):
    assert turnwise("--version").out == f"turnwise {__version__}\n"
    text = turnwise("--help").out
    assert "turnwise train" in text
    listed = [line.split()[1] for line in text.partition("Commands")[2].splitlines() if "│" in line]
    ours = [name for name in listed if name in ("train", "eval", "view", "config", "serve")]
    assert ours == ["train", "eval", "view", "config", "serve"]  # what is used most comes first
    for command in (
        *("train", "eval", "export", "init", "doctor"),
        *("play", "check-env", "envs", "config", "chat", "serve"),
    ):
        text = turnwise(command, "--help").out
        assert "Examples" in text
        assert f"turnwise {command}" in text


@pytest.mark.parametrize(("module", "code"), [("typer", 130), ("signal", 130)])
def test_ctrl_c_while_the_command_is_imported_has_no_traceback(tmp_path, module, code):
    (tmp_path / f"{module}.py").write_text("import os\nos.kill(os.getpid(), 2)\npass\n")
    source = str(Path(__file__).parents[2] / "src")
    path = os.pathsep.join([str(tmp_path), source])
    ran = subprocess.run(
        [sys.executable, "-m", "turnwise", "envs"],
        check=False,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (code, "", "")


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "CLICOLOR_FORCE", "TTY_COMPATIBLE"])
def test_a_pipe_is_no_terminal_whatever_a_notebook_sets(turnwise, coins, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    ran = turnwise("check-env", coins)
    assert "\x1b" not in ran.out + ran.err
    assert "checking" not in ran.out + ran.err


@pytest.mark.parametrize(
    ("variables", "spins"),
    [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_waiting_threads_soon_leave_the_core_to_others_unless_the_user_decides(
    turnwise, monkeypatch, variables, spins
):
    """GNU OpenMP reads it when torch is loaded, which no command does at once: see below."""
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    turnwise("--version")
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_commands_never_import_torch():
    """`--help` and a game must start at once; torch alone takes seconds."""
    code = (
        "import sys, io; sys.stdin = io.StringIO('quit'); from turnwise.cli import main\n"
        "for words in (['--help'], ['config'], ['envs'], ['check-env', 'guess-number'],"
        " ['play', 'guess-number']):\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "assert 'torch' not in sys.modules\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    subprocess.run(
        [sys.executable, "-c", code], check=True, env=environment, stdout=subprocess.DEVNULL
    )
