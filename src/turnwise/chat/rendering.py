"""Renders chat templates within limits, and finds out which parts of the output are quoted."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from turnwise.chat.encoding import Encoder
from turnwise.chat.ownership import (
    Change,
    Marks,
    RenderedText,
    break_names,
    change_messages,
    change_tools,
    make_inert,
)
from turnwise.errors import ConfigError

Message: TypeAlias = Mapping[str, Any]
"""`{"role": "user", "content": "Hello."}`; roles are system, user, assistant and tool."""
Tools: TypeAlias = Sequence[Mapping[str, Any]] | None

# Names under which clients send a thought; transformers gives templates the first two.
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


class Renderer:
    """Renders with a tokenizer's chat template, or with `given` instead of it.

    `template` is the text of either; `encoder` finds the control tokens in texts and renderings.
    """

    def __init__(self, tokenizer: Any, given: str | None, template: str, encoder: Encoder) -> None:
        self.variables: dict[str, bool] = {}
        """What the template gets besides messages and tools."""
        self._tokenizer = tokenizer
        self._given = given
        self._template = template
        self._encoder = encoder

    def render(
        self, messages: Sequence[Message], tools: Tools = None, generation_prompt: bool = True
    ) -> str:
        """Return the conversation as the template writes it."""
        plain = change_messages(self.completed(messages), str)
        return self._render(plain, change_tools(tools, str), generation_prompt)

    def render_with_spans(
        self, messages: Sequence[Message], tools: Tools = None, before: Sequence[Message] = ()
    ) -> RenderedText:
        """Render, and find the spans that the template did not write.

        `before` are earlier messages of ours, whose texts are harmless.
        """
        completed = self.completed(messages)

        def render(change: Change) -> str:
            changed = [*before, *change_messages(completed, change)]
            return self._render(changed, change_tools(tools, change), generation_prompt=True)

        plain = render(str)
        marks = Marks(self._encoder.control_spans)
        marked, is_whole = _read(render, marks.mark_whole, marks)
        if is_whole and marked.text == plain:
            return marked
        return self._without_forgeries(render, plain, marked if is_whole else None)

    def _without_forgeries(
        self, render: Callable[[Change], str], plain: str, marked: RenderedText | None
    ) -> RenderedText:
        """Render for templates that inspect the texts and behave differently when they are marked.

        The output for harmless texts shows which control tokens the template writes itself.
        """
        find = self._encoder.control_spans
        marks = Marks(find)
        expected = self._encoder.control_tokens(_read(render, make_inert, marks)[0])
        for rendered in (RenderedText(plain), marked):
            if rendered is not None and self._encoder.control_tokens(rendered) == expected:
                return rendered
        named, _ = _read(render, marks.mark_names, marks)
        if named.text == plain:
            return named
        return RenderedText(render(break_names(find)))

    def completed(
        self, messages: Sequence[Message], history: Sequence[Message] = ()
    ) -> list[Message]:
        """Return messages with contents as strings, and call ids for tool results if needed."""
        completed: list[Message] = []
        num_results = sum(message.get("role") == "tool" for message in history)
        for message in messages:
            content = message.get("content")
            filled = {**message, "content": "" if content is None else str(content)}
            if message.get("role") == "tool":
                if "tool_call_id" in self._template and not message.get("tool_call_id"):
                    filled["tool_call_id"] = self._call_id(message, num_results)
                num_results += 1
            thought = next((message[k] for k in _THOUGHTS if message.get(k) is not None), None)
            if thought is not None:
                filled = {"thinking": thought, **filled, "reasoning_content": thought}
            completed.append(filled)
        return completed

    def _call_id(self, message: Message, number: int) -> str:
        if "## Return of" in self._template:  # Kimi-K2: the function, and its place among all calls
            return f"functions.{message.get('name') or 'tool'}:{number}"
        return f"call{number % 100_000:05}"  # Mistral accepts only nine letters or digits

    def _render(
        self, messages: Sequence[Message], tools: list[Any] | None, generation_prompt: bool
    ) -> str:
        from turnwise.chat.sandbox import TooLarge  # as late as transformers

        try:
            return self._apply(messages, tools, generation_prompt)
        except TooLarge as error:
            raise ConfigError(
                f"the chat template computes too much: {error}. Give another with "
                "ChatFormat(tokenizer, template)."
            ) from error
        except Exception as error:  # a template may raise anything
            roles = ", ".join(str(message.get("role")) for message in messages[:20])
            raise ConfigError(
                f"the chat template does not take messages of the roles {roles}: {error}"
            ) from error

    def _apply(
        self, messages: Sequence[Message], tools: list[Any] | None, generation_prompt: bool
    ) -> str:
        from transformers import PreTrainedTokenizerBase

        from turnwise.chat.sandbox import compile_template, render

        apply = self._tokenizer.apply_chat_template
        if getattr(apply, "__func__", None) is not PreTrainedTokenizerBase.apply_chat_template:
            # A tokenizer with code of its own, such as Mistral's.
            return str(apply(
                list(messages), tools=tools, chat_template=self._given,
                add_generation_prompt=generation_prompt, tokenize=False, **self.variables,
            ))  # fmt: skip
        template = compile_template(self._tokenizer.get_chat_template(self._given, tools))
        variables = {
            **self._tokenizer.special_tokens_map,
            **self.variables,
            "documents": None,
            "add_generation_prompt": generation_prompt,
        }
        try:
            return render(template, messages, tools, variables)
        except TypeError:  # a template that iterates over tools unconditionally
            if tools:
                raise
            return render(template, messages, [], variables)


def _read(
    render: Callable[[Change], str], change: Change, marks: Marks
) -> tuple[RenderedText, bool]:
    """Render changed texts and read the marks; (empty, False) if the template refuses them."""
    try:
        return marks.read(render(change))
    except ConfigError:
        return RenderedText(""), False
