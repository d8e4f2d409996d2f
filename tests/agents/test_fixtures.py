"""What real clients sent, replayed: one conversation each, with the branches they had."""

import json
from pathlib import Path

import pytest

from agents.serving import ask, serving
from beside_agents.expert import expert_turn
from turnwise.agents.session import AgentSession
from turnwise.episode import CollectorOptions
from turnwise.episode.options import make_setup
from turnwise.inference.scripted import ScriptedEngine
from turnwise.models import load_tokenizer

FIXTURES = sorted(Path(__file__).with_name("fixtures").glob("*.json"))


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.stem)
def test_the_requests_of_real_clients(path):
    recorded = json.loads(path.read_text("utf-8"))
    engine = ScriptedEngine(load_tokenizer("tiny"), expert_turn)
    session = AgentSession(make_setup(engine, CollectorOptions(parser="hermes")))
    last = None
    with serving(session) as (_, _, llm):
        for request in recorded["requests"]:
            body = request["body"]
            if body.get("previous_response_id"):
                body["previous_response_id"] = last
            status, found = ask(llm, request["path"], body)
            assert status == 200, found
            if request["path"] == "/responses":
                last = found[-1]["response"]["id"] if body.get("stream") else found["id"]
    turns = [r for r in recorded["requests"] if not r["path"].endswith("count_tokens")]
    assert len(session.tree.turns) == sum(r["body"].get("n") or 1 for r in turns)
    assert len(session.tree.stream().branches) == recorded["num_branches"]
