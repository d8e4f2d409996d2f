"""Sort a list of names that grows with each turn."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from turnwise.config import EnvironmentConfig
from turnwise.env.base import BaseEnvironment
from turnwise.env.games.common import read_params, require

# First names that are not common words: other text in an answer must not be read as names.
_NAMES = """
Aaron Abdul Abigail Adam Adele Agnes Ahmed Aiko Aisha Alan Albert Alejandro Alexander Alice
Amanda Amelia Amina Amir Andrea Andrew Angela Anna Anton Antonio Ariana Arthur Astrid Barbara
Beatrice Benjamin Bernard Bianca Boris Brandon Brenda Brian Bruno Camila Carla Carlos Carmen
Caroline Cecilia Charlotte Chloe Christine Clara Claudia Conrad Cynthia Daisuke Damian Daniel
Daphne David Deborah Dennis Diana Diego Dmitri Dominic Donald Dorothy Edgar Edith Eduardo Edward
Eileen Elena Elias Elizabeth Emil Emily Emma Enrico Erika Esther Ethan Eugene Evelyn Fatima
Felix Fernando Fiona Francesca Frederick Gabriel George Gerard Gloria Gregory Greta Gustav
Hannah Harold Hassan Hector Helen Henry Hiroshi Hugo Ibrahim Ignacio Imani Ingrid Irene Isaac
Isabel Ismael Ivan Jacob Jamal James Javier Jennifer Jessica Joanna Johan Jonathan Jorge Joseph
Judith Julia Kamal Karen Karl Katarina Kenji Kevin Khadija Klaus Kofi Kristen Lars Laura Leila
Leonard Leticia Liam Linda Lorenzo Louisa Lucas Lucia Ludwig Magnus Malik Marco Margaret Maria
Marianne Martin Matilda Matthew Megan Michael Miguel Mohamed Monica Nadia Naomi Natalie Nathan
Nicolas Nina Nora Octavia Oleg Olivia Omar Oscar Pablo Pamela Patricia Paula Pedro Peter Philip
Priya Quentin Rachel Rafael Ramon Raymond Rebecca Ricardo Richard Robert Roland Rosa Roxana
Ruben Salma Samuel Sandra Sara Sebastian Sergei Simon Sofia Stefan Stella Susan Svetlana Tamara
Tanya Tatiana Teresa Theodore Thomas Timothy Tobias Ulrich Umar Ursula Valentina Vanessa
Veronica Vincent Vivian Walter Wanda Wilhelm Xavier Yasmin Yolanda Yuki Yusuf Zachary Zainab
Zelda Zoe
"""
NAMES: tuple[str, ...] = tuple(_NAMES.split())
_BY_LOWER_CASE = {name.lower(): name for name in NAMES}
_WORD = re.compile(r"\w+")


class AlphabetSortEnvironment(BaseEnvironment):
    """Each turn brings names; the agent answers with all names so far in alphabetical order.

    Parameters: `num_turns` (3) and `num_names`, how many each turn brings (3).

    A turn's reward is `similarity`: 1 for the exact list, else the share of positions with
    the right name. The episode succeeds if its last answer is exact.

    >>> env = AlphabetSortEnvironment({"num_names": 2})
    >>> env.seed(1)
    >>> env.reset()
    'Sort: Brenda, Magnus'
    """

    quick = True

    max_steps = 3

    def __init__(self, config: EnvironmentConfig | Mapping[str, Any] | None = None) -> None:
        super().__init__(config)
        params = read_params(self, num_turns=3, num_names=3)
        self.num_turns: int = params["num_turns"]
        self.num_names: int = params["num_names"]
        require(
            self.num_turns >= 1 and 1 <= self.num_turns * self.num_names <= len(NAMES),
            f"num_turns and num_names must be at least 1 and come to at most {len(NAMES)} names "
            f"together, got {self.num_turns} and {self.num_names}",
        )
        if self.config.max_steps is None:
            self.max_steps = self.num_turns
        self._begin(random.Random(0))  # playable at once; reset draws new names

    def _begin(self, rng: random.Random) -> None:
        self._done = False
        self.step_count = 0
        self._turn = 1
        self._names = rng.sample(NAMES, self.num_turns * self.num_names)

    def _names_so_far(self) -> list[str]:
        return self._names[: self._turn * self.num_names]

    def _new_names(self) -> str:
        return ", ".join(self._names_so_far()[-self.num_names :])

    def reset(self) -> str:
        self._begin(self.rng)
        return f"Sort: {self._new_names()}"

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if self.is_done():
            return "The game is over.", 0.0, True, {}
        self.step_count += 1
        answer = read_names(action)
        reward = similarity(answer, sorted(self._names_so_far()))
        info: dict[str, Any] = {} if answer else {"invalid_action": True}
        verdict = "Right." if reward == 1.0 else "Wrong." if answer else "No names found."
        if self._turn == self.num_turns:
            self._done = True
            info["success"] = reward == 1.0
            return verdict, reward, True, info
        self._turn += 1
        return f"{verdict} Add: {self._new_names()}", reward, False, info

    def get_state_description(self) -> str:
        names = ", ".join(self._names_so_far())
        return f"Turn {self._turn} of {self.num_turns}. Names: {names}"

    def get_prompt_prefix(self) -> str:
        return (
            "Each turn brings names. Answer with all names so far, from every turn, "
            "in alphabetical order, for example: Anna, Boris, Clara. "
            "If you write a name twice, its last place counts."
        )

    def sample_action(self, rng: random.Random) -> str:
        names = self._names_so_far()
        return ", ".join(rng.sample(names, len(names)))

    def expert_action(self) -> str:
        return ", ".join(sorted(self._names_so_far()))


def read_names(text: str) -> list[str]:
    """Returns the known names in a text, each at its last position.

    >>> read_names("Zoe, Adam: that is adam, then ZOE.")
    ['Adam', 'Zoe']
    """
    words = [word.lower() for word in _WORD.findall(text)]
    last_places = {word: place for place, word in enumerate(words) if word in _BY_LOWER_CASE}
    return [_BY_LOWER_CASE[word] for word in sorted(last_places, key=last_places.__getitem__)]


def similarity(answer: Sequence[str], solution: Sequence[str]) -> float:
    """Returns the share of positions with the right name; missing and surplus names count as wrong.

    >>> similarity(["Adam", "Zoe"], ["Adam", "Boris", "Zoe"])
    0.3333333333333333
    """
    num_right = sum(given == wanted for given, wanted in zip(answer, solution, strict=False))
    return num_right / max(len(answer), len(solution))
