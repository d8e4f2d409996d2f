"""Self-play: one model plays both sides of a game, each with its own conversation and rewards.

Nim with seven sticks: take one or two; taking the last one wins. Both players are the same model
and learn from every game. The mean reward is always 0, so the model is evaluated against a random
player, before and after.

    python examples/self_play.py            a few minutes on two cores
    python examples/self_play.py --quick    a few steps in seconds, to see that it runs

A perfect first player always wins: it leaves three or six sticks.
"""

import sys

from turnwise import BaseEnvironment, ConfigStore, EpisodeCollector, Trainer

NUM_STICKS = 7


class Nim(BaseEnvironment):
    """Take 1 or 2; taking the last one wins, an invalid move loses."""

    players = ("first", "second")  # two names: a game of two players
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
        self.current_player = other  # gets the returned observation and moves next
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


class NimAgainstRandom(BaseEnvironment):
    """The same game for one player, against a random one."""

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
    """Returns the share of games that the model wins against the random player."""
    games = EpisodeCollector(trainer.components.engine, NimAgainstRandom).collect_sync(num_games)
    return sum(game.agent.trajectory.success for game in games) / num_games


def main(quick):
    num_games = 8 if quick else 128
    with Trainer(settings(quick), Nim) as trainer:
        before = games_won(trainer, num_games)
        trainer.fit()
        after = games_won(trainer, num_games)
        print(f"against a random player: {before:.2f} of the games won before, {after:.2f} after")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
