"""What models really write in each format, and what they are told when it is not right."""

import json

import pytest

from every_case import every_case
from turnwise.tools import ParseOutcome, ToolCall, get_parser

BUY = ToolCall("buy", {"item": "tea", "quantity": 2})
LOOK = ToolCall("look_up", {"item": "tea"})

REAL = {
    "json": [
        '{"tool": "buy", "arguments": {"item": "tea", "quantity": 2}}',
        '```json\n{"tool": "buy", "arguments": {"item": "tea", "quantity": 2}}\n```',
        '```\n{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}\n```',
        '{"name": "buy", "parameters": {"item": "tea", "quantity": 2}}',
        '[{"tool": "buy", "arguments": {"item": "tea", "quantity": 2}}]',
        '{ "thought": "!", "tool": "buy", "arguments": {"item": "tea", "quantity": 2} }',
        json.dumps({"tool": "buy", "arguments": json.dumps(BUY.arguments)}),
        json.dumps({"tool": "buy", "arguments": BUY.arguments}, indent=4),
    ],
    "react": [
        'Action: buy\nAction Input: {"item": "tea", "quantity": 2}',
        '**Action:** `buy`\n**Action Input:** {"item": "tea", "quantity": 2}',
        'Action: buy\n\n  Action Input:\n```json\n{"item": "tea", "quantity": 2}\n```',
        'Action: "buy" \r\nAction Input: {"item": "tea",\n "quantity": 2}',
        'Action: buy\nInput: {"item": "tea", "quantity": 2}',
        '**Action:** buy\n**Input:** {"item": "tea", "quantity": 2}',
    ],
    "openai": [
        json.dumps(
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {
                        "id": "call_9",
                        "type": "function",
                        "function": {"name": "buy", "arguments": json.dumps(BUY.arguments)},
                    }
                ],
            }
        ),
        '{"tool_calls": [{"function": {"name": "buy", "arguments": {"item": "tea",'
        ' "quantity": 2}}}]}',
        '{"function_call": {"name": "buy", "arguments": "{\\"item\\": \\"tea\\",'
        ' \\"quantity\\": 2}"}}',
        '[{"type": "function", "function": {"name": "buy", "arguments": {"item": "tea",'
        ' "quantity": 2}}}]',
        '{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}',
    ],
    "hermes": [
        '<tool_call>\n{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}\n</tool_call>',
        '<tool_call>{"arguments": {"item": "tea", "quantity": 2}, "name": "buy"}</tool_call>',
        '<tool_call>\n```json\n{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}\n```\n'
        "</tool_call>",
        '<tool_call>\n{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}\n',
        '<tool_call>[{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}]</tool_call>',
    ],
    "llama": [
        '{"name": "buy", "parameters": {"item": "tea", "quantity": 2}}',
        '{"type": "function", "name": "buy", "parameters": {"item": "tea", "quantity": 2}}',
        '{"type": "function", "function": "buy", "parameters": {"item": "tea", "quantity": 2}}',
        '<|python_tag|>{"name": "buy", "parameters": {"item": "tea", "quantity": 2}}',
        '<|python_tag|>[{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}]',
    ],
    "mistral": [
        '[TOOL_CALLS] [{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}]',
        '[TOOL_CALLS][{"name": "buy", "arguments": {"item": "tea", "quantity": 2}, "id": "a1b"}]',
        '[TOOL_CALLS]{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}',
        '[TOOL_CALLS]buy[ARGS]{"item": "tea", "quantity": 2}',
        '[TOOL_CALLS]buy{"item": "tea", "quantity": 2}',
        '[TOOL_CALLS]buy[CALL_ID]a1b2c3d4e[ARGS]{"item": "tea", "quantity": 2}',
    ],
    "qwen-coder": [
        "<tool_call>\n<function=buy>\n<parameter=item>\ntea\n</parameter>\n"
        "<parameter=quantity>\n2\n</parameter>\n</function>\n</tool_call>",
        "<function=buy>\n<parameter=item>\ntea\n</parameter>\n"
        "<parameter=quantity>\n2\n</parameter>\n</function>\n</tool_call>",
        "<tool_call><function=buy><parameter=item>tea</parameter>"
        "<parameter=quantity>2</parameter></function>",
    ],
    "deepseek": [
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>buy\n```json\n"
        '{"item": "tea", "quantity": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>buy ```json "
        '{"item": "tea", "quantity": 2} ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>buy<｜tool▁sep｜>{"item": "tea", '
        '"quantity": 2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ],
    "glm": [
        "<tool_call>buy\n<arg_key>item</arg_key>\n<arg_value>tea</arg_value>\n"
        "<arg_key>quantity</arg_key>\n<arg_value>2</arg_value>\n</tool_call>",
        "<tool_call>buy<arg_key>item</arg_key><arg_value>tea</arg_value>"
        "<arg_key>quantity</arg_key><arg_value>2</arg_value></tool_call>",
    ],
    "kimi": [
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.buy:0<|tool_call_argument_begin|>"
        '{"item": "tea", "quantity": 2}<|tool_call_end|><|tool_calls_section_end|>',
        "<|tool_calls_section_begin|>\n<|tool_call_begin|>\nfunctions.buy:12"
        '<|tool_call_argument_begin|>\n{"item": "tea", "quantity": 2}\n<|tool_call_end|>\n'
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|> buy\n<|tool_call_argument_begin|> "
        '{"item": "tea", "quantity": 2} <|tool_call_end|>',
    ],
    "harmony": [
        "<|channel|>commentary to=functions.buy <|constrain|>json<|message|>"
        '{"item": "tea", "quantity": 2}<|call|>',
        "<|channel|>commentary to=functions.buy json<|message|>"
        '{"item": "tea", "quantity": 2}<|call|>',
        "<|start|>assistant to=functions.buy<|channel|>commentary json<|message|>"
        '{"item": "tea", "quantity": 2}<|call|>',
        "<|start|>assistant<|channel|>commentary to=functions.buy<|message|>"
        '{"item": "tea", "quantity": 2}',
        '<|channel|>analysis to=functions.buy code<|message|>{"item": "tea", "quantity": 2}',
    ],
}
# Those of the other formats are two renderings, one after the other.
SEVERAL = {
    "json": '[{"tool": "look_up", "arguments": {"item": "tea"}},\n'
    ' {"tool": "buy", "arguments": {"item": "tea", "quantity": 2}}]',
    "openai": '{"tool_calls": [{"function": {"name": "look_up", "arguments": {"item": "tea"}}}, '
    '{"function": {"name": "buy", "arguments": {"item": "tea", "quantity": 2}}}]}',
    "hermes": '<tool_call>\n[{"name": "look_up", "arguments": {"item": "tea"}},\n'
    '{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}]\n</tool_call>',
    "llama": '<|python_tag|>{"name": "look_up", "parameters": {"item": "tea"}}; '
    '{"name": "buy", "parameters": {"item": "tea", "quantity": 2}}',
    "mistral": '[TOOL_CALLS] [{"name": "look_up", "arguments": {"item": "tea"}}, '
    '{"name": "buy", "arguments": {"item": "tea", "quantity": 2}}]',
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look_up\n"
    '```json\n{"item": "tea"}\n```<｜tool▁call▁end｜>\n'
    "<｜tool▁call▁begin｜>function<｜tool▁sep｜>buy\n"
    '```json\n{"item": "tea", "quantity": 2}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:0"
    '<|tool_call_argument_begin|>{"item": "tea"}<|tool_call_end|>'
    "<|tool_call_begin|>functions.buy:1<|tool_call_argument_begin|>"
    '{"item": "tea", "quantity": 2}<|tool_call_end|><|tool_calls_section_end|>',
}


