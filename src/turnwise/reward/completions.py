"""A `complete` function for `LLMJudge` over HTTP, for servers with OpenAI's chat interface."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from turnwise.errors import ConfigError, RewardError

NUM_ATTEMPTS = 4
RETRIED_STATUSES = frozenset({408, 429, 500, 502, 503, 504})


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_args: Any, **_kwargs: Any) -> None:
        return None


def openai_complete(
    base_url: str,
    model: str,
    *,
    api_key_env: str | None = None,
    temperature: float = 0.0,
    max_tokens: int = 1024,
    timeout: float = 60.0,
) -> Callable[[str], str]:
    """A function from a prompt to the answer of `model` at `base_url` (which ends in /v1).

    The key is read from the environment variable `api_key_env`, if one is named. A server that
    is busy or unreachable is asked again a few times, with growing pauses.
    """
    if not base_url.startswith(("http://", "https://")):
        raise ConfigError(f"base_url must begin with http:// or https://, got {base_url!r}")
    headers = {"Content-Type": "application/json"}
    if api_key_env is not None:
        if not os.environ.get(api_key_env):
            raise ConfigError(f"the environment variable {api_key_env} with the key is not set")
        headers["Authorization"] = f"Bearer {os.environ[api_key_env]}"
    url = f"{base_url.rstrip('/')}/chat/completions"
    opener = urllib.request.build_opener(_NoRedirect)

    def complete(prompt: str) -> str:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": temperature,
            "max_tokens": max_tokens,
        }
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        for attempt in range(NUM_ATTEMPTS):
            try:
                with opener.open(request, timeout=timeout) as response:
                    return _read_answer(response.read(), url)
            except urllib.error.HTTPError as error:
                with error:
                    problem = f"HTTP {error.code}: {error.read(300).decode('utf-8', 'replace')}"
                if error.code not in RETRIED_STATUSES:
                    break
            except (OSError, http.client.HTTPException) as error:
                problem = f"{type(error).__name__}: {error}"
            if attempt + 1 < NUM_ATTEMPTS:
                time.sleep(0.25 * 2**attempt)
        raise RewardError(f"{url} gave no answer. {problem}")

    return complete


def _read_answer(body: bytes, url: str) -> str:
    try:
        answer = json.loads(body)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError):
        answer = None
    if not isinstance(answer, str):
        raise RewardError(
            f"{url} answered {body[:200]!r}, expected choices[0].message.content. "
            "Does base_url point at a server with OpenAI's chat interface?"
        )
    return answer
