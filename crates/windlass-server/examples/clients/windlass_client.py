"""A small typed client of a Windlass server, with the standard library alone.

As a program it starts a run, shows the call that waits, approves it and prints the end:

    python windlass_client.py http://127.0.0.1:4816 TOKEN clerk "pay Ropeworks"
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any, Literal, NotRequired, TypedDict
from urllib.parse import quote, urlencode

RunStatus = Literal["queued", "running", "paused", "finished", "failed", "cancelled"]


class ArgumentText(TypedDict):
    name: str
    lines: list[str]


class CallSheet(TypedDict):
    """A call as an approver reads it. A decision names its digest."""

    title: str
    question: list[str]
    notes: list[str]
    arguments: list[ArgumentText]
    covers: str
    digest: str


class InboxItem(TypedDict):
    run: str
    call: str
    attempt: int
    agent: str
    tool: str
    reason: Literal["approval", "in_doubt", "question"]
    arguments: str
    sheet: CallSheet


class RunDetail(TypedDict):
    run: str
    agent: str
    status: RunStatus
    records: int
    turns: int
    output: str | None
    failure: str | None
    cost: float | None
    unpriced_requests: int
    pending: list[InboxItem]


class StartedRun(TypedDict):
    run: str
    is_repeated: bool


class Decision(TypedDict):
    type: Literal[
        "approve", "approve_edited", "reject", "confirm_executed", "confirm_not_executed", "outcome_unknown", "answer"
    ]
    arguments: NotRequired[dict[str, Any]]
    message: NotRequired[str]
    output: NotRequired[str]
    value: NotRequired[Any]


class WindlassError(Exception):
    """An error that the server has reported."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status, self.code, self.message = status, code, message


class WindlassClient:
    """The runs of a server."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self._url, self._token = url.rstrip("/"), token

    def _open(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data=data, method=method, headers=headers or {})
        if data is not None:
            request.add_header("content-type", "application/json")
        if self._token:
            request.add_header("authorization", f"Bearer {self._token}")
        try:
            return urllib.request.urlopen(request)
        except urllib.error.HTTPError as error:
            detail = json.loads(error.read() or b"{}").get("error", {})
            raise WindlassError(error.code, detail.get("code", ""), detail.get("message", "")) from error

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        with self._open(method, path, body) as response:
            return json.load(response)

    def start_run(self, agent: str, text: str, run: str | None = None) -> StartedRun:
        """Starts a run. Starting the same run again has no effect."""
        body = {"agent": agent, "input": text} | ({"run": run} if run else {})
        return self._call("POST", "/v1/runs", body)

    def open_run(self, run: str) -> RunDetail:
        return self._call("GET", f"/v1/runs/{quote(run, safe='')}")

    def list_runs(self, **filters: str | int) -> list[RunDetail]:
        """Lists runs, newest first, over all pages."""
        runs: list[RunDetail] = []
        while True:
            page = self._call("GET", "/v1/runs?" + urlencode(filters))
            runs += page["runs"]
            if not page.get("next"):
                return runs
            filters["after"] = page["next"]

    def decide(self, item: InboxItem, decision: Decision) -> None:
        """Decides about a call, as it was displayed in this item."""
        body = {"call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"], "decision": decision}
        self._call("POST", f"/v1/runs/{quote(item['run'], safe='')}/decisions", body)

    def cancel_run(self, run: str) -> None:
        self._call("POST", f"/v1/runs/{quote(run, safe='')}/cancel")

    def events(self, run: str, first: int = 0) -> Iterator[dict[str, Any]]:
        """Yields the records of a run as they are written, until it ends. A lost connection is made again."""
        following = first
        while True:
            path = f"/v1/runs/{quote(run, safe='')}/events?from={following}"
            try:
                with self._open("GET", path, headers={"accept": "text/event-stream"}) as stream:
                    kind, data = "message", ""
                    for line in stream:
                        text = line.decode().rstrip("\n")
                        if text.startswith("event:"):
                            kind = text[6:].strip()
                        elif text.startswith("data:"):
                            data += text[5:].strip()
                        elif not text and data:
                            if kind == "end":
                                return
                            if kind == "record":
                                record = json.loads(data)
                                following = record["seq"] + 1
                                yield record
                            kind, data = "message", ""
            except (urllib.error.URLError, ConnectionError):
                continue


def main() -> None:
    url, token, agent, text = sys.argv[1:5]
    client = WindlassClient(url, token if token != "-" else None)
    run = client.start_run(agent, text)["run"]
    for record in client.events(run):
        if "call_held" not in record:
            continue
        for item in client.open_run(run)["pending"]:
            print(item["sheet"]["title"])
            for argument in item["sheet"]["arguments"]:
                print(f"  {argument['name']}: {' '.join(argument['lines'])}")
            client.decide(item, {"type": "approve"})
    end = client.open_run(run)
    print(end["status"], end["output"])


if __name__ == "__main__":
    main()
