"""Makes the documentation's pictures of the viewer again: trains, opens each view, takes it.

    python docs/pictures/viewer.py [--runs FOLDER]

It takes some minutes; runs that the folder has already are not made again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from playwright.sync_api import expect  # noqa: E402 - found on the path just made

from browser.browsing import Visitor, chromium  # noqa: E402
from turnwise import (  # noqa: E402
    BaseEnvironment,
    ConfigStore,
    StepResult,
    Trainer,
    tool,
)
from view.agent_runs import write_agent_run  # noqa: E402
from view.serving import serving  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
SIZE = {"width": 1366, "height": 768}


class Safe(BaseEnvironment):
    """Read the note, then dial the code on it."""

    quick = True
    max_steps = 3

    def reset(self):
        self.code, self.known = self.rng.randrange(2, 9), False
        return "The safe is shut."

    @tool(inline=True)
    def read_note(self) -> str:
        """Read the note beside the safe."""
        self.known = True
        return f"Code: {self.code}"

    @tool(inline=True)
    def dial(self, code: int) -> StepResult:
        """Dial a code. There is one try."""
        right = code == self.code
        said = "It opens." if right else "Alarm!"
        return StepResult(said, float(right), True, False, {"success": right})

    def step(self, action):
        return "Call a tool.", -0.1, False, {"invalid_action": True}

    def get_state_description(self):
        return f"The code is {self.code}, and {'known' if self.known else 'not known'}."

    def get_prompt_prefix(self):
        return "Open the safe."

    def expert_action(self):
        if not self.known:
            return json.dumps({"tool": "read_note", "arguments": {}})
        return json.dumps({"tool": "dial", "arguments": {"code": self.code}})


def open_the_safe(folder):
    settings = [
        f"checkpoint.output_dir={folder}",
        "checkpoint.run_name=open-the-safe",
        "inference.max_tokens=48",
        "inference.max_turns=3",
        "training.adv_estimator=gae",
        "training.batch_size=32",
        "training.warm_start=expert",
        "training.warm_start_steps=90",
        "training.warm_start_learning_rate=0.003",
        "training.learning_rate=0.0005",
        "training.num_epochs=2",
        "training.steps_per_epoch=4",
        "training.eval_episodes=8",
    ]
    config = ConfigStore.load(None, settings)
    with Trainer(config, Safe, tools=[], resume="never") as trainer:
        trainer.fit()


def guess(folder, name, *settings):
    command = [sys.executable, "-m", "turnwise", "train", "--lines", "--output", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([*command, "--name", name, *settings], check=True, env=environment)


def make_runs(folder):
    made = {
        "guess-number": lambda: guess(folder, "guess-number"),
        "open-the-safe": lambda: open_the_safe(folder),
        "agent": lambda: write_agent_run(folder / "agent"),
    }
    for name, make in made.items():
        if not (folder / name / "run.json").exists():
            make()


def take(visitor, client):
    """A picture of each view."""
    PICTURES.mkdir(exist_ok=True)

    def picture(name):
        visitor.page.mouse.move(0, 0)
        visitor.page.wait_for_timeout(500)  # for transitions to end
        # The picture must not show a folder of this machine, and the page may be drawn again.
        visitor.page.evaluate("document.querySelector('.path')?.remove()")
        visitor.page.screenshot(path=PICTURES / f"viewer-{name}.png")

    best = client.get("/api/runs/open-the-safe/episodes", kind="train", min_reward=0.5, limit=1)
    episode = best["episodes"][0]
    visitor.open("run/guess-number/learn?smooth=0.6")
    expect(visitor.at("[data-metric=entropy] canvas")).to_have_count(1)
    picture("learn")
    visitor.open(f"run/open-the-safe/episodes/{episode['id']}?text=dial&min_reward=0.5&kind=train")
    expect(visitor.at(".turn").first).to_be_visible()
    picture("episodes")
    visitor.open(f"run/open-the-safe/tokens/{episode['id']}?color=advantages")
    expect(visitor.at(".stream .tok").first).to_be_attached()
    picture("tokens")
    visitor.open(f"run/open-the-safe/time/{episode['step']}")
    expect(visitor.at(".time-head h1")).to_be_visible()
    picture("time")
    visitor.open("run/agent/episodes/train-1-0?branch=1")
    expect(visitor.at(".branch-map .branch-turn").first).to_be_visible()
    picture("tree")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, help="where the runs are, or will be")
    asked = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked or Path(temporary)
        make_runs(folder)
        with serving(folder) as client, chromium() as browser:
            visitor = Visitor(browser.new_context(viewport=SIZE), client.port)
            take(visitor, client)
            visitor.check()
    for path in sorted(PICTURES.glob("viewer-*.png")):
        print(path.relative_to(ROOT), f"{path.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
