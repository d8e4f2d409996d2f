"""Exports a run as one HTML file: curves, findings, settings, provenance and episodes.

The file needs neither network nor scripts, and can be printed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.view.exported_pages import render
from turnwise.view.report_curves import charts
from turnwise.view.report_episodes import choose, listed, whole_episode
from turnwise.view.runs import ViewedRun

NUM_EPISODES = 12
MAX_BYTES = 20 * 2**20
"""The limit of the file; whole episodes that do not fit are left out."""


def export_run(run: ViewedRun, num_episodes: int = NUM_EPISODES, max_bytes: int = MAX_BYTES) -> str:
    """Return the HTML file of a run, with up to `num_episodes` conversations in it."""
    run.open_episodes(math.inf)
    run.metrics.examine(math.inf)
    about = run.detail()
    facts = {"Start": run.facts("provenance"), "Hashes": run.facts("identity")}
    page = {
        "title": about["name"],
        "subtitle": _subtitle(about),
        "run": about,
        "tiles": list(_tiles(about)),
        "charts": charts(run.metrics.columns(), list(about["parts"])),
        "changes": [
            {"step": change["step"], "settings": dict(_changed(change["settings"]))}
            for change in about["changes"]
        ],
        "provenance": {title: named for title, named in facts.items() if named},
    }
    size = len(render("run.html", episodes=None, **page).encode())
    return render("run.html", episodes=_episodes(run, about, num_episodes, size, max_bytes), **page)


def _subtitle(about: Mapping[str, Any]) -> str:
    steps = f"step {about['step']}"
    if about["total_steps"]:
        steps += f" of {about['total_steps']}"
    words = [about["environment"], about["status"].partition(":")[0] or "unknown status", steps]
    words.append(f"{about['num_episodes']:,} episodes")
    if about["started"]:
        words.append(time.strftime("started %Y-%m-%d %H:%M", time.localtime(about["started"])))
    return " · ".join(filter(None, words))


def _tiles(about: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the main numbers, each with its label and what it is about."""
    main, best, last = about["headline"], about["best_checkpoint"], about["last"]
    if main is not None:
        yield main["metric"], main["number"], main["about"]
    if best is not None:
        yield "best checkpoint", f"step {best['step']:,}", best["about"]
    for name in ("reward", "success", "turns"):
        if isinstance(value := last.get(name), int | float):
            yield name, f"{value:.4g}", "mean of the last training step"


def _changed(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, values in settings.items():
        is_pair = isinstance(values, list) and len(values) == 2
        before, after = values if is_pair else ("", values)
        yield name, f"{before} → {after}"


def _episodes(
    run: ViewedRun, about: Mapping[str, Any], number: int, size: int, max_bytes: int
) -> dict[str, Any]:
    """Return the rows of the table, and as many whole episodes as fit."""
    chosen = choose(run.episodes, about["steps"], number) if number else []
    rows, total = listed(run.episodes, about["steps"])
    articles = {}
    for one in chosen:
        article = whole_episode(run, one)
        if size + len(article.encode()) <= max_bytes:
            size += len(article.encode())
            articles[one.episode["id"]] = article
    return {
        "total": total,
        "rows": rows,
        "articles": articles,
        "num_left_out": len(chosen) - len(articles),
        "max_mib": max_bytes / 2**20,
    }
