"""A command-line coding agent from npm, run headless as an agent command."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from beside_agents.episodes import RecordingEngine, RecordingGateway, check_tokens, keep_requests
from turnwise.agents.episode import AgentEpisodes
from turnwise.deadlines import run_sync
from turnwise.episode import EpisodeCollector, EpisodeLimits
from turnwise.episode.types import EpisodeTask
from turnwise.inference import SamplingParams
from turnwise.types import EpisodeStatus

PACKAGE, VERSION = "@mariozechner/pi-coding-agent", "0.73.1"


@pytest.fixture(scope="session")
def pi():
    """The program of that version, installed once in the user's cache folder."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs node and npm (Debian: apt-get install npm)")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "turnwise" / "npm" / f"pi-{VERSION}"
    if not (folder / "ready").exists():
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
        subprocess.run([*command, f"{PACKAGE}@{VERSION}"], check=True, timeout=600)
        (folder / "ready").touch()
    return folder / "node_modules" / ".bin" / "pi"


def test_it_writes_a_file_with_its_own_tool(engine, pi, monkeypatch):
    monkeypatch.setenv("PI", str(pi))
    gateway = RecordingGateway()
    monkeypatch.setattr("turnwise.agents.episode.Gateway", lambda: gateway)
    engine = RecordingEngine(engine)
    source = AgentEpisodes(f"{Path(__file__).with_name('pi.sh')} {{task}}")
    collector = EpisodeCollector(
        engine,
        source,
        parser="hermes",
        sampling=SamplingParams(temperature=0.1),
        limits=EpisodeLimits(max_turns=5, max_tokens_per_turn=200),
        num_retries=0,
    )
    try:
        task = EpisodeTask(seed=1, task={"prompt": "Write 42 into answer.txt."})
        (result,) = run_sync(collector.play([task]))
    finally:
        source.close()
    command = result.trajectory.result
    assert (command.exit_code, command.output) == (0, "Done.\n")
    assert result.status is EpisodeStatus.DONE
    assert result.reward.total == 1.0, "read from the file that pi wrote"
    assert [call.name for turn in result.turns for call in turn.calls] == ["write"]
    assert not result.stream.branches
    check_tokens(result.stream, engine.sampled)
    (requests,) = gateway.requests.values()
    places = [(str(pi.parents[2]), "/opt/pi"), (r"/tmp/tmp\.\w+", "/tmp/folder")]
    keep_requests("pi", result.stream, requests, places)
