"""The names of `turnwise`: the small face, and every other name that users may have written."""

import difflib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import turnwise
from structure.face import FROZEN, face

SOURCE = Path(turnwise.__file__).parent
EXTRAS = {
    *("gymnasium", "textarena", "reasoning_gym", "vllm", "sglang", "ray", "verl", "mcp", "peft"),
    *("tensorboard", "wandb", "mlflow", "trackio", "starlette", "uvicorn", "matplotlib"),
    "gguf",
}


def test_the_face_is_the_frozen_one():
    now, frozen = face(), FROZEN.read_text().splitlines()
    changes = "\n".join(difflib.unified_diff(frozen, now, "face.txt", "now", lineterm="", n=0))
    assert now == frozen, (
        f"{changes}\nIf users should see this change: PYTHONPATH=src python {FROZEN.parent}/face.py"
    )


def test_every_name_is_imported_from_the_top():
    assert not [name for name in dir(turnwise) if getattr(turnwise, name, None) is None]


def test_import_is_quick_and_all_names_are_there_on_a_base_install():
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({sorted(EXTRAS)!r}))\n"
        "import turnwise\n"
        "heavy = {'torch', 'numpy', 'pydantic', 'yaml', 'rich', 'typer', 'asyncio'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "from turnwise import *\n"
        "print(sorted(set(turnwise.__all__) - set(globals())))\n"
    )
    environment = {"PYTHONPATH": str(SOURCE.parent), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.stdout == "[]\n[]\n", result.stderr


def test_classes_under_the_names_of_the_seeds_are_the_same():
    assert turnwise.RayPPOTrainer is turnwise.Trainer
    assert turnwise.RLHFDataset is turnwise.PromptDataset


def test_an_unknown_name_says_the_nearest():
    with pytest.raises(AttributeError, match="BaseEnvironment"):
        turnwise.BaseEnviroment  # noqa: B018 - the look-up is the test


def test_the_first_page_of_the_reference_lists_the_face_in_its_groups():
    page = (SOURCE.parents[1] / "docs" / "reference" / "index.md").read_text()
    groups = {}
    for section in page.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        groups[title] = re.findall(r"^\| \[`(\w+)`\]", body, re.M)
    assert groups.pop("By module") == []
    listed = re.findall(r'^    (?:# (.+)|"(\w+)",)$', (SOURCE / "__init__.pyi").read_text(), re.M)
    assert [word for title, names in groups.items() for word in (title, *names)] == [
        title or name for title, name in listed
    ]
