"""`turnwise export`: writes a run's model as a Hugging Face folder, or the run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from turnwise import __version__
from turnwise.cli import options as opt
from turnwise.cli.common import say, working
from turnwise.cli.run_paths import require_run
from turnwise.config import ConfigStore
from turnwise.errors import ConfigError
from turnwise.progress.lines import count
from turnwise.runs.headline import headline
from turnwise.runs.run_folder import RunFolder, run_containing
from turnwise.whole_files import remove_abandoned, write_folder, write_whole
from turnwise.yaml_files import dump

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


def export(
    run: Annotated[str, opt.argument("RUN", "Folder of a run or a checkpoint.")],
    out: Annotated[
        str, opt.argument("OUT", "The new folder; or a file *.html for a page about the run.")
    ],
    checkpoint: opt.CheckpointOption = "last",
    model: opt.ModelOption = None,
    policy: Annotated[str, opt.option("A player of the run's policies: its model.", "PLAYER")] = "",
    episodes: Annotated[
        int, opt.option("Number of whole conversations in a page.", min=0, max=500)
    ] = 12,
    trust_remote_code: opt.TrustRemoteCode = False,
) -> None:
    """Write a trained model in the Hugging Face layout, with tokenizer, template and model card.

    LoRA adapters are merged into the weights. Existing files are never overwritten. If OUT ends in
    .html, write the run as one page instead: curves, findings, settings, episodes.

    [bold]Examples[/bold]

    turnwise export runs/mine models/mine
    turnwise export runs/mine models/mine --checkpoint best
    turnwise export runs/mine mine.html
    """
    target = Path(out).expanduser()
    if target.suffix.lower() in (".html", ".htm"):
        _export_page(run, target, episodes)
        return
    source = require_run(run, checkpoint)
    _check_free(target)
    with working(f"loading {run}"):
        from safetensors import SafetensorError

        from turnwise.chat import TEMPLATES
        from turnwise.models.load import without_progress_bars
        from turnwise.trainer.state import find_checkpoint, load_trained_model

        saved = find_checkpoint(source)
        loaded, config = load_trained_model(
            saved.path, trust_remote_code=trust_remote_code, model=model, policy=policy
        )
    if not loaded.tokenizer.chat_template:  # the run used this one
        loaded.tokenizer.chat_template = TEMPLATES["plain"]

    def fill(draft: Path) -> None:
        try:
            loaded.model.save_pretrained(draft)
        except SafetensorError as error:  # of a full disk, for example: it is no OSError
            raise ConfigError(f"cannot write {out}: {error}") from error
        loaded.tokenizer.save_pretrained(draft)
        size = loaded.model.num_parameters()
        card = model_card(source, saved.step, config, target.name, size)
        (draft / "README.md").write_text(card, encoding="utf-8")

    with working(f"writing {out}"), without_progress_bars():
        remove_abandoned(target.parent, target.name)
        write_folder(target.absolute(), fill, lambda: _check_free(target))
    say(f"{out} has the model of step {saved.step}. Chat with it: turnwise chat {out}")


def _export_page(run: str, target: Path, num_episodes: int) -> None:
    from turnwise.view.report import export_run
    from turnwise.view.runs import Library

    library = Library([run_containing(require_run(run))])
    library.find()
    if not library.runs:
        raise ConfigError(f"{run} has neither run.json nor metrics.jsonl: nothing can be shown")
    _check_free(target)
    with working(f"writing {target}"):
        page = export_run(library.runs[0], num_episodes).encode()
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent, target.name)
        write_whole(target, page)
    say(f"{target} has the run, {len(page) / 2**20:.1f} MiB. Open it in any browser.")


def _check_free(target: Path) -> None:
    is_empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty:
        raise ConfigError(f"{target} exists already. Name a folder that does not.")


def model_card(run: Path, step: int, config: ConfigStore, name: str, num_parameters: int) -> str:
    """Return the model card (README.md) in the format of the Hugging Face hub."""
    from turnwise.episode import episode_limits

    folder = RunFolder(run_containing(run.expanduser()))
    history, evaluated_on = folder.read_metrics(), folder.evaluated_on
    main = headline(history, evaluated_on, step=step)
    training = config.training
    base = config.model.local_path or config.model.model_name
    header: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation"}
    header["tags"] = ["reinforcement-learning", "turnwise"]
    if "/" in base and not Path(base).exists():  # it is on the hub
        header["base_model"] = base
    games = []  # each as it is named on the command line
    for game in (part.environment for part in config.parts().values()):
        words = [game.name, *(f"--param {key}={value}" for key, value in game.params.items())]
        words += [] if game.max_steps is None else [f"--max-steps {game.max_steps}"]
        games.append(config.agent or " ".join(words))
    metrics = next((line for line in reversed(history) if line.get("step") == step), {})
    # Of the training episodes and of evaluations; of a mix, also those of each environment.
    shown = [name for name in metrics if name.rpartition("/")[2] in ("success", "reward")]
    table = "".join(f"| {name} | {metrics[name]:.4g} |\n" for name in sorted(shown))
    values = {name: getattr(training, name) for name in _SETTINGS}
    settings = {name: "none" if value is None else value for name, value in values.items()}
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
        settings="".join(f"| {name} | {value} |\n" for name, value in settings.items()),
    )
