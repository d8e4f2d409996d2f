"""Arguments are checked and coerced against the schema, whoever wrote it."""

from typing import Any

import pytest

from turnwise.tools import Tool, ToolRegistry, get_parser

GIVEN = {
    "type": "object",
    "properties": {
        "points": {"type": "array", "items": {"type": "object"}},
        "scale": {"type": "number"},
        "mode": {"enum": ["fast", "slow"]},
    },
    "required": ["points"],
}


class Draw(Tool):
    parameters = GIVEN

    def execute(self, **params: Any) -> dict[str, Any]:
        return params


def order(items: list[str], notes: dict[str, int] | None = None, rush: bool = False) -> Any:
    return {"items": items, "notes": notes, "rush": rush}


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        ({"items": ["a"]}, {"items": ["a"], "notes": None, "rush": False}),
        ({"items": '["a", "b"]'}, {"items": ["a", "b"], "notes": None, "rush": False}),
        (
            {"items": "[]", "notes": '{"a": "1"}', "rush": "true"},
            {"items": [], "notes": {"a": 1}, "rush": True},
        ),
        ({"items": [1], "notes": "null"}, {"items": ["1"], "notes": None, "rush": False}),
    ],
)
def test_texts_are_read_where_something_else_is_asked_for(given, taken):
    assert ToolRegistry([order]).execute_tool("order", **given) == (True, taken)


def test_a_text_stays_a_text_where_text_is_asked_for():
    def echo(text: str) -> str:
        return text

    assert ToolRegistry([echo]).execute_tool("echo", text="[1, 2]") == (True, "[1, 2]")


def test_each_bad_argument_is_told_once_with_what_it_got():
    success, told = ToolRegistry([order]).execute_tool("order", items="tea", notes=[1], rush="x")
    assert not success
    assert told.startswith("items got 'tea'. Input should be a valid list.")
    assert told.count("notes") == 2  # the problem, and the way to call it
    assert "Call it as order(items: array of string, notes: object|null = null" in told


def test_arguments_are_checked_against_a_given_schema():
    registry = ToolRegistry([Draw()])
    good = {"points": '[{"x": 1}]', "scale": "2", "mode": "fast"}
    assert registry.execute_tool("draw", **good) == (
        True,
        {"points": [{"x": 1}], "scale": 2, "mode": "fast"},
    )
    for bad in (
        {},
        {"points": 3},
        {"points": [], "scale": "far"},
        {"points": [], "mode": "idle"},
        {"points": [], "colour": "red"},
    ):
        assert not registry.execute_tool("draw", **bad)[0], bad


def test_a_given_schema_may_refer_to_definitions_and_take_anything():
    """As the schemas of MCP servers do."""

    class Place(Tool):
        parameters = {  # noqa: RUF012
            "type": "object",
            "properties": {
                "at": {"$ref": "#/$defs/Point"},
                "mode": {"anyOf": [{"$ref": "#/$defs/Mode"}, {"type": "null"}], "default": None},
                "tree": {"$ref": "#/$defs/Tree"},
                "note": True,
                "area": {"type": "object", "anyOf": [{"required": ["x"]}, {"required": ["y"]}]},
                "odd": {"anyOf": 5},
            },
            "required": ["at"],
            "$defs": {
                "Point": {"type": "object", "properties": {"x": {"type": "integer"}}},
                "Mode": {"enum": ["fast", "slow"], "type": "string"},
                "Tree": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
            },
        }

        def execute(self, **params: Any) -> Any:
            return params

    registry = ToolRegistry([Place()])
    good = {"at": '{"x": 1}', "mode": "slow", "tree": "[[], []]", "note": [1]}
    taken = {"at": {"x": 1}, "mode": "slow", "tree": [[], []], "note": [1]}
    assert registry.execute_tool("place", **good) == (True, taken)
    for bad in ({"at": 3}, {"mode": "idle"}, {"tree": 3}, {"area": "no"}):
        assert not registry.execute_tool("place", **{"at": {}, **bad})[0], bad
    signature = registry.definitions[0].signature
    assert signature.startswith('place(at: object, mode: "fast"|"slow"|null = null, tree: array of')
    assert "note: any = ..." in signature
    parser = get_parser("qwen-coder", definitions=registry.definitions)
    text = "<function=place><parameter=mode>5</parameter><parameter=note>5</parameter></function>"
    assert parser.parse(text).calls[0].arguments == {"mode": "5", "note": 5}


def test_numbers_keep_their_kind():
    registry = ToolRegistry([Draw()])
    for given, kind in ((3, int), (3.5, float), ("4", int), ("4.5", float)):
        success, taken = registry.execute_tool("draw", points=[], scale=given)
        assert success
        assert type(taken["scale"]) is kind


@pytest.mark.parametrize("more", [True, {}, {"type": "string"}])
def test_a_schema_may_take_more_than_it_names(more):
    class Open(Tool):
        parameters = {"type": "object", "properties": {}, "additionalProperties": more}  # noqa: RUF012

        def execute(self, **params: Any) -> Any:
            return params

    assert ToolRegistry([Open()]).execute_tool("open", other="x") == (True, {"other": "x"})
