"""`turnwise serve` in a process of its own, and a conversation that every engine must serve."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

from agents.serving import ask, joined
from forked import Turnwise
from turnwise.agents.gateway import LLM

SOURCE = Path(__file__).parents[2] / "src"
CHAT = "/chat/completions"


@contextlib.contextmanager
def served(*options, model="tiny"):
    """`turnwise serve` in a process of its own: its LLM and the process."""
    command = [sys.executable, "-c", "from turnwise.cli import main; main()", "serve", model]
    process = subprocess.Popen(
        [*command, "--port", "0", *options],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield _read_llm(process.stdout, process.stderr), process
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def forked(*options, model="tiny"):
    """The same command, which begins sooner but cannot have child processes: its LLM, the process
    and its standard error."""
    (ours, theirs), (our_errors, their_errors) = os.pipe(), os.pipe()
    with open(ours) as output, open(our_errors) as errors, open(os.devnull) as nothing:
        process = Turnwise(
            *("serve", model, "--port", "0", *options),
            stdin=nothing.fileno(),
            stdout=theirs,
            stderr=their_errors,
        )
        os.close(theirs)
        os.close(their_errors)
        try:
            yield _read_llm(output, errors), process, errors
        finally:
            process.kill()
            process.wait(60)


def _read_llm(output, errors):
    """Reads what the command prints until it serves."""
    printed = ""
    while "curl" not in printed:
        line = output.readline()
        assert line, printed + errors.read()
        printed += line
    found = re.search(r"OPENAI_BASE_URL=(\S+) OPENAI_API_KEY=(\S+)", printed)
    return LLM(found[1], found[2], re.search(r"is served as (\S+)", printed)[1])


def say(llm, *texts, **more):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    body = {"model": llm.model, "max_tokens": 5, "messages": messages, **more}
    return ask(llm, CHAT, body)


def check_served(llm):
    """A conversation goes on with its exact tokens; replies differ unless a seed is given."""
    _, first = say(llm, "Hello", seed=1)
    assert first["usage"]["completion_tokens"] == 5
    answer = first["choices"][0]["message"]["content"]
    _, second = say(llm, "Hello", answer, "And now?", seed=2)
    assert second["usage"]["prompt_tokens"] > first["usage"]["total_tokens"]
    texts = [say(llm, "Hi")[1]["choices"][0]["message"]["content"] for _ in range(4)]
    assert len(set(texts)) > 1
    seeded = [say(llm, "Hi", seed=3)[1]["choices"][0]["message"] for _ in range(2)]
    assert seeded[0] == seeded[1]
    status, events = say(llm, "Hello", seed=1, stream=True)
    assert status == 200
    assert joined(events)["content"] == (answer or "")
