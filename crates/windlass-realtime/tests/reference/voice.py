"""Holds the compared spoken conversation through the reference's Python client: an interruption, a rejected call, and a
guardrail that trips."""

import asyncio
import sys

from agents import GuardrailFunctionOutput, OutputGuardrail, function_tool
from agents.realtime import RealtimeAgent, RealtimeRunner


@function_tool(needs_approval=True)
def gated() -> str:
    """Needs an approval."""
    return "42"


async def forbid(context, agent, output):
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="forbidden" in str(output))


def tone(ms):
    return b"".join(
        (8000 if at // 55 % 2 == 0 else -8000).to_bytes(2, "little", signed=True) for at in range(ms * 24)
    )


async def speak(session, ms):
    audio = tone(ms) + bytes(2 * 24 * 1000)
    for at in range(0, len(audio), 4800):
        await session.send_audio(audio[at : at + 4800])


async def main(address):
    guide = RealtimeAgent(name="guide", instructions="Guide.", tools=[gated])
    config = {
        "tracing_disabled": True,
        "output_guardrails": [OutputGuardrail(guardrail_function=forbid, name="g")],
        "guardrails_settings": {"debounce_text_length": 100},
    }
    runner = RealtimeRunner(guide, config=config)
    session = await runner.run(model_config={"url": address, "api_key": "none"})
    async with session:
        await speak(session, 500)
        heard, answers = 0, 0
        async for event in session:
            if event.type == "error":
                print("error", event.error)
                sys.exit(1)
            if event.type == "audio" and heard is not None:
                heard += len(event.audio.data)
                if heard >= 48000:
                    heard = None
                    await speak(session, 300)
            if event.type == "tool_approval_required":
                await session.reject_tool_call(event.call_id, rejection_message="no")
            if event.type == "raw_model_event" and event.data.type == "raw_server_event":
                if event.data.data["type"] == "response.done":
                    answers += 1
                    if answers == 3:
                        await session.send_message("Swear")
                    if answers == 5:
                        break
    print("ok")


asyncio.run(main(sys.argv[1]))
