"""The pages hang together: links, anchors, commands, settings, and the site's table of contents."""

import re
import shlex
from dataclasses import is_dataclass
from functools import cache
from pathlib import Path

import typer
import yaml

from every_case import every_case
from turnwise.cli import app
from turnwise.config import ConfigStore

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.rglob("*.md")),
]
# Written like settings, and something else.
NO_SETTINGS = {"dataset.jsonl", "eval_dataset.jsonl", "ray.init"}
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)


def name(page):
    return str(page.relative_to(ROOT))


@cache
def prose(page):
    """A page without its code, in which brackets mean something else."""
    return re.sub(r"`[^`\n]*`", "", FENCE.sub("", page.read_text()))


@cache
def anchors(page):
    """What a heading is called in an address: as GitHub and the site both make it."""
    text = FENCE.sub("", page.read_text())
    headings = re.findall(r"^#+ +(.+?) *$", text, re.M)
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading.lower())).strip("-")
        for heading in headings
    }


@every_case("page", PAGES, label=name)
def test_links_lead_to_files_and_headings(page):
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), target


def test_the_site_lists_every_page_once():
    class Loader(yaml.SafeLoader):
        """Reads tags of the site's tool as nothing."""

    Loader.add_multi_constructor("tag:", lambda *_: None)
    nav = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)["nav"]
    listed = list(files_of(nav))
    there = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(there)


def files_of(entry):
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from files_of(part)


@cache
def commands():
    return typer.main.get_command(app).commands


def command_lines(page):
    """Each `turnwise ...` of a page, as words."""
    text = page.read_text()
    blocks = [body for kind, body in FENCE.findall(text) if kind in ("sh", "console", "bash")]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(turnwise [^`]+)`", re.sub(r"\s*\n\s*", " ", FENCE.sub("", text)))
    for line in lines:
        for part in re.split(r"\||;|&&", line.strip().removeprefix("$ ")):
            found = re.match(r"^(?:echo .*|do )?\s*turnwise (.*)", part.strip())
            if found:
                yield shlex.split(found[1], comments=True)


@every_case("page", PAGES, label=name)
def test_commands_and_their_options_exist(page):
    for words in command_lines(page):
        first = words[0]
        if first.startswith("-") or first == "COMMAND":
            continue
        assert first in commands(), f"turnwise {' '.join(words)}"
        known = {option for parameter in commands()[first].params for option in parameter.opts}
        options = {word.partition("=")[0] for word in words[1:] if re.match(r"-{1,2}[a-z]", word)}
        assert options <= known | {"--help"}, f"turnwise {' '.join(words)}"


@every_case("page", PAGES, label=name)
def test_settings_that_are_named_exist(page):
    config = ConfigStore()
    sections = "|".join(name for name, value in vars(config).items() if is_dataclass(value))
    for section, setting in re.findall(rf"`({sections})\.(\w+)[:=`]", page.read_text()):
        is_known = setting in vars(getattr(config, section)) or setting == "py"  # a module
        assert is_known or f"{section}.{setting}" in NO_SETTINGS, f"{section}.{setting}"


def test_every_command_is_in_the_reference():
    page = (DOCS / "reference" / "commands.md").read_text()
    assert set(re.findall(r"^\| `turnwise ([\w-]+)", page, re.M)) == set(commands())


def test_every_target_that_is_named_can_be_made():
    makefile = (ROOT / "Makefile").read_text()
    targets = {
        word for line in re.findall(r"^([a-z][\w -]*):", makefile, re.M) for word in line.split()
    }
    for page in PAGES:
        text = page.read_text()
        named = re.findall(r"(?:^|`)make ([a-z-]+)", text, re.M)
        assert set(named) <= targets, page.name


@every_case("page", PAGES, label=name)
def test_nothing_was_left_to_be_filled_in(page):
    assert re.findall(r"\b(?:\w*FIGURES?|TODO|TBD|XXX|\w+-OUTPUT)\b", page.read_text()) == []


def test_every_example_is_listed():
    page = (DOCS / "examples.md").read_text()
    listed = re.findall(r"^\| `(examples/\w+\.py)`", page, re.M)
    assert sorted(listed) == sorted(
        f"examples/{file.name}" for file in (ROOT / "examples").glob("[!_]*.py")
    )
