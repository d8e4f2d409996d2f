"""`turnwise chat`: talk to a model in the terminal."""

from __future__ import annotations

import contextlib
import random
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import completion
from turnwise.cli.common import legible, make_console, say
from turnwise.cli.run_parts import CheckpointOption, ParserOption, Supplied, ToolOption
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.chat import ChatFormat
    from turnwise.cli.talk import Answer, Talk
    from turnwise.tools import ToolCall

HELP = (
    "/reset begins anew, /stats counts, /quit leaves (so does Ctrl-D). Ctrl-C ends an answer. "
    "A message that begins with a slash is written with two: //like this"
)


class BackendName(StrEnum):
    local = "local"
    transformers = "transformers"
    vllm = "vllm"
    sglang = "sglang"
    scripted = "scripted"


def chat(
    model: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_MODEL",
            help="A run's folder, a checkpoint, tiny, smollm2-135m, a folder, a Hugging Face id, "
            "or a server's URL.",
            show_default=False,
            autocompletion=completion.runs_and_models,
        ),
    ],
    backend: Annotated[
        BackendName, typer.Option(help="The engine that generates.")
    ] = BackendName.local,
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            "--system-prompt",
            metavar="TEXT",
            help="The system prompt.",
            show_default="the run's own, if any",
        ),
    ] = None,
    tool: ToolOption = None,
    parser: ParserOption = None,
    checkpoint: CheckpointOption = "last",
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="0 is greedy.", show_default="0.7, or the run's own"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Sample from the likeliest with this mass.", show_default="0.9, or the run's own"
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens of an answer.", show_default="256, or the run's own"),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Seed for reproducible sampling.", show_default="random"),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Chat template: chatml, llama-2, llama-3, mistral, gemma, zephyr, plain.",
            show_default="the tokenizer's own",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Whose tokenizer, for a server's URL.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="Precision: float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
) -> None:
    """Talk to the model of a run or a checkpoint, or to any other model.

    A run is asked with its own system prompt, tools, parser and sampling; its environment takes no
    part in a talk (`turnwise play --player RUN` watches it there).

    While you talk, [bold]/reset[/bold] begins anew, [bold]/stats[/bold] counts and
    [bold]/quit[/bold] leaves; Ctrl-C ends an answer. Piped input is answered line by line.

    [bold]Examples[/bold]

    turnwise chat smollm2-135m
    turnwise chat runs/mine
    turnwise chat models/mine --system "You are a pirate." --temperature 0
    turnwise chat smollm2-135m --tool calculator
    turnwise chat http://localhost:8000 --backend vllm --tokenizer Qwen/Qwen3-0.6B
    echo "What is the capital of France?" | turnwise chat smollm2-135m
    """
    from turnwise.cli.run_parts import source_of
    from turnwise.cli.run_place import not_a_run, runs_in

    console = make_console()
    is_terminal = sys.stdin.isatty() and console.is_terminal
    said = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
    config = {name: value for name, value in said.items() if value not in ("auto", False)}
    source = source_of(model, checkpoint)
    if source is None and runs_in(Path(model).expanduser()):
        raise not_a_run(model)
    supplied = Supplied(tools=tool, parser=parser, system_prompt=system)
    supplied.allow_code()
    with contextlib.ExitStack() as closing:
        with console.status(f"loading {model}") if is_terminal else contextlib.nullcontext():
            from turnwise.cli.chat_parts import ChatParts
            from turnwise.cli.talk import Talk

            if source is None:
                parts = ChatParts.of_model(model, backend.value, config, tokenizer, supplied)
            else:
                _check_run_options(model, backend, dtype, device, tokenizer)
                parts = ChatParts.of_run(
                    source, checkpoint, backend.value, supplied, trust_remote_code
                )
            closing.enter_context(parts.engine)
            closing.enter_context(parts.closing)
        chat_format = _format(parts.engine.tokenizer, model, template or parts.template)
        talk = Talk(
            parts.engine,
            chat_format,
            parts.system_prompt,
            parts.sampling(temperature, top_p),
            max_tokens or parts.max_tokens,
            random.randrange(2**31) if seed is None else seed,
            parts.tools(chat_format),
        )
        screen = ChatScreen(console, is_terminal)
        if parts.about is not None:
            screen.remark(parts.about)
        _converse(talk, screen)