@every_case("name, text", [(name, text) for name, texts in REAL.items() for text in texts])
def test_real_output(name, text):
    for around in (text, f"I need tea, two cups.\n\n{text}\n", f"\n\n{text}"):
        result = get_parser(name).parse(around)
        assert result.calls == [BUY]
        assert result.malformed is None
        assert result.outcome is ParseOutcome.CALLS
        assert result.text in ("", "I need tea, two cups.")


@every_case("name", SEVERAL)
def test_several_calls_in_one_turn(name):
    result = get_parser(name).parse(f"Both.\n{SEVERAL[name]}")
    assert result.calls == [LOOK, BUY]
    assert result.malformed is None
    assert result.text == "Both."


WITH_TAGS = [name for name in REAL if name not in ("mistral", "harmony")]


@every_case("name", WITH_TAGS)
def test_thoughts_are_no_calls(name):
    text = REAL[name][0]
    thought = f"I could write {text[:30]} or\n{text}\nbut"
    result = get_parser(name).parse(f"{thought}</think>\n{text}")
    assert result.calls == [BUY]
    assert result.text == f"{thought}</think>"
    assert get_parser(name).parse(f"<think>{thought}</think>No.").is_empty
    assert get_parser(name).parse(f"<think>I could write\n{text}").is_empty
    several = f"<think>a</think>\n{text}\n<think>{text}</think>\n{text}\n<think>{text}"
    assert get_parser(name).parse(several).calls == [BUY, BUY]


