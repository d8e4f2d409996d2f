"""What Gymnasium's own environments mean, in words: the task, the actions, the observation.

One entry an environment class; an environment that is not here is told by its docstring and its
spaces. To add one, add an entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from turnwise.env.adapters.gymnasium import experts, scenes
from turnwise.env.adapters.gymnasium.spaces import Names, check_names
from turnwise.errors import ConfigError

Env: TypeAlias = Any
"""A `gymnasium.Env`, unwrapped."""


@dataclass(frozen=True)
class Words:
    """How one environment is told to someone who can only read.

    >>> Words(task="Leave the maze.", actions={"ahead": "one step", "turn": "to the right"}).success
    'unknown'
    """

    task: str
    """What to do, what it earns, and how to read what is drawn."""
    actions: Names = None
    """Name and meaning of each action (of a Discrete) or of each number (of a Box)."""
    observation: Names = None
    """Name and meaning of each number of the observation."""
    describe: Callable[[Env, Any], str] | None = None
    """An observation in words, where names for its numbers are not enough."""
    ending: Callable[[Env], str] | None = None
    """What can be told only when the episode is over."""
    uncertainty: str = "Beware: an action does not always have the effect that it names."
    """Said where the table of transitions has more than one effect for an action."""
    success: Literal["at the end", "with a reward", "at the limit", "unknown"] = "unknown"
    """The task is solved when the episode ends, ends with a positive reward, or lasts."""
    expert: Callable[[Any], Any] | None = None
    """A good action for an observation; an environment with a table of transitions needs none."""
    invalid_reward: float = 0.0
    """What an answer that is no action earns; where each step costs, it must not be cheaper."""
    mask_is_advice: bool = False
    """An action outside the mask may be taken all the same, and the environment says the price."""


def words_for(env: Any) -> Words:
    """The words for a Gymnasium environment, as far as its wrappers leave them true."""
    kind = type(env.unwrapped)
    words = WORDS.get(kind.__name__) if kind.__module__.startswith("gymnasium.envs.") else None
    if words is None:
        return Words(task=_from_docstring(kind.__doc__) or f"You act in {kind.__name__}.")
    if not _fits(env.action_space, env.unwrapped.action_space, words.actions):
        words = replace(words, actions=None, expert=None)
    if not _fits(env.observation_space, env.unwrapped.observation_space, words.observation):
        words = replace(words, observation=None, describe=None, expert=None)
    return words


def _fits(space: Any, known: Any, names: Names) -> bool:
    try:
        check_names(space, names, "names")
    except ConfigError:  # the same class may come with other spaces, as LunarLander does
        return False
    return bool(space == known)


def _from_docstring(docstring: str | None) -> str:
    """The first paragraph that is not a heading, up to the end of a sentence."""
    for paragraph in (docstring or "").split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        text = " ".join(line for line in lines if line and not line.startswith("#"))
        if text:
            return text if len(text) <= 500 else text[:500].rpartition(". ")[0] + "."
    return ""


_SLIPPERY = """\
The ground is slippery: a move takes you where you meant to go or slides you to one of the two \
sides of that direction."""

_LAKE = """\
Cross the frozen lake from the start to the goal without falling into a hole. Reaching the goal \
earns 1, anything else 0; a hole ends the episode.
The map has row 1 at the top and column 1 at the left: @ is you, S the start, F safe ice, H a \
hole, G the goal."""

_TAXI = """\
Drive the taxi to the passenger, pick them up, drive to their destination and drop them off there. \
The right drop-off earns 20, each other action costs 1, picking up or dropping off where that is \
not possible costs 10.
The map has row 1 at the top and column 1 at the left: @ is the taxi; R, G, Y and B are the \
stands Red, Green, Yellow and Blue; between two squares : is open and | is a wall."""

_BLACKJACK = """\
Play one hand of blackjack against the dealer: get closer to 21 than the dealer without going \
over. Number cards count their number, face cards 10, an ace 11 or, if that would go over 21, 1. \
The dealer draws until 17 or more. Winning earns 1, a draw 0, losing -1."""

_CART_POLE = """\
Balance the pole that stands on a cart by pushing the cart left or right at every step. Each step \
earns 1. The episode is over as soon as the pole leans more than 0.2095 radians (12 degrees) or \
the cart is more than 2.4 from the middle."""

_CAR = """\
Drive the car out of the valley to the flag on the right hill, at position {goal}. The engine is \
too weak to climb the hill at once: swing back and forth to gain speed."""

_CLIFF = """\
Walk from the start to the goal by the shortest safe way. Each move costs 1; stepping onto the \
cliff costs 100 and puts you back at the start.
The map has row 1 at the top and column 1 at the left: @ is you, S the start, . safe ground, \
C the cliff, G the goal."""

_ACROBOT = """\
Two links hang from a fixed point, joined by a motor at their joint. Swing them until the free \
end is one link's length above the fixed point. Each step before that costs 1."""

