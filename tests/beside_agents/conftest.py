"""Real clients of the gateway; `make test-agents` runs this folder, in an environment with them."""

import asyncio
import os

import pytest

from beside_agents.episodes import Episode, RecordingGateway, check_tokens
from beside_agents.expert import expert_turn
from beside_agents.practised import practise
from turnwise.inference import GenerationRequest, create_inference_engine
from turnwise.inference.scripted import ScriptedEngine
from turnwise.models import load_tokenizer

# LiteLLM fetches its prices when it is imported, unless this says not to.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"


@pytest.fixture(scope="session")
def engine():
    """The local engine on a model that has learned to call tools."""
    model, tokenizer = practise()
    made = create_inference_engine(model, "local", tokenizer=tokenizer)
    yield made
    made.close()


@pytest.fixture(scope="session")
def gateway():
    with RecordingGateway() as started:
        yield started


@pytest.fixture
def make_episode(engine, gateway):
    """Make episodes; afterwards their tokens are checked, and that the engine holds none."""
    made = []

    def make(**limits):
        made.append(Episode(engine, gateway, limits))
        return made[-1]

    yield make
    for each in made:
        asyncio.run(gateway.close(each.llm))
        check_tokens(each.session.tree.stream(), each.engine.sampled)

    async def turns_of_nobody():
        # The engine forgets sessions before its next turn; one without a name holds none.
        for _ in range(2):
            await engine.sample(GenerationRequest([5], 1))

    asyncio.run(turns_of_nobody())
    assert engine._runner.kv_cache.num_allocated == 0


@pytest.fixture
def episode(make_episode):
    return make_episode()


@pytest.fixture
def thinking_episode(gateway):
    """Make episodes of a policy that thinks before it does what the expert does."""
    made = []

    def think_first(prompt):
        return f"<think>Hm.</think>{expert_turn(prompt)}"

    def make(thoughts):
        engine = ScriptedEngine(load_tokenizer("tiny"), think_first)
        made.append(Episode(engine, gateway, {}, thoughts))
        return made[-1]

    yield make
    for each in made:
        asyncio.run(gateway.close(each.llm))
        check_tokens(each.session.tree.stream(), each.engine.sampled)
