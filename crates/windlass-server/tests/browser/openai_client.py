"""Talks to a server with the official OpenAI client: `python openai_client.py URL`."""
import json
import sys
import threading
import time
import urllib.request

from openai import APITimeoutError, BadRequestError, NotFoundError, OpenAI, UnprocessableEntityError

base = sys.argv[1]
client = OpenAI(base_url=base + "/v1", api_key="none")


def approve_all(stop):
    while not stop.is_set():
        with urllib.request.urlopen(base + "/v1/inbox") as answer:
            calls = json.load(answer)["calls"]
        for call in calls:
            body = {"call": call["call"], "attempt": call["attempt"], "displayed": call["sheet"]["digest"], "decision": {"type": "approve"}}
            request = urllib.request.Request(f"{base}/v1/runs/{call['run']}/decisions", json.dumps(body).encode(), {"content-type": "application/json"})
            try:
                urllib.request.urlopen(request).read()
            except urllib.error.HTTPError:
                pass
        time.sleep(0.05)


assert [model.id for model in client.models.list()] == ["bank", "clerk", "front", "spender"]
plain = client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": "hello"}])
assert plain.choices[0].message.content == "Done after 0 outputs.", plain
assert plain.usage.total_tokens == 843, plain.usage
chunks = list(client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": "hello"}], stream=True, stream_options={"include_usage": True}))
texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
assert "".join(texts) == "Done after 0 outputs." and len(texts) == 4, texts
assert chunks[-1].usage.total_tokens == 843

# The client repeats a request after a timeout: it joins the run, which waits for a person.
try:
    client.with_options(timeout=4).chat.completions.create(model="clerk", messages=[{"role": "user", "content": "pay Slow"}])
    raise AssertionError("a run that waits has answered")
except APITimeoutError:
    pass
with urllib.request.urlopen(base + "/v1/inbox") as answer:
    waiting = [call for call in json.load(answer)["calls"] if "Slow" in json.dumps(call)]
assert len(waiting) == 1, waiting
# A run that has failed is not repeated: the test counts what it spent.
try:
    client.chat.completions.create(model="spender", messages=[{"role": "user", "content": "go"}])
    raise AssertionError("a failed run has an answer")
except UnprocessableEntityError as error:
    assert error.code == "run_failed", error
failed = client.responses.create(model="spender", input="go")
assert failed.status == "failed" and failed.error, failed

stop = threading.Event()
threading.Thread(target=approve_all, args=(stop,), daemon=True).start()
paid = client.responses.create(model="clerk", input="pay Ropeworks")
assert paid.output_text == "I will look at the invoice and pay it.Done after 2 outputs.", paid.output_text
assert paid.status == "completed" and len(paid.output) == 2
with client.responses.stream(model="clerk", input="pay Pilots") as stream:
    kinds = [event.type for event in stream]
    final = stream.get_final_response()
assert final.output_text == paid.output_text, final
assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and kinds.count("response.output_text.delta") >= 3, kinds
stop.set()
again = client.responses.create(model="clerk", input="hello", previous_response_id=paid.id)
assert again.previous_response_id == paid.id
background = client.responses.create(model="clerk", input="hello", background=True)
assert background.status == "queued"
for _ in range(200):
    background = client.responses.retrieve(background.id)
    if background.status == "completed":
        break
    time.sleep(0.02)
assert background.output_text == "Done after 0 outputs.", background
one = client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": "hello"}], extra_headers={"Idempotency-Key": "k1"})
two = client.chat.completions.create(model="clerk", messages=[{"role": "user", "content": "hello"}], extra_headers={"Idempotency-Key": "k1"})
assert one.id == two.id and one.choices == two.choices
try:
    client.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "hello"}])
    raise AssertionError("an unknown model was accepted")
except NotFoundError as error:
    assert "no agent" in str(error)
# The agent calls its own tools; the client gets the answer after them.
asked = [{"role": "user", "content": "fail please"}]
worked = client.chat.completions.create(model="clerk", messages=asked)
assert worked.choices[0].message.content == "Done after 2 outputs.", worked
chunks = client.chat.completions.create(model="clerk", messages=asked, stream=True)
texts = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
assert "".join(texts) == "Done after 2 outputs.", texts
# Tools of the client are refused, and not ignored.
tools = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}]
for stream in (False, True):
    try:
        client.chat.completions.create(model="clerk", messages=asked, tools=tools, stream=stream)
        raise AssertionError("tools of the client were accepted")
    except BadRequestError as error:
        assert error.code == "tools_not_supported", error
print("all seen")
