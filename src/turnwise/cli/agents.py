"""Who plays episodes: a model, the expert, the random player, a function, a model behind a URL.

And the model of `turnwise chat` and `turnwise serve`: both are clients of one `AgentSession`.
"""

import contextlib
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from turnwise.agents.session import AgentSession
from turnwise.chat import TEMPLATES, ChatFormat, Message
from turnwise.cli.options import ModelOptions
from turnwise.cli.run_paths import find_source
from turnwise.cli.settings import Overrides, open_settings
from turnwise.config import ConfigStore
from turnwise.deadlines import call_with_deadline
from turnwise.env.base import BaseEnvironment
from turnwise.env.catalog import EnvironmentFactory
from turnwise.env.players import Player, expert_player, random_player
from turnwise.episode import EpisodeCollector, episode_limits
from turnwise.episode.collector import EpisodeSource
from turnwise.episode.messages import describe_tools
from turnwise.episode.options import EpisodeLimits, EpisodeOptions, make_setup
from turnwise.episode.seeds import derive_seed
from turnwise.errors import ConfigError
from turnwise.inference import (
    BaseInferenceEngine,
    GenerationRequest,
    SamplingParams,
    ScriptedEngine,
    create_inference_engine,
)
from turnwise.models import LoadedModel
from turnwise.reward.judge import Answer, ChatServer
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.run_folder import RunFolder, run_containing
from turnwise.tools import ActionParser, ToolRegistry, get_parser
from turnwise.tools.by_name import parser_by_name, tools_by_name
from turnwise.tools.parsers import JSONActionParser
from turnwise.trainer import state
from turnwise.trainer.components import UserComponents
from turnwise.trainer.rollout import GREEDY
from turnwise.trainer.state import find_checkpoint, load_trained_model
from turnwise.user_code import import_object, settings_from

SCRIPTED = ("expert", "random")
AgentMaker: TypeAlias = Callable[[int, int], Player]
"""Makes the player of an episode from the seed of the task and the index of the attempt."""


def load_players(
    name: str | None,
    source: Path | None,
    config: ConfigStore,
    *,
    base_model: str | None,
    trust_remote_code: bool,
) -> tuple[LoadedModel, dict[str, LoadedModel]]:
    """Return the model of a run or a checkpoint, or the model `name`; and the models of those of
    the run's players that have their own.

    Without a name only a tokenizer is loaded: the actions of a player without a model become tokens
    too. The sections `model` and `inference` become those of the model that plays.
    """
    if name is None:
        if base_model is not None:
            state.use_model(config, base_model)
        return LoadedModel(None, state.load_configured_tokenizer(config)), {}
    if source is None:
        config.model.model_name, config.model.local_path = name, None
        config.model.trust_remote_code = trust_remote_code
        return state.load_configured_model(config), {}
    load = partial(state.load_trained_model, source, trust_remote_code=trust_remote_code)
    player, trained = load(model=base_model)
    config.model, config.inference = trained.model, trained.inference
    return player, {policy: load(policy=policy)[0] for policy in config.policies}


def open_collector(
    config: ConfigStore,
    components: UserComponents,
    source: EnvironmentFactory | EpisodeSource,
    players: tuple[LoadedModel, dict[str, LoadedModel]],
    closing: ExitStack,
    *,
    is_greedy: bool,
) -> EpisodeCollector:
    """Return what plays episodes of the settings by these models, until `closing` is closed."""

    def engine_for(player: LoadedModel) -> BaseInferenceEngine:
        if player.model is None:  # a scripted player only needs the tokenizer
            return closing.enter_context(ScriptedEngine(player.tokenizer))
        engine = create_inference_engine(player.model, tokenizer=player.tokenizer)
        return closing.enter_context(engine)

    player, policies = players
    options = components.episode_options(config, closing)
    return EpisodeCollector(
        engine_for(player),
        source,
        options,
        engines={name: engine_for(model) for name, model in policies.items()},
        sampling=GREEDY if is_greedy else options.sampling,
    )


