#!/usr/bin/env python3
"""A journal reader written from docs/journal.md alone: verifies the hash chain and prints every call with its output.

Usage: read_journal.py FILE

Prints one line for each call, in the models' order: the path, the tool, whether the call's digest matches its
arguments, the status, and the output as JSON. For a call without an output, the line gives the reason for the hold.
Exits with status 1 if the journal was changed or cut off.
"""

import hashlib
import json
import sys

VERSION = 1


def refuse(why):
    sys.exit(f"refused: {why}")


def read_records(data):
    """Returns the records of a file, each verified against the hash chain."""
    lines = data.split(b"\n")
    first = lines[0]
    if not first.startswith(b"windlass ") or not first[9:].isdigit():
        refuse("this is not a saved run")
    if int(first[9:]) > VERSION:
        refuse(f"this run was saved in format {int(first[9:])}")
    bodies = [line for line in lines[1:] if line and not line.startswith((b"sealed ", b"mac "))]
    history = hashlib.sha256(b"history").digest()
    while bodies and bodies[0].startswith(b"history "):
        history = hashlib.sha256(history + bodies.pop(0)[8:]).digest()
    if not bodies or not bodies[-1].startswith(b"head "):
        refuse("the saved run is cut off")
    last = bodies.pop()
    head = hashlib.sha256(first).digest()
    for body in bodies:
        head = hashlib.sha256(head + body).digest()
    if last[5:].decode() != head.hex():
        refuse("the saved run is not what was written")
    records = [json.loads(body) for body in bodies]
    reference = records[0].get("run_started", {}).get("history") if records else None
    if isinstance(reference, dict) and reference["digest"] != history.hex():
        refuse(f"the history of session {reference['session']} is not what the run started with")
    return records, head.hex()


def tool_name(key):
    """Returns a tool's identity as text."""
    if isinstance(key, str):
        return key
    (kind, value), = key.items()
    if kind == "namespaced":
        return f"{value['namespace']}.{value['name']}"
    if kind == "deferred":
        return f"deferred:{value}"
    return f"mcp:{value['server']}/{value['name']}"


def digest(tool, arguments):
    """Returns the digest that decisions are bound to; the standard library cannot write the canonical form of floats."""
    try:
        value = json.loads(arguments)
        arguments = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    except ValueError:
        pass
    parts = [tool.encode(), arguments.encode()]
    return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).hexdigest()


def read_calls(records):
    """Returns every call: its path, its tool, its status, and its output."""
    calls = {}
    open_calls = {}
    effects, agents, active = set(), set(), set()
    for record in records:
        path = tuple(record.get("path", []))
        (kind, entry), = ((name, value) for name, value in record.items() if name not in ("at", "path"))
        if kind in ("call_held", "call_started", "call_body_ended", "call_settled", "handoff_recorded"):
            active.add(path)
        if kind == "model_responded":
            open_calls[path] = [path + (planned["call"],) for planned in entry.get("calls", [])]
            asked = [item for item in entry["items"] if item["type"] == "call"]
            for planned, item in zip(entry.get("calls", []), asked):
                tool = tool_name(planned["key"])
                covers = "covered" if planned["digest"] == digest(tool, item["arguments"]) else "other"
                call = {"tool": tool, "covers": covers, "status": "open", "output": None}
                calls[path + (planned["call"],)] = call
                execute = planned.get("execute", "pure")
                if isinstance(execute, dict) and execute.get("body") == "agent":
                    agents.add(path + (planned["call"],))
                elif (execute if isinstance(execute, str) else execute["effect"]) != "pure":
                    effects.add(path + (planned["call"],))
        elif kind == "call_held":
            reason = entry["reason"]
            if isinstance(reason, dict):
                reason = f"question: {reason['question']['text']}"
            calls[path + (entry["call"],)]["status"] = f"waits ({reason})"
        elif kind == "decision_recorded" and entry["call"] != "windlass.budget":
            # The answer to the question of a budget is a decision, too, and no call.
            calls[path + (entry["call"],)]["status"] = "decided"
        elif kind == "call_started":
            calls[path + (entry["call"],)]["status"] = "started"
        elif kind == "call_body_ended":
            calls[path + (entry["call"],)]["status"] = f"withheld ({entry['status']})"
        elif kind == "call_settled":
            status = entry.get("status", "succeeded")
            calls[path + (entry["call"],)].update(status=status, output=entry["output"])
        elif kind == "handoff_recorded":
            calls[path + (entry["call"],)].update(status=f"handed off to {entry['to']}", output=None)
        elif kind in ("run_failed", "run_cancelled"):
            # Unsettled calls of the open turn are cancelled when the run ends; those whose body ended stay withheld.
            for call in open_calls.get(path, []):
                if calls[call]["output"] is None and not calls[call]["status"].startswith("handed"):
                    if calls[call]["status"].startswith("withheld"):
                        status = "output_withheld"
                        text = (
                            "The call was executed. Its output was withheld, because the checks of it did not finish."
                        )
                    elif calls[call]["status"] in ("started", "waits (in_doubt)") and (
                        call in effects or (call in agents and call in active)
                    ):
                        status = "cancelled"
                        text = (
                            "The call ended without a result, and it is not known whether it took effect. "
                            "Do not repeat it without checking."
                        )
                    else:
                        status, text = "cancelled", "The call was stopped before it finished."
                    calls[call].update(status=status, output=text)
    return calls


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], "rb") as file:
        records, head = read_records(file.read())
    sys.stdout.reconfigure(encoding="utf-8", newline="\n")
    for path, call in read_calls(records).items():
        output = json.dumps(call["output"], ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        print("/".join(path), call["tool"], call["covers"], call["status"], output, sep="\t")
    print("records", len(records), head, sep="\t")


main()
