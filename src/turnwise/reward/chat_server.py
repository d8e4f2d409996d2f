"""`ChatServer`: asks a model behind a URL, on any server with OpenAI's chat interface."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turnwise.errors import ConfigError, EngineError

NUM_ATTEMPTS = 4
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class Answer(NamedTuple):
    """The text of an answer."""

    text: str
    is_cut: bool
    """Whether the limit of tokens ended it."""


class ChatServer:
    """A client of one server; its methods wait for the answer, and may be called in threads.

    Requests to a busy or unreachable server are retried a few times, with growing pauses.
    """

    def __init__(self, base_url: str, api_key: str | None = None, timeout: float = 60.0) -> None:
        """`base_url` ends in /v1 on most servers."""
        if not base_url.startswith(("http://", "https://")):
            raise ConfigError(f"base_url must begin with http:// or https://, got {base_url!r}")
        import httpx2  # late: it takes long to import

        self.base_url = base_url.rstrip("/")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._failure = httpx2.RequestError
        # Without redirects, which would send the API key to another host.
        self._client = httpx2.Client(headers=headers, timeout=timeout, follow_redirects=False)

    def models(self) -> list[str]:
        """Return the models that the server offers."""
        found = self._ask("GET", "/models")
        try:
            return [str(model["id"]) for model in found["data"]]
        except (LookupError, TypeError):
            raise self._not_openai(found, "data[0].id") from None

    def complete(self, model: str, messages: Sequence[Mapping[str, Any]], **options: Any) -> Answer:
        """Return the model's next message; `options` are fields of the request."""
        body = {"model": model, "messages": list(messages), **options}
        found = self._ask("POST", "/chat/completions", body)
        try:
            choice = found["choices"][0]
            text, reason = choice["message"]["content"], choice.get("finish_reason")
        except (LookupError, TypeError, AttributeError):
            text, reason = 0, None
        if text is None and reason == "length":  # all tokens went into a hidden thought
            text = ""
        if not isinstance(text, str):
            raise self._not_openai(found, "choices[0].message.content")
        return Answer(text, reason == "length")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        url = self.base_url + path
        for attempt in range(NUM_ATTEMPTS):
            try:
                response = self._client.request(method, url, json=body)
                if response.is_success:
                    try:
                        return json.loads(response.content)
                    except ValueError:
                        raise self._not_openai(response.text, "JSON") from None
                problem = f"HTTP {response.status_code}: {response.text[:300]}"
                if response.status_code not in RETRIED_STATUSES:
                    break
            except self._failure as error:
                problem = f"{type(error).__name__}: {error}"
            if attempt + 1 < NUM_ATTEMPTS:
                time.sleep(0.25 * 2**attempt)
        raise EngineError(f"{url} gave no answer. {problem}")

    def _not_openai(self, got: Any, expected: str) -> EngineError:
        return EngineError(
            f"{self.base_url} answered {got!r:.200}, expected {expected}. Is it the address of a "
            "server with OpenAI's chat interface? Most end in /v1."
        )
