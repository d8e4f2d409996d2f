"""The model card (README.md) of an exported model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turnwise import __version__
from turnwise.cli.run_paths import run_containing
from turnwise.episode import episode_limits
from turnwise.progress.run_state import count
from turnwise.runs.headline import headline
from turnwise.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from turnwise.config import ConfigStore, EnvironmentConfig

_CARD = """\
---
{header}---

# {name}

{base}, trained by reinforcement learning with turnwise {version} in the {environments}: {steps}.

{metrics}## How to load it

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
_METRICS = {
    "eval/greedy/success": "success, greedy, {on}",
    "eval/greedy/reward": "reward, greedy, {on}",
    "eval/sampled/success": "success, sampled, {on}",
    "eval/sampled/reward": "reward, sampled, {on}",
    "success": "success, training episodes of this step",
    "reward": "reward, training episodes of this step",
}
_SETTINGS = ("adv_estimator", "policy_loss", "learning_rate", "batch_size", "group_size")
_MORE_SETTINGS = ("update_epochs", "lora_rank", "warm_start", "seed")


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
    settings = [(key, getattr(training, key)) for key in (*_SETTINGS, *_MORE_SETTINGS)]
    return _CARD.format(
        header=dump(header),
        name=name,
        base=f"`{base}` ({num_parameters / 1e6:,.1f} million parameters)",
        version=__version__,
        environments="environment{}\n{}".format(
            "s" if len(games) > 1 else "", ", ".join(f"`{game}`" for game in games)
        ),
        steps=f"{count(step, 'step')} of {count(training.batch_size, 'task')}",
        metrics=("" if main is None else f"**{main}**\n\n")
        + _table(history, step, [part for part in config.parts() if part], evaluated_on),
        play=games[0],
        max_tokens=episode_limits(config).max_tokens_per_turn,
        temperature=config.inference.temperature,
        settings="".join(f"| {key} | {_shown(value)} |\n" for key, value in settings),
    )


def _game(environment: EnvironmentConfig) -> str:
    """Return an environment as it is named on the command line."""
    given = "".join(f" --param {key}={value}" for key, value in environment.params.items())
    if environment.max_steps is not None:
        given += f" --max-steps {environment.max_steps}"
    return environment.name + given


def _table(
    history: Sequence[Mapping[str, float]],
    step: int,
    parts: Sequence[str],
    evaluated_on: str | None,
) -> str:
    """Return a table of a step's metrics; of a mix, also those of each environment."""
    metrics = next((line for line in reversed(history) if line.get("step") == step), {})
    number = metrics.get("eval/greedy/num_episodes")
    many = "episodes" if number is None else f"{number:,.0f} episodes"
    on = f"{many} on {evaluated_on}" if evaluated_on else many
    names = {key: name.format(on=on) for key, name in _METRICS.items()}
    for part in parts:
        names |= {
            key.replace("eval/", f"eval/{part}/") if "/" in key else f"{part}/{key}": (
                f"{part}: {name}"
            )
            for key, name in list(names.items())[: len(_METRICS)]
        }
    rows = [f"| {name} | {metrics[key]:.4g} |" for key, name in names.items() if key in metrics]
    if not rows:
        return ""
    return "\n".join([f"| at step {step:,} | |", "|---|---|", *rows, "", ""])


def _shown(value: object) -> str:
    return "none" if value is None else json.dumps(value).strip('"')
