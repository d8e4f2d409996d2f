"""`turnwise chat`: talk to a model in the terminal."""

from __future__ import annotations

import contextlib
import random
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import completion
from turnwise.cli.common import legible, make_console
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from turnwise.chat import ChatFormat
    from turnwise.cli.talk import Answer, Talk

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
            metavar="MODEL",
            help="tiny, smollm2-135m, a folder, a Hugging Face id, or a server's URL.",
            show_default=False,
            autocompletion=completion.runs_and_models,
        ),
    ],
    backend: Annotated[
        BackendName, typer.Option(help="The engine that generates.")
    ] = BackendName.local,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told first.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.7,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest with this mass.")] = 0.9,
    max_tokens: Annotated[int, typer.Option(min=1, help="Most tokens of an answer.")] = 256,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same gives the same.", show_default="random")
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
    """Talk to a model, a folder or a checkpoint.

    While you talk, [bold]/reset[/bold] begins anew, [bold]/stats[/bold] counts and
    [bold]/quit[/bold] leaves; Ctrl-C ends an answer. Piped input is answered line by line.

    [bold]Examples[/bold]

    turnwise chat smollm2-135m
    turnwise chat runs/mine/model --system "You are a pirate." --temperature 0
    turnwise chat http://localhost:8000 --backend vllm --tokenizer Qwen/Qwen3-0.6B
    echo "What is the capital of France?" | turnwise chat smollm2-135m
    """
    console = make_console()
    is_terminal = sys.stdin.isatty() and console.is_terminal
    said = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
    config = {name: value for name, value in said.items() if value not in ("auto", False)}
    with console.status(f"loading {model}") if is_terminal else contextlib.nullcontext():
        from turnwise.cli.talk import Talk
        from turnwise.inference import SamplingParams, create_inference_engine

        sampling = SamplingParams(temperature, top_p=top_p)
        engine = create_inference_engine(model, backend.value, config, tokenizer=tokenizer)
    with engine:
        first_seed = random.randrange(2**31) if seed is None else seed
        chat_format = _format(engine.tokenizer, model, template)
        talk = Talk(engine, chat_format, system, sampling, max_tokens, first_seed)
        _converse(talk, ChatScreen(console, is_terminal))


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
            answer = talk.say(
                line.replace("//", "/", 1) if command[0] == "/" else line, screen.show
            )
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

    def tell(self, text: str) -> None:
        self.console.print(text)

    def note(self, text: str) -> None:
        """For a person at the terminal only."""
        if self.is_terminal:
            self.console.print(text, style="dim")


def _speed(num_tokens: int, seconds: float) -> str:
    return f"{num_tokens / max(seconds, 1e-9):.1f} tokens/s"
