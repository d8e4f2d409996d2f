"""Rows of the evaluation dataset that are trained on are named, when a run begins and later."""

import json

from typer.testing import CliRunner

from trainer.runs import Listener
from trainer.worlds import Echo, small_trainer, training
from turnwise.cli import app

QUICK = (
    *training("warm_start=null batch_size=2 num_epochs=1"),
    "inference.max_tokens=1",
)
ROWS = [{"word": word, "size": {"x": 1, "y": 2}} for word in "ab"]
SAME = [{"size": {"y": 2, "x": 1}, "word": "b"}, {"word": "c"}, {"word": "d"}]


def test_a_run_says_it_when_it_begins_and_so_does_the_doctor(tmp_path):
    file = tmp_path / "other name.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in SAME))
    listener = Listener()
    options = {"dataset": ROWS, "eval_dataset": str(file), "reporter": listener}
    with small_trainer(tmp_path / "runs", Echo, *QUICK, **options) as trainer:
        trainer.fit()
    text = (
        "1 of 3 rows of eval_dataset are also in the training dataset: evaluations are in part on "
        "rows that are trained on, and look better than they would on new rows."
    )
    (warning,) = [said for said in listener.said if said.startswith("warning: ")]
    assert warning.startswith(f"warning: {text} Remove these rows from one of the two datasets")
    shown = CliRunner().invoke(app, ["doctor", str(trainer.run_folder), "--json"])
    found = {finding["code"]: finding for finding in json.loads(shown.stdout)["now"]}
    assert found["shared-rows"]["text"] == text
    assert "training.eval_fraction" in found["shared-rows"]["fix"]
