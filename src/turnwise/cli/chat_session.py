"""The model of `turnwise chat` and `turnwise serve`, and a conversation with it in the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnwise import inference
from turnwise.chat import TEMPLATES, ChatFormat, Conversation, Message
from turnwise.cli.run_paths import find_source, run_containing, which_checkpoint
from turnwise.cli.settings import Overrides, find_code
from turnwise.config import DatasetConfig, EnvironmentConfig
from turnwise.episode import episode_limits
from turnwise.episode.messages import MessageBuilder
from turnwise.errors import ConfigError
from turnwise.inference import (
    BaseInferenceEngine,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.places import places_of
from turnwise.runs.run_folder import RunFolder
from turnwise.tools import ActionParser, ToolCall, ToolContext, ToolRegistry, get_parser
from turnwise.tools.by_name import parser_by_name, tools_by_name
from turnwise.trainer.state import find_checkpoint, load_trained_model
from turnwise.user_code import settings_from

MOST_ROUNDS = 20
"""Replies in a row that may call tools."""


@dataclass
class ChatModel:
    """An engine, and how conversations with it begin and are sampled."""

    engine: BaseInferenceEngine
    format: ChatFormat
    system_prompt: str | None
    tools: ToolRegistry | None
    parser: ActionParser | str
    temperature: float = 0.7
    top_p: float = 0.9
    max_tokens: int = 256
    about: str | None = None
    """A line about what is used of a run."""
    step: int | None = None
    """The step of a run's checkpoint; None: it is no run."""


def open_chat_model(
    command: str,
    model: str,
    closing: contextlib.ExitStack,
    overrides: Overrides,
    *,
    checkpoint: str,
    backend: str,
    template: str | None,
    tokenizer: str | None,
    dtype: str,
    device: str,
    trust_remote_code: bool,
    has_tools: bool = True,
) -> ChatModel:
    """Load the model of a run or a checkpoint, or one by its name, its folder, a server's URL.

    That of a run comes with the run's prompt, tools and sampling, but without its environment.
    Without `has_tools` its tools are not imported: clients of a server bring theirs.
    """
    source = find_source(model, checkpoint)
    overrides.allow_code()
    if source is None:
        given = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
        options = {name: value for name, value in given.items() if value not in ("auto", False)}
        tools = tools_by_name(overrides.tools, closing) if overrides.tools else None
        parser = parser_by_name(overrides.parser or "auto")
        engine = inference.create_inference_engine(model, backend, options, tokenizer=tokenizer)
        closing.enter_context(engine)
        chat = _chat_format(engine.tokenizer, model, template)
        return ChatModel(engine, chat, overrides.system_prompt, tools, parser)
    if backend not in ("local", "transformers"):
        raise ConfigError(
            f"--backend {backend} cannot load the checkpoint of {model}. Export it first: "
            f"turnwise export {model} FOLDER, then turnwise {command} FOLDER --backend {backend}"
        )
    if (dtype, device, tokenizer) != ("auto", "auto", None):
        raise ConfigError(
            f"--dtype, --device and --tokenizer are for a model, and {model} is a run, which has "
            "its own. Leave them out."
        )
    saved = find_checkpoint(source, which_checkpoint(checkpoint))
    loaded, config = load_trained_model(saved.path, trust_remote_code=trust_remote_code)
    environment, run = config.environment_name, run_containing(source)
    config.environments = config.agent = config.expert = config.reward = None
    config.environment = EnvironmentConfig()
    config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()
    config.tools = config.tools if has_tools else []
    with settings_from(source, is_trusted=trust_remote_code):
        overrides.put_into(config)
        find_code(config, places_of(run), run=run)
        tools = tools_by_name(config.tools, closing) if config.tools else None
        parser = parser_by_name(config.parser)
    if overrides.system_prompt is None and tools is None:
        config.system_prompt = _recorded_prompt(run) or config.system_prompt
    prompt = "its system prompt" if config.system_prompt else "no system prompt"
    names = "no tools" if tools is None else f"the tools {', '.join(tools.names)}"
    engine = inference.create_inference_engine(loaded.model, backend, tokenizer=loaded.tokenizer)
    closing.enter_context(engine)
    if not engine.tokenizer.chat_template:  # the run used this one
        template = template or "plain"
    return ChatModel(
        engine,
        _chat_format(engine.tokenizer, model, template, config.inference.enable_thinking),
        config.system_prompt,
        tools,
        parser,
        config.inference.temperature,
        config.inference.top_p,
        episode_limits(config).max_tokens_per_turn or 256,
        f"the model after step {saved.step:,}, with {prompt} and {names}; its environment "
        f"{environment} is not used",
        saved.step,
    )


def _chat_format(
    tokenizer: Any, model: str, template: str | None, enable_thinking: bool | None = None
) -> ChatFormat:
    if tokenizer is None:
        raise ConfigError(f"{model} came without a tokenizer. Name one with --tokenizer.")
    if template is None and not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {model} has no chat template. Choose one with --template: "
            f"{', '.join(TEMPLATES)}."
        )
    return ChatFormat(tokenizer, template, enable_thinking=enable_thinking)


def _recorded_prompt(run: Path) -> str | None:
    """Return the system message of the run's last episodes, with what its environment added."""
    store = EpisodeStore(RunFolder(run).episodes, budget_bytes=0)  # it is only read
    with contextlib.suppress(ConfigError):  # a damaged file: the prompt of the settings is used
        for step in reversed(store.steps()):
            for episode in store.read(step):
                for message in episode.agent.messages[:1]:
                    return str(message["content"]) if message["role"] == "system" else None
    return None


