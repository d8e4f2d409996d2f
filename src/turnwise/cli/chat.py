"""`turnwise chat`: chat with a model in the terminal."""

from __future__ import annotations

import contextlib
import random
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli.common import legible, make_console, say
from turnwise.cli.options import CheckpointOption, ParserOption, ToolOption, argument
from turnwise.cli.run_settings import Supplied, source_of
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.chat import ChatFormat
    from turnwise.cli.chat_session import ChatSession, Reply
    from turnwise.tools import ToolCall

HELP = (
    "/reset starts a new conversation, /stats shows token counts, /quit exits (so does Ctrl-D). "
    "Ctrl-C stops a reply. To send a message that begins with a slash, write two: //like this"
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
        argument(
            "RUN_OR_MODEL",
            "The folder of a run, a checkpoint or a model; tiny, smollm2-135m, a Hugging Face id, "
            "or the URL of a server.",
        ),
    ],
    backend: Annotated[BackendName, typer.Option(help="Inference engine.")] = BackendName.local,
    system: Annotated[
        str | None,
        typer.Option(
            "--system",
            "--system-prompt",
            metavar="TEXT",
            help="System prompt.",
            show_default="the run's own, if any",
        ),
    ] = None,
    tool: ToolOption = None,
    parser: ParserOption = None,
    checkpoint: CheckpointOption = "last",
    temperature: Annotated[
        float | None,
        typer.Option(min=0, help="0 is greedy decoding.", show_default="0.7, or the run's own"),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            help="Nucleus sampling: cumulative probability.", show_default="0.9, or the run's own"
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum tokens per reply.", show_default="256, or the run's own"),
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
        str | None, typer.Option(metavar="MODEL", help="Tokenizer for a server's URL.")
    ] = None,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...")] = "auto",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
    ] = False,
) -> None:
    """Chat with the model of a run or a checkpoint, or with any other model.

    The model of a run uses the run's system prompt, tools, parser and sampling. The environment is
    not used; to watch the model in it: `turnwise play --player RUN`.

    In the chat, [bold]/reset[/bold] starts a new conversation, [bold]/stats[/bold] shows token
    counts and [bold]/quit[/bold] exits; Ctrl-C stops a reply. Piped input is one message per line.

    [bold]Examples[/bold]

    turnwise chat smollm2-135m
    turnwise chat runs/mine
    turnwise chat models/mine --system "You are a pirate." --temperature 0
    turnwise chat smollm2-135m --tool calculator
    turnwise chat http://localhost:8000 --backend vllm --tokenizer Qwen/Qwen3-0.6B
    echo "What is the capital of France?" | turnwise chat smollm2-135m
    """
    from turnwise.cli.run_paths import find_run_or_refuse

    console = make_console()
    is_terminal = sys.stdin.isatty() and console.is_terminal
    given = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
    config = {name: value for name, value in given.items() if value not in ("auto", False)}
    source = source_of(model, checkpoint) or find_run_or_refuse(model)
    supplied = Supplied(tools=tool, parser=parser, system_prompt=system)
    supplied.allow_code()
    with contextlib.ExitStack() as closing:
        with console.status(f"loading {model}") if is_terminal else contextlib.nullcontext():
            from turnwise.cli.chat_session import ChatSession
            from turnwise.cli.chat_setup import ChatSetup

            if source is None:
                setup = ChatSetup.of_model(model, backend.value, config, tokenizer, supplied)
            else:
                check_run_options("chat", model, backend, dtype, device, tokenizer)
                setup = ChatSetup.of_run(
                    source, checkpoint, backend.value, supplied, trust_remote_code
                )
            closing.enter_context(setup.engine)
            closing.enter_context(setup.closing)
        chat_format = format_of(
            setup.engine.tokenizer, model, template or setup.template, setup.enable_thinking
        )
        session = ChatSession(
            setup.engine,
            chat_format,
            setup.system_prompt,
            setup.sampling(temperature, top_p),
            max_tokens or setup.max_tokens,
            random.randrange(2**31) if seed is None else seed,
            setup.tools(chat_format),
        )
        screen = ChatScreen(console, is_terminal)
        if setup.about is not None:
            screen.remark(setup.about)
        _converse(session, screen)


def check_run_options(
    command: str,
    model: str,
    backend: BackendName,
    dtype: str,
    device: str,
    tokenizer: str | None,
) -> None:
    """Raise `ConfigError` for options that a run does not take."""
    if backend not in (BackendName.local, BackendName.transformers):
        raise ConfigError(
            f"--backend {backend} cannot load the checkpoint of {model}. Export it first: "
            f"turnwise export {model} FOLDER, then turnwise {command} FOLDER --backend {backend}"
        )
    if (dtype, device, tokenizer) != ("auto", "auto", None):
        raise ConfigError(
            f"--dtype, --device and --tokenizer are for a model, and {model} is a run, which has "
            "its own. Leave them out."
        )


