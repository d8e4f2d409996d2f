"""Every measured figure in README.md and docs/ comes from bench/results.jsonl, and is marked so;
architecture.md names files that exist, and in each of its two walks at most a dozen."""

import datetime
import importlib
import importlib.util
import re
from pathlib import Path

import turnwise
from every_case import every_case

ROOT = Path(__file__).resolve().parents[2]


def load_script(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = load_script(ROOT / "scripts" / "figures.py")
PAGES = figures.pages()
each_page = every_case("page", PAGES, label=lambda page: str(page.relative_to(ROOT)))
MEASURED = re.compile(
    r"\d[\d.,]* (times as (fast|long|quick)|times (faster|the speed)|ms\b|µs\b)"
    r"|\d[\d.,]* (tokens|episodes|turns)(/s| a second| per second)"
    r"|\d(x| times) (the speed|as fast|faster)"
    r"|\d[\d.,]* s (a|per) (step|turn|episode)"
)


@each_page
def test_figures_are_those_of_the_results(page):
    text = page.read_text()
    assert figures.rewrite(text, figures.load()) == text, "run: python scripts/figures.py"


@each_page
def test_every_measured_figure_is_marked(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    # A mark keeps a place, so that "1.9 times as fast" with a marked number is no plain number.
    text = figures.TABLE.sub("", figures.FIGURE.sub("(marked)", text))
    found = [match[0] for match in MEASURED.finditer(text)]
    assert not found, "measure it with a benchmark and mark it, as scripts/figures.py says"


@each_page
def test_no_line_begins_with_a_mark(page):
    """Markdown takes a line that begins with a comment for HTML, and shows it as it is."""
    assert not re.findall(r"^<!--figure.*", page.read_text(), re.M)


@every_case("work", figures.load())
def test_a_result_says_how_it_was_measured(work):
    entry = figures.load()[work]
    assert set(entry) == {"work", "figures", "command", "machine", "date", "commit"}
    assert datetime.date.fromisoformat(entry["date"]) <= datetime.date.today()
    program, target = entry["command"].split()[:2]
    if program == "make":
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
    else:
        assert (ROOT / target).is_file()
    values = [
        v
        for value in entry["figures"].values()
        for v in (value if isinstance(value, list) else [value])
    ]
    assert values
    assert all(isinstance(value, int | float) for value in values)


def test_a_page_gets_figures_and_tables():
    entry = {
        "command": "python bench/x.py",
        "date": "2026-01-02",
        "machine": "2 cores",
        "commit": None,
    }
    results = {
        "x/a": {"work": "x/a", "figures": {"ms": 1234, "range": [2.5, 0.5]}, **entry},
        "x/b": {"work": "x/b", "figures": {"ms": 7}, **entry},
    }
    marked = (
        "It takes <!--figure x/a: ms-->?<!--/figure--> and <!--figure x/a: range--><!--/figure-->."
    )
    assert figures.rewrite(marked, results) == (
        "It takes <!--figure x/a: ms-->1,234<!--/figure--> and "
        "<!--figure x/a: range-->0.5 to 2.5<!--/figure-->."
    )
    table = figures.rewrite("<!--table x: ms | range-->\nold\n<!--/table-->", results)
    assert "| a | 1,234 | 2.5, 0.5 |\n| b | 7 |  |\n" in table
    assert "Source: `python bench/x.py`, 2026-01-02, 2 cores." in table
    assert figures.rewrite(table, results) == table


def test_a_benchmark_replaces_the_line_of_its_work(tmp_path, monkeypatch):
    bench = load_script(ROOT / "bench" / "results.py")
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results.jsonl")
    monkeypatch.setattr(bench, "_commit", lambda: "abc")
    monkeypatch.setattr("sys.argv", [str(ROOT / "bench" / "algo.py"), "--quick", "--record"])
    bench.record("x/a", {"ms": 1.23456, "tokens/s": 1234.5})
    bench.record("x/b", {"ms": [0.1, 2]})
    bench.record("x/a", {"ms": 2.0})
    results = figures.load(tmp_path / "results.jsonl")
    assert list(results) == ["x/a", "x/b"]
    assert results["x/a"]["figures"] == {"ms": 2.0}
    assert results["x/b"]["figures"] == {"ms": [0.1, 2]}
    assert results["x/a"]["command"] == "python bench/algo.py --quick"


def test_the_simulation_finds_the_figures_that_it_starts_from(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    simulate = importlib.import_module("simulate")
    for name in simulate.MODELS:
        assert simulate.recorded_model(name).sampling > 0


SOURCE = Path(turnwise.__file__).parent
ARCHITECTURE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
PLACES = {f"/{path.relative_to(SOURCE)}" for path in SOURCE.rglob("*")}
NAMED = re.findall(r"`((?:[a-z_0-9./]+/)?[a-z_0-9]+(?:\.py|/))`", ARCHITECTURE)


@every_case("name", sorted(set(NAMED)))
def test_what_the_page_names_exists(name):
    """Names may be relative to the folder that the text is about."""
    end = f"/{name.removeprefix('../').rstrip('/')}"
    assert any(place.endswith(end) for place in PLACES)


@every_case("heading", ["What happens to a token", "What happens in a step"])
def test_a_walk_names_at_most_a_dozen_files_in_full(heading):
    walk = ARCHITECTURE.split(f"## {heading}\n")[1].split("\n## ")[0]
    files = re.findall(r"`([a-z_0-9/]+\.py)`", walk)
    assert 8 <= len(set(files)) <= 12
    assert all((SOURCE / file).is_file() for file in files)
