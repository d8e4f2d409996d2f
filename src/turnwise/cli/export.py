"""`turnwise export`: writes a run's model as a Hugging Face folder, or the run as one HTML page."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from turnwise.cli import options as opt
from turnwise.cli.common import print_json, say, working
from turnwise.cli.run_paths import require_run, run_of, which_checkpoint
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
    place = Path(out).expanduser()
    if place.suffix.lower() in (".html", ".htm"):
        _export_page(run, place, episodes, as_json)
        return
    source = require_run(run, checkpoint)
    _check_free(place)
    with working(f"loading {run}"):
        from turnwise.cli.model_card import model_card
        from turnwise.models.load import without_progress_bars
        from turnwise.runs.checkpoints import CheckpointStore
        from turnwise.runs.run_folder import RunFolder
        from turnwise.trainer.state import find_checkpoint, load_trained_model
        from turnwise.whole_files import honour_umask

        found = find_checkpoint(source, which_checkpoint(checkpoint))
        loaded, config = load_trained_model(
            found.path, trust_remote_code=trust_remote_code, model=model
        )
    if not loaded.tokenizer.chat_template:  # the run used this one
        from turnwise.chat import TEMPLATES

        loaded.tokenizer.chat_template = TEMPLATES["plain"]

    def fill(folder: Path) -> None:
        with without_progress_bars():
            loaded.model.save_pretrained(folder)
            loaded.tokenizer.save_pretrained(folder)
        card = model_card(source, found.step, config, place.name, loaded.model.num_parameters())
        (folder / "README.md").write_text(card, encoding="utf-8")
        honour_umask(folder)

    with working(f"writing {out}"):
        _make_whole(place, fill)
    if as_json:
        files = sorted(file.name for file in place.iterdir())
        print_json({"folder": out, "run": run, "step": found.step, "files": files})
        return
    is_best = checkpoint == "best"
    best = CheckpointStore(RunFolder(Path(run).expanduser()).checkpoints).best if is_best else None
    of = f"step {found.step}" if best is None else str(best)
    say(f"{out} has the model of {of}. Chat with it: turnwise chat {out}")


def _export_page(run: str, place: Path, num_episodes: int, as_json: bool) -> None:
    from turnwise.view.library import Library
    from turnwise.view.report import export_run
    from turnwise.whole_files import write_whole

    library = Library([run_of(require_run(run))])
    library.find()
    if not library.runs:
        raise ConfigError(
            f"{run} has checkpoints, but neither run.json nor metrics.jsonl: there is nothing to "
            "show. Name the folder of the whole run, for example runs/mine."
        )
    _check_free(place)
    with working(f"writing {place}"):
        page = export_run(library.runs[0], num_episodes).encode()
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, page)
    if as_json:
        print_json({"file": str(place), "run": run, "bytes": len(page)})
        return
    say(f"{place} has the run, {len(page) / 2**20:.1f} MiB. Open it in any browser.")


def _check_free(place: Path) -> None:
    if place.is_dir() and not any(place.iterdir()):
        return
    if place.exists():
        raise ConfigError(f"{place} exists already. Name a folder that does not.")


def _make_whole(place: Path, fill: Callable[[Path], None]) -> None:
    """Fill a hidden folder and rename it, so that no incomplete model is left behind."""
    place = place.absolute()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=place.parent, prefix=f".{place.name}."))
        try:
            folder = draft / "model"  # with the permissions of a normal folder
            folder.mkdir()
            fill(folder)
            os.rename(folder, place)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except Exception as error:
        full = os.strerror(errno.ENOSPC)  # safetensors has it only in its message
        if not isinstance(error, OSError) and full not in str(error):
            raise
        why = error.strerror or error if isinstance(error, OSError) else full
        raise ConfigError(
            f"cannot write {place}: {why}. Free some space there, or name another folder."
        ) from error
