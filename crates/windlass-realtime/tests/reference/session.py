"""Holds the compared conversation through the reference's Python client: a tool call, a handoff, a close."""

import asyncio
import sys

from agents import function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner, realtime_handoff


@function_tool
def look() -> str:
    """Looks."""
    return "42"


async def main(address):
    other = RealtimeAgent(name="other", instructions="Other.")
    guide = RealtimeAgent(name="guide", instructions="Guide.", tools=[look], handoffs=[realtime_handoff(other)])
    runner = RealtimeRunner(guide, config={"tracing_disabled": True})
    session = await runner.run(model_config={"url": address, "api_key": "none"})
    async with session:
        await session.send_message("Look")
        answers = 0
        async for event in session:
            if event.type == "error":
                print("error", event.error)
                sys.exit(1)
            if event.type == "raw_model_event" and event.data.type == "raw_server_event":
                if event.data.data["type"] == "response.done":
                    answers += 1
                    if answers == 2:
                        await session.send_message("Hand me over")
                    if answers == 4:
                        break
    print("ok")


asyncio.run(main(sys.argv[1]))
