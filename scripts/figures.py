"""Writes measured figures into README.md and docs/ from bench/results.jsonl.

    python scripts/figures.py           # rewrite every marked figure
    python scripts/figures.py --check   # exit with 1 if a page differs from the results

A benchmark with `--record` writes one line per work into bench/results.jsonl. A page marks what it
quotes, so that one number never has two values:

    <!--figure decode/cpu/tiny/32, six turns: speed-up-->3.7<!--/figure-->
    <!--figure decode/cpu/tiny/32, six turns: source-->`command`, date, machine<!--/figure-->

    <!--table algo/cpu/advantages: ours ms | VERL ms | speed-up-->
    (a row for each work whose name starts with algo/cpu/advantages/, and their source)
    <!--/table-->
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results.jsonl"
FIGURE = re.compile(r"(<!--figure ([^:>]+): ([^>]+?)-->).*?(<!--/figure-->)", re.S)
RANGE = " to "
TABLE = re.compile(r"(<!--table ([^:>]+): ([^>]+?)-->\n).*?(<!--/table-->)", re.S)


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def load(path: Path = RESULTS) -> dict[str, dict[str, Any]]:
    """The recorded works by name, in the order of the file."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    return {entry["work"]: entry for entry in entries}


def rewrite(text: str, results: dict[str, dict[str, Any]]) -> str:
    """The text of a page with every marked figure and table as recorded."""
    text = FIGURE.sub(lambda m: m[1] + in_words(look_up(results, m[2], m[3]), RANGE) + m[4], text)
    return TABLE.sub(lambda m: f"{m[1]}\n{table(results, m[2], m[3].split(' | '))}\n\n{m[4]}", text)


def look_up(results: dict[str, dict[str, Any]], work: str, name: str) -> Any:
    if work not in results:
        raise SystemExit(f"bench/results.jsonl has no work {work!r}")
    entry = results[work]
    if name == "source":
        return source(entry)
    if name not in entry["figures"]:
        raise SystemExit(f"{work!r} has no figure {name!r}; it has {list(entry['figures'])}")
    return entry["figures"][name]


def source(entry: dict[str, Any]) -> str:
    return f"`{entry['command']}`, {entry['date']}, {entry['machine']}"


def table(results: dict[str, dict[str, Any]], prefix: str, columns: list[str]) -> str:
    """A row for each work below the prefix; a figure that a work does not have stays empty."""
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    sources: dict[str, list[str]] = {}
    for work, entry in results.items():
        if work.startswith(f"{prefix}/"):
            row = work.removeprefix(f"{prefix}/")
            cells = [in_words(entry["figures"].get(column, ""), ", ") for column in columns]
            lines.append(f"| {row} | {' | '.join(cells)} |")
            sources.setdefault(source(entry), []).append(row)
    if not sources:
        raise SystemExit(f"bench/results.jsonl has no work below {prefix!r}")
    first, *others = sources
    texts = [first, *(f"{' and '.join(sources[other])}: {other}" for other in others)]
    return "\n".join([*lines, "", f"Source: {'; '.join(texts)}."])


def in_words(value: Any, between: str) -> str:
    """A number as pages write it: 12,770; several in a text from lowest to highest."""
    if isinstance(value, list):
        ordered = sorted(value) if between == RANGE else value
        return between.join(in_words(each, between) for each in ordered)
    return str(value) if isinstance(value, str) else f"{value:,}"


def main() -> int:
    results, wrong, is_check = load(), [], "--check" in sys.argv
    for page in pages():
        before = page.read_text()
        after = rewrite(before, results)
        if before != after:
            wrong.append(str(page.relative_to(ROOT)))
            if not is_check:
                page.write_text(after)
    if wrong:
        print("differs from bench/results.jsonl:" if is_check else "rewritten:", *wrong)
    return int(bool(wrong) and is_check)


if __name__ == "__main__":
    raise SystemExit(main())
