"""Holds a conversation with a server through the official client: text, a tool call, speech."""

import asyncio
import base64
import sys

from openai import AsyncOpenAI


async def main(address):
    client = AsyncOpenAI(api_key="none", websocket_base_url=address)
    seen = set()
    async with client.realtime.connect(model="loopback") as connection:
        tool = {"type": "function", "name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
        await connection.session.update(
            session={"type": "realtime", "instructions": "Be brief.", "output_modalities": ["audio"], "tools": [tool]}
        )
        await connection.conversation.item.create(
            item={"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]}
        )
        await connection.response.create()
        audio, words, answers = b"", "", 0
        async for event in connection:
            seen.add(event.type)
            assert event.type != "error", event
            if event.type == "response.output_audio.delta":
                audio += base64.b64decode(event.delta)
            elif event.type == "response.output_audio_transcript.delta":
                words += event.delta
            elif event.type == "response.done":
                answers += 1
                calls = [item for item in event.response.output if item.type == "function_call"]
                for call in calls:
                    output = {"type": "function_call_output", "call_id": call.call_id, "output": "42"}
                    await connection.conversation.item.create(item=output)
                if calls:
                    await connection.response.create()
                elif answers == 2:
                    # 0.6 s of a loud tone, then silence.
                    loud = b"".join((8000 if at // 55 % 2 else -8000).to_bytes(2, "little", signed=True) for at in range(14400))
                    await connection.input_audio_buffer.append(audio=base64.b64encode(loud).decode())
                    await connection.input_audio_buffer.append(audio=base64.b64encode(bytes(48 * 600)).decode())
                else:
                    break
        assert answers == 3 and len(audio) > 10000 and "42" in words, (answers, len(audio), words)
        assert {"input_audio_buffer.speech_started", "conversation.item.added", "rate_limits.updated"} <= seen, seen
    print("ok")


asyncio.run(main(sys.argv[1]))
