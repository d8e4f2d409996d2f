"""A list that grows: each turn brings names, and the agent answers with all so far, sorted.

The names of earlier turns stand only in the conversation, so that the agent has to remember them.

    python examples/alphabet_sort.py            a few minutes on two cores
    python examples/alphabet_sort.py --quick    a few steps in seconds, to see that it runs

`turnwise play examples/alphabet_sort.py:AlphabetSort -p num_names=2` plays it without a model.
"""

import re
import sys

from turnwise import BaseEnvironment, ConfigStore, Trainer

# First names that are no common words: other text in an answer must not be read as names.
TEXT = """
Aaron Abdul Abigail Adam Adele Agnes Ahmed Aiko Aisha Alan Albert Alexander Amanda Amelia Amina
Amir Andrea Andrew Angela Anna Anton Arthur Astrid Barbara Beatrice Benjamin Bernard Bianca Boris
Brenda Brian Bruno Camila Carla Carlos Carmen Caroline Cecilia Charlotte Chloe Christine Clara
Claudia Conrad Daniel Daphne David Deborah Dennis Diana Diego Dmitri Dominic Dorothy Edgar Edith
Eduardo Edward Elena Elias Elizabeth Emil Emily Emma Enrico Erika Esther Ethan Eugene Evelyn
Fatima Felix Fernando Fiona Gabriel George Gerard Gloria Gregory Greta Gustav Hannah Harold Hassan
Hector Helen Henry Hiroshi Hugo Ibrahim Ignacio Imani Ingrid Irene Isaac Isabel Ivan Jacob Jamal
James Javier Jennifer Jessica Joanna Jonathan Jorge Joseph Judith Julia Kamal Karen Karl Kenji
Kevin Klaus Kofi Lars Laura Leila Leonard Liam Linda Lorenzo Louisa Lucas Lucia Ludwig Magnus
Malik Marco Margaret Maria Martin Matilda Megan Michael Miguel Monica Nadia Naomi Natalie Nathan
Nicolas Nina Nora Oleg Olivia Omar Oscar Pablo Pamela Patricia Paula Pedro Peter Philip Priya
Quentin Rachel Rafael Ramon Rebecca Ricardo Robert Roland Rosa Ruben Salma Samuel Sandra Sara
Sergei Simon Sofia Stefan Stella Susan Tamara Tanya Teresa Theodore Thomas Tobias Ulrich Umar
Ursula Vanessa Veronica Vincent Vivian Walter Wanda Xavier Yasmin Yuki Yusuf Zachary Zoe
"""
NAMES = TEXT.split()


class AlphabetSort(BaseEnvironment):
    """Answer with all names so far in alphabetical order; the reward is the share in its place."""

    quick = True

    def __init__(self, num_turns=3, num_names=3):
        super().__init__()
        self.max_steps, self.num_names = num_turns, num_names

    def reset(self):
        self._done, self.step_count = False, 0
        self.names = self.rng.sample(NAMES, self.max_steps * self.num_names)
        return f"Sort: {self.new_names()}"

    def seen(self):
        return self.names[: (self.step_count + 1) * self.num_names]

    def new_names(self):
        return ", ".join(self.seen()[-self.num_names :])

    def step(self, action):
        # A name that is written twice counts where it stands last: the decision comes at the end.
        words = [word.capitalize() for word in re.findall(r"\w+", action)]
        named = [word for i, word in enumerate(words) if word not in words[i + 1 :]]
        answer = [word for word in named if word in NAMES]
        right = sorted(self.seen())
        num_right = sum(given == wanted for given, wanted in zip(answer, right, strict=False))
        reward = num_right / max(len(answer), len(right))
        self.step_count += 1
        self._done = self.step_count == self.max_steps
        verdict = "Right." if answer == right else "Wrong." if answer else "No names found."
        if not self._done:
            verdict += f" Add: {self.new_names()}"
        info = {"success": self._done and answer == right, "invalid_action": not answer}
        return verdict, reward, self._done, info

    def get_state_description(self):
        return f"Turn {self.step_count + 1} of {self.max_steps}. Names: {', '.join(self.seen())}"

    def get_prompt_prefix(self):
        return (
            "Each turn brings names. Answer with all names so far, from every turn, "
            "in alphabetical order, for example: Anna, Boris, Clara. "
            "If you write a name twice, its last place counts."
        )

    def sample_action(self, rng):
        return ", ".join(rng.sample(self.seen(), len(self.seen())))

    def expert_action(self):
        return ", ".join(sorted(self.seen()))


def main(quick):
    config = ConfigStore()
    config.environment.params = {"num_turns": 2, "num_names": 2}
    config.inference.max_tokens = 48
    config.training.warm_start = "random"
    config.training.warm_start_steps = 4 if quick else 60
    config.training.batch_size = 8 if quick else 48
    config.training.learning_rate = 1e-3
    config.training.max_steps = 2 if quick else 60
    with Trainer(config, AlphabetSort) as trainer:
        history = trainer.fit()
        print(f"reward {history[0]['reward']:.2f} -> {history[-1]['reward']:.2f}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
