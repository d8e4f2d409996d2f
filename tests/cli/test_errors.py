"""What goes wrong for a user ends in one clear message and an exit code, never in a traceback."""

import sys
from pathlib import Path

import pytest

FAULTY = """
from turnwise import BaseEnvironment


class Faulty(BaseEnvironment):
    max_steps = 3
    quick = True

    def reset(self):
        return {}["nothing"] if self.config.get("where") == "reset" else "Begin."

    def step(self, action):
        return [][3] if self.config.get("where") == "step" else ("", 1.0, True, {})

    def get_state_description(self):
        return "here"


class Late(Faulty):
    def __init__(self, config=None):
        super().__init__(config)
        raise OSError("the database is away")
"""


@pytest.fixture
def folder(my_yaml, tmp_path):
    (tmp_path / "faulty.py").write_text(FAULTY)
    (tmp_path / "unimportable.py").write_text("import no_such_package_anywhere\n")
    (tmp_path / "unparsable.py").write_text("class Half(\n")
    (tmp_path / "rows.jsonl").write_text(
        '{"prompt": "1 + 1", "solution": "2"}\n{"solutoin": "4"}\n'
    )
    (tmp_path / "bytes.yaml").write_bytes(b"\x00\xff\xfe\x80")
    return tmp_path


def is_told(ran, *words: str, codes=(1, 2)) -> None:
    """One message, which says these words, and nothing of Python's own."""
    everything = ran.out + ran.err
    assert ran.code in codes, everything
    assert "Traceback" not in everything
    for word in words:
        assert word in everything, everything
    assert len(ran.err.strip().splitlines()) <= 3, ran.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "my.yaml", "model.model_name=models/none"], ["models/none", "built-in name"]),
        (["train", "my.yaml", "model.local_path=empty"], ["empty"]),
        (["eval", "models/none", "--env", "grid-world"], ["models/none"]),
        (["chat", "models/none"], ["models/none"]),
        (["train", "my.yaml", "training.sead=1"], ["Did you mean 'seed'?"]),
        (["train", "none.yaml"], ["there is no configuration file none.yaml"]),
        (["train", "bytes.yaml"], ["bytes.yaml"]),
        (["train", "."], [". is not a run"]),
        (["train", "my.yaml", "--resume"], ["no run to resume"]),
        (["train", "my.yaml", "logging.sinks=[nothing]"], ["nothing"]),
        (["train", "my.yaml", "inference.backend=vllm"], ["vllm"]),
        (["view", "nowhere/at/all"], ["there is no run nowhere/at/all"]),
        (["train", "runs/nope"], ["there is no run runs/nope"]),
        (["train", "my.yaml", "--dry-run", "training.policy_loss=nope"], ["policy loss 'nope'"]),
        (["eval", "."], ["--env guess-number"]),
        (
            ["train", "my.yaml", "dataset.path=openai/gsm8k"],
            ["there is no file openai/gsm8k", "datasets.load_dataset(NAME, split='train')"],
        ),
        (
            ["train", "my.yaml", "dataset.path=rows.jsonl", "dataset.columns={answer: solution}"],
            ["rows.jsonl, line 2 has no 'solution', which dataset.columns names", "'solutoin'"],
        ),
        (["export", "my.yaml", "out"], ["my.yaml"]),
        (["eval", "tiny"], ["A model plays in an environment that you name: --env guess-number"]),
        (["eval", ".", "--env", "grid-world"], [". is no folder with a model"]),
        (["eval", "tiny", "--env", "grid-wrld"], ["Did you mean 'grid-world'?"]),
        (["play", "gues-number"], ["Did you mean 'guess-number'?"]),
        (["play", "guess-number", "--param", "size"], ["--param got 'size', expected KEY=VALUE"]),
        (["chat", "./nowhere"], ["there is no folder ./nowhere"]),
        (["chat", "tiny", "--top-p", "0"], ["top_p got 0.0, expected"]),
        (["chat", "tiny", "--dtype", "float64"], ["dtype got 'float64', expected auto"]),
        (["chat", "tiny", "--template", "chatlm"], ["Did you mean 'chatml'?"]),
        (["chat", "http://localhost:1"], ["is a server"]),
        (["init", "my-env"], ["for example my_env."]),
        (["init", "class"], ["for example my_env."]),
        (["init", "test_me"], ["cannot be the name"]),
        (["init", "turnwise"], ["cannot be the name"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_wrong_name_or_setting(turnwise, arguments, words):
    for place in ("empty", "models"):
        Path(place).mkdir()
    is_told(turnwise(*arguments), *words, codes=(2,))
    assert not Path("runs").exists()
    assert not Path(arguments[1]).is_dir() or arguments[1] == "."


@pytest.mark.parametrize("command", [("train", "my.yaml"), ("check-env",), ("play",)])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("unimportable.py:Env", ["no_such_package_anywhere"]),
        ("unparsable.py:Half", ["unparsable.py", "line 1"]),
        ("none.py:Env", ["none.py"]),
        ("faulty.py:Fautly", ["Did you mean 'Faulty'?"]),
        ("faulty.py:Late", ["the database is away"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_an_environment_that_cannot_be_made(turnwise, command, name, words):
    named = f"environment.name={name}" if command[0] == "train" else name
    is_told(turnwise(*command, named), *words)


@pytest.mark.parametrize("where", ["reset", "step"])
@pytest.mark.usefixtures("folder")
def test_an_environment_that_fails_while_it_is_played(turnwise, where):
    what = "KeyError" if where == "reset" else "IndexError"
    param = ["--param", f"where={where}"]
    played = turnwise("play", "faulty.py:Faulty", *param, typed="go\n")
    is_told(played, what, codes=(1,))
    is_told(turnwise("check-env", "faulty.py:Faulty", *param), what, codes=(1,))
    few = ["--episodes", "2"]
    is_told(turnwise("eval", "tiny", "--env", "faulty.py:Faulty", *param, *few), what)
    trained = turnwise(
        *("train", "my.yaml", "environment.name=faulty.py:Faulty"),
        *(f"environment.params.where={where}", "training.on_error=fail", "--lines"),
    )
    assert trained.code == 1, trained.err
    assert what in trained.err
    assert "Traceback" not in trained.err


def test_checkpoints_that_are_damaged_or_none(turnwise, run):
    (saved,) = Path(run, "checkpoints").glob("step-*")
    weights = max(saved.rglob("*"), key=lambda path: path.stat().st_size)
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    for command in (["eval", run], ["export", run, "out"]):
        is_told(turnwise(*command), weights.name)
    is_told(turnwise("eval", run, "--checkpoint", "my.yaml"), "checkpoint", codes=(2,))
    is_told(turnwise("export", "runs", "out"), f"Name one of them: {run}", codes=(2,))
    assert not Path("out").exists()


@pytest.mark.parametrize("place", ["/proc/out", "my.yaml/out"])
def test_a_place_that_cannot_be_written(turnwise, run, place):
    for command in (
        ["train", "my.yaml", "--output", place],
        ["export", run, place],
        ["init", f"{place}/my_env"],
        ["plot", run, "-o", f"{place}/a.png"],
    ):
        is_told(turnwise(*command), place.partition("/out")[0])


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("gymnasium", "gym", ["check-env", "gym:CartPole-v1"]),
        ("textarena", "textarena", ["play", "textarena:TicTacToe-v0", "--player", "random"]),
        ("matplotlib", "plot", ["plot", "runs/mine"]),
        ("mlflow", "mlflow", ["train", "my.yaml", "--dry-run", "logging.sinks=mlflow"]),
        ("starlette", "view", ["view", "runs"]),
        ("peft", "peft", ["train", "my.yaml", "training.lora_rank=2"]),
        ("ray", "ray", ["train", "my.yaml", "ray.use_ray=true"]),
    ],
)
@pytest.mark.usefixtures("folder")
def test_an_extra_that_is_missing(turnwise, monkeypatch, package, extra, arguments):
    # Ray cannot be imported a second time, and its parts are never asked for by name.
    dropped = ["turnwise.env.adapters", "turnwise.scale.ray"]
    dropped += [] if package == "ray" else [package]
    for module in list(sys.modules):
        if any(f"{module}.".startswith(f"{name}.") for name in dropped):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    is_told(turnwise(*arguments), f"pip install 'turnwise[{extra}]'", codes=(2,))
