"""Exports a run as one HTML file: curves, findings, settings, provenance and episodes.

The file needs neither network nor scripts, and can be printed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from turnwise.view.export import document, style_sheet
from turnwise.view.indexing import update_index
from turnwise.view.legible import visible_html
from turnwise.view.report_curves import charts
from turnwise.view.report_episodes import choose, listed, table, whole_episode
from turnwise.view.runs import ViewedRun

NUM_EPISODES = 12
MAX_BYTES = 20 * 2**20
"""The limit of the file; whole episodes that do not fit are left out."""


def export_run(run: ViewedRun, num_episodes: int = NUM_EPISODES, max_bytes: int = MAX_BYTES) -> str:
    """Return the HTML file of a run, with up to `num_episodes` conversations in it."""
    run.refresh()
    for _ in update_index(run):
        pass
    run.refresh()
    run.metrics.examine(math.inf)
    about = run.detail()
    title = visible_html(about["name"])
    parts = [
        f"<header><h1>{title}</h1>{_subtitle(about)}</header>",
        *_problems(about),
        _tiles(about),
        *_section("Curves", _curves(run, list(about["parts"]))),
        *_section("Findings", _findings(about)),
    ]
    ending = [
        *_section("Settings", _settings(about)),
        *_section("Provenance", _provenance(run)),
    ]
    style = style_sheet("episode.css") + style_sheet("run.css")
    size = len(document(title, style, [*parts, *ending]).encode())
    parts += _section("Episodes", _episodes(run, about, num_episodes, size, max_bytes))
    return document(title, style, [*parts, *ending])


def _section(title: str, content: Iterator[str]) -> list[str]:
    inner = list(content)
    return ["<section>", f"<h2>{title}</h2>", *inner, "</section>"] if inner else []


def _subtitle(about: Mapping[str, Any]) -> str:
    steps = f"step {about['step']}"
    if about["total_steps"]:
        steps += f" of {about['total_steps']}"
    words = [about["environment"], about["status"].partition(":")[0] or "unknown status", steps]
    words.append(f"{about['num_episodes']:,} episodes")
    if about["started"]:
        words.append(time.strftime("started %Y-%m-%d %H:%M", time.localtime(about["started"])))
    return f'<p class="legend">{visible_html(" · ".join(filter(None, words)))}</p>'


def _problems(about: Mapping[str, Any]) -> Iterator[str]:
    status = about["status"]
    if status.startswith("stopped"):
        why = status.partition(":")[2].strip()
        yield f'<pre class="problem">This run stopped: {visible_html(why)}</pre>'
    if about["problems"]:
        yield '<pre class="problem">Some files of this run cannot be read.\n'
        yield f"{visible_html(chr(10).join(about['problems']))}</pre>"
    notes = about["notes"]
    if notes.get("note"):
        yield f'<p class="words">{visible_html(str(notes["note"]))}</p>'


def _tiles(about: Mapping[str, Any]) -> str:
    main, best, last = about["headline"], about["best_checkpoint"], about["last"]
    tiles = []
    if main is not None:
        tiles.append((main["metric"], main["number"], main["about"]))
    if best is not None:
        tiles.append(("best checkpoint", f"step {best['step']:,}", best["about"]))
    named = {name: last.get(name) for name in ("reward", "success", "turns")}
    tiles += [
        (name, f"{value:.4g}", "mean of the last training step")
        for name, value in named.items()
        if isinstance(value, int | float)
    ]
    shown = [
        f"<div><span>{label}</span> <b>{value}</b> <span>{visible_html(note)}</span></div>"
        for label, value, note in tiles
    ]
    return f'<div class="tiles">{"".join(shown)}</div>' if shown else ""


def _curves(run: ViewedRun, environments: Sequence[str]) -> Iterator[str]:
    drawn = charts(run.metrics.columns(), environments)
    if drawn:
        yield f'<div class="charts">{"".join(drawn)}</div>'
    else:
        yield '<p class="legend">No step of this run was finished.</p>'


def _findings(about: Mapping[str, Any]) -> Iterator[str]:
    if not about["findings"]:
        yield '<p class="legend">The doctor found nothing wrong.</p>'
        return
    yield "<ol>"
    for finding in about["findings"]:
        yield (
            f"<li><b>step {finding['step']:.0f}, {visible_html(finding['name'])}.</b> "
            f"{visible_html(finding['text'])} <i>Try:</i> {visible_html(finding['fix'])}</li>"
        )
    yield "</ol>"


def _episodes(
    run: ViewedRun, about: Mapping[str, Any], number: int, size: int, max_bytes: int
) -> Iterator[str]:
    with run.index.connection() as db:
        chosen = choose(db, about["steps"], number) if number else []
        rows, total = listed(db, about["steps"])
    if not total:
        yield '<p class="legend">This run keeps no episodes.</p>'
        return
    articles, left_out = [], []
    for one in chosen:
        text = whole_episode(run, one)
        size += len(text.encode())
        if size <= max_bytes:
            articles.append(text)
        else:
            size -= len(text.encode())
            left_out.append(one.episode["id"])
    if articles:
        yield (
            f'<p class="legend">{len(articles)} of {total:,} episodes as whole conversations: '
            "the best and the worst of steps spread over the training, and failed ones.</p>"
        )
    if left_out:
        yield (
            f'<p class="legend">{len(left_out)} more are left out, because the file would be '
            f"larger than {max_bytes / 2**20:.3g} MiB.</p>"
        )
    yield from articles
    shown = "All" if len(rows) == total else f"{len(rows):,} of {total:,}"
    yield f"<h3>{shown} episodes</h3>"
    whole = {one.episode["id"] for one in chosen} - set(left_out)
    yield from table(rows, whole, bool(about["successes"]))


def _settings(about: Mapping[str, Any]) -> Iterator[str]:
    for section, fields in about["config"].items():
        settings = fields if isinstance(fields, Mapping) else {section: fields}
        if settings:
            yield f"<h3>{visible_html(str(section))}</h3>{_facts(settings)}"
    for change in about["changes"]:
        changed = {name: f"{a} → {b}" for name, (a, b) in _pairs(change["settings"])}
        yield f"<h3>Changed after step {change['step']}</h3>{_facts(changed)}"


def _pairs(settings: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    for name, values in settings.items():
        is_pair = isinstance(values, list) and len(values) == 2
        yield name, values if is_pair else ("", values)


def _provenance(run: ViewedRun) -> Iterator[str]:
    for title, name in (("Start", "provenance"), ("Hashes", "identity")):
        if facts := run.facts(name):
            yield f"<h3>{title}</h3>{_facts(facts)}"


def _facts(facts: Mapping[str, Any]) -> str:
    rows = (
        f"<dt>{visible_html(_text(name).replace('_', ' '))}</dt>"
        f"<dd>{visible_html(_text(value))}</dd>"
        for name, value in facts.items()
    )
    return f"<dl>{''.join(rows)}</dl>"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
