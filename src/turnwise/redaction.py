"""Keeps secrets out of run folders: what looks like one is replaced before it is written."""

import re
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

REDACTED = "<redacted>"

Replacement: TypeAlias = Callable[[str], str]
"""Maps the name of a secret, such as `--api-key`, to the text that replaces it."""

_EXACT = {"key", "pat", "pwd", "auth", "authorization", "bearer", "cookie", "credentials"}
_ENDINGS = ("token", "secret", "password", "passwd", "passphrase", "apikey", "credential")
_KNOWN_FORMS = re.compile(
    r"\b(?:[spr]k-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|xox[abeprs]-[\w-]{10,}|AKIA[0-9A-Z]{12,}|AIza[\w-]{30,}|eyJ[\w-]{10,}\.[\w-]+\.[\w-]*)"
)
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+=.~-]{20,}")
_ASSIGNMENT = re.compile(r"([+-]*[\w.-]*\w)=(.+)", re.S)
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_QUERY = re.compile(r"(?<=[?&])([\w.-]+)=([^&#\s]+)")


def is_secret_name(name: str) -> bool:
    """Return whether a name is that of a secret: `OPENAI_API_KEY`, `--token`, `X-Api-Key`.

    >>> [is_secret_name(name) for name in ("authToken", "PGPASSWORD", "max_tokens", "monkey")]
    [True, True, False, False]
    """
    words = re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return any(word in _EXACT or word.endswith(_ENDINGS) for word in words)


def is_secret(name: str, value: str) -> bool:
    """Return whether a variable or header holds a secret, by its name or its value."""
    return bool(
        is_secret_name(name)
        or value.startswith(("Bearer ", "Basic "))
        or _KNOWN_FORMS.search(value)
        or _RANDOM.fullmatch(value)
    )


def without_secrets(
    words: Sequence[str],
    replacement: Replacement = lambda name: REDACTED,
    known: Collection[str] = (),
) -> list[str]:
    """Return the words of a command without secrets; `known` names are no secrets.

    >>> without_secrets(["serve", "--api-key=abc", "--token", "def", "http://me:pw@host"])
    ['serve', '--api-key=<redacted>', '--token', '<redacted>', 'http://<redacted>@host']
    """
    cleaned: list[str] = []
    option = ""
    for word in words:
        follows = option and not word.startswith("-")
        cleaned.append(replacement(option) if follows else _cleaned(word, replacement, known))
        is_option = word.startswith("-") and "=" not in word and word not in known
        option = word if is_option and is_secret_name(word) else ""
    return cleaned


def _cleaned(word: str, replacement: Replacement, known: Collection[str]) -> str:
    assigned = _ASSIGNMENT.fullmatch(word)
    if assigned and assigned[1].lstrip("+-") not in known and is_secret_name(assigned[1]):
        return f"{assigned[1]}={replacement(assigned[1])}"
    word = _LOGIN.sub(lambda _: replacement("login"), word)
    word = _QUERY.sub(
        lambda pair: f"{pair[1]}={replacement(pair[1])}" if is_secret_name(pair[1]) else pair[0],
        word,
    )
    return _KNOWN_FORMS.sub(lambda _: replacement("secret"), word)
