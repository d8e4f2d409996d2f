"""The loss, the parser and the engine of CONTRIBUTING.md, taken from the page and used by name."""

import importlib
import re
import sys
from pathlib import Path

import pytest

from turnwise import (
    BaseEnvironment,
    ConfigStore,
    EpisodeCollector,
    Trainer,
    create_inference_engine,
)
from turnwise.tools import ToolCall, get_parser

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
BLOCKS = dict(re.findall(r'^```python title="([^"]+)"\n(.*?)^```', PAGE, re.M | re.S))
TABLES = dict(re.findall(r"`([A-Z_]+)` in `([\w.]+)`", PAGE))


class Length(BaseEnvironment):
    """One turn, whose reward varies with what is said."""

    def reset(self):
        return "Say something."

    def step(self, action):
        return "", float(sum(map(ord, action)) % 7), True, {}

    def get_state_description(self):
        return "the only one"


@pytest.fixture
def add(tmp_path, monkeypatch):
    """Returns a function that saves a file of the page and adds its line to the table."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def add(file, table):
        Path(file).write_text(BLOCKS[file])
        place = importlib.import_module(TABLES[table])
        monkeypatch.delitem(sys.modules, Path(file).stem, raising=False)
        names = vars(place) | vars(importlib.import_module(Path(file).stem))
        (line,) = BLOCKS[table].splitlines()
        ((name, entry),) = eval(f"{{{line}}}", dict(names)).items()
        monkeypatch.setitem(getattr(place, table), name, entry)
        return name

    yield add
    for file in tmp_path.glob("*.py"):
        sys.modules.pop(file.stem, None)


def test_every_folder_and_table_of_the_page_exists():
    folders = re.findall(r"^\| an? [\w ]+ \| `([^`]+)` \| `([A-Z_]+)`", PAGE, re.M)
    assert len(folders) == len(TABLES) == 7
    for folder, table in folders:
        assert (ROOT / folder).exists()
        assert isinstance(getattr(importlib.import_module(TABLES[table]), table), dict)


def test_a_policy_loss_is_one_file_and_one_line(add):
    config = ConfigStore()
    config.training.policy_loss = add("linear.py", "POLICY_LOSSES")
    config.training.batch_size, config.inference.max_tokens = 4, 4
    with Trainer(config, Length, reporter=None) as trainer:
        history = trainer.fit(num_epochs=1, num_iters_per_epoch=2)
    assert [step["step"] for step in history] == [1, 2]
    assert all(step["grad_norm"] > 0 for step in history)


def test_a_parser_is_one_file_and_one_line(add):
    parser = get_parser(add("arrow.py", "PARSERS"))
    call = ToolCall("buy", {"item": "tea", "number": 2})
    result = parser.parse(f"I need tea. {parser.render(call)}")
    assert result.calls == [call]
    assert result.text == "I need tea."
    assert parser.parse('-> buy {"item": ').malformed
    assert parser.parse("nothing to buy").is_empty


def test_an_engine_is_one_file_and_one_line(add):
    backend = add("constant.py", "ENGINES")
    with create_inference_engine("tiny", backend=backend) as engine:
        collection = EpisodeCollector(engine, "guess-number").collect_sync(1)
    (result,) = collection
    assert result.status.value == "done" or result.status.is_truncated
    assert set(result.trajectory.actions) == {"4"}