@dataclass(frozen=True)
class Reply:
    """The length, duration and finish reason of a reply."""

    num_tokens: int
    seconds: float
    reason: FinishReason


@dataclass
class ChatSession:
    """Conversations with one model, one after the other; each has a tool context of its own."""

    model: ChatModel
    sampling: SamplingParams
    max_tokens: int
    seed: int
    replies: list[Reply] = field(default_factory=list)
    conversation: Conversation | None = None

    def __post_init__(self) -> None:
        self._session = object()
        self._seeds = itertools.count(self.seed)
        self._messages = MessageBuilder(self.model.format)
        self._context: ToolContext | None = None
        self._parser = self.model.parser
        if self.model.tools is not None and isinstance(self._parser, str):
            definitions = self.model.tools.definitions
            template = self.model.format.template
            self._parser = get_parser(self._parser, template=template, definitions=definitions)

    def reset(self) -> None:
        """Start a new conversation."""
        self.model.engine.end_session(self._session)
        self._session = object()
        self.conversation = None
        if self._context is not None:
            self._context.close()
            self._context = None

    def say(
        self, text: str, show: Callable[[str], None], show_call: Callable[[ToolCall], None]
    ) -> Reply:
        """Send a message, and show the reply as it is generated.

        Tool calls are executed and shown, and the model replies again. Ctrl-C ends the reply.
        """
        if self.conversation is None:
            self.conversation = self._begin(text)
        else:
            self.conversation.add([{"role": "user", "content": text}])
        for _ in range(MOST_ROUNDS):
            reply = self._reply(self.conversation, show)
            if self.model.tools is None or reply.reason is not FinishReason.STOP:
                break
            try:
                results = self._call_tools(self.conversation, show_call)
            except KeyboardInterrupt:
                return dataclasses.replace(reply, reason=FinishReason.ABORTED)
            if not results:
                break
            self.conversation.add(results)
        return reply

    def _begin(self, text: str) -> Conversation:
        """Return a conversation; its messages describe the tools if the chat template does not."""
        tools, system = self.model.tools, self.model.system_prompt
        messages: list[Message] = [{"role": "user", "content": text}]
        if tools is None:
            if system is not None:
                messages.insert(0, {"role": "system", "content": system})
            return Conversation(self.model.format, messages, None)
        assert not isinstance(self._parser, str)
        messages = self._messages.initial(system or "", text, tools.definitions, self._parser)
        for_template = None
        if self._messages.supports_tools:
            for_template = [definition.to_openai() for definition in tools.definitions]
        return Conversation(self.model.format, messages, for_template)

    def _call_tools(
        self, conversation: Conversation, show_call: Callable[[ToolCall], None]
    ) -> Sequence[Message]:
        """Execute the tool calls of the last reply; return the results as messages."""
        tools = self.model.tools
        assert tools is not None
        assert not isinstance(self._parser, str)
        start, end = conversation.stream.turns[-1]
        ids = conversation.stream.ids[start:end]
        parsed = self._parser.parse(self.model.format.decode(ids, self._parser.special_tokens))
        if self._context is None:
            self._context = tools.open_context()
        results: list[tuple[str, str]] = []
        for call in parsed.calls:
            result = tools.execute(call, self._context)
            call.success, call.result = result.success, result.value
            show_call(call)
            results.append((call.name, result.text))
        if parsed.malformed is not None:
            results.append(("", f"A call could not be read: {parsed.malformed}"))
        return self._messages.tool_results(results) if results else ()

    def _reply(self, conversation: Conversation, show: Callable[[str], None]) -> Reply:
        """Generate one turn; Ctrl-C keeps what was shown of it."""
        ids: list[int] = []
        num_shown = 0
        started = time.monotonic()

        def show_new(sampled: Sequence[int], is_over: bool = False) -> None:
            nonlocal num_shown
            ids[:] = sampled
            visible = self._visible(ids, is_over)
            show(visible[num_shown:])
            num_shown = max(num_shown, len(visible))

        async def generate() -> GenerationResult:
            request = GenerationRequest(
                list(conversation.stream.ids),
                self.max_tokens,
                self.sampling,
                stop_ids=self.model.format.stop_ids,
                stop_strings=self.model.format.stop_strings,
                seed=next(self._seeds),
                session=self._session,
                on_tokens=show_new,
            )
            return await self.model.engine.sample(request)

        try:
            result = asyncio.run(generate())
            reason, log_probs = result.finish_reason, result.log_probs
            show_new(result.ids, is_over=True)
        # asyncio raises the second for a Ctrl-C that comes just as the loop begins.
        except (KeyboardInterrupt, asyncio.CancelledError):
            reason, log_probs = FinishReason.ABORTED, [0.0] * len(ids)
        conversation.answer(ids, log_probs)
        self.replies.append(Reply(len(ids), time.monotonic() - started, reason))
        return self.replies[-1]

    def _visible(self, ids: Sequence[int], is_over: bool) -> str:
        """Return the text without the end of turn, and without what may become one."""
        text = self.model.format.decode(ids)
        for stop in self.model.format.stop_strings:
            text = text.partition(stop)[0]
            begun = [n for n in range(1, len(stop)) if text.endswith(stop[:n])]
            if begun and not is_over:
                text = text[: -max(begun)]
        text = text.lstrip()
        return text if is_over else text.rstrip("\ufffd")
