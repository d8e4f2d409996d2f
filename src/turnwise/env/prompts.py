"""`PromptEnvironment`: one prompt of a dataset, one reply, compared with the row's answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from turnwise.env.base import BaseEnvironment
from turnwise.errors import ConfigError
from turnwise.types import NotText, read_content


@dataclass(frozen=True)
class Prompt:
    """The parts of a prompt.

    >>> Prompt.read([{"role": "system", "content": "Brief."}, {"role": "user", "content": "Hi."}])
    Prompt(text='Hi.', system='Brief.', history=())
    """

    text: str
    """The last user message."""
    system: str = ""
    history: tuple[Mapping[str, str], ...] = ()
    """The earlier messages of user and assistant."""

    @property
    def messages(self) -> list[Mapping[str, str]]:
        """The whole prompt as messages."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.history, {"role": "user", "content": self.text}]

    @classmethod
    def read(cls, prompt: object) -> Self:
        """Reads a text, or chat messages of which the last is a user's."""
        if isinstance(prompt, str):
            return cls(prompt)
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes):
            raise ConfigError(
                f"a prompt is {_shown(prompt)}, expected a text or a list of messages"
            )
        messages = []
        for number, message in enumerate(prompt):
            try:
                role, content = message["role"], read_content(message["content"])
            except (KeyError, TypeError, NotText) as error:
                raise ConfigError(
                    f"message {number} of a prompt is {_shown(message)}, expected "
                    f"{{'role': 'user', 'content': text}} ({error})"
                ) from None
            messages.append({"role": role, "content": content})
        has_system = bool(messages) and messages[0]["role"] == "system"
        system = messages.pop(0)["content"] if has_system else ""
        roles = [message["role"] for message in messages]
        if not ({"user", "assistant"} >= set(roles) and roles[:1] == roles[-1:] == ["user"]):
            raise ConfigError(
                f"the messages of a prompt have the roles {', '.join(map(str, roles)) or 'none'}; "
                "expected user and assistant, after at most one system message, the first and the "
                "last of them a user's"
            )
        return cls(messages[-1]["content"], system, tuple(messages[:-1]))


class PromptEnvironment(BaseEnvironment):
    """One turn: the prompt of the task, and the agent's reply, which the reward function scores.

    The task is a row of a dataset, a mapping. Its `prompt` is a text or a list of chat messages;
    its `system`, if it has one, is the system prompt of a text.

    Without a reward function the reply is compared with the row's `answer` (or `ground_truth`, or
    VERL's `reward_model.ground_truth`), a text or a number: reward 1 if the reply, or its last
    line, is that answer, spaces around it aside; else 0. Rows without an answer earn 0.

    >>> env = PromptEnvironment()
    >>> env.task = {"prompt": "What is 6 times 7?", "answer": 42}
    >>> env.reset()
    'What is 6 times 7?'
    >>> env.step("Six sevens are forty-two:\\n42")
    ('Right.', 1.0, True, {'success': True})
    """

    quick = True
    max_steps = 1

    def reset(self) -> str:
        self._done = False
        self.step_count = 0
        return read_prompt(self._task()).text

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.step_count += 1
        self._done = True
        answer = read_answer(self._task())
        if answer is None:
            return "", 0.0, True, {}
        is_right = is_answer(action, answer)
        return "Right." if is_right else "Wrong.", float(is_right), True, {"success": is_right}

    def get_state_description(self) -> str:
        text = read_prompt(self._task()).text
        return f"{text}\n(answered)" if self._done else text

    def get_prompt_prefix(self) -> str:
        return read_prompt(self._task()).system

    def get_history(self) -> Sequence[Mapping[str, Any]]:
        return read_prompt(self._task()).history

    def expert_action(self) -> str | None:
        return read_answer(self._task())

    def _task(self) -> Mapping[str, Any]:
        if self.task is None:
            fix = "Pass a dataset, or EpisodeTask(seed, task=row), or set .task = {'prompt': ...}."
            raise ConfigError(f"{type(self).__name__} has no task to play. {fix}")
        return self.task


def read_prompt(row: Mapping[str, Any]) -> Prompt:
    """Returns the prompt of a row, with its system prompt."""
    if "prompt" not in row:
        raise ConfigError(f"a row has no 'prompt'; it has {', '.join(map(str, row)) or 'nothing'}")
    prompt = Prompt.read(row["prompt"])
    system = row.get("system") or ""
    if not isinstance(system, str) or (system and prompt.system):
        expected = "a text, and no system message in the prompt besides"
        raise ConfigError(f"a row's 'system' is {_shown(system)}, expected {expected}")
    return Prompt(prompt.text, system or prompt.system, prompt.history)


def read_answer(row: Mapping[str, Any]) -> str | None:
    """Returns the answer of a row as text; None if it has none."""
    graded = row.get("reward_model")
    answers = [row.get("answer"), row.get("ground_truth")]
    if isinstance(graded, Mapping):
        answers.append(graded.get("ground_truth"))
    plain = (str(answer) for answer in answers if isinstance(answer, str | int | float))
    return next(plain, None)


def is_answer(reply: str, answer: str) -> bool:
    """Whether a reply, or its last line, is the answer.

    >>> is_answer("It must be\\n 42 ", "42"), is_answer("It must be 42", "42")
    (True, False)
    """
    reply, answer = reply.strip(), answer.strip()
    return reply == answer or reply.rpartition("\n")[2].strip() == answer


def _shown(value: object) -> str:
    return f"{value!r:.100} ({type(value).__name__})"
