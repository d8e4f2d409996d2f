"""`turnwise export`: writes a run's model as a Hugging Face folder, or the run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import print_json, say, working
from turnwise.cli.run_paths import require_run, run_containing, which_checkpoint
from turnwise.errors import ConfigError

if TYPE_CHECKING:
    from turnwise.config import ConfigStore

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
    policy: Annotated[
        str, typer.Option(metavar="PLAYER", help="A player of the run's policies: its model.")
    ] = "",
    episodes: Annotated[
        int,
        typer.Option(min=0, max=500, help="Number of whole conversations in a page."),
    ] = 12,
    trust_remote_code: opt.TrustRemoteCode = False,
    as_json: opt.AsJson = False,
) -> None:
    """Write a trained model in the Hugging Face layout, with tokenizer, template and model card.

    LoRA adapters are merged into the weights. Existing files are never overwritten. If OUT ends in
    .html, write the run as one page instead: curves, findings, settings, episodes.

    [bold]Examples[/bold]

    turnwise export runs/mine models/mine
    turnwise export runs/mine models/mine --checkpoint best
    turnwise export runs/mine/checkpoints/step-00000010 models/early
    turnwise export runs/mine mine.html
    turnwise chat models/mine
    vllm serve models/mine
    """
    target = Path(out).expanduser()
    if target.suffix.lower() in (".html", ".htm"):
        _export_page(run, target, episodes, as_json)
        return
    source = require_run(run, checkpoint)
    _check_free(target)
    with working(f"loading {run}"):
        from turnwise.chat import TEMPLATES
        from turnwise.models.load import without_progress_bars
        from turnwise.runs.checkpoints import CheckpointStore
        from turnwise.runs.run_folder import RunFolder
        from turnwise.trainer.state import find_checkpoint, load_trained_model
        from turnwise.whole_files import write_folder

        saved = find_checkpoint(source, which_checkpoint(checkpoint))
        loaded, config = load_trained_model(
            saved.path, trust_remote_code=trust_remote_code, model=model, policy=policy
        )
    if not loaded.tokenizer.chat_template:  # the run used this one
        loaded.tokenizer.chat_template = TEMPLATES["plain"]

    def fill(draft: Path) -> None:
        loaded.model.save_pretrained(draft)
        loaded.tokenizer.save_pretrained(draft)
        number = loaded.model.num_parameters()
        card = model_card(source, saved.step, config, target.name, number)
        (draft / "README.md").write_text(card, encoding="utf-8")

    try:
        with working(f"writing {out}"), without_progress_bars():
            write_folder(target.absolute(), fill, lambda: _check_free(target))
    except Exception as error:  # safetensors has the errors of the system only in its message
        if not isinstance(error, OSError) and "os error" not in str(error):
            raise
        raise ConfigError(
            f"cannot write {target}: {error}. Free some space there, or name another folder."
        ) from error
    if as_json:
        files = sorted(file.name for file in target.iterdir())
        print_json({"folder": out, "run": run, "step": saved.step, "files": files})
        return
    is_best = checkpoint == "best"
    best = CheckpointStore(RunFolder(Path(run).expanduser()).checkpoints).best if is_best else None
    which = f"step {saved.step}" if best is None else str(best)
    say(f"{out} has the model of {which}. Chat with it: turnwise chat {out}")


def _export_page(run: str, target: Path, num_episodes: int, as_json: bool) -> None:
    from turnwise.view.library import Library
    from turnwise.view.report import export_run
    from turnwise.whole_files import write_whole

    library = Library([run_containing(require_run(run))])
    library.find()
    if not library.runs:
        raise ConfigError(
            f"{run} has checkpoints, but neither run.json nor metrics.jsonl: there is nothing to "
            "show. Name the folder of the whole run, for example runs/mine."
        )
    _check_free(target)
    with working(f"writing {target}"):
        page = export_run(library.runs[0], num_episodes).encode()
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, page)
    if as_json:
        print_json({"file": str(target), "run": run, "bytes": len(page)})
        return
    say(f"{target} has the run, {len(page) / 2**20:.1f} MiB. Open it in any browser.")


def _check_free(target: Path) -> None:
    is_empty = target.is_dir() and not any(target.iterdir())
    if target.exists() and not is_empty:
        raise ConfigError(f"{target} exists already. Name a folder that does not.")


def model_card(run: Path, step: int, config: ConfigStore, name: str, num_parameters: int) -> str:
    """Return the model card (README.md) in the format of the Hugging Face hub."""
    from turnwise import __version__
    from turnwise.episode import episode_limits
    from turnwise.progress.lines import count
    from turnwise.runs.headline import headline
    from turnwise.runs.run_folder import RunFolder
    from turnwise.yaml_files import dump

    folder = RunFolder(run_containing(run.expanduser()))
    history, evaluated_on = folder.read_metrics(), folder.evaluated_on
    main = headline(history, evaluated_on, step=step)
    training = config.training
    base = config.model.local_path or config.model.model_name
    header: dict[str, Any] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "turnwise"],
    }
    if "/" in base and not Path(base).exists():  # it is on the hub
        header["base_model"] = base
    games = []  # each as it is named on the command line
    for part in config.parts().values():
        given = [f" --param {key}={value}" for key, value in part.environment.params.items()]
        if part.environment.max_steps is not None:
            given.append(f" --max-steps {part.environment.max_steps}")
        games.append(config.agent or part.environment.name + "".join(given))
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
