"""`turnwise chat`: chat with a model in the terminal."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import legible, make_console, say
from turnwise.cli.settings import Overrides

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.cli.chat_session import ChatSession, Reply
    from turnwise.tools import ToolCall

HELP = (
    "/reset starts a new conversation, /stats shows token counts, /quit exits (so does Ctrl-D). "
    "Ctrl-C stops a reply. To send a message that begins with a slash, write two: //like this"
)


def chat(
    model: Annotated[
        str,
        opt.argument(
            "RUN_OR_MODEL",
            "The folder of a run, a checkpoint or a model; tiny, smollm2-135m, a Hugging Face id, "
            "or the URL of a server.",
        ),
    ],
    backend: opt.BackendOption = opt.BackendName.local,
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
    tool: opt.ToolOption = None,
    parser: opt.ParserOption = None,
    checkpoint: opt.CheckpointOption = "last",
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
    template: opt.TemplateOption = None,
    tokenizer: opt.TokenizerOption = None,
    dtype: opt.DtypeOption = "auto",
    device: opt.DeviceOption = "auto",
    trust_remote_code: opt.TrustModelCode = False,
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
    console = make_console()
    is_terminal = sys.stdin.isatty() and console.is_terminal
    overrides = Overrides(tools=tool, parser=parser, system_prompt=system)
    with contextlib.ExitStack() as closing:
        with console.status(f"loading {model}") if is_terminal else contextlib.nullcontext():
            from turnwise.cli.chat_session import ChatSession, open_chat_model
            from turnwise.inference import SamplingParams

            opened = open_chat_model(
                "chat",
                model,
                closing,
                overrides,
                checkpoint=checkpoint,
                backend=backend.value,
                template=template,
                tokenizer=tokenizer,
                dtype=dtype,
                device=device,
                trust_remote_code=trust_remote_code,
            )
        session = ChatSession(
            opened,
            SamplingParams(
                opened.temperature if temperature is None else temperature,
                top_p=opened.top_p if top_p is None else top_p,
            ),
            max_tokens or opened.max_tokens,
            random.randrange(2**31) if seed is None else seed,
        )
        screen = ChatScreen(console, is_terminal)
        if opened.about is not None and is_terminal:
            screen.note(legible(opened.about))
        elif opened.about is not None:
            say(opened.about, err=True)
        _converse(session, screen)


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
            replies = session.replies
            number = sum(reply.num_tokens for reply in replies)
            speed = _speed(number, sum(reply.seconds for reply in replies))
            used = len(session.conversation.stream) if session.conversation else 0
            screen.console.print(
                f"{len(replies)} {'reply' if len(replies) == 1 else 'replies'}, {number} tokens, "
                f"{speed}; the conversation has {used:,} of "
                f"{session.model.engine.context_length:,} tokens"
            )
        elif command == "/help":
            screen.console.print(HELP)
        elif command.startswith("/") and not command.startswith("//"):
            screen.console.print(f"There is no command {legible(command)}. {HELP}")
        else:
            text = line.replace("//", "/", 1) if command[0] == "/" else line
            reply = session.say(text, screen.show, screen.call)
            screen.ending(reply, session)


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
        length = session.model.engine.context_length
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

    def note(self, text: str) -> None:
        """Print a dimmed line, only on a terminal."""
        if self.is_terminal:
            self.console.print(text, style="dim")


def _speed(num_tokens: int, seconds: float) -> str:
    return f"{num_tokens / max(seconds, 1e-9):.1f} tokens/s"
