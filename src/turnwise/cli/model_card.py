"""The model card (README.md) of an exported model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise import __version__
from turnwise.cli.run_paths import run_containing
from turnwise.episode import episode_limits
from turnwise.progress.lines import count
from turnwise.runs.headline import headline
from turnwise.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from turnwise.config import ConfigStore, EnvironmentConfig

_CARD = """\
---
{header}---

# {name}

{base}, trained by reinforcement learning with turnwise {version} in
{environments}: {steps}.

{headline}{metrics}## How to load it

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained("{name}")
tokenizer = AutoTokenizer.from_pretrained("{name}")
```

```sh
turnwise chat {name}
turnwise eval {name} --env {play}
vllm serve {name}
```

The chat template is part of the tokenizer. In training, a turn had at most {max_tokens} tokens,
sampled at temperature {temperature}.

## How it was trained

| setting | value |
|---|---|
{settings}"""
_SETTINGS = (
    "adv_estimator",
    "policy_loss",
    "learning_rate",
    "batch_size",
    "group_size",
    "update_epochs",
    "lora_rank",
    "warm_start",
    "seed",
)


def model_card(run: Path, step: int, config: ConfigStore, name: str, num_parameters: int) -> str:
    """Return the card in the format of the Hugging Face hub."""
    folder = RunFolder(run_containing(run.expanduser()))
    history, evaluated_on = folder.read_metrics(), folder.evaluated_on
    main = headline(history, evaluated_on, step=step)
    training = config.training
    base = config.model.local_path or config.model.model_name
    is_on_hub = "/" in base and not Path(base).exists()
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "turnwise"],
    }
    if is_on_hub:
        header["base_model"] = base
    from turnwise.yaml_files import dump

    games = [config.agent or _game(part.environment) for part in config.parts().values()]
    metrics = next((line for line in reversed(history) if line.get("step") == step), {})
    # Of the training episodes and of evaluations; of a mix, also those of each environment.
    shown = [name for name in metrics if name.rpartition("/")[2] in ("success", "reward")]
    table = "".join(f"| {name} | {metrics[name]:.4g} |\n" for name in sorted(shown))
    settings = {name: getattr(training, name) for name in _SETTINGS}
    return _CARD.format(
        header=dump(header),
        name=name,
        base=f"`{base}` ({num_parameters / 1e6:,.1f} million parameters)",
        version=__version__,
        environments=", ".join(f"`{game}`" for game in games),
        steps=f"{count(step, 'step')} of {count(training.batch_size, 'task')}",
        headline="" if main is None else f"**{main}**\n\n",
        metrics=f"| at step {step:,} | |\n|---|---|\n{table}\n" if table else "",
        play=games[0],
        max_tokens=episode_limits(config).max_tokens_per_turn,
        temperature=config.inference.temperature,
        settings="".join(
            f"| {name} | {'none' if value is None else value} |\n"
            for name, value in settings.items()
        ),
    )


def _game(environment: EnvironmentConfig) -> str:
    """Return an environment as it is named on the command line."""
    given = "".join(f" --param {key}={value}" for key, value in environment.params.items())
    if environment.max_steps is not None:
        given += f" --max-steps {environment.max_steps}"
    return environment.name + given
