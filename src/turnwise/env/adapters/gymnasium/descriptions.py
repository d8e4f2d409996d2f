"""Text descriptions of Gymnasium's own environments: the task, the actions, the observation.

`DESCRIPTIONS` has one entry per environment class. An environment without an entry is described
by its docstring and its spaces.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from turnwise.env.adapters.gymnasium import experts
from turnwise.env.adapters.gymnasium.make import Env
from turnwise.env.adapters.gymnasium.spaces import Names, check_names
from turnwise.errors import ConfigError


@dataclass(frozen=True)
class Description:
    """How one environment is described to a language model.

    >>> Description(task="Leave the maze.", actions=["ahead", "turn"]).success
    'unknown'
    """

    task: str
    """The task, its rewards, and how to read the drawings."""
    actions: Names = None
    """Name and meaning of each action (of a Discrete) or of each number (of a Box)."""
    observation: Names = None
    """Name and meaning of each number of the observation."""
    describe: Callable[[Env, Any], str] | None = None
    """Describes an observation, where names for its numbers are not enough."""
    ending: Callable[[Env], str] | None = None
    """Describes what is visible only when the episode is over."""
    uncertainty: str = "Beware: an action does not always have the effect that it names."
    """Added if an action can have more than one effect."""
    success: Literal["at the end", "with a reward", "at the limit", "unknown"] = "unknown"
    """When the task counts as solved."""
    expert: Callable[[Any], Any] | None = None
    """A good action for an observation; not needed with a table of transitions."""
    invalid_reward: float = 0.0
    """The reward of an invalid action; where each step costs, it must not be cheaper."""
    mask_is_advice: bool = False
    """Whether actions outside the mask may be taken, at a price."""


def description_of(env: Any) -> Description:
    """Returns the description of an environment, as far as its wrappers leave it true."""
    kind = type(env.unwrapped)
    found = (
        DESCRIPTIONS.get(kind.__name__) if kind.__module__.startswith("gymnasium.envs.") else None
    )
    if found is None:
        return Description(task=_from_docstring(kind.__doc__) or f"You act in {kind.__name__}.")
    if not _fits(env.action_space, env.unwrapped.action_space, found.actions):
        found = replace(found, actions=None, expert=None)
    if not _fits(env.observation_space, env.unwrapped.observation_space, found.observation):
        found = replace(found, observation=None, describe=None, expert=None)
    return found


def _fits(space: Any, known: Any, names: Names) -> bool:
    try:
        check_names(space, names, "names")
    except ConfigError:  # the same class may come with other spaces, as LunarLander does
        return False
    return bool(space == known)


def _from_docstring(docstring: str | None) -> str:
    """Returns the first paragraph that is not a heading, up to the end of a sentence."""
    for paragraph in (docstring or "").split("\n\n"):
        lines = [line.strip() for line in paragraph.splitlines()]
        text = " ".join(line for line in lines if line and not line.startswith("#"))
        if text:
            return text if len(text) <= 500 else text[:500].rpartition(". ")[0] + "."
    return ""


def _draw(cells: Any, place: tuple[int, int]) -> str:
    """Draws a map of letters, with the player as @."""
    return "\n".join(
        " ".join("@" if (r, c) == place else cell for c, cell in enumerate(row))
        for r, row in enumerate(cells)
    )


def _describe_frozen_lake(env: Env, state: int) -> str:
    row, column = divmod(int(state), env.ncol)
    cells = [[cell.decode() for cell in line] for line in env.desc]
    where = {"H": "in a hole", "G": "at the goal"}.get(cells[row][column], "on ice")
    return f"You are {where}, row {row + 1}, column {column + 1}.\n{_draw(cells, (row, column))}"


def _describe_cliff(env: Env, state: int) -> str:
    num_rows, num_columns = env.shape
    row, column = divmod(int(state), num_columns)
    cells = [["."] * num_columns for _ in range(num_rows)]
    cells[-1] = ["S", *["C"] * (num_columns - 2), "G"]
    return f"You are in row {row + 1}, column {column + 1}.\n{_draw(cells, (row, column))}"


_STANDS = ("Red", "Green", "Yellow", "Blue")


def _describe_taxi(env: Env, state: int) -> str:
    row, column, passenger, destination = env.decode(int(state))
    stands = [
        f"{n} (row {r + 1}, column {c + 1})" for n, (r, c) in zip(_STANDS, env.locs, strict=True)
    ]
    cells = [[cell.decode() for cell in line] for line in env.desc]
    cells[1 + row][1 + 2 * column] = "@"
    return "\n".join(
        [
            f"Taxi: row {row + 1}, column {column + 1}.",
            f"Passenger: {'in the taxi' if passenger == 4 else 'at ' + stands[passenger]}.",
            f"Destination: {stands[destination]}.",
            *("".join(line) for line in cells),
        ]
    )


def _describe_blackjack(_env: Env, observation: tuple[int, int, int]) -> str:
    total, dealer, ace = map(int, observation)
    hand = "an ace counts as 11" if ace else "no ace counts as 11"
    shown = "an ace" if dealer == 1 else f"a card worth {dealer}"
    return f"Your cards add up to {total} ({hand}). The dealer shows {shown}."


def _describe_blackjack_ending(env: Env) -> str:
    """Describes the dealer's cards, which the player may know now."""
    total = sum(env.dealer)
    if 1 in env.dealer and total <= 11:
        total += 10
    return f"The dealer's cards add up to {total}."


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

