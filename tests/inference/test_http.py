"""The client of inference servers: what it reads from a stream."""

import asyncio
import json

from turnwise.inference.served import JsonClient

EVENTS = ["plain", "a\u2028b\u2029c", "d\x85e", "ü"]
BODY = "".join(f"data: {json.dumps(event, ensure_ascii=False)}\r\n\r\n" for event in EVENTS)


def test_a_line_of_a_stream_ends_with_a_line_feed_alone():
    """A server may write U+2028 and the like inside of JSON as they are."""

    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        for byte in BODY.encode():  # chunks end anywhere, also within a character
            writer.write(bytes([byte]))
            await writer.drain()
        writer.close()

    async def read():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = JsonClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with server:
            lines = [line async for line in client.post_lines("/", {})]
            await client.close()
        return lines

    lines = asyncio.run(read())
    assert [json.loads(line.removeprefix("data: ")) for line in lines if line] == EVENTS