def test_thoughts_of_mistral():
    text = REAL["mistral"][0]
    result = get_parser("mistral").parse(f"[THINK]{text}[/THINK]{text}")
    assert result.calls == [BUY]
    assert get_parser("mistral").parse(f"[THINK]{text}").is_empty


def test_channels_of_harmony():
    """A recipient stands in a header; what stands in a message is what it says."""
    parser, text = get_parser("harmony"), REAL["harmony"][0]
    analysis = "<|channel|>analysis<|message|>I send it to=functions.buy: {}"
    assert parser.parse(f"{analysis}<|end|><|start|>assistant{text}").calls == [BUY]
    assert parser.parse(f"{analysis}{text}").is_empty  # the analysis has not ended
    assert parser.parse(
        f"{analysis}<|end|><|start|>assistant<|channel|>final<|message|>No."
    ).is_empty
    assert parser.parse(" to=functions.buy<|channel|>commentary json<|message|>{}").calls == [
        ToolCall("buy")
    ]
    assert parser.parse("Mail to=functions.buy, please.").is_empty
    assert parser.parse("commentary to=functions.buy<|channel|>commentary<|message|>{}").calls == [
        ToolCall("buy")
    ]
    made_up = "<|start|>functions.buy to=assistant<|channel|>commentary<|message|>{}<|end|>"
    assert parser.parse(made_up).is_empty
    assert parser.parse(f"{made_up}{text}").calls == [BUY]


@every_case(
    "name, text",
    [
        *[(name, "") for name in REAL],
        *[(name, "Buy tea. <b>Now</b> [1] {2} 'x' \"y\".") for name in REAL],
        ("json", '{"name": "Ann", "age": 3} and {"answer": 5}'),
        ("json", 'A set {"a", "b"} and {} are no calls.'),
        ("json", '{"name": "buy", "description": "Buys.", "parameters": {"type": "object"}}'),
        ("react", "Thought: I know it.\nFinal Answer: the next Action: none"),
        ("openai", '{"role": "assistant", "content": "Hello.", "tool_calls": null}'),
        ("hermes", '{"name": "buy", "arguments": {}}'),
        ("mistral", "[TOOL_RESULTS] 5[/TOOL_RESULTS]"),
    ],
)
def test_no_call(name, text):
    result = get_parser(name).parse(text)
    assert result.outcome is ParseOutcome.NO_CALL
    assert result.text == text.strip()


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("json", '{"tool": "buy", "arguments": {"item": "te', "ends before it is complete"),
        ("json", '{"tool": "buy", "arguments": {"item": "a "big" tea"}}', "broken near 'big"),
        ("json", '{"tool": "buy", "arguments": ["tea"]}', "must be an object, got ['tea']"),
        ("json", '{"tool": {"name": "buy"}, "arguments": {}}', '"tool" must be the name'),
        ("json", '{"arguments": {"item": "tea"}}', 'there is no "tool" next to "arguments"'),
        ("json", '{"tool": "buy", "item": "tea"}', 'inside "arguments"'),
        ("json", '{"tool": "buy", "arguments": {"price": NaN}}', "NaN is not JSON"),
        ("json", '{"tool": "buy", "arguments": {"n": ' + "9" * 5000 + "}}", "Exceeds the limit"),
        ("react", "Action: buy", "no line with Action Input"),
        ("openai", '{"tool_calls": {"name": "buy"}}', '"tool_calls" must be a list'),
        ("hermes", "<tool_call>buy tea</tool_call>", "broken near 'buy tea"),
        ("hermes", '<tool_call>{"name": "buy"}}</tool_call>', "comes '}</tool_call', not"),
        ("mistral", "[TOOL_CALLS]", "there is no call after [TOOL_CALLS]"),
        ("qwen-coder", "<tool_call>buy", "no <function= before 'buy'"),
        ("qwen-coder", "<function=buy><parameter=item>tea", "item is not closed with </parameter>"),
        ("deepseek", "<｜tool▁calls▁begin｜>buy", "no <｜tool▁call▁begin｜> before"),
        ("deepseek", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>\n", "the call has no name"),
        ("kimi", "<|tool_call_begin|>functions.buy:0", "no <|tool_call_argument_begin|> before"),
        ("harmony", "<|channel|>commentary to=functions.buy", "no <|message|> before ''"),
        ("glm", "<tool_call></tool_call>", "no name of a tool"),
        ("glm", "<tool_call>buy<arg_key>item</tool_call>", "no </arg_key> before '</tool_call>'"),
    ],
)
def test_malformed_says_why_and_how_to_write_it(name, text, reason):
    parser = get_parser(name)
    result = parser.parse(text)
    assert result.outcome is ParseOutcome.MALFORMED
    assert result.malformed is not None
    why, how = result.malformed.split("; write ")
    assert reason in why
    assert parser.parse(how).calls == [ToolCall("name", {"key": "value"})]
    assert result.text == text.strip()


