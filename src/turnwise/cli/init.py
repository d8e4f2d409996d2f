"""`turnwise init`: makes a project with an environment, a reward, settings and a test."""

from __future__ import annotations

import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from turnwise.cli.common import print_json, say
from turnwise.cli.options import AsJson, argument
from turnwise.errors import ConfigError

# The files of a new project, and the template of each.
FILES = {
    "{name}.py": "environment.py.txt",
    "config.yaml": "config.yaml.txt",
    "test_{name}.py": "test_environment.py.txt",
    "README.md": "README.md.txt",
}


def init(
    name: Annotated[
        str, argument("NAME", "The new folder, which must be a valid module name: my_env.")
    ],
    as_json: AsJson = False,
) -> None:
    """Create a project with an environment of your own to start from.

    It has a small environment that a model learns in minutes on a CPU, its reward function, the
    settings of a run and a test. Existing files are never overwritten.

    [bold]Examples[/bold]

    turnwise init my_env
    turnwise init projects/maze
    """
    folder = Path(name).expanduser()
    module = _module_name(folder)
    words = [word for word in module.split("_") if word]
    class_name = "".join(word[0].upper() + word[1:] for word in words) or "MyEnv"
    made = _make(folder, module, class_name)
    if as_json:
        environment = f"{module}.py:{class_name}"
        print_json({"folder": str(folder), "files": made, "environment": environment})
        return
    say(f"Created {folder}/ with {', '.join(made)}.\n")
    say(f"  cd {folder}")
    say(f"  turnwise play {module}.py:{class_name}      play it yourself")
    say("  turnwise train config.yaml")


def _module_name(folder: Path) -> str:
    """Return the folder's name; raise `ConfigError` if Python cannot import it."""
    module = folder.name
    if module.isidentifier() and module.isascii() and not keyword.iskeyword(module):
        if module in {"turnwise", "test", "pytest"} or module.startswith("test_"):
            raise ConfigError(
                f"{module!r} would hide a module of that name or be taken for a test. "
                "Choose another name, for example my_env."
            )
        return module
    near = "".join(c if c.isalnum() and c.isascii() else "_" for c in module).strip("_").lower()
    near = f"env_{near}" if near[:1].isdigit() or keyword.iskeyword(near) else near
    raise ConfigError(
        f"{module!r} cannot be the name of a Python module: expected letters, digits and "
        f"underscores, for example {near or 'my_env'}."
    )


def _make(folder: Path, module: str, class_name: str) -> list[str]:
    """Write the files, and return their names."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} exists. Choose another name, or move it away.")
    templates = files("turnwise.cli") / "templates"
    names = {"my_env": module, "MyEnv": class_name}
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, template in FILES.items():
            text = (templates / template).read_text(encoding="utf-8")
            text = re.sub("my_env|MyEnv", lambda match: names[match[0]], text)
            made.append(file.format(name=module))
            # "x" never overwrites, not even a file that was just created.
            with open(folder / made[-1], "x", encoding="utf-8") as target:
                target.write(text)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror or error}") from error
    return made
