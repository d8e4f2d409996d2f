"""`turnwise chat`: chat with a model in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from turnwise.cli import options as opt
from turnwise.cli.common import make_console, read_line, say, working
from turnwise.cli.settings import Overrides
from turnwise.legible import legible
from turnwise.tools import ToolCall, ToolContext

if TYPE_CHECKING:
    from turnwise.agents.requests import ChatReply, Delta
    from turnwise.cli.agents import ChatModel
    from turnwise.inference import SamplingParams

HELP = (
    "/reset starts a new conversation, /quit exits (so does Ctrl-D). "
    "Ctrl-C stops a reply. To send a message that begins with a slash, write two: //like this"
)
MOST_ROUNDS = 20
"""Replies in a row that may call tools."""


def chat(
    ctx: typer.Context,
    model: opt.ModelArgument,
    backend: opt.BackendOption = opt.BackendName.local,
    system: Annotated[
        str | None,
        opt.option(
            "System prompt.", "TEXT", "--system", "--system-prompt", default="the run's own"
        ),
    ] = None,
    tool: opt.ToolOption = None,
    parser: opt.ParserOption = None,
    checkpoint: opt.CheckpointOption = "last",
    temperature: Annotated[
        float | None, opt.option("0 is greedy decoding.", default="0.7, or the run's own", min=0)
    ] = None,
    top_p: Annotated[
        float | None, opt.option("Nucleus sampling.", default="0.9, or the run's own")
    ] = None,
    max_tokens: Annotated[
        int | None, opt.option("Maximum tokens per reply.", default="256, or the run's own", min=1)
    ] = None,
    seed: opt.SeedOption = None,
    template: opt.TemplateOption = None,
    tokenizer: opt.TokenizerOption = None,
    dtype: opt.DtypeOption = "auto",
    device: opt.DeviceOption = "auto",
    trust_remote_code: opt.TrustRemoteCode = False,
) -> None:
    """Chat with the model of a run or a checkpoint, or with any other model.

    The model of a run uses the run's system prompt, tools, parser and sampling. The environment is
    not used; to watch the model in it: `turnwise play --player RUN`.

    In the chat, [bold]/reset[/bold] starts a new conversation and [bold]/quit[/bold] exits; Ctrl-C
    stops a reply. Piped input is one message per line.

    [bold]Examples[/bold]

    turnwise chat smollm2-135m
    turnwise chat runs/mine
    turnwise chat models/mine --system "You are a pirate." --temperature 0
    turnwise chat smollm2-135m --tool calculator
    turnwise chat http://localhost:8000 --backend vllm --tokenizer Qwen/Qwen3-0.6B
    echo "What is the capital of France?" | turnwise chat smollm2-135m
    """
    options = opt.ModelOptions.typed(ctx)
    overrides = Overrides(tool=tool, parser=parser, system_prompt=system)
    with contextlib.ExitStack() as closing:
        with working(f"loading {model}"):
            from turnwise.cli.agents import open_chat_model
            from turnwise.inference import SamplingParams

            opened = open_chat_model(options, closing, overrides, max_conversations=1)
        usual = opened.sampling or SamplingParams(0.7, top_p=0.9)
        sampling = SamplingParams(
            usual.temperature if temperature is None else temperature,
            top_p=usual.top_p if top_p is None else top_p,
        )
        seeds = itertools.count(random.randrange(2**31) if seed is None else seed)
        runner = closing.enter_context(asyncio.Runner())
        closing.callback(lambda: runner.run(opened.session.close()))
        talk = _Chat(opened, runner, sampling, max_tokens or opened.max_tokens, seeds)
        closing.callback(talk.reset)
        if opened.about is not None:
            talk.note(opened.about, is_told_to_pipes=True)
        talk.run()


@dataclass(eq=False)
class _Chat:
    """A conversation in the terminal; without styles if the output is piped."""

    _model: ChatModel
    _runner: asyncio.Runner
    _sampling: SamplingParams
    _max_tokens: int
    _seeds: Iterator[int]
    _context: ToolContext | None = None

    def __post_init__(self) -> None:
        self.console = make_console()
        self.is_terminal = sys.stdin.isatty() and self.console.is_terminal
        self.reset()

    def run(self) -> None:
        """Answer what is typed until the end of the input."""
        self.note(HELP)
        while True:
            try:
                line = read_line("> ") if self.is_terminal else input()
            except EOFError:
                self.note("")
                return
            except KeyboardInterrupt:
                if not self.is_terminal:
                    raise
                self.note("\n/quit or Ctrl-D exits.")
                continue
            command = line.strip()
            if command == "/quit":
                return
            if command == "/reset":
                self.reset()
                self.note("New conversation.")
            elif command.startswith("/") and not command.startswith("//"):
                self.console.print(f"There is no command {command}. {HELP}")
            elif command:
                self._say(line.replace("//", "/", 1) if command[0] == "/" else line)

    def reset(self) -> None:
        """Start a new conversation."""
        self._messages: list[dict[str, Any]] = []
        if self._model.system_prompt:
            self._messages = [{"role": "system", "content": self._model.system_prompt}]
        if self._context is not None:
            self._context.close()
            self._context = None

    def note(self, text: str, *, is_told_to_pipes: bool = False) -> None:
        """Print a dimmed line on a terminal; otherwise nothing, or a line to the errors."""
        if self.is_terminal:
            self.console.print(text, style="dim")
        elif is_told_to_pipes:
            say(text, err=True)

    def _say(self, text: str) -> None:
        """Send a message and show the replies; tools that one calls are executed."""
        from turnwise.agents.requests import ApiError

        before = len(self._messages)
        self._messages.append({"role": "user", "content": text})
        try:
            for _ in range(MOST_ROUNDS):
                self._call_tools(self._reply())
                if self._messages[-1]["role"] == "assistant":
                    break
        except KeyboardInterrupt:
            if self._messages[-1]["role"] != "assistant" or self._messages[-1].get("tool_calls"):
                del self._messages[before:]  # no template can write calls without their results
            self.note("\n  interrupted\n")
            if not self.is_terminal:
                raise
        except ApiError as error:
            if error.code != "context_length_exceeded":
                raise
            del self._messages[before:]
            full = f"the context of {self._model.context_length:,} tokens is full"
            self.console.print()
            self.note(f"{full}, /reset starts a new conversation", is_told_to_pipes=True)

    def _reply(self) -> ChatReply:
        """Sample one reply and show it meanwhile; of an interrupted one its text is kept."""
        from turnwise.agents.requests import ChatRequest, Delta, Sent

        sent, started, is_over = Sent(), time.monotonic(), False

        def show(delta: Delta) -> None:
            if is_over:  # an engine may report its last tokens after the reply
                return
            text = delta.text if sent.text else delta.text.lstrip()
            between = "\n\n" if text and sent.thought and not sent.text else ""
            sent.add(delta)
            shown = Text.assemble((legible(delta.thought), "dim"), between, legible(text))
            self.console.print(shown, end="", soft_wrap=True)

        tools = self._model.tools
        request = ChatRequest(
            list(self._messages),
            tools=[tool.to_openai() for tool in tools.definitions] if tools else (),
            max_tokens=self._max_tokens,
            sampling=self._sampling,
            seed=next(self._seeds),
        )
        try:
            (reply,) = self._runner.run(self._model.session.complete(request, show))
            thought, text = sent.remaining(reply.thought, reply.content)
            show(Delta(thought, text, reply.num_prompt_tokens))
        # asyncio raises the second for a Ctrl-C that comes just as the loop begins.
        except (KeyboardInterrupt, asyncio.CancelledError):
            self._messages.append({"role": "assistant", "content": sent.text})
            raise KeyboardInterrupt from None
        finally:
            is_over = True
        if sent.text or not reply.calls:
            self.console.print()
        self._messages.append(dict(reply.message))
        ending, number = reply.finish_reason, reply.num_sampled_tokens
        if ending == "length":
            is_full = reply.num_prompt_tokens + number >= self._model.context_length
            ending = "the context is full, /reset" if is_full else "cut by --max-tokens"
        speed = number / max(time.monotonic() - started, 1e-9)
        self.note(f"  {number} tokens, {speed:.1f} tokens/s, {ending}\n")
        return reply

    def _call_tools(self, reply: ChatReply) -> None:
        """Execute the calls of a reply, show their results, and answer them to the model."""
        tools = self._model.tools
        if tools is None:
            return
        if self._context is None:
            self._context = tools.open_context()
        for wanted in reply.calls:
            call = ToolCall(wanted["function"]["name"], json.loads(wanted["function"]["arguments"]))
            result = tools.execute(call, self._context)
            given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            line = f"  {call.name}({given}) -> {result.value}"
            self.console.print(Text(legible(line), "magenta" if result.success else "red"))
            message = {"role": "tool", "tool_call_id": wanted["id"], "name": call.name}
            self._messages.append({**message, "content": result.text})
        if (problem := self._model.parser.parse(reply.content).malformed) is not None:
            text = f"A call could not be read: {problem}"
            self.console.print(Text(legible(f"  {text}"), "red"))
            self._messages.append({"role": "user", "content": text})
