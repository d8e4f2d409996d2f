"""To start from: `turnwise init` makes a project, `turnwise config` prints every setting."""

import dataclasses
import keyword
import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from turnwise.cli.common import print_file, print_json, say
from turnwise.cli.options import AsJson, ConfigName, ConfigPath, argument
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
    module = folder.name
    if not (module.isidentifier() and module.isascii()) or keyword.iskeyword(module):
        near = re.sub(r"[^a-z0-9]", "_", module.lower()).strip("_")
        near = f"env_{near}" if near[:1].isdigit() or keyword.iskeyword(near) else near
        raise ConfigError(
            f"{module!r} cannot be the name of a Python module: expected letters, digits and "
            f"underscores, for example {near or 'my_env'}."
        )
    if module in {"turnwise", "test", "pytest"} or module.startswith("test_"):
        raise ConfigError(
            f"{module!r} would hide a module of that name or be taken for a test. "
            "Choose another name, for example my_env."
        )
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} exists. Choose another name, or move it away.")
    words = [word for word in module.split("_") if word]
    class_name = "".join(word[0].upper() + word[1:] for word in words) or "MyEnv"
    names = {"my_env": module, "MyEnv": class_name}
    made = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file, template in FILES.items():
            text = (files("turnwise.cli") / "templates" / template).read_text(encoding="utf-8")
            text = re.sub("my_env|MyEnv", lambda match: names[match[0]], text)
            made.append(file.format(name=module))
            # "x" never overwrites, not even a file that was just created.
            with open(folder / made[-1], "x", encoding="utf-8") as target:
                target.write(text)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror or error}") from error
    environment = f"{module}.py:{class_name}"
    if as_json:
        print_json({"folder": str(folder), "files": made, "environment": environment})
        return
    say(f"Created {folder}/ with {', '.join(made)}.\n")
    say(f"  cd {folder}")
    say(f"  turnwise play {environment}      play it yourself")
    say("  turnwise train config.yaml")


def config(
    arguments: Annotated[
        list[str] | None,
        argument(
            "[CONFIG] [SECTION.NAME=VALUE]...",
            "A YAML file, and settings that override its values.",
        ),
    ] = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = None,
    as_json: AsJson = False,
) -> None:
    """Print the whole configuration as YAML, with a comment that explains each setting.

    [bold]Examples[/bold]

    turnwise config > my.yaml
    turnwise config my.yaml training.learning_rate=3e-5
    turnwise config --config-path configs --config-name small
    turnwise config my.yaml --json | jq .training.batch_size
    """
    from turnwise.cli.settings import split_arguments
    from turnwise.config import ConfigStore

    file, overrides = split_arguments(arguments or [], config_path, config_name)
    settings = ConfigStore.load(file, overrides)
    if as_json:
        print_json(dataclasses.asdict(settings))
    else:
        print_file(settings.to_yaml())
