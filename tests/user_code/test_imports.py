"""The modules of users' files, as this process has imported them."""

import sys
import types

from turnwise.user_code.imports import import_file, imported_files


def test_other_modules_are_not_asked_for_names(tmp_path, monkeypatch):
    """A package may import something else when it is asked for a name that it does not have."""
    lazy = types.ModuleType("lazy_package")

    def look_up(name):
        raise ModuleNotFoundError(f"no module named {name}")

    lazy.__getattr__ = look_up
    monkeypatch.setitem(sys.modules, "lazy_package", lazy)
    file = tmp_path / "mine.py"
    file.write_text("x = 1\n")
    module = import_file(file)
    assert module in imported_files()
    assert lazy not in imported_files()