def agent_by_name(who: str) -> AgentMaker:
    """Return the player `expert`, `random`, or the user's `file.py:function`."""
    if who == "expert":
        return lambda seed, attempt: expert_player
    if who == "random":
        return lambda seed, attempt: random_player(
            derive_seed(seed, "attempt", attempt) if attempt else seed
        )
    if ":" not in who:
        raise ConfigError(f"--agent got {who!r}, expected expert, random or path/to/file.py:name")
    agent = import_object(who, option="--agent")
    is_class, num_needed = isinstance(agent, type), 0
    if callable(agent):
        parameters = inspect.signature(agent.__call__ if is_class else agent).parameters.values()
        num_needed = sum(
            one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
            and (one.default is one.empty or one.name == "state")
            for one in parameters
        )
        num_needed -= is_class  # self
    if num_needed not in (1, 2):
        raise ConfigError(
            f"--agent got {who!r} of type {type(agent).__name__}; expected a function "
            "(observation) or (observation, state) that returns the action as text, or a class "
            "with such a __call__, of which each episode gets an object"
        )

    def make(seed: int, attempt: int) -> Player:
        function = agent() if is_class else agent

        async def play(env: BaseEnvironment, observation: str) -> str:
            arguments = [observation]
            if num_needed == 2:
                arguments.append(env.get_state_description())
            # In a thread: a plain function may wait for a server, and other episodes must not.
            action = await call_with_deadline(function, *arguments, timeout=None, waiting_for=who)
            if not isinstance(action, str):
                returned = f"{action!r:.80} of type {type(action).__name__}"
                raise ConfigError(f"{who} returned {returned}, expected the action as text")
            return action

        return play

    return make


class ServedModel:
    """A model behind a URL, which plays episodes through OpenAI's chat interface.

    Tools are described in the prompt, and calls are text: so every server can play.
    """

    def __init__(
        self, url: str, model: str | None, sends_temperature: bool, max_tokens: int | None
    ) -> None:
        """Without `model`, the only one that the server offers."""
        # What the user did not set is not sent: the server has its own, and may refuse others'.
        self._server = ChatServer(url, os.environ.get("OPENAI_API_KEY"), timeout=600.0)
        offered = [model] if model is not None else self._server.models()
        if len(offered) != 1:
            names = ", ".join(offered[:10])
            raise ConfigError(f"{url} offers {len(offered)} models. Name one with --model: {names}")
        self.model = offered[0]
        self.name = f"{self.model} at {url}"
        self._sends_temperature = sends_temperature
        self._options = {} if max_tokens is None else {"max_tokens": max_tokens}

    async def reply(self, messages: Sequence[Message], request: GenerationRequest) -> Answer:
        """Return the server's next message of a conversation."""
        # Without its own calls; results of tools are the user's.
        sent = [
            {"role": "user", "content": f"{message['name']}: {message['content']}"}
            if message["role"] == "tool"
            else {"role": message["role"], "content": message["content"]}
            for message in messages
        ]
        options: dict[str, Any] = dict(self._options)
        if self._sends_temperature:
            options["temperature"] = request.sampling.temperature
            if request.sampling.top_p < 1.0:
                options["top_p"] = request.sampling.top_p
        complete = partial(self._server.complete, self.model, sent, **options)
        answer: Answer = await call_with_deadline(
            complete, timeout=request.timeout, waiting_for=self.name
        )
        return answer


@dataclass
class ChatModel:
    """A model that replies to requests, and how a run used it, if it is of one."""

    session: AgentSession
    context_length: int
    system_prompt: str | None
    tools: ToolRegistry | None
    parser: ActionParser
    sampling: SamplingParams | None
    max_tokens: int
    about: str | None
    """A line about what is used of the run."""
    step: int | None
    """The step of the run's checkpoint."""


