"""Runs to look at, a viewer that shows them, a browser that looks: each made once."""

import numpy as np
import pytest

from browser.browsing import LAPTOP, Visitor, chromium
from browser.hostile import hostile_episodes
from turnwise.runs.episode_store import EpisodeStore
from turnwise.types import EpisodeStatus
from view.runs_to_view import said, train, write_run
from view.serving import serving

NUM_LONG = 10_000


def tool_episodes(step):
    """Four seeds that come again at every step, and one episode that failed."""
    words = ["Look around.", "Take the lamp.", "Go north."]
    played = [
        said(
            *words[: seed + 1],
            seed=2**62 + seed,
            reward=[-0.5, 0.0, 0.25 * step, 1.0][seed],
            tools=["look", "take"][: seed + 1],
            told=f"You are in room {seed} at step {step}.",
            status=EpisodeStatus.TRUNCATED_BY_TURNS if seed == 1 else EpisodeStatus.DONE,
        )
        for seed in range(4)
    ]
    error = EpisodeStatus.ENVIRONMENT_ERROR
    return [*played, said("Oops.", seed=9, status=error, error="the lamp broke")]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    train(folder)  # "real": the real trainer, two steps and two evaluations
    write_run(folder / "tools", {step: tool_episodes(step) for step in (1, 2, 3)})
    nothing_earned = {"reward": 0.0, "reward_std": 0.0, "success": 0.0}
    ill = {step: [said("No idea.")] for step in range(1, 13)}
    write_run(folder / "ill", ill, metrics=nothing_earned)
    write_run(folder / "hostile", {1: hostile_episodes()})
    write_long(folder / "long")
    return folder


def write_long(folder):
    """One turn of very many tokens, with an advantage for each."""
    episode = said("x" * NUM_LONG, seed=1, reward=1.0)
    write_run(folder, {1: [episode]})
    length = len(episode.agents[0].stream)
    rising = np.linspace(-1, 1, length, dtype=np.float32)[None]
    columns = {"advantages": rising, "log_probs": np.full((1, length), -0.75, np.float32)}
    EpisodeStore(folder / "episodes", 1e9).write(1, [episode], columns)


@pytest.fixture(scope="session")
def viewer(runs):
    with serving(runs) as client:
        yield client


@pytest.fixture(scope="session")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def visitor(browser, viewer):
    """One who comes for the first time, with a laptop."""
    context = browser.new_context(viewport=LAPTOP, accept_downloads=True)
    visitor = Visitor(context, viewer.port)
    yield visitor
    visitor.check()
    context.close()
