"""`turnwise export`: writes a run's model as a Hugging Face folder, or the run as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import print_json, say, working
from turnwise.cli.run_paths import require_run, run_containing, which_checkpoint
from turnwise.errors import ConfigError


def export(
    run: Annotated[str, opt.argument("RUN", "Folder of a run or a checkpoint.")],
    out: Annotated[
        str, opt.argument("OUT", "The new folder; or a file *.html for a page about the run.")
    ],
    checkpoint: opt.CheckpointOption = "last",
    model: opt.ModelOption = None,
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
        from turnwise.cli.model_card import model_card
        from turnwise.models.load import without_progress_bars
        from turnwise.runs.checkpoints import CheckpointStore
        from turnwise.runs.run_folder import RunFolder
        from turnwise.trainer.state import find_checkpoint, load_trained_model
        from turnwise.whole_files import write_folder

        saved = find_checkpoint(source, which_checkpoint(checkpoint))
        loaded, config = load_trained_model(
            saved.path, trust_remote_code=trust_remote_code, model=model
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
