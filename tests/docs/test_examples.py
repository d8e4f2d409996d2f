"""The Python examples in the README and the docs, run from top to bottom of each page."""

import re
from pathlib import Path

import pytest

from turnwise import Trainer

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(r'^```python(?: title="([^"]+)")?\n(.*?)^```', re.M | re.S)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture
def short_runs(monkeypatch):
    """Training as on the page, but for one small step: the page's own would take minutes."""
    fit = Trainer.fit

    def fit_shortly(self, num_epochs=None, num_iters_per_epoch=None):
        training = self.config.training
        training.batch_size = min(training.batch_size, 4)
        training.warm_start_steps = 1
        training.eval_episodes = min(training.eval_episodes, 2)
        return fit(self, num_epochs=1, num_iters_per_epoch=1)

    monkeypatch.setattr(Trainer, "fit", fit_shortly)


@pytest.mark.usefixtures("short_runs")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_run(page, tmp_path, monkeypatch):
    if page.name == "verl.md":
        pytest.importorskip("verl", reason="runs beside VERL")
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "example"}
    for title, example in EXAMPLE.findall(page.read_text()):
        if title:  # a file that the page tells to save
            Path(title).write_text(example)
        exec(compile(example, title or page.name, "exec"), names)
