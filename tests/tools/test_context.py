"""State of an episode: hidden from the model, its own for each episode, closed with it."""

import asyncio
import copy
import pickle
import threading

import pytest

from turnwise.env import GuessNumberEnvironment
from turnwise.tools import ToolCall, ToolContext, ToolRegistry, tool
from virtual_time import Clock, run_in_virtual_time


@tool
def note(text: str, context: ToolContext) -> str:
    """Write a note."""
    notes = context.store.setdefault("notes", [])
    notes.append(text)
    return " ".join(notes)


@tool
def lock(context: ToolContext) -> None:
    """Keep what cannot be copied."""
    context.store["lock"] = threading.Lock()


class Closable:
    def __init__(self, log: list[str], name: str, error: Exception | None = None) -> None:
        self.log, self.name, self.error = log, name, error

    def close(self) -> None:
        self.log.append(self.name)
        if self.error:
            raise self.error


class AsyncClosable(Closable):
    async def aclose(self) -> None:
        await asyncio.sleep(0)
        super().close()


def test_the_model_does_not_see_the_context():
    (definition,) = ToolRegistry([note]).definitions
    assert definition.signature == "note(text: string)"
    success, told = ToolRegistry([note]).execute_tool("note", text="a", context="mine")
    assert not success
    assert "no argument 'context'" in told


def test_without_a_context_the_registrys_own_is_kept_until_it_is_closed():
    registry = ToolRegistry([note])
    assert registry.execute_tool("note", text="a") == (True, "a")
    assert registry.execute_tool("note", text="b") == (True, "a b")
    registry.close()
    registry.close()
    assert registry.execute_tool("note", text="c") == (True, "c")


def test_a_tool_reaches_the_environment():
    def describe(context: ToolContext) -> str:
        assert context.environment is not None
        return context.environment.get_state_description()

    environment = GuessNumberEnvironment()
    registry = ToolRegistry([describe])
    result = registry.execute(ToolCall("describe"), registry.open_context(environment))
    assert result.text == environment.get_state_description()


def test_closing_closes_the_store_newest_first_and_once():
    log: list[str] = []
    context = ToolContext()
    context.store |= {
        "a": Closable(log, "a"),
        "plain": 3,
        "class": Closable,
        "b": Closable(log, "b", ValueError("stuck")),
        "c": AsyncClosable(log, "c"),
    }
    context.close()
    context.close()
    assert log == ["c", "b", "a"]
    assert context.store == {}


def test_what_hangs_while_closing_is_left(caplog):
    log: list[str] = []
    clock, release = Clock(), threading.Event()

    class Hangs:
        def close(self) -> None:
            clock.now += 1.0
            release.wait(60)

    context = ToolContext()
    context.store |= {"first": Closable(log, "first"), "slow": Hangs()}
    run_in_virtual_time(context.aclose(timeout=0.5), clock)
    release.set()
    assert log == ["first"]
    assert "closing slow took longer" in caplog.text


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_a_copy_starts_empty(duplicate):
    registry = ToolRegistry([note, lock])
    registry.execute_tool("note", text="a")
    registry.execute_tool("lock")
    assert duplicate(registry).execute_tool("note", text="b") == (True, "b")
