"""Prints the CPU seconds of one call by the official Python client over HTTP."""

import asyncio
import sys
import time

from mcp import Client


async def main():
    url, calls = sys.argv[1], int(sys.argv[2])
    async with Client(url) as client:
        await client.call_tool("echo", {"text": "hello"})
        before = time.process_time()
        for _ in range(calls):
            await client.call_tool("echo", {"text": "hello"})
        print((time.process_time() - before) / calls)


asyncio.run(main())
