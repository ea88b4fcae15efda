#!/usr/bin/env python3
"""Validates requests for Gemini and Bedrock with the official SDKs' types, and encodes event streams as AWS frames them.

Reads JSON from standard input: {"gemini": [body, …], "converse": [body, …], "frames": [[name, payload], …]}.
Writes {"gemini": n, "converse": n, "frames": base64, "signature": …}; exits with an error for a request that is not valid.
No request is sent, and no key is used.
"""

import base64
import binascii
import datetime
import json
import struct
import sys

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import botocore.eventstream
import botocore.session
import botocore.validate
from google.genai import types


def check_gemini(body):
    """Every field must be one of the SDK's types; unknown fields are refused."""
    for content in body["contents"]:
        types.Content.model_validate(content)
    if "systemInstruction" in body:
        types.Content.model_validate(body["systemInstruction"])
    for tool in body.get("tools", []):
        types.Tool.model_validate(tool)
    if "toolConfig" in body:
        types.ToolConfig.model_validate(body["toolConfig"])
    types.GenerationConfig.model_validate(body.get("generationConfig", {}))
    unknown = set(body) - {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "labels"}
    if unknown:
        raise ValueError(f"unknown fields {unknown}")


def check_converse(body, shape):
    """Validates with botocore's own validator. Bytes are base64 in JSON."""

    def decode(value):
        if isinstance(value, dict):
            return {
                key: base64.b64decode(part) if key in ("bytes", "redactedContent") else decode(part)
                for key, part in value.items()
            }
        return [decode(part) for part in value] if isinstance(value, list) else value

    report = botocore.validate.ParamValidator().validate(decode({**body, "modelId": "m"}), shape)
    if report.has_errors():
        raise ValueError(report.generate_report())
    unknown = set(body) - set(shape.members)
    if unknown:
        raise ValueError(f"unknown fields {unknown}")


def encode_frame(name, payload):
    """Encodes a message by the published format; botocore has only the decoder, which checks the result."""
    headers = b""
    for key, value in ((":event-type", name), (":content-type", "application/json"), (":message-type", "event")):
        headers += struct.pack("!B", len(key)) + key.encode() + b"\x07" + struct.pack("!H", len(value)) + value.encode()
    prelude = struct.pack("!II", len(headers) + len(payload) + 16, len(headers))
    message = prelude + struct.pack("!I", binascii.crc32(prelude)) + headers + payload
    message += struct.pack("!I", binascii.crc32(message))
    decoder = botocore.eventstream.EventStreamBuffer()
    decoder.add_data(message)
    event = next(decoder)
    assert event.payload == payload and event.headers[":event-type"] == name
    return message


def sign():
    """Signs a fixed request at a fixed time."""
    moment = datetime.datetime(2026, 9, 21, 14, 13, 20)
    botocore.auth.get_current_datetime = lambda *_, **__: moment
    credentials = botocore.credentials.Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "tok")
    url = "https://bedrock-runtime.eu-central-1.amazonaws.com/model/eu.amazon.nova-lite-v1%3A0/converse"
    request = botocore.awsrequest.AWSRequest(
        "POST", url, headers={"content-type": "application/json"}, data=b'{"messages":[]}'
    )
    botocore.auth.SigV4Auth(credentials, "bedrock", "eu-central-1").add_auth(request)
    return request.headers["Authorization"]


def main():
    asked = json.load(sys.stdin)
    for body in asked["gemini"]:
        check_gemini(body)
    service = botocore.session.get_session().get_service_model("bedrock-runtime")
    shape = service.operation_model("Converse").input_shape
    for body in asked["converse"]:
        check_converse(body, shape)
    frames = b"".join(encode_frame(name, json.dumps(payload).encode()) for name, payload in asked["frames"])
    ours = botocore.eventstream.EventStreamBuffer()
    ours.add_data(base64.b64decode(asked["our_frames"]))
    decoded = [[event.headers[":event-type"], json.loads(event.payload)] for event in ours]
    json.dump(
        {"frames": base64.b64encode(frames).decode(), "decoded": decoded, "signature": sign()}, sys.stdout
    )


main()