DESCRIPTIONS: dict[str, Description] = {
    "CartPoleEnv": Description(
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
    "FrozenLakeEnv": Description(
        task=_LAKE,
        actions={"left": "", "down": "", "right": "", "up": ""},
        describe=_describe_frozen_lake,
        uncertainty=_SLIPPERY,
        success="with a reward",
    ),
    "TaxiEnv": Description(
        task=_TAXI,
        actions={
            "south": "one row down",
            "north": "one row up",
            "east": "one column to the right",
            "west": "one column to the left",
            "pick up": "take the passenger in",
            "drop off": "let the passenger out",
        },
        describe=_describe_taxi,
        uncertainty="It rains: a move may slide the taxi to one of the two sides instead.",
        success="at the end",
        invalid_reward=-1.0,
        mask_is_advice=True,
    ),
    "BlackjackEnv": Description(
        task=_BLACKJACK,
        actions={"stick": "take no more cards", "hit": "take another card"},
        describe=_describe_blackjack,
        ending=_describe_blackjack_ending,
        success="with a reward",
        expert=experts.blackjack,
    ),
    "Continuous_MountainCarEnv": Description(
        task=_CAR.format(goal=0.45)
        + " The flag earns 100; each step costs a tenth of the square of the force.",
        actions={"force": "negative pushes left, positive pushes right"},
        observation=_CAR_SEES,
        success="at the end",
        expert=experts.mountain_car_continuous,
    ),
    "MountainCarEnv": Description(
        task=_CAR.format(goal=0.5) + " Each step costs 1.",
        actions={"left": "push left", "none": "do not push", "right": "push right"},
        observation=_CAR_SEES,
        success="at the end",
        expert=experts.mountain_car,
        invalid_reward=-1.0,
    ),
    "CliffWalkingEnv": Description(
        task=_CLIFF,
        actions={"up": "", "right": "", "down": "", "left": ""},
        describe=_describe_cliff,
        uncertainty=_SLIPPERY,
        success="at the end",
        invalid_reward=-1.0,
    ),
    "AcrobotEnv": Description(
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
    "PendulumEnv": Description(
        task=_PENDULUM,
        actions={"torque": "positive turns counter-clockwise"},
        observation={
            "cosine of the angle": "1 is upright, -1 hangs straight down",
            "sine of the angle": "positive leans left",
            "angular velocity": "positive turns counter-clockwise",
        },
        invalid_reward=-16.3,
    ),
    "LunarLander": Description(
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
