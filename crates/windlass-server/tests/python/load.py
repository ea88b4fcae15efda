"""Load on the server of an example, from outside: `python3 load.py CLERK_SERVER STREAMS`.

It starts runs that wait for an approval, follows each of them, approves them, and kills the server in the middle. It prints
figures, and fails if a record of a stream was lost or repeated, or if a payment was started other than once. A payment that
was under way when the server was killed is in doubt, and is settled as by a person."""

import asyncio
import collections
import json
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM, COUNT = sys.argv[1], int(sys.argv[2])
PAUSE = 0.05
# Longest time in seconds until the last run has ended. A loaded machine may need long for anything.
PATIENCE = 600


class Server:
    """The process of the server, always at the same address."""

    def __init__(self, folder):
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.store = str(pathlib.Path(folder) / "store.db")
        self.start()

    def start(self):
        command = [PROGRAM, f"127.0.0.1:{self.port}", self.store]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def resident_kib(self):
        lines = pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


class Client:
    """Requests that are sent again when the server was away."""

    def __init__(self, port):
        self.port = port
        self.slots = asyncio.Semaphore(32)

    async def send(self, method, path, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\nconnection: close\r\n"
            f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(head.encode() + data)
                answer = await reader.read()
                writer.close()
            except OSError:
                answer = b""
            code = int(answer.split()[1]) if answer else 503
            if code not in (429, 503):
                return code, json.loads(read_body(answer))
            await asyncio.sleep(PAUSE)

    async def send_in_turn(self, method, path, body=None):
        async with self.slots:
            return await self.send(method, path, body)


def read_body(answer):
    head, _, rest = answer.partition(b"\r\n\r\n")
    if b"chunked" not in head.lower():
        return rest
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        count = int(size, 16)
        body, rest = body + rest[:count], rest[count + 2 :]
    return body


class Follower:
    """Streams of events that come back after the last record that they have seen."""

    def __init__(self, port):
        self.port = port
        self.seen = collections.defaultdict(list)
        self.opened = 0

    async def follow(self, run):
        while True:
            try:
                await self.read_stream(run)
                return
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(PAUSE)

    async def read_stream(self, run):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        seen = self.seen[run]
        last = f"last-event-id: {seen[-1]}\r\n" if seen else ""
        writer.write(f"GET /v1/runs/{run}/events HTTP/1.1\r\nhost: 127.0.0.1:{self.port}\r\n{last}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split()[1] != b"200":
            raise OSError("the stream was refused")
        self.opened += 1
        fields = {}
        while line := await reader.readline():
            name, _, value = line.strip().partition(b":")
            if name:
                fields[name] = value.strip()
                continue
            if fields.get(b"event") == b"end":
                writer.close()
                return
            if b"id" in fields:
                seen.append(int(fields[b"id"]))
            fields = {}
        raise OSError("the stream was cut off")


async def settle_doubts(client):
    """Answers for payments that had started when the server was killed, as a person who knows that they were made."""
    while True:
        _, page = await client.send("GET", "/v1/inbox?limit=100")
        # An approval that was posted and is not taken yet is listed, too.
        for item in (item for item in page["calls"] if item["reason"] == "in_doubt"):
            body = {"call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"]}
            decision = {"type": "confirm_executed", "output": "paid"}
            await client.send("POST", f"/v1/runs/{item['run']}/decisions", {**body, "decision": decision})
            print(f"the payment of {item['run']} was under way, and a person settled it")
        await asyncio.sleep(PAUSE)


async def measure(server):
    client, follower = Client(server.port), Follower(server.port)
    runs = [f"r{number}" for number in range(COUNT)]
    start = {"agent": "clerk", "input": "pay Ropeworks"}
    started = await asyncio.gather(*(client.send_in_turn("POST", "/v1/runs", {"run": run, **start}) for run in runs))
    assert all(code == 201 for code, _ in started)
    while (await client.send("GET", "/v1/inbox?limit=1"))[1]["total"] != COUNT:
        await asyncio.sleep(PAUSE)
    before = server.resident_kib()
    followers = [asyncio.create_task(follower.follow(run)) for run in runs]
    while follower.opened < COUNT:
        await asyncio.sleep(PAUSE)
    print(f"{COUNT} open streams: {(server.resident_kib() - before) / COUNT:.1f} KiB for each")

    async def review(run):
        _, opened = await client.send_in_turn("GET", f"/v1/runs/{run}")
        call = opened["pending"][0]["call"]
        return await client.send_in_turn("POST", f"/v1/runs/{run}/review", {"call": call})

    sheets = await asyncio.gather(*(review(run) for run in runs))
    delays = []

    async def decide(run, sheet):
        body = {"call": sheet["call"], "attempt": sheet["attempt"], "displayed": sheet["sheet"]["digest"]}
        async with client.slots:
            began = time.monotonic()
            code, answer = await client.send(
                "POST", f"/v1/runs/{run}/decisions", {**body, "decision": {"type": "approve"}}
            )
            delays.append(time.monotonic() - began)
        # A request that is repeated after the server was killed may find its decision taken.
        assert code in (200, 404, 409), answer

    half, began = COUNT // 2, time.monotonic()
    await asyncio.gather(*(decide(run, sheet) for run, (_, sheet) in zip(runs[:half], sheets)))
    rate = half / (time.monotonic() - began)
    median, longest = sorted(delays)[half // 2], max(delays)
    print(f"{rate:.0f} decisions a second; median {median * 1e3:.0f} ms, longest {longest * 1e3:.0f} ms")
    rest = [asyncio.create_task(decide(run, sheet)) for run, (_, sheet) in zip(runs[half:], sheets[half:])]
    while len(delays) < half + COUNT // 8:
        await asyncio.sleep(0.001)
    server.kill()
    server.start()
    await asyncio.gather(*rest)
    doubts = asyncio.create_task(settle_doubts(client))
    ended = asyncio.gather(*followers)
    done, _ = await asyncio.wait({ended, doubts}, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    if doubts in done:
        # The answers for calls in doubt never end: they have failed.
        doubts.result()
    assert ended in done, "the runs did not end"
    await ended
    doubts.cancel()
    print(f"{follower.opened - COUNT} streams came back after the server was killed")
    pages = await asyncio.gather(*(client.send_in_turn("GET", f"/v1/runs/{run}/records?limit=500") for run in runs))
    for run, (_, page) in zip(runs, pages):
        records = page["records"]
        payments = [one for one in records if one.get("call_started", {}).get("call", "").startswith("pay")]
        assert len(payments) == 1, (run, records)
        assert follower.seen[run] == list(range(len(records))), (run, follower.seen[run])
    print(f"nothing was lost or repeated in {COUNT} runs")


with tempfile.TemporaryDirectory() as folder:
    server = Server(folder)
    try:
        asyncio.run(measure(server))
    finally:
        server.kill()
