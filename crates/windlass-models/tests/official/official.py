"""Runs the providers' official clients against the fake provider and against our requests.

    official.py read BASE_URL ROOT_URL COUNT   decodes COUNT replies with each protocol, plain and streamed
    official.py check < requests.json          validates requests against the clients' types
"""

import json
import sys

import anthropic
import openai
import pydantic
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params

KEY = "sk-fake-0123456789"


def item(text="", refusal="", thought="", calls=(), usage=None):
    return {"text": text, "refusal": refusal, "thought": thought, "calls": [list(call) for call in calls], "usage": usage}


def from_response(response):
    text, refusal, thought, calls = "", "", "", []
    for output in response.output:
        if output.type == "message":
            for part in output.content:
                if part.type == "output_text":
                    text += part.text
                else:
                    refusal += part.refusal
        elif output.type == "function_call":
            calls.append((output.call_id, output.name, json.loads(output.arguments)))
        elif output.type == "reasoning":
            thought += "".join(part.text for part in output.summary)
    usage = response.usage
    return item(text, refusal, thought, calls, [usage.input_tokens, usage.input_tokens_details.cached_tokens, usage.output_tokens])


def from_completion(completion):
    message = completion.choices[0].message
    calls = [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]
    thought = (message.model_extra or {}).get("reasoning_content", "")
    usage = completion.usage
    return item(message.content or "", message.refusal or "", thought, calls,
                [usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens])


def from_message(message):
    text, thought, calls = "", "", []
    for block in message.content:
        if block.type == "text":
            text += block.text
        elif block.type == "thinking":
            thought += block.thinking
        elif block.type == "tool_use":
            calls.append((block.id, block.name, block.input))
    refusal = ""
    if message.stop_reason == "refusal":
        text, refusal = "", text
    usage = message.usage
    cached = usage.cache_read_input_tokens or 0
    return item(text, refusal, thought, calls, [usage.input_tokens + cached, cached, usage.output_tokens])


def read(base_url, root_url, count):
    # Strict validation: a missing field or a field of another type is an error.
    client = openai.OpenAI(api_key=KEY, base_url=base_url, max_retries=0, _strict_response_validation=True)
    claude = anthropic.Anthropic(api_key=KEY, base_url=root_url, max_retries=0, _strict_response_validation=True)
    said = [{"role": "user", "content": "Good morning."}]
    readings = []
    for _ in range(count):
        readings.append(from_response(client.responses.create(model="fake-1", input="Good morning.")))
        with client.responses.stream(model="fake-1", input="Good morning.") as stream:
            for _ in stream:
                pass
            readings.append(from_response(stream.get_final_response()))
        readings.append(from_completion(client.chat.completions.create(model="fake-1", messages=said)))
        options = {"include_usage": True}
        with client.chat.completions.stream(model="fake-1", messages=said, stream_options=options) as stream:
            for _ in stream:
                pass
            readings.append(from_completion(stream.get_final_completion()))
        readings.append(from_message(claude.messages.create(model="fake-1", max_tokens=99, messages=said)))
        with claude.messages.stream(model="fake-1", max_tokens=99, messages=said) as stream:
            readings.append(from_message(stream.get_final_message()))
    json.dump(readings, sys.stdout)


TYPES = {
    "/v1/responses": (response_create_params.ResponseCreateParamsNonStreaming, response_create_params.ResponseCreateParamsStreaming),
    "/v1/chat/completions": (completion_create_params.CompletionCreateParamsNonStreaming, completion_create_params.CompletionCreateParamsStreaming),
    "/v1/messages": (message_create_params.MessageCreateParamsNonStreaming, message_create_params.MessageCreateParamsStreaming),
}


def walk(value):
    """Visits every element: lists are lazy in these types, and only a visit validates their elements."""
    if isinstance(value, dict):
        for inner in value.values():
            walk(inner)
    elif not isinstance(value, (str, bytes, int, float, type(None))):
        for inner in value:
            walk(inner)


def check(requests):
    # Unknown top-level fields are errors too.
    problems = []
    for number, request in enumerate(requests):
        body = request["body"]
        kind = TYPES[request["path"]][1 if body.get("stream") else 0]
        unknown = set(body) - set(kind.__annotations__) - set(
            name for base in getattr(kind, "__orig_bases__", ()) for name in getattr(base, "__annotations__", {}))
        if unknown:
            problems.append(f"request {number} to {request['path']} has unknown fields: {sorted(unknown)}")
        try:
            adapter = pydantic.TypeAdapter(kind)
            walk(adapter.validate_python(body))
        except pydantic.ValidationError as error:
            problems.append(f"request {number} to {request['path']}: {error}")
    json.dump(problems, sys.stdout)


if sys.argv[1] == "read":
    read(sys.argv[2], sys.argv[3], int(sys.argv[4]))
else:
    check(json.load(sys.stdin))
