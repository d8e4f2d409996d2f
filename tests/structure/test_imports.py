"""What importing turnwise costs and needs, and which way its packages depend on each other."""

import ast
import doctest
import functools
import importlib
import itertools
import re
import subprocess
import sys
from pathlib import Path

import turnwise
from every_case import every_case

SOURCE = Path(turnwise.__file__).parent

# A module imports only from its own row and the rows above it.
LAYERS = [
    {
        *("errors", "types", "config", "deadlines", "user_code"),
        *(
            "assemblers",
            "json_files",
            "http_server",
            "legible",
            "redaction",
            "whole_files",
            "yaml_files",
        ),
    },
    {"tools"},
    {"env"},
    {"chat"},
    {"models"},
    {"reward"},
    {"algo"},
    {"inference"},
    {"episode"},
    {"agents"},
    {"data", "runs", "learner"},
    {"progress"},
    {"trainer"},
    {"compat"},
    {"scale"},
    {"view"},
    {"cli", "__main__"},
]

# Packages that only their own adapter may import.
HEAVY = {
    "gymnasium": "env/adapters",
    "textarena": "env/adapters",
    "reasoning_gym": "env/adapters",
    "gguf": "models",
    "mcp": "tools/mcp_source",
    "vllm": "inference",
    "sglang": "inference",
    "peft": "learner",
    "pyarrow": ("data", "runs", "view"),
    "tensorboard": "runs/sinks",
    "wandb": "runs/sinks",
    "mlflow": "runs/sinks",
    "trackio": "runs/sinks",
    "starlette": ("view", "agents"),
    "uvicorn": ("http_server",),
    "ray": "scale",
    "verl": "scale",
}


IMPORTING = ("import_module", "import_extra")
MODULE = re.compile(r"turnwise(\.[a-z_0-9]+)+(:\w+)?")

MODULES = sorted(SOURCE.rglob("*.py"))


@functools.cache
def nodes_of(path):
    return list(ast.walk(ast.parse(path.read_text())))


@functools.cache
def imports_of(path):
    """Names of the modules that a file imports."""
    names = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Call) and node.args and _called(node) in IMPORTING:
            names.update(_text(node.args[0]))
    return names


@functools.cache
def named_by(path):
    """Modules of turnwise that a file names in texts, as tables for later imports do."""
    texts = {text for node in nodes_of(path) for text in _text(node)}
    modules = {text.partition(":")[0] for text in texts if MODULE.fullmatch(text)}
    return {name for name in modules if name.split(".")[1] in set().union(*LAYERS)}


def _called(node):
    return getattr(node.func, "attr", getattr(node.func, "id", None))


def _text(node):
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


each_module = every_case("path", MODULES, label=lambda path: str(path.relative_to(SOURCE)))


def package_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@each_module
def test_a_module_imports_only_from_its_own_row_and_above(path):
    package = package_of(path)
    if package == "__init__":  # what is imported from the top is imported when used
        return
    rows = [number for number, row in enumerate(LAYERS) if package in row]
    assert rows, f"{package} has no place in LAYERS"
    allowed = set().union(*LAYERS[: rows[0] + 1])
    names = imports_of(path) | named_by(path)
    used = {name.split(".")[1] for name in names if name.startswith("turnwise.")}
    assert used <= allowed


def test_packages_of_one_row_do_not_import_each_other():
    imported = {}
    for path in MODULES:
        names = imports_of(path) | named_by(path)
        used = {name.split(".")[1] for name in names if name.startswith("turnwise.")}
        imported.setdefault(package_of(path), set()).update(used)
    circles = [
        {one, other}
        for row in LAYERS
        for one, other in itertools.combinations(sorted(row), 2)
        if other in imported[one] and one in imported[other]
    ]
    assert not circles


@each_module
def test_heavy_packages_are_imported_only_in_their_adapter(path):
    used = {name.split(".")[0] for name in imports_of(path)}
    place = str(path.relative_to(SOURCE))
    wrong = {name for name in used & set(HEAVY) if not place.startswith(HEAVY[name])}
    assert not wrong


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(SOURCE.parent), "PATH": "/usr/bin:/bin"},
        check=False,
    )


def test_environments_tools_and_rewards_work_without_torch():
    result = run_python(
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'torch', 'gymnasium', 'textarena', 'reasoning_gym'}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from turnwise import (GuessNumberEnvironment, GridWorldEnvironment, ToolRegistry,\n"
        "                      check_env, compute_reward, expert_player, play_episode, tool)\n"
        "trajectory = play_episode(GuessNumberEnvironment(), expert_player, seed=3)\n"
        "assert compute_reward(trajectory).total == 1.0\n"
        "assert check_env(GridWorldEnvironment).ok\n"
        "@tool\n"
        "def add(a: int, b: int) -> int:\n"
        "    '''Add two numbers.'''\n"
        "    return a + b\n"
        "registry = ToolRegistry()\n"
        "registry.register(add)\n"
        "assert registry.execute_tool('add', a=1, b=2) == (True, 3)\n"
        "print('fine')"
    )
    assert result.stdout.strip() == "fine", result.stderr


def test_a_missing_extra_names_the_command_that_installs_it():
    result = run_python(
        "import sys\n"
        "sys.modules['gymnasium'] = None\n"
        "from turnwise import MissingExtraError, make_environment\n"
        "try:\n"
        "    make_environment('gym:CartPole-v1')\n"
        "except MissingExtraError as error:\n"
        "    print(error)"
    )
    assert "pip install 'turnwise[gym]'" in result.stdout, result.stderr


@each_module
def test_the_docstring_examples_of_every_module_hold(path):
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    name = ".".join(parts).removesuffix(".__init__")
    if name.endswith("__main__"):
        return
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in ("triton", "ray", "verl"):
            raise
        return  # what comes with torch for CUDA, and what runs inside VERL alone
    if ">>>" in path.read_text():  # doctest looks at every object, which takes a while
        assert doctest.testmod(module).failed == 0
