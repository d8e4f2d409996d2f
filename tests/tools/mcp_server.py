"""A small MCP server for the tests: `mcp_server.py stdio`, or `mcp_server.py http PORT`.

`mcp_server.py stdio stubborn` ignores the end of its input and SIGTERM.
"""

import asyncio
import os
import signal
import subprocess
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ImageContent, TextContent
from pydantic import BaseModel

server = MCPServer("test", log_level="CRITICAL")


class Point(BaseModel):
    x: int
    y: int = 0


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def draw(points: list[Point]) -> dict[str, int]:
    return {"points": len(points), "width": max(point.x for point in points)}


@server.tool()
def show() -> list[TextContent | ImageContent]:
    picture = ImageContent(type="image", data="AAAA", mime_type="image/png")
    return [TextContent(type="text", text="A picture:"), picture]


@server.tool()
def refuse() -> str:
    raise ToolError("Ask for something else.")


@server.tool()
def long() -> str:
    return "x" * 1_000_000


@server.tool(name="odd name!")
def odd() -> str:
    return "odd"


@server.tool()
def environment() -> str:
    return os.environ.get("SECRET_OF_THE_TEST", "not set") + os.environ.get("GIVEN", "")


@server.tool()
async def hang() -> str:
    await asyncio.sleep(1000)
    return "never"


@server.tool()
def die() -> str:
    print("giving up", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
def spawn() -> str:
    """Start two processes, one in a session of its own; return all process ids."""
    started = [
        subprocess.Popen(
            ["sleep", "1000"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=is_detached,
        )
        for is_detached in (False, True)
    ]
    return " ".join(str(pid) for pid in (os.getpid(), *(process.pid for process in started)))


if __name__ == "__main__":
    is_stubborn = sys.argv[2:] == ["stubborn"]
    if is_stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which its children inherit
    if sys.argv[1] == "http":
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")
    while is_stubborn:
        time.sleep(1)
