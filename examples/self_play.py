"""Self-play: one model in both seats of a game, each with its own conversation and rewards.

Nim with seven sticks: take one or two, who takes the last one wins. Both players are the same
model and learn from every game, one from having won and the other from having lost. The mean
reward of such a run is 0 from the first step to the last, so it is measured elsewhere: against a
player who draws at random, before and after.

    python examples/self_play.py            some minutes on two cores
    python examples/self_play.py --quick    seconds: a few steps, to see that it runs

A perfect first player always wins here: it leaves its opponent three or six.
"""

import sys

from turnwise import BaseEnvironment, ConfigStore, EpisodeCollector, Trainer

NUM_STICKS = 7


class Nim(BaseEnvironment):
    """Take 1 or 2; who takes the last one wins, and what cannot be done loses."""

    players = ("first", "second")  # whose names make it a game of two
    max_steps = 8
    quick = True

    def get_prompt_prefix(self):
        return "1 or 2?"

    def reset(self):
        self._done = False
        self.winner = None
        self.left, self.current_player = NUM_STICKS, "first"
        return str(self.left)

    def step(self, action):
        mover = self.current_player
        other = self.players[mover == "first"]
        self.current_player = other  # reads what is returned, and moves next
        is_valid = action in ("1", "2") and int(action) <= self.left
        self.left -= int(action) if is_valid else 0
        self._done = self.left == 0 or not is_valid
        rewards = {}
        if self._done:
            self.winner = mover if is_valid else other
            loser = other if is_valid else mover
            rewards = {self.winner: 1.0, loser: -1.0}
        return str(self.left), 0.0, self._done, {"rewards": rewards, "invalid_action": not is_valid}

    def get_state_description(self):
        return f"{self.left} left, {self.current_player} to move"

    def sample_action(self, rng):
        return rng.choice("12") if self.left > 1 else "1"


class NimAgainstChance(BaseEnvironment):
    """The same game for one player; the second one draws at random."""

    quick = True

    def get_prompt_prefix(self):
        return self.game.get_prompt_prefix()

    def reset(self):
        self.game = Nim()
        return self.game.reset()

    def step(self, action):
        observation, _, done, _ = self.game.step(action)
        if not done:
            reply = self.game.sample_action(self.rng)
            observation, _, done, _ = self.game.step(reply)
        is_won = self.game.winner == "first"
        return observation, float(is_won), done, {"success": is_won}

    def get_state_description(self):
        return self.game.get_state_description()


def settings(quick):
    config = ConfigStore()
    config.inference.max_tokens = 2
    config.training.warm_start = "random"
    config.training.warm_start_steps = 2 if quick else 30
    config.training.warm_start_learning_rate = 3e-3
    config.training.batch_size = 4 if quick else 48  # games, of two episodes each
    config.training.mini_batch_size = 24
    config.training.update_epochs = 2
    config.training.learning_rate = 1e-3
    config.training.kl_loss_coef = 0.03
    config.training.steps_per_epoch = 2 if quick else 10
    config.training.num_epochs = 1 if quick else 5
    return config


def games_won(trainer, num_games):
    """The share of games that the model wins against chance, as it is now."""
    games = EpisodeCollector(trainer.components.engine, NimAgainstChance).collect_sync(num_games)
    return sum(game.agent.trajectory.success for game in games) / num_games


def main(quick):
    num_games = 8 if quick else 128
    with Trainer(settings(quick), Nim) as trainer:
        before = games_won(trainer, num_games)
        trainer.fit()
        after = games_won(trainer, num_games)
        print(f"against chance: {before:.2f} of the games won before, {after:.2f} after")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
