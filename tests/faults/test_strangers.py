"""Pages of other sites cannot use the model of a run."""

import pytest

from agents.serving import QUESTION, ask, make_session
from turnwise.agents.gateway import Gateway

CHAT = "/chat/completions"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost:8000"}, 200),
        ({"host": "rebound.example:8000"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://203.0.113.5"}, 403),
        ({"origin": "http://localhost:3000"}, 200),
    ],
)
def test_pages_of_other_sites_cannot_use_a_model_without_a_key(headers, status):
    with Gateway() as gateway:
        llm = gateway.open_at_root(make_session(), None)
        body = {"model": llm.model, "messages": QUESTION}
        assert ask(llm, CHAT, body, headers=headers)[0] == status
        with_key = gateway.open_at_root(make_session(), "secret")
        assert ask(with_key, CHAT, body, headers=headers)[0] == 200