def format_of(
    tokenizer: Any, model: str, template: str | None, enable_thinking: bool | None = None
) -> ChatFormat:
    """Return the chat format of a model; `ConfigError` if it has none."""
    from turnwise.chat import TEMPLATES, ChatFormat

    if tokenizer is None:
        raise ConfigError(f"{model} came without a tokenizer. Name one with --tokenizer.")
    if template is None and not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {model} has no chat template. Choose one with --template: "
            f"{', '.join(TEMPLATES)}."
        )
    return ChatFormat(tokenizer, template, enable_thinking=enable_thinking)


def _converse(session: ChatSession, screen: ChatScreen) -> None:
    screen.note(HELP)
    while (line := screen.ask()) is not None:
        command = line.strip()
        if not command:
            continue
        if command == "/quit":
            return
        if command == "/reset":
            session.reset()
            screen.note("New conversation.")
        elif command == "/stats":
            screen.console.print(_stats(session))
        elif command == "/help":
            screen.console.print(HELP)
        elif command.startswith("/") and not command.startswith("//"):
            screen.console.print(f"There is no command {legible(command)}. {HELP}")
        else:
            text = line.replace("//", "/", 1) if command[0] == "/" else line
            reply = session.say(text, screen.show, screen.call)
            screen.ending(reply, session)


def _stats(session: ChatSession) -> str:
    replies = session.replies
    num_tokens = sum(reply.num_tokens for reply in replies)
    seconds = sum(reply.seconds for reply in replies)
    used = len(session.conversation.stream) if session.conversation else 0
    return (
        f"{len(replies)} {'reply' if len(replies) == 1 else 'replies'}, {num_tokens} tokens, "
        f"{_speed(num_tokens, seconds)}; "
        f"the conversation has {used:,} of {session.engine.context_length:,} tokens"
    )


class ChatScreen:
    """Reads messages and prints replies; without styles if the output is piped."""

    def __init__(self, console: Console, is_terminal: bool) -> None:
        self.console = console
        self.is_terminal = is_terminal
        if is_terminal:
            with contextlib.suppress(ImportError):  # not on every system
                import readline  # noqa: F401 - its import gives `input` arrow keys and a history

    def ask(self) -> str | None:
        """Return the next line; None at the end of the input."""
        while True:
            try:
                return input("> " if self.is_terminal else "")
            except EOFError:
                self.note("")
                return None
            except KeyboardInterrupt:
                if not self.is_terminal:
                    raise
                self.note("\n/quit or Ctrl-D exits.")

    def show(self, piece: str) -> None:
        """Print the next piece of a reply."""
        from rich.text import Text

        self.console.print(Text(legible(piece)), end="", soft_wrap=True)

    def call(self, call: ToolCall) -> None:
        """Print a tool call and its result."""
        from rich.text import Text

        given = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
        line = f"  {call.name}({given}) -> {call.result}"
        self.console.print(Text(legible(f"\n{line}"), "magenta" if call.success else "red"))

    def ending(self, reply: Reply, session: ChatSession) -> None:
        from turnwise.inference import FinishReason

        self.console.print()
        length = session.engine.context_length
        full = f"the context of {length:,} tokens is full, /reset starts a new conversation"
        cut = {
            FinishReason.LENGTH: "cut by --max-tokens",
            FinishReason.CONTEXT: full,
            FinishReason.ABORTED: "interrupted",
        }
        facts = [f"{reply.num_tokens} tokens", _speed(reply.num_tokens, reply.seconds)]
        self.note(f"  {', '.join([*facts, cut.get(reply.reason, reply.reason.value)])}\n")
        if not self.is_terminal:
            if reply.reason is FinishReason.CONTEXT:
                make_console(stderr=True).print(full)
            if reply.reason is FinishReason.ABORTED:
                raise KeyboardInterrupt

    def remark(self, text: str) -> None:
        """Print a line about the conversation; to the standard error if the output is piped."""
        if self.is_terminal:
            self.note(legible(text))
        else:
            say(text, err=True)

    def note(self, text: str) -> None:
        """Print a dimmed line, only on a terminal."""
        if self.is_terminal:
            self.console.print(text, style="dim")


def _speed(num_tokens: int, seconds: float) -> str:
    return f"{num_tokens / max(seconds, 1e-9):.1f} tokens/s"
