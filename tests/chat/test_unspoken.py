"""A template is blamed for what it does, not for special tokens that a model sampled."""

from turnwise.chat import ChatFormat, Conversation
from turnwise.models.tiny import make_tiny_tokenizer


def talk(answers):
    """A conversation in which the model sampled exactly these tokens."""
    chat_format = ChatFormat(make_tiny_tokenizer())
    conversation = Conversation(chat_format, [{"role": "user", "content": "Begin."}])
    for ids in answers:
        conversation.answer(ids, [0.0] * len(ids))
        conversation.add([{"role": "user", "content": "Next."}])
    conversation.answer(chat_format.answer_ids("end"), [0.0] * len(chat_format.answer_ids("end")))
    return conversation


def test_special_tokens_in_an_answer_are_no_fault_of_the_template(caplog):
    tokenizer = make_tiny_tokenizer()
    good = ChatFormat(tokenizer).answer_ids("up")
    odd = next(i for i in tokenizer.all_special_ids if i != good[-1])
    for answer in ([odd, *good], [*good[:-1], odd]):
        conversation = talk([answer])
        assert conversation.difference() is not None
        left = conversation.format.num_to_compare
        conversation.warn_of_difference()
        assert conversation.format.num_to_compare == left  # it says nothing of the template
    assert "append-only" not in caplog.text
    plain = talk([good])
    plain.warn_of_difference()
    assert plain.format.num_to_compare == left - 1
