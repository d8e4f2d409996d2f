"""A run of agents that own their loop: they call in parallel, try again and compact."""

import itertools
import json
import sys

from agents.test_agents import call
from chat.families import make_format
from turnwise.agents.episode import AgentEpisodes
from turnwise.episode import EpisodeCollector
from turnwise.inference.scripted import ScriptedEngine
from view.runs_to_view import write_run

SYSTEM = {"role": "system", "content": "You fix bugs in Python files. Use the tools."}
TASK = {"role": "user", "content": "test_stack.py fails. Find out why, and fix it."}
FAILS = "FAILED test_stack.py::test_pop - IndexError: pop from empty list"
FILE = "class Stack:\n    def pop(self):\n        return self.items.pop()"


def tool_call(name, **arguments):
    words = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{words}\n</tool_call>"


def policy(prompt):
    """What a model might say to the last message of each conversation."""
    told = prompt.rsplit("<|im_start|>", 2)[-2]
    if "Summarise" in told:
        return "The bug was in Stack.pop: it did not check for an empty stack. Fixed, tests pass."
    if "summary of the work" in told:
        return "Stack.pop now raises StackEmpty on an empty stack; all tests pass."
    if "2 passed" in told:
        return "Both tests pass: the second fix is the right one."
    if "StackEmpty is not defined" in told:
        return "<think>The name is not imported here.</think>I should give up this attempt."
    if "first idea" in told:
        return "Return None for an empty stack. " + tool_call("edit", line=3, text="return None")
    if "second idea" in told:
        return "Raise StackEmpty. " + tool_call("edit", line=3, text="raise StackEmpty()")
    if "class Stack" in told:
        return "pop() of an empty list. There are two ways to fix this."
    if FAILS in told:
        return tool_call("read_file", path="stack.py")
    return "<think>First see what fails.</think>I run the tests. " + tool_call("run_tests")


def forks(task, llm):
    """Two ideas are followed from one point; then a short history is begun."""
    said = [SYSTEM, TASK]

    def turn(messages, *told):
        reply = call(llm, [*messages, *told])
        return [*messages, *told, reply]

    def result(messages, text):
        call_id = messages[-1]["tool_calls"][0]["id"]
        return {"role": "tool", "tool_call_id": call_id, "content": text}

    said = turn(said)
    said = turn(said, result(said, FAILS))
    said = turn(said, result(said, FILE))
    first = turn(said, {"role": "user", "content": "Try your first idea."})
    second = turn(said, {"role": "user", "content": "Try your second idea."})
    first = turn(first, result(first, "NameError: StackEmpty is not defined"))
    second = turn(second, result(second, "2 passed in 0.01s"))
    summary = turn(second, {"role": "user", "content": "Summarise what was done."})[-1]["content"]
    short = {"role": "user", "content": f"A summary of the work: {summary}\nWrite the last words."}
    turn([SYSTEM, short])
    return {"tests": 1.0, "length": -0.25}


def tries_again(task, llm):
    """The same request three times, and no more."""
    for _ in range(3):
        call(llm, [SYSTEM, TASK])
    return 0.5


def fails(task, llm):
    call(llm, [SYSTEM, TASK])
    raise ValueError("the agent has no tool of this name")


def grows(task, llm):
    """One conversation, as most."""
    messages = [SYSTEM, TASK]
    for text in (FAILS, FILE):
        reply = call(llm, messages)
        call_id = reply["tool_calls"][0]["id"]
        result = {"role": "tool", "tool_call_id": call_id, "content": text}
        messages += [reply, result]
    return 0.75


COMMAND = f"{sys.executable} -c \"import sys; print('no such file'); sys.exit(3)\""


def agent_episodes():
    """An episode of each agent, in this order: forks, tries again, fails, grows, a command."""
    chat = make_format("hermes")
    seeds = itertools.count()
    found = []
    for agent in (forks, tries_again, fails, grows, COMMAND):
        engine = ScriptedEngine(chat.tokenizer, policy)
        source = AgentEpisodes(agent)
        collector = EpisodeCollector(
            engine,
            source,
            chat_format=chat,
            parser="hermes",
            num_retries=0,
            seed=next(seeds),
            reward_fn=(lambda trajectory: 0.0) if agent is COMMAND else None,
        )
        found += collector.collect_sync(1, 1)
        source.close()
    for result in found:
        result.started = 1000.5
    return chat.tokenizer, found


def write_agent_run(folder):
    tokenizer, episodes = agent_episodes()
    write_run(folder, {1: episodes})
    (folder / "tokenizer.json").write_text(tokenizer.backend_tokenizer.to_str())
    return folder
