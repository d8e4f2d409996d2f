"""Which parser is used: by name, or by what the chat template writes."""

import logging

import pytest

from turnwise.errors import ConfigError
from turnwise.tools import PARSERS, ToolCall, ToolRegistry, get_parser, parser_for

# The part of each family's template that writes a call, as its tokenizers carry it.
TEMPLATES = {
    "json": "{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}",
    "hermes": """{{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}""",
    "qwen-coder": """{{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' }}
{%- for args_name, args_value in tool_call.arguments|items %}
{{- '<parameter=' + args_name + '>\\n' }}{{- args_value }}{{- '\\n</parameter>\\n' }}""",
    "glm": """{{ '\\n<tool_call>' + tc.name }}{% for k, v in _args.items() %}
<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v | tojson if v is not string else v }}</arg_value>""",
    "llama": """{{- "<|python_tag|>" + tool_call.name + ".call(" }}{%- else %}
{{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}""",
    "mistral": """{{- "[TOOL_CALLS] [" }}{%- set out = tool_call.function|tojson %}""",
    "mistral-args": """{{- '[TOOL_CALLS]' + name + '[ARGS]' + arguments }}""",
    "deepseek": """{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' + tool['type'] +
'<｜tool▁sep｜>' + tool['function']['name'] + '\\n' + '```json' + '\\n'}}""",
    "deepseek-v3.1": """{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>' +
tool['function']['name'] + '<｜tool▁sep｜>' + tool['function']['arguments']}}""",
    "kimi": """<|tool_calls_section_begin|>{%- for tool_call in message['tool_calls'] -%}
<|tool_call_begin|>{{ tool_call['id'] }}<|tool_call_argument_begin|>{{ tool_call['function'] }}""",
    "harmony": """{{- "<|start|>assistant to=" }}{{- "functions." + tool_call.name }}
{{- "<|channel|>commentary " }}{{- "json<|message|>" }}{{- tool_call.arguments|tojson }}""",
}
LLAMA_3_2 = """{{- 'Respond in the format {"name": function name, "parameters": dictionary of \
argument name and its value}.' }}"""


@pytest.mark.parametrize("name", TEMPLATES)
def test_auto_goes_by_the_template(name):
    assert type(parser_for(TEMPLATES[name])) is PARSERS[name]
    assert type(get_parser("auto", template=TEMPLATES[name])) is PARSERS[name]


def test_auto_for_templates_without_marks():
    assert type(parser_for(LLAMA_3_2)) is PARSERS["llama"]
    assert type(parser_for(None)) is PARSERS["json"]
    assert type(get_parser()) is PARSERS["json"]


def test_auto_reports_a_template_whose_calls_it_does_not_know(caplog):
    unknown = "{% for tool in tools %}{{ tool }}{% endfor %}<<call>>{{ tool_calls[0].name }}"
    with caplog.at_level(logging.WARNING, "turnwise"):
        parser_for(TEMPLATES["json"])  # takes no tools: they are described in words, with JSON
        for template in TEMPLATES.values():
            parser_for(template)
        assert not caplog.records
        for _ in range(2):
            assert type(parser_for(unknown)) is PARSERS["json"]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "parser 'auto' reads plain JSON" in line
    assert "harmony" in line


def test_definitions_reach_the_parser_that_auto_picks():
    def note(text: str) -> None: ...

    parser = get_parser(template=TEMPLATES["glm"], definitions=ToolRegistry([note]).definitions)
    text = "<tool_call>note<arg_key>text</arg_key><arg_value>5</arg_value></tool_call>"
    assert parser.parse(text).calls == [ToolCall("note", {"text": "5"})]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("hermess", "'hermes'"), ("Json", "'json'"), ("autos", "'auto'"), ("xml", "Known: auto, ")],
)
def test_an_unknown_name_says_the_nearest(name, hint):
    with pytest.raises(ConfigError, match=f"no parser '{name}'.*{hint}"):
        get_parser(name)


@pytest.mark.parametrize("name", PARSERS)
def test_without_its_special_tokens_a_call_is_lost(name):
    parser = get_parser(name)
    text = parser.render(ToolCall("f", {"x": 1}))
    for token in parser.special_tokens:
        text = text.replace(token, "")
    is_plain = name in ("json", "react", "openai", "llama", "qwen-coder")
    assert parser.parse(text).is_empty != is_plain
