"""To start from: `turnwise init` makes a project, `turnwise config` prints every setting."""

import dataclasses
import keyword
from importlib.resources import files
from pathlib import Path
from typing import Annotated

from turnwise.cli import options as opt
from turnwise.cli.common import print_file, print_json, say
from turnwise.cli.settings import split_arguments
from turnwise.config import ConfigStore
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
        str, opt.argument("NAME", "The new folder, which must be a valid module name: my_env.")
    ],
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
    is_taken = module in {"turnwise", "test", "pytest"} or module.startswith("test_")
    class_name = "".join(word[:1].upper() + word[1:] for word in module.split("_")) or "MyEnv"
    is_name = module.isascii() and module.isidentifier() and class_name.isidentifier()
    if is_taken or not is_name or keyword.iskeyword(module):
        raise ConfigError(
            f"{module!r} cannot be the name of your Python module: expected a letter, then "
            "letters, digits and underscores, and neither a test nor turnwise itself, for example "
            "my_env."
        )
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"{folder} exists. Choose another name, or move it away.")
    folder.mkdir(parents=True, exist_ok=True)
    for file, template in FILES.items():
        text = (files("turnwise.cli") / "templates" / template).read_text(encoding="utf-8")
        text = text.replace("MyEnv", class_name).replace("my_env", module)
        (folder / file.format(name=module)).write_text(text, encoding="utf-8")
    made = ", ".join(FILES).format(name=module)
    say(
        f"Created {folder}/ with {made}.\n\n  cd {folder}\n"
        f"  turnwise play {module}.py:{class_name}      play it yourself\n"
        "  turnwise train config.yaml"
    )


def config(
    arguments: Annotated[
        list[str] | None,
        opt.argument(
            "[CONFIG] [SECTION.NAME=VALUE]...",
            "A YAML file, and settings that override its values.",
        ),
    ] = None,
    config_path: opt.ConfigPath = None,
    config_name: opt.ConfigName = None,
    as_json: opt.AsJson = False,
) -> None:
    """Print the whole configuration as YAML, with a comment that explains each setting.

    [bold]Examples[/bold]

    turnwise config > my.yaml
    turnwise config my.yaml training.learning_rate=3e-5
    turnwise config --config-path configs --config-name small
    turnwise config my.yaml --json | jq .training.batch_size
    """
    file, overrides = split_arguments(arguments or [], config_path, config_name)
    settings = ConfigStore.load(file, overrides)
    if as_json:
        print_json(dataclasses.asdict(settings))
    else:
        print_file(settings.to_yaml())
