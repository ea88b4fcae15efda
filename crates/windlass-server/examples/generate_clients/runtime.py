"""The typed client of a Windlass server, with the standard library alone.

Generated from the OpenAPI description: `cargo run -p windlass-server --example generate_clients`. Do not edit.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict, cast
from urllib.parse import quote, urlencode


class ApiFailure(Exception):
    """An error that the server has reported."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


@dataclass
class ServerEvent:
    """An event of a stream."""

    kind: str
    data: Any
    id: str | None = None


class ApiConnection:
    """The address and the token of a server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url, self._token = url.rstrip("/"), token

    def _open(
        self, method: str, path: str, query: dict[str, Any], headers: dict[str, str], data: bytes | None = None
    ) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        address = self._url + path + ("?" + urlencode(given) if given else "")
        request = urllib.request.Request(address, data=data, method=method, headers=headers)
        if self._token:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            return urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            detail = json.loads(error.read() or b"{}").get("error", {})
            raise ApiFailure(error.code, detail.get("code", ""), detail.get("message", "")) from error

    def _text(
        self, method: str, path: str, query: dict[str, Any], *, json_body: Any = None, text_body: str | None = None
    ) -> str:
        headers, data = {"accept": "*/*"}, None
        if json_body is not None:
            headers["content-type"], data = "application/json", json.dumps(json_body).encode()
        elif text_body is not None:
            headers["content-type"], data = "text/plain", text_body.encode()
        with self._open(method, path, query, headers, data) as response:
            text: str = response.read().decode()
            return text

    def _json(
        self, method: str, path: str, query: dict[str, Any], *, json_body: Any = None, text_body: str | None = None
    ) -> Any:
        return json.loads(self._text(method, path, query, json_body=json_body, text_body=text_body))

    def _events(self, method: str, path: str, query: dict[str, Any]) -> Iterator[ServerEvent]:
        """Yields events until `end`. A lost connection is made again after the last event that has an id."""
        last_id: str | None = None
        while True:
            headers = {"accept": "text/event-stream"} | ({"last-event-id": last_id} if last_id else {})
            try:
                with self._open(method, path, query, headers) as stream:
                    fields: dict[str, str] = {}
                    for line in stream:
                        name, _, value = line.decode().rstrip("\r\n").partition(":")
                        if name:
                            fields[name] = fields.get(name, "") + value.removeprefix(" ")
                            continue
                        if "data" in fields:
                            last_id = fields.get("id", last_id)
                            kind = fields.get("event", "message")
                            yield ServerEvent(kind, json.loads(fields["data"]), fields.get("id"))
                            if kind == "end":
                                return
                        fields = {}
            except (urllib.error.URLError, HTTPException, ConnectionError):
                time.sleep(0.2)
