"""A text game of two turns: the item taken in the first is needed in the second.

The hut has a key, a lamp and a rope. Outside is a gate, a cave or a cliff, where only one of them
helps. The model has to choose by the place it reads, and to remember what it took.

    python examples/text_game.py            a few minutes on two cores
    python examples/text_game.py --quick    a few steps in seconds, to see that it runs

The model first imitates an expert for a few steps, just enough to write commands and to win one
game in three. From rewards alone its sampled success then rises to about 0.8; greedy evaluation
(eval/greedy) wins every game on held-out seeds.
"""

import sys

from turnwise import BaseEnvironment, ConfigStore, Trainer

NEEDED = {"gate": "key", "cave": "lamp", "cliff": "rope"}
THINGS = sorted(NEEDED.values())


class Journey(BaseEnvironment):
    """Take what will help, then use it."""

    max_steps = 2
    quick = True  # it never blocks: no threads are needed

    def get_prompt_prefix(self):  # the rules: the system prompt
        return "take or use: key, lamp, rope"

    def reset(self):  # self.rng is seeded: the same seed gives the same episode
        self._done = False
        self.taken = None
        self.place = self.rng.choice(sorted(NEEDED))
        return f"You go to the {self.place}."

    def step(self, action):
        verb, _, thing = action.strip().partition(" ")
        if verb != ("use" if self.taken else "take") or thing not in THINGS:
            return "That is not possible.", -0.1, False, {"invalid_action": True}
        if self.taken is None:
            self.taken = thing
            return "You are there.", 0.5 * (thing == NEEDED[self.place]), False, {}
        self._done = True
        is_won = thing == self.taken == NEEDED[self.place]
        text = "You are through." if is_won else "You turn back."
        return text, float(is_won), True, {"success": is_won}

    def get_state_description(self):
        return f"on the way to the {self.place} with {self.taken or 'nothing'}"

    def sample_action(self, rng):  # a random player, for comparison
        return f"{'use' if self.taken else 'take'} {rng.choice(THINGS)}"

    def expert_action(self):  # a perfect one, for the warm start
        return f"{'use' if self.taken else 'take'} {NEEDED[self.place]}"


def settings(quick):
    config = ConfigStore()  # the tiny model
    config.inference.max_tokens = 10  # a token of the tiny model is a byte
    config.training.warm_start = "expert"  # a few steps; the rest is learned from rewards
    config.training.warm_start_steps = 2 if quick else 14
    config.training.batch_size = 8 if quick else 64
    config.training.learning_rate = 3e-4
    config.training.lr_schedule = "linear"
    config.training.steps_per_epoch = 2 if quick else 10
    config.training.num_epochs = 1 if quick else 3
    config.training.eval_episodes = 8 if quick else 64  # on seeds that are never trained on
    return config


def main(quick):
    with Trainer(settings(quick), Journey) as trainer:
        history = trainer.fit()
        first, last = (metrics.get("success", 0.0) for metrics in (history[0], history[-1]))
        print(f"success {first:.2f} -> {last:.2f} in the last")
        print(f"read its conversations: turnwise view {trainer.run_folder}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
