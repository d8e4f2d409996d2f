"""A user's code by name: from `file.py:Name` or `module:Name` to the object, and back."""

from turnwise.user_code.fingerprint import fingerprint
from turnwise.user_code.imports import import_object, refuse_during_import
from turnwise.user_code.reference import CodeReference, reference_to

__all__ = [
    "CodeReference",
    "fingerprint",
    "import_object",
    "reference_to",
    "refuse_during_import",
]
