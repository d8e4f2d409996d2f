"""A notebook as a user runs it, in a real kernel: what it trains, and shows when it fails."""

import json

import nbclient
import nbformat
import pytest

from turnwise.cli import main

DEFINED = """
from turnwise import BaseEnvironment, ConfigStore, Trainer

class Greenhouse(BaseEnvironment):
    max_steps = 2

    def reset(self):
        return "dry"

    def step(self, action):
        return "wet", 1.0, True, {"success": action == "water"}

    def get_state_description(self):
        return ""

def score(trajectory):
    return trajectory.total_reward

config = ConfigStore()
config.training.num_epochs = config.training.steps_per_epoch = 1
config.training.batch_size = config.inference.max_tokens = 2
"""

TRAINED = """
rows = [{"word": "dry"}, {"word": "wet"}]
with Trainer(config, Greenhouse, score, dataset=rows) as trainer:
    trainer.fit()
"""

FAILED = """
class Broken(Greenhouse):
    def step(self, action):
        plants = {}
        return plants["rose"], 1.0, True, {}

Trainer(config, Broken).fit()
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A folder in which a notebook was run, and the outputs of its cells as text."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(source) for source in (DEFINED, TRAINED, FAILED)]
    page = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(page, timeout=240, allow_errors=True, kernel_name="python3")
    client.execute(cwd=str(folder))
    return folder, [[json.dumps(output) for output in cell.outputs] for cell in page.cells]


def test_a_notebook_trains_and_shows_its_own_lines_when_it_fails(notebook):
    folder, (defined, trained, failed) = notebook
    assert defined == []
    assert not any('"output_type": "error"' in output for output in trained)
    # One output, which was updated in place.
    (updated,) = [output for output in trained if "display_data" in output]
    for told in ("runs/Greenhouse", "step 1/1", "finished", "Next: turnwise view"):
        assert told in updated, trained
    assert '"text/html"' in updated
    (error,) = [output for output in failed if '"output_type": "error"' in output]
    told = json.loads(error)["evalue"]
    assert "every episode of the first step failed in the same way" in told
    assert told.splitlines()[-3:] == [
        "environment error: KeyError: 'rose'",
        "  Cell In[3], line 4, in step",
        '    return plants["rose"], 1.0, True, {}',
    ]
    assert (folder / "runs" / "Broken" / "episodes" / "step-000001.parquet").is_file()


def test_what_a_notebook_defined_is_recorded_as_such_and_asked_for(notebook, monkeypatch, capsys):
    folder, _ = notebook
    run = json.loads((folder / "runs" / "Greenhouse" / "run.json").read_text())
    assert run["unrecorded"] == {
        "environment": "<notebook>:Greenhouse",
        "reward": "<notebook>:score",
    }
    assert run["datasets"]["dataset"]["kept"]
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as left:
        main(["eval", "runs/Greenhouse", "--episodes", "2"])
    printed = "".join(capsys.readouterr())
    assert left.value.code == 2
    assert "Greenhouse was defined in a notebook" in printed
    assert "--env" in printed
