"""Reads events, one per line, and prints those that the official client's types do not accept."""

import json
import sys

from openai.types.realtime.realtime_client_event import RealtimeClientEvent
from openai.types.realtime.realtime_server_event import RealtimeServerEvent
from pydantic import BaseModel, TypeAdapter

ADAPTERS = {"client": TypeAdapter(RealtimeClientEvent), "server": TypeAdapter(RealtimeServerEvent)}


def unknown_fields(value, path=""):
    """The fields that no type of the client has: its types take them in silence."""
    if isinstance(value, BaseModel):
        for name in value.model_extra or {}:
            yield f"{path}.{name}"
        for name in type(value).model_fields:
            yield from unknown_fields(getattr(value, name, None), f"{path}.{name}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from unknown_fields(item, f"{path}[{place}]")


def main():
    problems, count = [], 0
    for line in sys.stdin:
        entry = json.loads(line)
        event, count = entry["event"], count + 1
        try:
            read = ADAPTERS[entry["from"]].validate_python(event)
        except Exception as error:  # noqa: BLE001 - any error is a finding
            problems.append(f"{entry['from']} {event.get('type')}: {error}")
            continue
        # The provider sends session ids, which its types do not declare.
        extra = [field for field in unknown_fields(read) if field not in (".session.id", ".session.object")]
        if extra:
            problems.append(f"{entry['from']} {event.get('type')}: unknown fields {extra}")
    for problem in problems:
        print(problem)
    print(f"{count} events, {len(problems)} problems")
    sys.exit(1 if problems else 0)


main()
