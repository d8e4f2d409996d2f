"""Runs that several tests look at."""

import pytest

from view.runs_to_view import crowd, said, train, write_run
from view.serving import serving


@pytest.fixture(scope="session")
def shown_runs(tmp_path_factory):
    """A run of the real trainer beside two made-up ones of the same name."""
    folder = tmp_path_factory.mktemp("shown")
    train(folder / "a")
    episodes = {1: crowd(12), 2: crowd(12, 1), 3: [said("Hello", "Bye", seed=7, tools=["look"])]}
    write_run(folder / "b" / "talk", episodes)
    write_run(folder / "c" / "talk", {1: [said("Hello")]}, status="stopped: no space")
    write_run(folder / "b" / "talk", {3: [said("Test", seed=7)]}, kind="eval-greedy")
    return folder


@pytest.fixture(scope="session")
def client(shown_runs):
    with serving(shown_runs) as client:
        yield client