def _check_run_options(
    model: str, backend: BackendName, dtype: str, device: str, tokenizer: str | None
) -> None:
    if backend not in (BackendName.local, BackendName.transformers):
        raise ConfigError(
            f"--backend {backend} cannot load the checkpoint of {model}. Export it first: "
            f"turnwise export {model} FOLDER, then turnwise chat FOLDER --backend {backend}"
        )
    if (dtype, device, tokenizer) != ("auto", "auto", None):
        raise ConfigError(
            f"--dtype, --device and --tokenizer are for a model, and {model} is a run, which has "
            "its own. Leave them out."
        )


def _format(tokenizer: Any, model: str, template: str | None) -> ChatFormat:
    from turnwise.chat import TEMPLATES, ChatFormat

    if tokenizer is None:
        raise ConfigError(f"{model} came without a tokenizer. Name one with --tokenizer.")
    if template is None and not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {model} has no chat template. Choose one with --template: "
            f"{', '.join(TEMPLATES)}."
        )
    return ChatFormat(tokenizer, template)


def _converse(talk: Talk, screen: ChatScreen) -> None:
    screen.note(HELP)
    while (line := screen.ask()) is not None:
        command = line.strip()
        if not command:
            continue
        if command == "/quit":
            return
        if command == "/reset":
            talk.reset()
            screen.note("A new conversation.")
        elif command == "/stats":
            screen.tell(_stats(talk))
        elif command == "/help":
            screen.tell(HELP)
        elif command.startswith("/") and not command.startswith("//"):
            screen.tell(f"There is no command {legible(command)}. {HELP}")
        else:
            text = line.replace("//", "/", 1) if command[0] == "/" else line
            answer = talk.say(text, screen.show, screen.call)
            screen.ending(answer, talk)


def _stats(talk: Talk) -> str:
    count = len(talk.answers)
    num_tokens = sum(answer.num_tokens for answer in talk.answers)
    seconds = sum(answer.seconds for answer in talk.answers)
    held = len(talk.conversation.stream) if talk.conversation else 0
    return (
        f"{count} answer{'s' if count != 1 else ''}, {num_tokens} tokens, "
        f"{_speed(num_tokens, seconds)}; "
        f"the conversation has {held:,} of {talk.engine.context_length:,} tokens"
    )


class ChatScreen:
    """Where a conversation is read and written; plain when piped."""

    def __init__(self, console: Console, is_terminal: bool) -> None:
        self.console = console
        self.is_terminal = is_terminal
        if is_terminal:
            with contextlib.suppress(ImportError):  # not on every system
                import readline  # noqa: F401 - its import gives `input` arrow keys and a history

    def ask(self) -> str | None:
        """The next line; None at the end."""
        while True:
            try:
                return input("> " if self.is_terminal else "")
            except EOFError:
                self.note("")
                return None
            except KeyboardInterrupt:
                if not self.is_terminal:
                    raise
                self.note("\n/quit or Ctrl-D leaves.")

    def show(self, piece: str) -> None:
        """More of an answer."""
        from rich.text import Text

        self.console.print(Text(legible(piece)), end="", soft_wrap=True)

    def call(self, call: ToolCall) -> None:
        """A tool call of an answer, and its result."""
        from rich.text import Text

        given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        line = f"  {call.name}({given}) -> {call.result}"
        self.console.print(Text(legible(f"\n{line}"), "magenta" if call.success else "red"))

    def ending(self, answer: Answer, talk: Talk) -> None:
        from turnwise.inference import FinishReason

        self.tell("")
        full = f"the context of {talk.engine.context_length:,} tokens is full, /reset begins anew"
        cut = {
            FinishReason.LENGTH: "cut by --max-tokens",
            FinishReason.CONTEXT: full,
            FinishReason.ABORTED: "interrupted",
        }
        facts = [f"{answer.num_tokens} tokens", _speed(answer.num_tokens, answer.seconds)]
        self.note(f"  {', '.join([*facts, cut.get(answer.reason, answer.reason.value)])}\n")
        if not self.is_terminal:
            if answer.reason is FinishReason.CONTEXT:
                make_console(stderr=True).print(full)
            if answer.reason is FinishReason.ABORTED:
                raise KeyboardInterrupt

    def remark(self, text: str) -> None:
        """A line about the conversation, which is not part of it."""
        if self.is_terminal:
            self.note(legible(text))
        else:
            say(text, err=True)

    def tell(self, text: str) -> None:
        self.console.print(text)

    def note(self, text: str) -> None:
        """For a person at the terminal only."""
        if self.is_terminal:
            self.console.print(text, style="dim")


def _speed(num_tokens: int, seconds: float) -> str:
    return f"{num_tokens / max(seconds, 1e-9):.1f} tokens/s"
