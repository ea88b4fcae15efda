"""The official client against a local server: every call of the vector store API, validated by the client's types."""

import io
import sys

from openai import BadRequestError, NotFoundError, OpenAI

client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, _strict_response_validation=True)

store = client.vector_stores.create(name="manuals", metadata={"team": "ops"}, expires_after={"anchor": "last_active_at", "days": 7})
assert store.object == "vector_store" and store.status == "completed" and store.file_counts.total == 0, store
assert store.expires_after.days == 7 and store.metadata == {"team": "ops"}, store

pump = client.files.create(file=("pumps.md", b"# Pumps\n\nBleed the pump before frost comes.\n"), purpose="assistants")
assert pump.object == "file" and pump.filename == "pumps.md" and pump.bytes == 44, pump
assert client.files.retrieve(pump.id).id == pump.id
assert client.files.content(pump.id).read().startswith(b"# Pumps")
assert pump.id in [file.id for file in client.files.list()]

attached = client.vector_stores.files.create_and_poll(
    file_id=pump.id, vector_store_id=store.id, attributes={"year": 2024, "kind": "manual", "draft": False}
)
assert attached.status == "completed" and attached.attributes["year"] == 2024, attached
assert attached.chunking_strategy.static.max_chunk_size_tokens == 800, attached

valve = client.vector_stores.files.upload_and_poll(
    vector_store_id=store.id,
    file=("valves.txt", io.BytesIO(b"Grease the brass valve twice a year.")),
    attributes={"year": 2020, "kind": "manual"},
    chunking_strategy={"type": "static", "static": {"max_chunk_size_tokens": 200, "chunk_overlap_tokens": 50}},
)
assert valve.status == "completed" and valve.chunking_strategy.static.max_chunk_size_tokens == 200, valve

broken = client.vector_stores.files.upload_and_poll(vector_store_id=store.id, file=("broken.pdf", b"%PDF-1.4 nothing"))
assert broken.status == "failed" and broken.last_error.code == "invalid_file", broken

batch = client.vector_stores.file_batches.upload_and_poll(
    vector_store_id=store.id, files=[("a.txt", b"the lantern glows"), ("b.txt", b"the zeppelin lands")]
)
assert batch.status == "completed" and batch.file_counts.completed == 2, batch
assert len(list(client.vector_stores.file_batches.list_files(batch.id, vector_store_id=store.id))) == 2

found = client.vector_stores.search(store.id, query="bleeding a pump")
assert found.object == "vector_store.search_results.page", found
first = found.data[0]
assert first.filename == "pumps.md" and first.file_id == pump.id and 0 < first.score <= 1, first
assert "Bleed the pump" in first.content[0].text and first.attributes["kind"] == "manual", first

found = client.vector_stores.search(
    store.id,
    query=["pump", "brass valve"],
    max_num_results=5,
    filters={"type": "and", "filters": [
        {"type": "eq", "key": "kind", "value": "manual"},
        {"type": "or", "filters": [{"type": "lt", "key": "year", "value": 2021}, {"type": "in", "key": "year", "value": [1999]}]},
    ]},
    ranking_options={"ranker": "auto", "score_threshold": 0.1, "hybrid_search": {"embedding_weight": 1, "text_weight": 3}},
)
assert [hit.filename for hit in found.data] == ["valves.txt"], found

changed = client.vector_stores.files.update(pump.id, vector_store_id=store.id, attributes={"year": 1999})
assert changed.attributes == {"year": 1999}, changed
found = client.vector_stores.search(store.id, query="pump", filters={"type": "eq", "key": "year", "value": 1999})
assert [hit.filename for hit in found.data] == ["pumps.md"], found

content = client.vector_stores.files.content(pump.id, vector_store_id=store.id)
assert "Bleed" in "".join(part.text for part in content.data), content

other = client.vector_stores.create(name="other", file_ids=[valve.id])
assert other.file_counts.completed == 1, other
assert [hit.filename for hit in client.vector_stores.search(other.id, query="pump valve").data] == ["valves.txt"]

names = [item.name for item in client.vector_stores.list(limit=1)]
assert names[:2] == ["other", "manuals"] or set(names[:2]) == {"other", "manuals"}, names
statuses = [file.status for file in client.vector_stores.files.list(store.id, filter="failed")]
assert statuses == ["failed"], statuses
assert client.vector_stores.update(store.id, name="handbooks").name == "handbooks"

assert client.vector_stores.files.delete(valve.id, vector_store_id=store.id).deleted
assert client.files.delete(pump.id).deleted
assert [hit.filename for hit in client.vector_stores.search(store.id, query="pump valve", ranking_options={"score_threshold": 0.6}).data] == []
for call in (
    lambda: client.vector_stores.retrieve("vs_none"),
    lambda: client.vector_stores.files.retrieve(pump.id, vector_store_id=store.id),
    lambda: client.files.retrieve(pump.id),
):
    try:
        call()
    except NotFoundError as error:
        assert "there is no" in str(error), error
    else:
        raise AssertionError("what is not there was found")
try:
    client.vector_stores.search(store.id, query="x", max_num_results=99)
except BadRequestError as error:
    assert "1 to 50" in str(error), error
else:
    raise AssertionError("99 results were allowed")
assert client.vector_stores.delete(store.id).deleted
print("the contract holds")
