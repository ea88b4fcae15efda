"""Starts a run, shows each call that waits, approves it and prints the end, with the generated client:

    python approve_calls.py http://127.0.0.1:4816 TOKEN clerk "pay Ropeworks"
"""

from __future__ import annotations

import sys

from windlass_api import DecisionBody, WindlassApi


def main() -> None:
    url, token, agent, text = sys.argv[1:5]
    api = WindlassApi(url, token if token != "-" else None)
    run = api.start_run({"agent": agent, "input": text})["run"]
    for event in api.stream_events(run):
        if event.kind != "record" or "call_held" not in event.data:
            continue
        for item in api.open_run(run)["pending"]:
            print(item["sheet"]["title"])
            for argument in item["sheet"]["arguments"]:
                print(f"  {argument['name']}: {' '.join(argument['lines'])}")
            # The decision names the sheet that was shown: a call that has changed since is not approved.
            decision: DecisionBody = {
                "call": item["call"],
                "attempt": item["attempt"],
                "displayed": item["sheet"]["digest"],
                "decision": {"type": "approve"},
            }
            api.decide(run, decision)
    end = api.open_run(run)
    print(end["status"], end["output"])


if __name__ == "__main__":
    main()
