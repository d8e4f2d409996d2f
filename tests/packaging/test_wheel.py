"""The package as `pip install` makes it."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def pip(*arguments):
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, *map(str, arguments)], check=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, ROOT)
    (path,) = folder.glob("turnwise-*.whl")
    return path


def test_the_wheel_holds_the_sources_and_the_type_marker(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "turnwise").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources <= names
    assert "turnwise/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "bench", "docs"))]


def test_the_metadata_names_licence_extras_and_the_command(wheel):
    archive = zipfile.ZipFile(wheel)
    (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
    text = archive.read(metadata).decode()
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text
    extras = (
        "vllm sglang ray verl gym textarena mcp peft tensorboard wandb mlflow trackio view "
        "smollm2 dev"
    )
    for extra in extras.split():
        assert f"Provides-Extra: {extra}\n" in text
    (scripts,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
    assert "turnwise = turnwise.__main__:main" in archive.read(scripts).decode()


def test_the_installed_package_runs(wheel, tmp_path):
    target = tmp_path / "site"
    pip("install", "--no-deps", "--no-index", "--target", target, wheel)
    result = subprocess.run(
        [sys.executable, "-m", "turnwise", "--version"],
        env={"PYTHONPATH": str(target)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("turnwise ")
