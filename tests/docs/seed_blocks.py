"""The documents that asked for this library, block by block.

`seeds/` beside this file says the same in our own words, with as many Python blocks in the same
order; the documents themselves lie beside the checkout, if they are there at all. A test of a block
runs both.
"""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import turnwise

OURS = Path(__file__).parent / "seeds"
THEIRS = Path(__file__).resolve().parents[3] / "shared" / "seeds"
SOURCES = ["ours", "theirs"] if THEIRS.is_dir() else ["ours"]
DOCUMENTS = {"readme": 19, "extraction": 9, "verl_notes": 10, "manifest": 6, "architecture": 6}
"""How many Python blocks each has; their order is that of the documents' numbers."""

COVERED: set[tuple[str, int]] = set()


def covers(document: str, *numbers: int) -> Callable[[Any], Any]:
    """The blocks that a test runs."""
    COVERED.update((document, number) for number in numbers)
    return lambda test: test


def blocks(source: str, document: str) -> list[str]:
    """The Python blocks of a document; `setup` is what the package was called once."""
    if source == "ours":
        text = (OURS / f"{document}.md").read_text()
    else:
        (path,) = THEIRS.glob(f"{list(DOCUMENTS).index(document):03d}_*.txt")
        text = path.read_text()
    found = re.findall(r"^ *```python\n(.*?)^ *```", text, re.M | re.S)
    return [
        inspect.cleandoc("\n" + block.replace("from setup import", "from turnwise import"))
        for block in found
    ]


def block(source: str, document: str, number: int) -> str:
    assert (document, number) in COVERED
    return blocks(source, document)[number]


def run(text: str, **names: Any) -> dict[str, Any]:
    """Execute a block with these names filled in; all names afterwards."""
    names.setdefault("__name__", "example")
    exec(compile(text, "example", "exec"), names)
    return names


def only(kind: type, names: dict[str, Any], besides: tuple[Any, ...] = ()) -> Any:
    """The one class of this kind, or the one function, that a block defined."""
    if kind is type(run):
        found = [x for x in names.values() if inspect.isfunction(x)]
    else:
        found = [x for x in names.values() if isinstance(x, type) and issubclass(x, kind)]
    (one,) = [x for x in found if x not in (kind, *besides)]
    return one


def names_of(text: str) -> dict[str, Any]:
    """What a block takes from the package without importing it."""
    return {
        name: getattr(turnwise, name)
        for name in re.findall(r"\b[A-Z]\w+", text)
        if hasattr(turnwise, name)
    }


def put_modules(monkeypatch: Any, **modules: dict[str, Any]) -> None:
    """Modules that blocks import from, dots written as two underscores."""
    for name, contents in modules.items():
        parts = name.split("__")
        for length in range(1, len(parts) + 1):
            place = ".".join(parts[:length])
            if length == len(parts) or place not in sys.modules:
                module = ModuleType(place)
                module.__path__ = []  # type: ignore[attr-defined]
                monkeypatch.setitem(sys.modules, place, module)
        for key, value in contents.items():
            setattr(sys.modules[".".join(parts)], key, value)
