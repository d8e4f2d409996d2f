"""What OpenEnv's own clients see of a server, as JSON; run by the Python of `openenv.txt`.

python openenv_client.py text|tools|many URL
"""

import asyncio
import json
import sys

import requests
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


def result_of(step):
    return {"observation": step.observation, "reward": step.reward, "done": step.done}


async def text(url):
    """Two episodes with one seed, a wrong message, the state."""
    seen = []
    async with GenericEnvClient(base_url=url) as env:
        for _ in range(2):
            seen.append(result_of(await env.reset(seed=3)))
            for guess in ("512", "no number", "€ ünï 🙂"):
                seen.append(result_of(await env.step({"message": guess})))
            state = await env.state()
            seen.append({"steps": state["step_count"]})
        for wrong in ({"message": 3}, {}, {"type": "call_tool", "tool_name": "x"}):
            try:
                await env.step(wrong)
            except RuntimeError as error:
                seen.append(str(error))
    return seen


async def tools(url):
    """The same session over MCP's tools and over steps."""
    async with MCPToolClient(base_url=url) as env:
        listed = [tool.name for tool in await env.list_tools()]
        first = await env.reset(seed=1)
        value = await env.call_tool("look", place="north")
        try:
            await env.call_tool("look", there="north")
        except RuntimeError as error:
            refused = str(error)
    async with GenericEnvClient(base_url=url) as env:
        await env.reset(seed=1)
        call = {"type": "call_tool", "tool_name": "look", "arguments": {"place": "south"}}
        looked = result_of(await env.step(call))
        call = {"tool_name": "environment_step", "arguments": {"action": "dig south"}}
        dug = result_of(await env.step({"type": "call_tool", **call}))
    return {
        "listed": listed,
        "first": first.observation.text,
        "value": value,
        "refused": refused,
        "looked": looked,
        "dug": dug,
    }


async def tasks(url):
    name = requests.get(f"{url}/list_environments").json()[0]
    count = requests.post(f"{url}/{name}/num_tasks", json={"split": "train"}).json()
    async with GenericEnvClient(base_url=url) as env:
        first = await env.reset(split="train", index=1)
        try:
            await env.reset(split="train", index=9)
        except RuntimeError as error:
            refused = str(error)
    return {"name": name, **count, "text": first.observation["text"], "refused": refused}


async def many(url):
    """65 sessions at once: one too many for a server of 64."""

    entered = []

    async def play(seed):
        async with GenericEnvClient(base_url=url) as env:
            try:
                await env.reset(seed=seed)
                entered.append(seed)
                while len(entered) < 65:
                    await asyncio.sleep(0.01)
                steps = [await env.step({"message": str(n)}) for n in range(3)]
                return steps[-1].observation["text"]
            except (RuntimeError, ConnectionError) as error:
                entered.append(seed)
                return f"refused: {error}"

    return await asyncio.gather(*map(play, range(65)))


if __name__ == "__main__":
    asked = zip(sys.argv[1::2], sys.argv[2::2], strict=True)
    print(json.dumps({what: asyncio.run(globals()[what](url)) for what, url in asked}))
