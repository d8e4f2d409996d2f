"""An agent written with LangGraph, trained as it is.

A coin is under one of three cups. The agent may look under two of them with a tool, and then says
where the coin is. The graph is an ordinary one: a node for the model and a node for its tools.

    pip install 'turnwise[agents]' langgraph langchain-openai
    python examples/langgraph_agent.py            a few minutes on two cores
    python examples/langgraph_agent.py --quick    a few steps in seconds, to see that it runs

The tiny model first imitates some games of an expert, to learn how a tool call is written. Training
then teaches it to look first and to use what it saw.
"""

import sys

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from turnwise import ConfigStore, Trainer

CUPS = "abc"
NUM_TURNS = 3
ROWS = [{"cup": cup} for cup in CUPS] * 20


async def find_coin(task, llm):
    """Plays one game; the reward of a success is 1."""

    @tool
    def look(cup: str) -> str:
        """Look under a cup."""
        return "coin" if cup == task["cup"] else "empty"

    model = ChatOpenAI(
        model=llm.model, base_url=llm.base_url, api_key=llm.api_key, max_retries=0
    ).bind_tools([look])

    async def answer(state: MessagesState):
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", answer)
    graph.add_node("tools", ToolNode([look]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    question = {"messages": [("user", "Which cup has the coin: a, b or c?")]}
    try:
        final = await graph.compile().ainvoke(question, {"recursion_limit": 2 * NUM_TURNS})
    except GraphRecursionError:  # it only looked, and never said where the coin is
        return {"success": False}
    return {"success": final["messages"][-1].content.strip() == task["cup"]}


def expert(messages, tools):
    """Looks under a, then under b, and says where the coin is."""
    seen = [message["content"] for message in messages if message["role"] == "tool"]
    if "coin" in seen or len(seen) == NUM_TURNS - 1:
        return CUPS[seen.index("coin") if "coin" in seen else len(seen)]
    return {"tool_calls": [{"name": "look", "arguments": {"cup": CUPS[len(seen)]}}]}


def settings(quick):
    config = ConfigStore()
    config.inference.max_tokens = 44  # a tool call; a token of the tiny model is a byte
    config.inference.max_turns = NUM_TURNS
    config.training.warm_start = "expert"
    config.training.warm_start_steps = 2 if quick else 25
    config.training.warm_start_learning_rate = 3e-3
    config.training.adv_estimator = "grpo"
    config.training.batch_size = 6 if quick else 12
    config.training.group_size = 2 if quick else 8
    config.training.mini_batch_size = 24
    config.training.update_epochs = 3
    config.training.learning_rate = 5e-4
    config.training.kl_loss_coef = 0.04
    config.training.eval_episodes = 6
    config.training.num_epochs = 1 if quick else 5
    return config


def main(quick):
    rows = ROWS[:12] if quick else ROWS
    with Trainer(
        settings(quick), agent=find_coin, expert=expert, dataset=rows, parser="react"
    ) as trainer:
        history = trainer.fit()
        print(f"reward {history[0]['reward']:.2f} -> {history[-1]['reward']:.2f}")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv)
