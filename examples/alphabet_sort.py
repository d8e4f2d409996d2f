"""An answer that grows with the conversation: sort the letters of all turns so far.

Each turn brings two letters, and the model answers with all letters of the episode in alphabetical
order, so that it has to read back what came before. A turn earns the share of letters that are in
their place.

    python examples/alphabet_sort.py            a few minutes on two cores
    python examples/alphabet_sort.py --quick    a few steps in seconds, to see that it runs

The model first imitates an expert for a few steps, just enough to answer with letters. From rewards
alone its sampled answers then rise from about 1.2 to 1.4 of 2 in 30 steps. Make it harder with more
turns or more letters:

    turnwise train examples/alphabet_sort.py:AlphabetSort -p num_turns=3 -p num_letters=4
"""

import sys

from turnwise import BaseEnvironment, ConfigStore, Trainer

ALPHABET = "abcdefgh"


class AlphabetSort(BaseEnvironment):
    """Answer with all letters so far, in alphabetical order."""

    quick = True  # it never blocks: no threads are needed

    def __init__(self, num_turns=2, num_letters=2):
        super().__init__()
        self.max_steps = self.num_turns = num_turns
        self.num_letters = num_letters
        if not 1 <= num_turns * num_letters <= len(ALPHABET):
            raise ValueError(f"there are {len(ALPHABET)} letters for all turns together")

    def get_prompt_prefix(self):  # the rules: the system prompt
        return "sort all letters so far"

    def reset(self):
        self._done = False
        self.step_count = 0
        self.letters = self.rng.sample(ALPHABET, self.num_turns * self.num_letters)
        return self.new_letters()

    def so_far(self):
        return self.letters[: (self.step_count + 1) * self.num_letters]

    def new_letters(self):
        return " ".join(self.so_far()[-self.num_letters :])

    def step(self, action):
        answer, solution = action.split(), sorted(self.so_far())
        pairs = zip(answer, solution, strict=False)
        reward = sum(given == right for given, right in pairs) / max(len(answer), len(solution))
        info = {} if set(answer) & set(ALPHABET) else {"invalid_action": True}
        self.step_count += 1
        if self.step_count == self.num_turns:
            self._done = True
            return "Done.", reward, True, {**info, "success": answer == solution}
        return self.new_letters(), reward, False, info

    def get_state_description(self):
        return "done" if self._done else f"letters so far: {' '.join(self.so_far())}"

    def sample_action(self, rng):  # a random player, for comparison
        return " ".join(rng.sample(self.so_far(), len(self.so_far())))

    def expert_action(self):  # a perfect one, for the warm start
        return " ".join(sorted(self.so_far()))


def settings(quick):
    config = ConfigStore()  # the tiny model
    config.inference.max_tokens = 10  # a token of the tiny model is a byte
    config.training.warm_start = "expert"
    config.training.warm_start_steps = 2 if quick else 30
    config.training.batch_size = 8 if quick else 64
    config.training.learning_rate = 3e-4
    config.training.lr_schedule = "linear"
    config.training.steps_per_epoch = 2 if quick else 10
    config.training.num_epochs = 1 if quick else 3
    config.training.eval_episodes = 8 if quick else 64  # on seeds that are never trained on
    return config


def main(quick):
    with Trainer(settings(quick), AlphabetSort) as trainer:
        history = trainer.fit()
        first, last = history[0], history[-1]
        print(f"reward {first['reward']:.2f} -> {last['reward']:.2f} of {2:.2f}")
        print(f"read its conversations: turnwise view {trainer.run_folder}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
