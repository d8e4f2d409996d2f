"""Arguments and options that several commands share."""

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Self

import typer

BackendName = StrEnum("BackendName", ["local", "transformers", "vllm", "sglang", "scripted"])


def argument(metavar: str, help: str, default: str | bool = True) -> Any:
    """Return a positional argument; `default` is what the help shows as its default."""
    return typer.Argument(metavar=metavar, help=help, show_default=default)


def option(
    help: str, metavar: str | None = None, *names: str, default: str | bool = True, **more: Any
) -> Any:
    """Return an option; `default` is what the help shows instead of its default."""
    return typer.Option(*names, metavar=metavar, help=help, show_default=default, **more)


def flag(name: str, help: str) -> Any:
    """Return an option without a value and without its `--no-` form."""
    return typer.Option(name, help=help)


def _override(name: str, metavar: str, help: str) -> Any:
    panel = "Overrides of what the run recorded"
    return option(help, metavar, name, default="the run's own", rich_help_panel=panel)


ENV_OR_RUN = (
    "A name listed by `turnwise envs`, your own path/to/file.py:ClassName, or the folder of a run, "
    "for its environment with parameters, tools and dataset."
)
AsJson = Annotated[bool, flag("--json", "Print JSON: one object, or one a line.")]
TrustRemoteCode = Annotated[
    bool, flag("--trust-remote-code", "Run code that a run or a model names, even if new to you.")
]
Parameters = Annotated[
    list[str] | None,
    option("Parameter of the environment; repeatable.", "KEY=VALUE", "--param", "-p"),
]
MaxSteps = Annotated[
    int | None, option("Most actions per episode.", default="the environment's own", min=1)
]
EnvironmentOption = Annotated[str | None, _override("--env", "ENV", "Environment.")]
RewardOption = Annotated[str | None, _override("--reward", "FILE.PY:NAME", "Reward function.")]
DatasetOption = Annotated[list[str] | None, _override("--dataset", "FILE", "Dataset; repeatable.")]
ToolOption = Annotated[
    list[str] | None,
    _override("--tool", "NAME", "Tool: calculator, python, FILE.PY:NAME; repeatable."),
]
ParserOption = Annotated[
    str | None, _override("--parser", "NAME", "Parser of calls: json, hermes, FILE.PY:NAME ...")
]
SystemPromptOption = Annotated[str | None, _override("--system-prompt", "TEXT", "System prompt.")]
ModelOption = Annotated[
    str | None, _override("--model", "MODEL", "Base model: a name, a folder, a Hugging Face id.")
]
PartOption = Annotated[
    str | None, option("In a run with several environments, play only this one.", "NAME")
]
CheckpointOption = Annotated[str, option("best, last, a step, or a checkpoint's folder.", "WHICH")]
ModelArgument = Annotated[
    str,
    argument(
        "RUN_OR_MODEL",
        "The folder of a run, a checkpoint or a model; tiny, smollm2-135m, a Hugging Face id, or "
        "the URL of a server of vLLM or SGLang.",
    ),
]
GreedyOption = Annotated[
    bool | None,
    option("Greedy decoding, or sampling.", None, "--greedy/--sampled", default="greedy"),
]
SeedOption = Annotated[int | None, option("Seed of all that is random.", default="random", min=0)]
BackendOption = Annotated[BackendName, option("Inference engine.")]
TemplateOption = Annotated[
    str | None, option("Chat template for a tokenizer without one: chatml or plain.", "NAME")
]
TokenizerOption = Annotated[str | None, option("Tokenizer for a server's URL.", "MODEL")]
DtypeOption = Annotated[str, option("float32, bfloat16 or float16.")]
DeviceOption = Annotated[str, option("cpu, cuda, cuda:1 ...")]
HostOption = Annotated[str, option("Address to listen at; 0.0.0.0 for all of this machine's.")]
PortOption = Annotated[int, option("Port; 0 takes a free one.", min=0, max=65535)]
ConfigPath = Annotated[str | None, option("Folder of the YAML file.", "DIR")]
ConfigName = Annotated[str | None, option("Name of the YAML file, with or without .yaml.", "NAME")]


@dataclass(frozen=True)
class ModelOptions:
    """The options of `turnwise chat` and `turnwise serve` that say which model replies."""

    model: str
    checkpoint: str
    backend: str
    template: str | None
    tokenizer: str | None
    dtype: str
    device: str
    trust_remote_code: bool

    @classmethod
    def typed(cls, ctx: typer.Context) -> Self:
        """Return those that a command was called with."""
        return cls(**{field.name: ctx.params[field.name] for field in fields(cls)})

    def for_engine(self) -> dict[str, Any]:
        """Return what an engine is created with, as far as it is given."""
        given = {"dtype": self.dtype, "device": self.device}
        options: dict[str, Any] = {name: one for name, one in given.items() if one != "auto"}
        return options | ({"trust_remote_code": True} if self.trust_remote_code else {})
