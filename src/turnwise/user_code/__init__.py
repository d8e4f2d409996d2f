"""User code by name: from `file.py:Name` or `module:Name` to the object, and back."""

from turnwise.user_code.fingerprint import fingerprint, is_installed
from turnwise.user_code.imports import (
    import_object,
    imported_files,
    module_file,
    refuse_during_import,
)
from turnwise.user_code.reference import (
    CodeReference,
    callable_label,
    instance_label,
    is_lost,
    names_code,
    object_label,
    reference_to,
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
    "CodeReference",
    "allows_model_code",
    "callable_label",
    "definition_note",
    "fingerprint",
    "import_object",
    "imported_files",
    "instance_label",
    "is_in_run",
    "is_installed",
    "is_lost",
    "module_file",
    "names_code",
    "object_label",
    "reference_to",
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