_PENDULUM = """\
Swing the pendulum up and keep it upright with as little effort as you can. Each step costs the \
square of the angle from upright, plus a little for speed and effort."""

_LANDER = """\
Land the spacecraft softly between the flags at x = 0, y = 0. Coming closer, slower and more \
upright earns, firing engines costs a little, a crash costs 100, a safe landing earns 100."""

_CAR_SEES = {
    "position": "from -1.2 to 0.6; the bottom of the valley is near -0.5",
    "velocity": "from -0.07 to 0.07; positive is to the right",
}

WORDS: dict[str, Words] = {
    "CartPoleEnv": Words(
        task=_CART_POLE,
        actions={"left": "push the cart to the left", "right": "push the cart to the right"},
        observation={
            "cart position": "0 is the middle, positive is right",
            "cart velocity": "positive is to the right",
            "pole angle": "in radians; 0 is upright, positive leans right",
            "pole angular velocity": "positive falls to the right",
        },
        success="at the limit",
        expert=experts.cart_pole,
    ),
    "FrozenLakeEnv": Words(
        task=_LAKE,
        actions={"left": "", "down": "", "right": "", "up": ""},
        describe=scenes.frozen_lake,
        uncertainty=_SLIPPERY,
        success="with a reward",
    ),
    "TaxiEnv": Words(
        task=_TAXI,
        actions={
            "south": "one row down",
            "north": "one row up",
            "east": "one column to the right",
            "west": "one column to the left",
            "pick up": "take the passenger in",
            "drop off": "let the passenger out",
        },
        describe=scenes.taxi,
        uncertainty="It rains: a move may slide the taxi to one of the two sides instead.",
        success="at the end",
        invalid_reward=-1.0,
        mask_is_advice=True,
    ),
    "BlackjackEnv": Words(
        task=_BLACKJACK,
        actions={"stick": "take no more cards", "hit": "take another card"},
        describe=scenes.blackjack,
        ending=scenes.blackjack_ending,
        success="with a reward",
        expert=experts.blackjack,
    ),
    "Continuous_MountainCarEnv": Words(
        task=_CAR.format(goal=0.45)
        + " The flag earns 100; each step costs a tenth of the square of the force.",
        actions={"force": "negative pushes left, positive pushes right"},
        observation=_CAR_SEES,
        success="at the end",
        expert=experts.mountain_car_continuous,
    ),
    "MountainCarEnv": Words(
        task=_CAR.format(goal=0.5) + " Each step costs 1.",
        actions={"left": "push left", "none": "do not push", "right": "push right"},
        observation=_CAR_SEES,
        success="at the end",
        expert=experts.mountain_car,
        invalid_reward=-1.0,
    ),
    "CliffWalkingEnv": Words(
        task=_CLIFF,
        actions={"up": "", "right": "", "down": "", "left": ""},
        describe=scenes.cliff,
        uncertainty=_SLIPPERY,
        success="at the end",
        invalid_reward=-1.0,
    ),
    "AcrobotEnv": Words(
        task=_ACROBOT,
        actions={"negative": "torque -1", "none": "no torque", "positive": "torque 1"},
        observation={
            "cosine of the first angle": "of the upper link; an angle of 0 hangs straight down",
            "sine of the first angle": "",
            "cosine of the second angle": "of the lower link, relative to the upper one",
            "sine of the second angle": "",
            "first angular velocity": "in radians per second",
            "second angular velocity": "in radians per second",
        },
        success="at the end",
        invalid_reward=-1.0,
    ),
    "PendulumEnv": Words(
        task=_PENDULUM,
        actions={"torque": "positive turns counter-clockwise"},
        observation={
            "cosine of the angle": "1 is upright, -1 hangs straight down",
            "sine of the angle": "positive leans left",
            "angular velocity": "positive turns counter-clockwise",
        },
        invalid_reward=-16.3,
    ),
    "LunarLander": Words(
        task=_LANDER,
        actions={
            "nothing": "fire no engine",
            "left engine": "fire the left engine, which pushes to the right",
            "main engine": "fire the main engine, which pushes up",
            "right engine": "fire the right engine, which pushes to the left",
        },
        observation={
            "x": "0 is between the flags, positive is right",
            "y": "height above the ground",
            "x velocity": "positive is to the right",
            "y velocity": "positive is upwards",
            "angle": "in radians; 0 is upright",
            "angular velocity": "",
            "left leg on the ground": "1 if it is",
            "right leg on the ground": "1 if it is",
        },
        success="with a reward",
        invalid_reward=-1.0,
    ),
}
