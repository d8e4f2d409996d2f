"""User code by name: from `file.py:Name` or `module:Name` to the object, and back."""

from turnwise.user_code.fingerprint import fingerprint, is_installed
from turnwise.user_code.names import (
    callable_label,
    code_name,
    import_file,
    import_object,
    imported_files,
    instance_label,
    is_lost,
    module_file,
    names_code,
    object_label,
    refuse_during_import,
)
from turnwise.user_code.tracebacks import definition_note, user_traceback
from turnwise.user_code.trust import (
    allows_model_code,
    is_in_run,
    remember_code,
    remember_use,
    require_code,
    require_model_code,
    require_use,
    server_use,
    settings_from,
)

__all__ = [
    "allows_model_code",
    "callable_label",
    "code_name",
    "definition_note",
    "fingerprint",
    "import_file",
    "import_object",
    "imported_files",
    "instance_label",
    "is_in_run",
    "is_installed",
    "is_lost",
    "module_file",
    "names_code",
    "object_label",
    "refuse_during_import",
    "remember_code",
    "remember_use",
    "require_code",
    "require_model_code",
    "require_use",
    "server_use",
    "settings_from",
    "user_traceback",
]
