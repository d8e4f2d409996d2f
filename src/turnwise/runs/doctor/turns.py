"""Checks of how episodes go: the text that the model writes, limits, failures."""

from __future__ import annotations

from turnwise.runs.doctor.history import History


def errors(history: History) -> str | None:
    share = history.mean("errors", 3)
    if share is None or share <= 0.1:
        return None
    most = _most_frequent(history, "errors/")
    kind = f", most in the {most}" if most else ""
    return f"{share:.0%} of the episodes failed{kind}: they are not learned from."


def unread_calls(history: History) -> str | None:
    """Detect tool calls in a format that the parser does not read."""
    share = history.mean("unread_calls", 3)
    if share is None or share < 0.3:
        return None
    most = _most_frequent(history, "unread_calls/")
    written = f"in the format {most!r}" if most else "in another format"
    return (
        f"{share:.0%} of the turns hold a tool call {written}, which the parser of this run does "
        "not read: the calls reach the environment as plain text."
    )


def _most_frequent(history: History, prefix: str) -> str | None:
    """Return the kind of errors with the highest rate, of metrics such as `errors/tool`."""
    names = sorted({name for step in history.steps for name in step if name.startswith(prefix)})
    most = max(names, key=lambda name: history.mean(name, 3) or 0.0, default=None)
    return most and most.removeprefix(prefix)


def malformed_calls(history: History) -> str | None:
    share = history.stays_high("malformed_calls")
    if share is None:
        return None
    return f"{share:.0%} of the turns hold a tool call that cannot be read."


def invalid_actions(history: History) -> str | None:
    share = history.stays_high("invalid_actions")
    if share is None:
        return None
    return f"The environment did not understand {share:.0%} of the actions."


def cut_turns(history: History) -> str | None:
    share = history.stays_high("cut_turns")
    if share is None or history.is_solved():
        return None
    length = history.mean("tokens_per_turn")
    at = "" if length is None else f" ({length:.3g} tokens a turn on average)"
    return f"{share:.0%} of the model's turns were cut by the limit of tokens in a turn{at}."


def tools_unused(history: History) -> str | None:
    now, (best, _) = history.mean("tool_calls"), history.best("tool_calls")
    if now is None or best < 0.5 or now > 0.1 * best or history.is_solved():
        return None
    return f"The tools are no longer used: {now:.2g} calls an episode, once {best:.2g}."


def _truncated(history: History, by: str, words: str) -> str | None:
    share = history.stays_high(f"truncated/{by}")
    # In some environments, lasting until the limit is the success.
    if share is None or history.success() >= 0.5:
        return None
    return f"{share:.0%} of the episodes {words}."


def out_of_turns(history: History) -> str | None:
    return _truncated(history, "turns", "ran out of turns before they were over")


def out_of_tokens(history: History) -> str | None:
    return _truncated(history, "tokens", "were longer than the model's context or the token limit")


def out_of_time(history: History) -> str | None:
    return _truncated(history, "time", "ran out of time")


def out_of_tool_calls(history: History) -> str | None:
    return _truncated(history, "tool_calls", "made as many tool calls as are allowed")
