"""The model of `turnwise chat` and `turnwise serve`: both are clients of one `AgentSession`."""

import contextlib
import sys
from dataclasses import dataclass
from pathlib import Path

import typer

from turnwise import inference
from turnwise.agents.session import AgentSession
from turnwise.chat import TEMPLATES, ChatFormat
from turnwise.cli.run_paths import find_source, run_containing, which_checkpoint
from turnwise.cli.settings import Overrides, find_code
from turnwise.config import ConfigStore, DatasetConfig, EnvironmentConfig
from turnwise.episode import episode_limits
from turnwise.episode.messages import describe_tools
from turnwise.episode.options import EpisodeLimits, EpisodeOptions, make_setup
from turnwise.errors import ConfigError
from turnwise.inference import SamplingParams
from turnwise.models import LoadedModel
from turnwise.runs.episode_store import EpisodeStore
from turnwise.runs.places import places_of
from turnwise.runs.run_folder import RunFolder
from turnwise.tools import ActionParser, ToolRegistry, get_parser
from turnwise.tools.by_name import parser_by_name, tools_by_name
from turnwise.tools.parsers import JSONActionParser
from turnwise.trainer.state import find_checkpoint, load_trained_model
from turnwise.user_code import settings_from


@dataclass
class ChatModel:
    """A model that replies to requests, and how a run used it."""

    session: AgentSession
    context_length: int
    system_prompt: str | None
    tools: ToolRegistry | None
    parser: ActionParser
    sampling: SamplingParams | None
    """That of a run; None: it is no run."""
    max_tokens: int
    about: str | None
    """A line about what is used of a run."""
    step: int | None
    """The step of a run's checkpoint; None: it is no run."""


def open_chat_model(
    ctx: typer.Context,
    closing: contextlib.ExitStack,
    overrides: Overrides,
    max_conversations: int,
    has_tools: bool = True,
) -> ChatModel:
    """Load the model of a run or a checkpoint, or one by its name, its folder, a server's URL.

    The options of the command (`ctx.params`) say which one, and how. That of a run comes with the
    run's prompt, tools and sampling, but without its environment.
    Without `has_tools` its tools are not imported: clients of a server bring theirs.
    """
    model, checkpoint, backend = (ctx.params[n] for n in ("model", "checkpoint", "backend"))
    template, tokenizer = ctx.params["template"], ctx.params["tokenizer"]
    given = {name: ctx.params[name] for name in ("dtype", "device", "trust_remote_code")}
    trust_remote_code = given["trust_remote_code"]
    source = find_source(model, checkpoint)
    overrides.allow_code()
    config = ConfigStore()
    loaded: LoadedModel | None = None
    step = about = sampling = None
    if source is not None:
        if backend not in ("local", "transformers"):
            raise ConfigError(
                f"--backend {backend} cannot load the checkpoint of {model}. Export it first: "
                f"turnwise export {model} FOLDER, then turnwise {ctx.info_name} FOLDER "
                f"--backend {backend}"
            )
        if (given["dtype"], given["device"], tokenizer) != ("auto", "auto", None):
            raise ConfigError(
                f"--dtype, --device and --tokenizer are for a model, and {model} is a run, which "
                "has its own. Leave them out."
            )
        saved = find_checkpoint(source, which_checkpoint(checkpoint))
        step = saved.step
        loaded, config = load_trained_model(saved.path, trust_remote_code=trust_remote_code)
        sampling = SamplingParams(config.inference.temperature, top_p=config.inference.top_p)
    environment = config.environment_name
    config.environments = config.agent = config.expert = config.reward = None
    config.environment = EnvironmentConfig()
    config.dataset, config.eval_dataset = DatasetConfig(), DatasetConfig()
    config.tools = config.tools if has_tools else []
    with settings_from(source, is_trusted=trust_remote_code):
        overrides.put_into(config)
        if source is not None:
            run = run_containing(source)
            find_code(config, places_of(run), run=run)
        tools = tools_by_name(config.tools, closing) if config.tools else None
        chosen = parser_by_name(config.parser)
    if loaded is None:
        options = {name: value for name, value in given.items() if value not in ("auto", False)}
        engine = inference.create_inference_engine(model, backend, options, tokenizer=tokenizer)
    else:
        prompt = "your system prompt"
        if overrides.system_prompt is None:
            prompt = _recorded_prompt(run) or config.system_prompt or ""
            # Its tools are described anew: those of the environment are not here.
            tools_title = describe_tools([], JSONActionParser()).splitlines()[0]
            config.system_prompt = prompt.partition(tools_title)[0].rstrip() or None
            prompt = "its system prompt" if config.system_prompt else "no system prompt"
        names = "no tools" if tools is None else f"the tools {', '.join(tools.names)}"
        about = (
            f"the model after step {step:,}, with {prompt} and {names}; its environment "
            f"{environment} is not used"
        )
        engine = inference.create_inference_engine(
            loaded.model, backend, tokenizer=loaded.tokenizer
        )
    closing.enter_context(engine)
    if engine.tokenizer is None:
        raise ConfigError(f"{model} came without a tokenizer. Name one with --tokenizer.")
    if template is None and not engine.tokenizer.chat_template:
        if source is None:
            raise ConfigError(
                f"the tokenizer of {model} has no chat template. Choose one with --template: "
                f"{', '.join(TEMPLATES)}."
            )
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
