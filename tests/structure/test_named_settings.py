"""Every setting that a text of turnwise names exists, so that no fix sends a user to nothing."""

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import turnwise
from turnwise.config import setting_types
from turnwise.episode import EpisodeLimits

SOURCE = Path(turnwise.__file__).parent
SETTINGS = setting_types()
SECTIONS = {name.partition(".")[0] for name in SETTINGS if "." in name}
NAMED = re.compile(rf"(?<![\w./])({'|'.join(SECTIONS)})\.([a-z_]+)(?![\w/(]|\.[a-z])")
LIMITS = re.compile(r"EpisodeLimits\(\s*([a-z_]+)=")
# Tables of settings are checked by their own tests; files and attributes look like settings.
TABLES = {"scale/verl/settings.py", "runs/choose_folder.py"}
NO_SETTINGS = {"model.safetensors", "model.layers", "ray.cloudpickle"}


def texts(path: Path) -> list[str]:
    """The strings of a module that somebody may read: f-strings too, docstrings not."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    skipped = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (v.value if isinstance(v, ast.Constant) else "{}" for v in node.values)
            found.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.value] if id(node) not in skipped else []
    return found


@pytest.fixture(scope="module")
def named():
    """The dotted settings and the limits that texts name, each with its modules."""
    modules: dict[str, set[str]] = {}
    for path in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.yaml")]:
        module = str(path.relative_to(SOURCE))
        if module in TABLES:
            continue
        for text in texts(path) if path.suffix == ".py" else [path.read_text()]:
            names = [f"{section}.{name}" for section, name in NAMED.findall(text)]
            names += [f"EpisodeLimits.{name}" for name in LIMITS.findall(text)]
            for name in names:
                modules.setdefault(name, set()).add(module)
    return modules


def test_every_setting_that_a_text_names_exists(named):
    known = {*SETTINGS, *(f"EpisodeLimits.{f.name}" for f in dataclasses.fields(EpisodeLimits))}
    known |= NO_SETTINGS
    assert {name: places for name, places in named.items() if name not in known} == {}
    assert len(named) > 40  # it does read them


def test_every_deadline_that_passes_names_a_setting_that_is_there(named):
    timeouts = [name for name in SETTINGS if name.startswith("limits.") and "timeout" in name]
    assert {name for name in timeouts if name not in named} == set()
