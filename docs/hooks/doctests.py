"""Shows the examples of docstrings as code: markdown would take `>>>` for a quotation."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^|(?<=\n))>>> .*?(?=\n\n|\Z)", re.S)


class Doctests(Extension):
    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None and ">>> " in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(
                lambda found: f"\n```pycon\n{found[0]}\n```", obj.docstring.value
            )