def open_chat_model(
    options: ModelOptions,
    closing: contextlib.ExitStack,
    overrides: Overrides,
    max_conversations: int,
    has_tools: bool = True,
) -> ChatModel:
    """Load the model that the options of a command name: of a run, by name, folder or URL.

    That of a run comes with the run's prompt, tools and sampling, but without its environment.
    Without `has_tools` its tools are not imported: clients of a server bring theirs.
    """
    model, trust_remote_code = options.model, options.trust_remote_code
    source = find_source(model, options.checkpoint)
    overrides.allow_code()
    run = loaded = step = about = sampling = None
    environment = ""
    if source is not None:
        if options.backend not in ("local", "transformers"):
            raise ConfigError(
                f"--backend {options.backend} cannot load the checkpoint of {model}. Export it "
                f"first (turnwise export {model} FOLDER), and name that folder."
            )
        if (options.dtype, options.device, options.tokenizer) != ("auto", "auto", None):
            raise ConfigError(
                f"leave out --dtype, --device and --tokenizer: {model} is a run, which has its own."
            )
        saved = find_checkpoint(source)
        run, source, step = run_containing(source), saved.path, saved.step
        loaded, trained = load_trained_model(source, trust_remote_code=trust_remote_code)
        sampling = SamplingParams(trained.inference.temperature, top_p=trained.inference.top_p)
        environment = trained.environment_name
    with settings_from(source, is_trusted=trust_remote_code):
        config = open_settings(source, overrides, plays=False, has_tools=has_tools)
        tools = tools_by_name(config.tools, closing) if config.tools else None
        chosen = parser_by_name(config.parser)
    if loaded is None or run is None:
        engine = create_inference_engine(
            model, options.backend, options.for_engine(), tokenizer=options.tokenizer
        )
    else:
        prompt = "your system prompt"
        if overrides.system_prompt is None:
            prompt = _recorded_prompt(run) or config.system_prompt or ""
            # Its tools are described anew: those of the environment are not here.
            tools_title = describe_tools([], JSONActionParser()).splitlines()[0]
            config.system_prompt = prompt.partition(tools_title)[0].rstrip() or None
            prompt = "its system prompt" if config.system_prompt else "no system prompt"
        known = "no tools" if tools is None else f"the tools {', '.join(tools.names)}"
        about = (
            f"the model after step {step:,}, with {prompt} and {known}; its environment "
            f"{environment} is not used"
        )
        engine = create_inference_engine(loaded.model, options.backend, tokenizer=loaded.tokenizer)
    closing.enter_context(engine)
    if engine.tokenizer is None:
        raise ConfigError(f"{model} came without a tokenizer. Name one with --tokenizer.")
    template = options.template
    if template is None and not engine.tokenizer.chat_template:
        if source is None:
            known = ", ".join(TEMPLATES)
            raise ConfigError(f"{model} has no chat template. Choose one with --template: {known}.")
        template = "plain"  # as in the run
    chat = ChatFormat(engine.tokenizer, template, enable_thinking=config.inference.enable_thinking)
    parser = get_parser(chosen, template=chat.template) if isinstance(chosen, str) else chosen
    # A request says how long its reply may be; otherwise the context is the limit.
    limits = EpisodeLimits(max_turns=sys.maxsize, max_tokens_per_turn=None, max_seconds=None)
    setup = make_setup(
        engine, EpisodeOptions(chat_format=chat, limits=limits, sampling=sampling, parser=parser)
    )
    return ChatModel(
        session=AgentSession(setup, honours_sampling=True, max_conversations=max_conversations),
        context_length=engine.context_length,
        system_prompt=config.system_prompt,
        tools=tools,
        parser=parser,
        sampling=sampling,
        max_tokens=(source and episode_limits(config).max_tokens_per_turn) or 256,
        about=about,
        step=step,
    )


def _recorded_prompt(run: Path) -> str | None:
    """Return the system message of the run's last episodes, with what its environment added."""
    store = EpisodeStore(RunFolder(run).episodes, budget_bytes=0)  # it is only read
    with contextlib.suppress(ConfigError):  # a damaged file: the prompt of the settings is used
        for step in reversed(store.steps()):
            for episode in store.read(step):
                for message in episode.agent.messages[:1]:
                    return str(message["content"]) if message["role"] == "system" else None
    return None
