"""Puts every setting into the reference, from the source of turnwise.config; nothing is imported.

A page that holds the line `<!-- settings -->` gets a table for each section there.
"""

import ast
import json
from collections.abc import Iterable
from pathlib import Path

CONFIG = Path(__file__).resolve().parents[2] / "src" / "turnwise" / "config"
PLACE = "<!-- settings -->"
WORDS = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "true or false",
    "list": "list",
    "dict": "mapping",
    "Ge": "≥",
    "Gt": ">",
    "Le": "≤",
    "Lt": "<",
}


def on_page_markdown(markdown: str, **_: object) -> str:
    if PLACE not in markdown:
        return markdown
    return markdown.replace(PLACE, tables(path.read_text() for path in sorted(CONFIG.glob("*.py"))))


def tables(sources: Iterable[str]) -> str:
    module = [node for source in sources for node in ast.parse(source).body]
    classes = {node.name: node for node in module if isinstance(node, ast.ClassDef)}
    # Types with a name of their own, such as Positive = Annotated[int, Ge(1)].
    named = {node.targets[0].id: node.value for node in module if isinstance(node, ast.Assign)}
    fields = [node for node in classes["ConfigStore"].body if isinstance(node, ast.AnnAssign)]
    single = [node for node in fields if is_setting(node.value)]
    about = "Settings that belong to no section."
    found = [table("What is trained on", about, "", single, named)]
    for node in fields:
        if node not in single:
            section, name = classes[node.annotation.id], node.target.id
            about = ast.get_docstring(section).split("\n\n")[0]
            found.append(table(name, about, f"{name}.", section.body, named))
    return "\n\n".join(found)


def table(
    title: str, about: str, prefix: str, nodes: list[ast.stmt], named: dict[str, ast.expr]
) -> str:
    lines = [f"## {title}", "", about, "", "| setting | takes | default | |", "|---|---|---|---|"]
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and is_setting(node.value):
            default, help_text = (ast.literal_eval(value) for value in node.value.args)
            kind = in_words(node.annotation, named)
            lines.append(
                f"| `{prefix}{node.target.id}` | {kind} | `{in_yaml(default)}` | {help_text} |"
            )
    return "\n".join(lines)


def is_setting(value: ast.expr | None) -> bool:
    return isinstance(value, ast.Call) and getattr(value.func, "id", "") == "setting"


def in_words(kind: ast.expr, named: dict[str, ast.expr]) -> str:
    """What a setting takes, for somebody who does not write Python."""
    match kind:
        case ast.BinOp(left=left, right=ast.Constant(value=None)):
            return f"{in_words(left, named)}, or null"
        case ast.BinOp(left=left, right=right):
            return f"{in_words(left, named)}, or {in_words(right, named)}"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Constant(value=choice)):
            return f"`{choice}`"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=choices)):
            return ", ".join(f"`{choice.value}`" for choice in choices)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[base, *bounds])):
            limits = [f"{WORDS[bound.func.id]} {ast.unparse(bound.args[0])}" for bound in bounds]
            return f"{in_words(base, named)} {' and '.join(limits)}"
        case ast.Subscript(value=base):
            return in_words(base, named)
        case ast.Name(id=name) if name in named:
            return in_words(named[name], named)
        case ast.Name(id=name):
            return WORDS[name]
    raise ValueError(f"turnwise.config has a type that this page cannot say: {ast.unparse(kind)}")


def in_yaml(default: object) -> str:
    return json.dumps(default).strip('"')
