"""Every layout of the zoo: stops, streams, masks and tool results as its template has them."""

import json

from transformers import AutoTokenizer

from chat.families import difference_of
from chat.zoo import ZOO, zoo_format, zoo_tokenizer
from every_case import every_case
from turnwise import ConfigError
from turnwise.chat import ChatFormat, Conversation

SYSTEM = {"role": "system", "content": "You are a helpful assistant."}
OPENING = {"role": "user", "content": "hello there"}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Price of an item.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string", "description": "Its name."}},
        },
    },
}


def takes(chat, *messages):
    try:
        chat.render(list(messages))
    except ConfigError:
        return False
    return True


def opening_of(chat):
    return [SYSTEM, OPENING] if takes(chat, SYSTEM, OPENING) else [OPENING]


def converse(name, roles, *, tools=None, is_cut=False):
    """A conversation in which the agent speaks as the template writes it, and ends its turns."""
    chat, layout = zoo_format(name), ZOO[name]
    conversation = Conversation(chat, opening_of(chat), tools)
    for number, role in enumerate([*roles, None]):
        ids = chat.answer_ids(f"{layout.spoken}move {number}")
        if ids[-1] not in chat.stop_ids:
            ids.append(chat.tokenizer.eos_token_id)
        if name == "glm-4" and role is not None:  # the next role is what ends a turn there
            ids[-1] = chat.tokenizer.convert_tokens_to_ids(
                "<|observation|>" if role == "tool" else "<|user|>"
            )
        if is_cut:
            ids = ids[: -len(chat.turn_end.sampled_ids)]
        conversation.answer(ids, [-1.0] * len(ids))
        if "<|channel|>" in layout.spoken or layout.spoken.isspace():  # no part of the message
            conversation.messages[-1] = {"role": "assistant", "content": f"move {number}"}
        if role is not None:
            conversation.add([{"role": role, "name": "look_up", "content": f"number {number}"}])
    return conversation


@every_case("name", ZOO)
def test_turns_end_at_every_end_token_and_at_no_other(name):
    chat, layout = zoo_format(name), ZOO[name]
    stops = set(chat.tokenizer.convert_ids_to_tokens(sorted(chat.stop_ids)))
    assert stops >= {layout.eos, *layout.stops, *layout.ends}
    assert chat.stop_strings == layout.stop_strings
    known = {layout.eos, *layout.stops, *layout.ends, "<|eom_id|>", "<|call|>"}
    assert stops <= known
    for token in layout.stops:
        ids = [*chat.tokenizer.encode("up", add_special_tokens=False)]
        ids.append(chat.tokenizer.convert_tokens_to_ids(token))
        assert chat.decode(ids).strip() == "up"


@every_case("name", ZOO)
def test_the_stream_is_what_the_template_writes_at_once(name):
    chat, layout = zoo_format(name), ZOO[name]
    conversation = converse(name, ["user", "user", "user"])
    if layout.drifts:
        assert layout.drifts in (difference_of(conversation) or "")
        return
    assert difference_of(conversation) is None
    told = converse(name, ["user", "user"])
    told.add([{"role": "user", "content": "number 2"}])
    rendered = chat.tokenizer.encode(chat.render(told.messages), add_special_tokens=False)
    stream = chat.with_template_ends(told.stream.ids, [*told.stream.turns, (0, 0)])
    assert show(chat, stream) == show(chat, rendered)


def show(chat, ids):
    return chat.tokenizer.convert_ids_to_tokens(list(ids))


@every_case("name", ZOO)
def test_no_turn_is_ended_twice(name):
    chat, layout = zoo_format(name), ZOO[name]
    conversation = converse(name, ["user", "user"])
    ids, ends = conversation.stream.ids, chat.stop_ids
    for _, end in conversation.stream.turns[:-1]:
        assert ids[end - 1] in ends
        follows = chat.tokenizer.convert_ids_to_tokens(ids[end])
        assert ids[end] not in ends or name == "granite", follows
        assert follows not in ("<|end|>", "<|im_end|>", layout.eos)
    cut = converse(name, ["user", "user"], is_cut=True)
    num_said = len(chat.turn_end.sampled_ids)
    assert sum(cut.stream.mask) == sum(conversation.stream.mask) - 3 * num_said
    if (
        name != "harmony" and chat.turn_end.closing_ids
    ):  # the template's end is what the agent says there
        assert show(chat, cut.stream.ids) == show(chat, ids)[:-num_said]


@every_case("name", ZOO)
def test_whichever_token_ends_a_turn_ends_it_alone(name):
    """Also one that the template does not write there, such as Llama's end of text."""
    chat = zoo_format(name)
    told = [{"role": "user", "content": "lower"}]
    expected = chat.increment_ids(told, chat.answer_ids("up"))
    if name == "glm-4":
        return  # the next role is part of what follows
    for end in chat.stop_ids:
        assert chat.increment_ids(told, [7, end]) == expected


@every_case("name", ZOO)
def test_tool_results_are_messages_where_there_are_any(name):
    chat, layout = zoo_format(name), ZOO[name]
    result = {"role": "tool", "name": "look_up", "content": "5"}
    try:
        chat.increment_ids([result, result], [])
    except ConfigError:
        assert name in {"llama-2", "mistral-0.1", "gemma-2", "gemma-3"}
        return
    tools = [TOOL] if "look_up" in chat.render(opening_of(chat), tools=[TOOL]) else None
    conversation = converse(name, ["tool", "user", "tool"], tools=tools)
    text = chat.tokenizer.decode(conversation.stream.ids, skip_special_tokens=False)
    for number in range(3):
        assert f"number {number}" in text
    if name == "mistral-0.3":
        assert '"call_id": "call00000"}[/TOOL_RESULTS]' in text
        assert '"call_id": "call00001"}[/TOOL_RESULTS]' in text
    if name == "harmony":  # a result stands only after a call, which the agent wrote itself
        assert "<|return|><|start|>functions.look_up to=assistant<|channel|>commentary" in text
        assert "commentary json" not in text
    if name == "kimi-k2":
        assert "## Return of functions.look_up:1\n" in text
    if layout.results_rerender:
        is_other = difference_of(conversation) is not None
        assert is_other == bool(layout.drifts)


def test_ends_are_read_from_a_saved_model_folder(tmp_path):
    """As makers ship it: named tokens in one file, special ones in another, ends in a third."""
    tokenizer = zoo_tokenizer("llama-3.1")
    tokenizer.save_pretrained(tmp_path)
    ends = tokenizer.convert_tokens_to_ids(["<|end_of_text|>", "<|python_tag|>"])
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    loaded = ChatFormat(AutoTokenizer.from_pretrained(tmp_path))
    assert loaded.stop_ids >= set(ends)
    (tmp_path / "generation_config.json").write_text("[")  # one that cannot be read ends nothing
    again = ChatFormat(AutoTokenizer.from_pretrained(tmp_path))
    assert ends[1] not in again.stop_ids
    assert tokenizer.convert_tokens_to_ids("<|eot_id|>") in again.stop_ids
