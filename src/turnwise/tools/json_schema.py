"""JSON schemas of arguments as types for pydantic, and as short texts for a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, Union, cast

_SCALARS: dict[Any, Any] = {
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "null": None,
}
_NUMBER_BOUNDS = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
}
_BOUNDS: dict[Any, dict[str, str]] = {
    "integer": _NUMBER_BOUNDS,
    "number": _NUMBER_BOUNDS,
    "string": {"minLength": "min_length", "maxLength": "max_length"},
    "array": {"minItems": "min_length", "maxItems": "max_length"},
}
_MAX_DEPTH = 16


def typed_dict(fields: dict[str, Any], takes_any: bool) -> Any:
    """Returns a type for an object with these fields."""
    # A TypedDict, not a model: arguments may be called `copy`, `schema` or `_x`, and what comes
    # out is the dict to call with. pydantic needs this TypedDict before Python 3.12.
    from typing_extensions import TypedDict

    typed = cast(Any, TypedDict)("Arguments", fields)
    typed.__pydantic_config__ = {
        "extra": "allow" if takes_any else "forbid",
        "coerce_numbers_to_str": True,
        "allow_inf_nan": False,
    }
    return typed


def object_fields(
    schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None, depth: int = 0
) -> tuple[dict[str, Any], bool]:
    """Returns the fields of an object's schema, and whether it takes others too."""
    if definitions is None:
        definitions = schema.get("$defs") or schema.get("definitions") or {}
    properties: dict[str, Any] = schema.get("properties", {})
    required = schema.get("required", ())
    fields: dict[str, Any] = {}
    for name, inner in properties.items():
        found = _python_type(inner, definitions, depth + 1)
        fields[name] = found if name in required else NotRequired[found]
    return fields, schema.get("additionalProperties", False) is not False


def _python_type(schema: Any, definitions: Mapping[str, Any], depth: int) -> Any:
    """Returns the pydantic type of a JSON schema; Any for what has no counterpart."""
    schema = _follow(schema, definitions)
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return Any
    options = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if options:
        simple = all(option is None or isinstance(option, str | int) for option in options)
        return Literal[tuple(options)] if simple else Any
    kind = schema.get("type")
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if not alternatives and isinstance(kind, list):
        alternatives = [{**schema, "type": one} for one in kind]
    if alternatives:
        members = tuple(_python_type(inner, definitions, depth + 1) for inner in alternatives)
        return Union[members]  # noqa: UP007 - made at run time
    if kind == "array":
        inner = _python_type(schema.get("items"), definitions, depth + 1)
        found: Any = list[inner]  # type: ignore[valid-type]  # made at run time
    elif kind == "object":
        found = dict[str, Any]
        if "properties" in schema:
            found = typed_dict(*object_fields(schema, definitions, depth))
    else:
        found = _SCALARS.get(kind, Any)
    return _bounded(found, schema, _BOUNDS.get(kind, {}))


def _bounded(found: Any, schema: Mapping[str, Any], known: Mapping[str, str]) -> Any:
    from pydantic import Field

    bounds = {ours: schema[theirs] for theirs, ours in known.items() if theirs in schema}
    return Annotated[found, Field(**bounds)] if bounds else found


def _follow(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Resolves a `$ref` to the schema's own definitions; others give None."""
    if isinstance(schema, Mapping) and isinstance(reference := schema.get("$ref"), str):
        folder, _, name = reference.rpartition("/")
        return definitions.get(name) if folder in ("#/$defs", "#/definitions") else None
    return schema


def describe_type(schema: Any) -> str:
    """Returns a JSON schema in a word or two.

    >>> describe_type({"type": "array", "items": {"type": "string"}})
    'array of string'
    """
    if not isinstance(schema, Mapping):
        return "any"
    if "enum" in schema:
        return "|".join(json.dumps(option, ensure_ascii=False) for option in schema["enum"])
    if "const" in schema:
        return json.dumps(schema["const"], ensure_ascii=False)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return "|".join(describe_type(option) for option in alternatives)
    kind = schema.get("type", "object" if "$ref" in schema else "any")
    if kind == "array":
        return f"array of {describe_type(schema.get('items'))}"
    return "|".join(kind) if isinstance(kind, list) else str(kind)


def describe_default(schema: Any) -> str:
    if not isinstance(schema, Mapping) or "default" not in schema:
        return "..."
    return json.dumps(schema["default"], ensure_ascii=False)


def example_of(schema: Any, definitions: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """Returns a value that fits a schema; for an object, its required fields.

    >>> example_of({"properties": {"a": {"type": "integer"}, "b": {}}, "required": ["a"]})
    {'a': 1}
    """
    if definitions is None:
        definitions = schema.get("$defs") or schema.get("definitions") or {}
    schema = _follow(schema, definitions)
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return None
    for shown in ("examples", "enum", "anyOf", "oneOf"):
        if schema.get(shown):
            first = schema[shown][0]
            return first if shown in ("examples", "enum") else example_of(first, definitions, depth)
    for shown in ("const", "default"):
        if shown in schema:
            return schema[shown]
    kind = schema.get("type", "object" if "properties" in schema else "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "array":
        return [example_of(schema.get("items", {}), definitions, depth + 1)]
    if kind == "object":
        properties = schema.get("properties", {})
        names = [name for name in schema.get("required", ()) if name in properties]
        return {name: example_of(properties[name], definitions, depth + 1) for name in names}
    if kind in ("integer", "number"):
        lowest = max(1, schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
        return min(lowest, schema.get("maximum", lowest))
    return {"boolean": True, "null": None}.get(kind, "text")
