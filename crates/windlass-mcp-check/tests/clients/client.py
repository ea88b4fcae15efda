"""The official Python client of MCP against a server: it prints what it saw as JSON."""

import asyncio
import json
import sys

from mcp import Client, types


async def answer(context, params):
    return types.ElicitResult(action="accept", content={"decision": sys.argv[2]})


async def main():
    progress = []

    async def note(done, total=None, message=None):
        progress.append(message)

    seen = {}
    async with Client(sys.argv[1], elicitation_callback=answer, mode=sys.argv[3]) as client:
        seen["version"] = client.protocol_version
        tools = (await client.list_tools()).tools
        seen["tools"] = sorted(tool.name for tool in tools)
        hints = {tool.name: tool.annotations for tool in tools}
        seen["read_only"] = sorted(name for name, hint in hints.items() if hint and hint.read_only_hint)

        async def call(name, arguments):
            result = await client.call_tool(name, arguments, progress_callback=note)
            texts = [part.text for part in result.content if part.type == "text"]
            return {"text": texts, "error": bool(result.is_error), "structured": result.structured_content}

        seen["echo"] = await call("echo", {"text": "grüezi"})
        seen["measure"] = await call("measure", {})
        seen["pay"] = await call("pay", {"cents": 500})
        seen["fails"] = await call("fails", {})
        seen["agent"] = await call("ask_cashier", {"input": "pay"})
        read = await client.read_resource("till://prices")
        seen["resource"] = read.contents[0].text
        prompt = await client.get_prompt("greet", {"name": "Ann"})
        seen["prompt"] = prompt.messages[0].content.text
    seen["progress"] = progress
    print(json.dumps(seen))


asyncio.run(main())
