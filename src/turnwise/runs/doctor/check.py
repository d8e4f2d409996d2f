"""What a check of the doctor is: what it sees, what it advises, and what it explains."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from turnwise.config import ConfigStore
from turnwise.runs.doctor.history import History

See: TypeAlias = Callable[[History], str | None]
"""Returns the observation as text; None: nothing is wrong."""


@dataclass(frozen=True)
class Check:
    """A check for one thing that can be wrong."""

    code: str
    see: See
    fix: str
    """What to try, in parts between semicolons: `set training.gamma` is left out for a run that has
    such a setting, `take model.dtype=float32` for one that has this value."""
    explains: Sequence[str] = ()
    """The checks whose findings are consequences of this one."""
    is_of_updates: bool = False
    """Whether updates cause it: then it explains nothing that was so in the first step."""

    def advise(self, config: ConfigStore | None = None) -> str:
        """Return what to try in a run with these settings; without any, all of it."""
        parts = self.fix.removesuffix(".").split("; ")
        if config is not None:
            parts = [part for part in parts if not _is_done(part, config)] or parts
        text = "; ".join(parts)
        if config is not None and config.agent is not None:  # an agent has no environment
            text = re.sub(r" \([^()]*environment\.[^()]*\)", "", text)
        return f"{text[0].upper()}{text[1:]}."

    def explains_here(self, code: str, history: History) -> bool:
        """Return whether another finding is a consequence of this one, in this run."""
        if code not in self.explains:
            return False
        had_spread = history.first.get("reward_std", 1.0) > 1e-6
        # Without any spread chance moves the policy; a spread that was lost has another cause.
        if self.code == "constant-reward" and had_spread:
            return False
        if code == "constant-reward":
            if history.success() > 0:  # then the reward is to blame
                return False
            was_so_at_first = not had_spread
        else:
            metric = code.replace("-", "_").replace("out_of_", "truncated/")
            was_so_at_first = history.first.get(metric, 0.0) >= 0.5
        return not (self.is_of_updates and was_so_at_first)


def _is_done(part: str, config: ConfigStore) -> bool:
    advice = re.search(r"\b(set|take) (\w+\.\w+)(?:=(\w+))?", part)
    if advice is None:
        return False
    value = dict(config.settings())[advice[2]]
    return bool(value) if advice[1] == "set" else value == advice[3]


CHECKS: list[Check] = []
"""All checks, in the order of `checks.py`."""


def check(
    fix: str, explains: Sequence[str] = (), is_of_updates: bool = False
) -> Callable[[See], See]:
    """Add a function to the checks; `too_hard` sees the finding `too-hard`."""

    def add(see: See) -> See:
        CHECKS.append(Check(see.__name__.replace("_", "-"), see, fix, explains, is_of_updates))
        return see

    return add


def check_share(metric: str, words: str, fix: str, explains: Sequence[str] = ()) -> None:
    """Add a check for a fraction that stays high; `cut_turns` makes the finding `cut-turns`."""

    def see(history: History) -> str | None:
        share = history.stays_high(metric)
        # In some environments, lasting until the limit is the success.
        if share is None or history.success() >= 0.5 or history.is_solved():
            return None
        return words.format(f"{share:.0%}")

    see.__name__ = metric.replace("truncated/", "out_of_")
    check(fix, explains)(see)