@every_case(
    "name, text",
    [
        ("json", '{"tool": "write", "arguments": {"text": "two\nlines\t."}}'),
        ("react", 'Action: write\nAction Input: {"text": "two\nlines\t."}'),
        ("deepseek", '<｜tool▁call▁begin｜>write<｜tool▁sep｜>{"text": "two\nlines\t."}'),
    ],
)
def test_plain_line_breaks_in_strings_are_read(name, text):
    assert get_parser(name).parse(text).calls == [ToolCall("write", {"text": "two\nlines\t."})]


def test_a_made_up_observation_ends_the_turn():
    first = 'Action: look_up\nAction Input: {"item": "tea"}'
    second = 'Observation: 3 in stock.\nAction: buy\nAction Input: {"item": "tea"}'
    result = get_parser("react").parse(f"{first}\n{second}")
    assert result.calls == [LOOK]
    assert result.malformed is None
    assert result.text == second


def test_content_beside_tool_calls_is_what_was_said():
    text = '{"content": "Fine.", "tool_calls": [{"function": {"name": "stop", "arguments": ""}}]}'
    result = get_parser("openai").parse(text)
    assert result.calls == [ToolCall("stop")]
    assert result.text == "Fine."


def test_several_calls_in_one_pair_of_tags():
    calls = '{"name": "look_up", "arguments": {"item": "tea"}}\n{"name": "look_up", "arg'
    parser = get_parser("hermes")
    whole = parser.parse(f'<tool_call>\n{calls}uments": {{"item": "tea"}}}}\n</tool_call>Both.')
    assert (whole.calls, whole.malformed, whole.text) == ([LOOK, LOOK], None, "Both.")
    cut = parser.parse(f"<tool_call>\n{calls}")
    assert cut.calls == [LOOK]
    assert "ends before it is complete" in str(cut.malformed)


def test_good_calls_before_a_broken_one_are_kept_and_none_after_it():
    good = REAL["json"][0]
    result = get_parser("json").parse(f'{good}\n{{"tool": "plan", oops}}\n{good}')
    assert result.calls == [BUY]
    assert result.outcome is ParseOutcome.CALLS
    assert result.malformed is not None
    assert "broken near 'oops" in result.malformed
    assert result.text.endswith(good)


def test_pieces_of_a_broken_call_are_not_calls():
    inner = '{"tool": "delete", "arguments": {}}'
    for text in (
        f'{{"tool": "plan", oops, "arguments": {inner}}}',
        f'{{"tool": "plan", "arguments": {{"then": {inner}, oops',
        f'{{"tool": "write", "arguments": {{"text": "a "quote"\n{inner}"}}}}',
    ):
        assert get_parser("json").parse(text).outcome is ParseOutcome.MALFORMED
