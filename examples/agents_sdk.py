"""An agent written with the OpenAI Agents SDK, trained as it is.

It finds a number from 1 to 3 in at most two guesses; its tool answers higher or lower. Nothing in
it knows of turnwise: its client gets the URL and the key of the model that is trained.

    pip install 'turnwise[agents]' openai-agents
    python examples/agents_sdk.py            a few minutes on two cores
    python examples/agents_sdk.py --quick    a few steps in seconds, to see that it runs

The tiny model first imitates some games of an expert, to learn how a tool call is written. Training
then improves its guesses, up to the expert's binary search.
"""

import sys

from agents.agent import ToolsToFinalOutputResult
from agents.exceptions import AgentsException
from openai import AsyncOpenAI

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from turnwise import ConfigStore, Trainer

LOW, HIGH = 1, 3
NUM_GUESSES = 2
ROWS = [{"number": number} for number in range(LOW, HIGH + 1)] * 40
set_tracing_disabled(True)


async def find_number(task, llm):
    """Plays one game; the reward of a success is 1."""

    @function_tool
    def guess(number: int) -> str:
        """Guess the number."""
        if number == task["number"]:
            return "yes"
        return "higher" if number < task["number"] else "lower"

    def end_when_found(context, results):
        return ToolsToFinalOutputResult(results[-1].output == "yes", "found")

    async with AsyncOpenAI(base_url=llm.base_url, api_key=llm.api_key) as client:
        agent = Agent(
            name="guesser",
            instructions=f"Find the number from {LOW} to {HIGH}.",
            tools=[guess],
            tool_use_behavior=end_when_found,
            model=OpenAIChatCompletionsModel(llm.model, client),
        )
        try:
            result = await Runner.run(agent, "Begin.", max_turns=NUM_GUESSES)
        except AgentsException:  # no guess is left, or the model called a tool that does not exist
            return {"success": False}
    return {"success": result.final_output == "found"}


def expert(messages, tools):
    """Guesses the middle of what is left."""
    low, high = LOW, HIGH
    for message in messages:
        if message["role"] != "tool":
            continue
        middle = (low + high) // 2
        low, high = (middle + 1, high) if message["content"] == "higher" else (low, middle - 1)
    return {"tool_calls": [{"name": "guess", "arguments": {"number": (low + high) // 2}}]}


def settings(quick):
    config = ConfigStore()
    config.inference.max_tokens = 48  # a tool call; a token of the tiny model is a byte
    config.inference.max_turns = NUM_GUESSES
    config.training.warm_start = "expert"
    config.training.warm_start_steps = 2 if quick else 42
    config.training.warm_start_learning_rate = 3e-3
    config.training.adv_estimator = "grpo"
    config.training.batch_size = 6 if quick else 12
    config.training.group_size = 2 if quick else 8
    config.training.mini_batch_size = 24
    config.training.update_epochs = 2
    config.training.learning_rate = 2e-4
    config.training.kl_loss_coef = 0.01
    config.training.eval_episodes = 9
    config.training.num_epochs = 1
    return config


def main(quick):
    with Trainer(
        settings(quick),
        agent=find_number,
        expert=expert,
        dataset=ROWS[:12] if quick else ROWS,
        parser="react",
    ) as trainer:
        history = trainer.fit()
        print(f"reward {history[0]['reward']:.2f} -> {history[-1]['reward']:.2f}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
