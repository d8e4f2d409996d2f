"""Arguments and options that several commands share."""

from enum import StrEnum
from typing import Annotated, Any

import typer


class BackendName(StrEnum):
    local = "local"
    transformers = "transformers"
    vllm = "vllm"
    sglang = "sglang"
    scripted = "scripted"


def argument(metavar: str, help: str, default: bool | str = False) -> Any:
    """Return a positional argument; `default` is what the help shows as its default."""
    return typer.Argument(metavar=metavar, help=help, show_default=default)


def _override(name: str, metavar: str, help: str) -> Any:
    return typer.Option(
        name,
        metavar=metavar,
        help=help,
        show_default="the run's own",
        rich_help_panel="Overrides of what the run recorded",
    )


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
Parameters = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        "-p",
        metavar="KEY=VALUE",
        help="Parameter of the environment; repeatable.",
        show_default=False,
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Run Python code that a run or a model names, even if you have not run it before.",
    ),
]
MaxSteps = Annotated[
    int | None,
    typer.Option(
        min=1, help="Maximum number of actions per episode.", show_default="the environment's own"
    ),
]
ENV_OR_RUN = (
    "A name listed by `turnwise envs`, your own path/to/file.py:ClassName, or the folder of a run, "
    "for its environment with parameters, tools and dataset."
)
EnvironmentOption = Annotated[str | None, _override("--env", "ENV", "Environment.")]
RewardOption = Annotated[str | None, _override("--reward", "FILE.PY:NAME", "Reward function.")]
DatasetOption = Annotated[
    list[str] | None, _override("--dataset", "FILE", "Dataset to play; repeatable.")
]
ToolOption = Annotated[
    list[str] | None,
    _override("--tool", "NAME", "Tool: calculator, python, FILE.PY:NAME; repeatable."),
]
ParserOption = Annotated[
    str | None,
    _override("--parser", "NAME", "Parser of tool calls: json, hermes, FILE.PY:NAME ..."),
]
SystemPromptOption = Annotated[str | None, _override("--system-prompt", "TEXT", "System prompt.")]
ModelOption = Annotated[
    str | None,
    _override(
        "--model", "MODEL", "Base model of the run's weights: a name, a folder, a Hugging Face id."
    ),
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part",
        metavar="NAME",
        help="In a run with several environments, play only this one.",
        show_default=False,
    ),
]
CheckpointOption = Annotated[
    str,
    typer.Option(
        "--checkpoint", metavar="WHICH", help="best, last, a step, or a checkpoint's folder."
    ),
]
BackendOption = Annotated[BackendName, typer.Option("--backend", help="Inference engine.")]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        "--template",
        metavar="NAME",
        help="Chat template: chatml, llama-2, llama-3, mistral, gemma, zephyr, plain.",
        show_default="the tokenizer's own",
    ),
]
TokenizerOption = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="MODEL", help="Tokenizer for a server's URL."),
]
DtypeOption = Annotated[str, typer.Option("--dtype", help="float32, bfloat16 or float16.")]
DeviceOption = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 ...")]
TrustModelCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the model.")
]
ConfigPath = Annotated[
    str | None, typer.Option("--config-path", metavar="DIR", help="Folder of the YAML file.")
]
ConfigName = Annotated[
    str | None,
    typer.Option(
        "--config-name", metavar="NAME", help="Name of the YAML file, with or without .yaml."
    ),
]
