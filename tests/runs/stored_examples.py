"""Random episodes, for the law that what is stored is what comes back."""

from hypothesis import strategies as st

from turnwise.chat import TokenStream
from turnwise.episode import EpisodeResult
from turnwise.episode.types import AgentRecord, TurnRecord
from turnwise.inference import FinishReason
from turnwise.reward import Reward
from turnwise.tools import ToolCall, ToolFailure, ToolResult
from turnwise.types import EpisodeStatus

TEXT = st.text(max_size=12)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
SECONDS = st.dictionaries(
    st.sampled_from(["engine", "environment", "tools"]), st.floats(0, 100), max_size=3
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | FINITE | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def calls(draw):
    """Tool calls, and the results of the first ones."""
    made = draw(
        st.lists(st.builds(ToolCall, TEXT, st.dictionaries(TEXT, JSON, max_size=2)), max_size=3)
    )
    num_done = draw(st.integers(0, len(made)))
    results = []
    for call in made[:num_done]:
        failure = draw(st.none() | st.sampled_from(ToolFailure))
        call.success, call.result = failure is None, draw(JSON)
        results.append(ToolResult(call.name, call.success, "", seconds=0.25, failure=failure))
    return made, results


@st.composite
def agents(draw, name="agent"):
    stream, messages, turns = TokenStream(), [], []
    context = st.lists(st.integers(0, 70_000), max_size=4)
    stream.add_context(draw(context))
    if draw(st.booleans()):
        messages.append({"role": "user", "content": draw(TEXT)})
    for number in range(draw(st.integers(0, 4))):
        if draw(st.integers(0, 3)) == 0:
            stream.begin_branch(draw(st.integers(0, len(stream))))
            stream.add_context(draw(context))
        ids = draw(st.lists(st.integers(0, 300), min_size=1, max_size=5))
        stream.add_turn(ids, [draw(st.floats(-100, 0, width=32)) for _ in ids])
        text = draw(TEXT)
        made, results = draw(calls())
        turn = TurnRecord(
            stream.turns[-1],
            text,
            draw(st.sampled_from(FinishReason)),
            weight_version=number,
            state=draw(TEXT),
            calls=made,
            tool_results=results,
            malformed=draw(st.none() | TEXT.filter(bool)),
            observation=draw(TEXT),
            reward=draw(FINITE),
            done=draw(st.booleans()),
            info=draw(st.dictionaries(TEXT, JSON, max_size=2)),
            seconds=draw(SECONDS),
        )
        turns.append(turn)
        if draw(st.integers(0, 9)):  # rarely the messages do not have it
            messages.append({"role": "assistant", "content": draw(st.just(text) | TEXT)})
        for _ in range(draw(st.integers(0, 2))):
            told = draw(st.just(turn.observation) | TEXT)
            messages.append({"role": "tool", "name": "look", "content": told})
        stream.add_context(draw(context))
    reward = None
    if draw(st.booleans()):
        small = st.floats(-100, 100)
        per_turn = draw(st.none() | st.just(tuple(draw(small) for _ in turns)))
        reward = Reward(draw(small), per_turn, draw(st.dictionaries(TEXT, small, max_size=2)))
    record = AgentRecord(name, stream, messages, turns, reward=reward)
    record.trajectory.result = draw(st.none() | JSON)
    return record


@st.composite
def episodes(draw):
    names = draw(st.sampled_from([["agent"], ["x", "o"], ["a", "b", "c"]]))
    status = draw(st.sampled_from(EpisodeStatus))
    players = [draw(agents(name)) for name in names]
    if draw(st.integers(0, 4)) == 0:
        players = [AgentRecord()]  # it failed before the first token
    return EpisodeResult(
        seed=draw(st.integers(0, 2**63 - 1)),
        group=draw(st.integers(0, 9)),
        member=draw(st.integers(0, 3)),
        status=status,
        error=draw(st.none() | TEXT.filter(bool)),
        attempt=draw(st.integers(1, 3)),
        agents=players,
        seconds=draw(SECONDS),
    )
