"""`Check`: one thing that can be wrong with a run, its fix, and what else it explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.config import ConfigStore
from turnwise.runs.doctor.history import History

See: TypeAlias = Callable[[History], str | None]
"""Returns the observation as text; None: nothing is wrong."""

_OF_ENVIRONMENTS = {
    "params": " (environment.params)",
    "easier": " (environment.params, a curriculum)",
    "max_steps": " (and environment.max_steps)",
}
"""Parts of a fix that are left out of a run of an agent, which has no environment."""

_AT_FIRST = {
    "cut-turns": "cut_turns",
    "malformed-calls": "malformed_calls",
    "invalid-actions": "invalid_actions",
    "out-of-time": "truncated/time",
    "out-of-tokens": "truncated/tokens",
    "out-of-tool-calls": "truncated/tool_calls",
    "out-of-turns": "truncated/turns",
}
"""The metric that tells whether a finding was there in the first step, before any update."""


@dataclass(frozen=True)
class Option:
    """Something to try, unless the run has it already."""

    text: str
    setting: str
    value: object = None
    """What the setting would be; None: anything that switches it on."""

    def is_done(self, config: ConfigStore) -> bool:
        section, _, name = self.setting.partition(".")
        value = getattr(getattr(config, section), name)
        return bool(value) if self.value is None else bool(value == self.value)


@dataclass(frozen=True)
class Check:
    """A check for one thing that can be wrong."""

    see: See
    lead: str
    """The fix; with `options`, the sentence that they end."""
    options: Sequence[str | Option] = ()
    """What to try."""
    explains: Sequence[str] = ()
    """The checks whose findings are consequences of this one."""
    is_of_updates: bool = False
    """Whether updates cause it: then it explains nothing that was so in the first step."""

    @property
    def code(self) -> str:
        """Its identifier, from the name of the function: `too-hard` of `too_hard`."""
        return self.see.__name__.replace("_", "-")

    def advise(self, config: ConfigStore | None = None) -> str:
        """Return what to try in a run with these settings; without any, all of it."""
        options = []
        for option in self.options:
            if isinstance(option, str):
                options.append(option)
            elif config is None or not option.is_done(config):
                options.append(option.text)
        words = " or ".join(filter(None, (", ".join(options[:-1]), *options[-1:])))
        words = words if self.lead else words[:1].upper() + words[1:]
        text = " ".join(filter(None, (self.lead, f"{words}." if words else "")))
        has_environment = config is None or config.agent is None
        return text.format_map(
            {name: hint if has_environment else "" for name, hint in _OF_ENVIRONMENTS.items()}
        )

    def explains_here(self, code: str, history: History) -> bool:
        """Return whether another finding is a consequence of this one, in this run."""
        if code not in self.explains:
            return False
        # Without any spread chance moves the policy; a spread that was lost has another cause.
        if self.code == "constant-reward" and not _was_so_at_first(self.code, history):
            return False
        if code == "constant-reward" and history.success() > 0:  # then the reward is to blame
            return False
        return not (self.is_of_updates and _was_so_at_first(code, history))


def _was_so_at_first(code: str, history: History) -> bool:
    if code == "constant-reward":
        return history.first.get("reward_std", 1.0) <= 1e-6
    return code in _AT_FIRST and history.first.get(_AT_FIRST[code], 0.0) >= 0.5


CHECKS: list[Check] = []


def check(
    lead: str,
    *options: str | Option,
    explains: Sequence[str] = (),
    is_of_updates: bool = False,
) -> Callable[[See], See]:
    """Add a function to the checks; the arguments are those of `Check`."""

    def add(see: See) -> See:
        CHECKS.append(Check(see, lead, options, explains, is_of_updates))
        return see

    return add
