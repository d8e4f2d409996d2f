"""The client of bench/gateway.py: a process of its own, without any library that takes time.

It reads the endpoints as JSON from standard input, holds one conversation with each, all at once,
on connections that stay open, and prints the seconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

QUESTION = "The soil is dry and it is day 4. What do you do now?"


async def converse(call: Any, num_turns: int, name: str = "") -> None:
    """One conversation; `call` gets the messages and returns the reply."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": f"You garden. {name}"}]
    for _ in range(num_turns):
        messages.append({"role": "user", "content": QUESTION})
        messages.append(await call(messages))


async def hold_episode(llm: Mapping[str, str], num_turns: int, name: str) -> None:
    """One conversation over one connection."""
    address = urlsplit(llm["base_url"])
    reader, writer = await asyncio.open_connection(address.hostname, address.port)

    async def ask(messages: list[dict[str, Any]]) -> Any:
        body = json.dumps({"model": llm["model"], "messages": messages}).encode()
        writer.write(
            f"POST {address.path}/chat/completions HTTP/1.1\r\nhost: {address.netloc}\r\n"
            f"authorization: Bearer {llm['api_key']}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        found = json.loads(await reader.readexactly(length))["choices"][0]["message"]
        return {"role": "assistant", "content": found["content"]}

    await converse(ask, num_turns, name)
    writer.close()


async def main() -> None:
    given = json.load(sys.stdin)
    start = time.perf_counter()
    await asyncio.gather(
        *(hold_episode(llm, given["turns"], given["name"]) for llm in given["llms"])
    )
    print(time.perf_counter() - start)


if __name__ == "__main__":
    asyncio.run(main())
