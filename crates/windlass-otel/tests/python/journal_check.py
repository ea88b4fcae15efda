"""Compares spans that a collector received with a journal: `python journal_check.py JOURNAL SPANS`.

It reads the records of the journal by itself, in the form that docs/journal.md describes, and shares nothing with the
program that derived the spans. Both files have one JSON text per line."""

import collections
import json
import sys


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def reason_of(hold):
    return hold if isinstance(hold, str) else next(iter(hold))


class Expected:
    """The spans that a journal must have led to, without those of turns: name, start and end in milliseconds, and some of
    their attributes."""

    def __init__(self):
        self.spans = []
        self.tools = {}
        self.starts = {}
        self.attempts = collections.Counter()
        self.body_ends = {}
        self.waits = {}
        self.agents = {}
        self.usage = collections.defaultdict(collections.Counter)

    def add(self, name, start, end, **attributes):
        self.spans.append((name, start, end, {key: str(value) for key, value in attributes.items()}))

    def end_wait(self, path, call, at, **attributes):
        wait = self.waits.pop((path, call), None)
        if wait:
            name, start, known = wait
            self.add(name, start, at, **known, **attributes)

    def read(self, record):
        at, path = record["at"], tuple(record.get("path", []))
        kind = next(key for key in record if key not in ("at", "path"))
        entry = record[kind] or {}
        handler = getattr(self, f"on_{kind}", None)
        if handler:
            handler(at, path, entry)

    def on_run_started(self, at, path, entry):
        self.agents[path] = (entry["agent"], at)

    def request(self, at, path, entry, failure=None):
        usage = entry.get("usage") or {}
        for within in [path]:
            self.usage[within]["input"] += usage.get("input_tokens", 0)
            self.usage[within]["output"] += usage.get("output_tokens", 0)
        requested = entry.get("requested") or {}
        model = requested.get("model") or entry.get("model")
        attributes = {"gen_ai.agent.name": entry["agent"]}
        if requested.get("provider"):
            attributes["gen_ai.provider.name"] = requested["provider"]
        if failure:
            attributes["error.type"] = failure
        start = entry.get("requested_at") if entry.get("attempts", 1) == 1 else None
        self.add(f"chat {model}" if model else "chat", start, at, **attributes)

    def on_model_responded(self, at, path, entry):
        self.request(at, path, entry)
        for item in entry["items"]:
            if item["type"] == "call":
                self.tools[path, item["id"]] = item["name"]

    def on_model_request_failed(self, at, path, entry):
        self.request(at, path, entry, "model_request_failed")

    def on_response_rejected(self, at, path, entry):
        self.request(at, path, entry, "response_rejected")

    def on_call_held(self, at, path, entry):
        call = entry["call"]
        reason = {"windlass.wait.reason": reason_of(entry["reason"])}
        self.waits[path, call] = (f"wait_for_person {self.tools[path, call]}", at, reason)

    def on_budget_reached(self, at, path, entry):
        if entry.get("question"):
            self.waits[path, "windlass.budget"] = ("wait_for_person budget", at, {"windlass.wait.reason": "budget"})

    def on_decision_recorded(self, at, path, entry):
        self.end_wait(path, entry["call"], at, **{"windlass.wait.decided_by": entry.get("decided_by")})

    def on_call_started(self, at, path, entry):
        self.end_wait(path, entry["call"], at)
        self.starts.setdefault((path, entry["call"]), at)
        self.attempts[path, entry["call"]] = entry.get("attempt", 1)

    def on_call_body_ended(self, at, path, entry):
        self.body_ends[path, entry["call"]] = at

    def on_call_settled(self, at, path, entry):
        call = entry["call"]
        self.end_wait(path, call, at)
        if (path, call) not in self.tools:
            return
        start = self.starts.get((path, call), at)
        status = entry.get("status", "succeeded")
        status = status if isinstance(status, str) else next(iter(status))
        attributes = {"windlass.call.status": status, "windlass.call.attempts": self.attempts[path, call]}
        self.add(f"execute_tool {self.tools.pop((path, call))}", start, at, **attributes)
        for guardrail in entry.get("guardrails", []):
            is_input = guardrail["stage"] == "input"
            begin = start if is_input else self.body_ends.get((path, call), at)
            end = start if is_input else at
            self.add(f"guardrail {guardrail['name']}", begin, end, **{"windlass.guardrail.verdict": guardrail["verdict"]})

    def on_handoff_recorded(self, at, path, entry):
        self.tools.pop((path, entry["call"]), None)
        self.add(f"handoff {entry['to']}", at, at, **{"gen_ai.agent.name": entry["to"]})

    def end_run(self, at, path, status):
        for within, call in list(self.waits):
            if within == path:
                self.end_wait(within, call, at)
        agent, start = self.agents.pop(path)
        self.add(f"invoke_agent {agent}", start, at, **{"gen_ai.agent.name": agent, "windlass.run.status": status})

    def on_run_finished(self, at, path, entry):
        self.end_run(at, path, "finished")

    def on_run_failed(self, at, path, entry):
        failure = entry["failure"]
        name = failure if isinstance(failure, str) else next(iter(failure))
        if name in ("input_guardrail_tripped", "output_guardrail_tripped", "guardrail_failed"):
            verdict = "failed" if name == "guardrail_failed" else "failed_run"
            self.add(f"guardrail {failure[name]['guardrail']}", at, at, **{"windlass.guardrail.verdict": verdict})
        self.end_run(at, path, "failed")

    def on_run_cancelled(self, at, path, entry):
        self.end_run(at, path, "cancelled")


def main(journal, received):
    expected = Expected()
    for record in read(journal):
        expected.read(record)
    spans = read(received)
    by_id = {span["id"]: span for span in spans}
    assert len(by_id) == len(spans), "ids are unique"
    assert len({span["trace"] for span in spans}) == 1, "one trace"
    for span in spans:
        assert not span["parent"] or span["parent"] in by_id, span
    left = [span for span in spans if not span["name"].startswith("turn ")]
    for name, start, end, attributes in expected.spans:
        fits = [
            span
            for span in left
            if span["name"] == name
            and int(span["end"]) == end * 1_000_000
            and (start is None or int(span["start"]) == start * 1_000_000)
            and all(span["attributes"].get(key) == value for key, value in attributes.items())
        ]
        assert fits, ("no such span", name, start, end, attributes, [one for one in spans if one["name"] == name])
        left.remove(fits[0])
    assert not left, ("the journal has no record of these", left)
    print(f"equal {len(spans)}")


main(sys.argv[1], sys.argv[2])
