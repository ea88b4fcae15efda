"""The official client against a local server: every call of the vector store API, validated by the client's types."""

import hashlib
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

# Page by page, newest first. Stores of one second have no order.
listed = list(client.vector_stores.list(limit=1))
assert sorted(item.name for item in listed) == ["default", "manuals", "other"], listed
assert all(one.created_at >= two.created_at for one, two in zip(listed, listed[1:])), listed
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


def refused(call, words):
    """A call must be refused with a reason."""
    try:
        call()
    except BadRequestError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"{words}: it was accepted")


# Uploads in parts: by hand, out of order, and by the client's helper for large files.
data = "".join(f"line {at}: the lighthouse keeper counts ships\n" for at in range(5_000)).encode()
upload = client.uploads.create(filename="ships.txt", purpose="assistants", bytes=len(data), mime_type="text/plain")
assert upload.object == "upload" and upload.status == "pending" and upload.expires_at > upload.created_at, upload
half = len(data) // 2
second = client.uploads.parts.create(upload.id, data=data[half:])
first = client.uploads.parts.create(upload.id, data=data[:half])
assert first.object == "upload.part" and first.upload_id == upload.id, first
refused(lambda: client.uploads.parts.create(upload.id, data=b"more"), "was announced with")
refused(lambda: client.uploads.complete(upload.id, part_ids=[first.id]), "was announced with")
refused(lambda: client.uploads.complete(upload.id, part_ids=[first.id, second.id], md5="0" * 32), "MD5")
done = client.uploads.complete(upload.id, part_ids=[first.id, second.id], md5=hashlib.md5(data).hexdigest())
assert done.status == "completed" and done.file.bytes == len(data) and done.file.filename == "ships.txt", done
assert client.files.content(done.file.id).read() == data
refused(lambda: client.uploads.cancel(upload.id), "is completed")
cancelled = client.uploads.cancel(client.uploads.create(filename="x", purpose="assistants", bytes=3, mime_type="text/plain").id)
assert cancelled.status == "cancelled", cancelled
large = b"".join(b"%09d barges pass the lock of the canal\n" % at for at in range(1_700_000))
assert len(large) > 64 << 20, len(large)
chunked = client.uploads.upload_file_chunked(file=large, filename="barges.txt", bytes=len(large), mime_type="text/plain", purpose="assistants")
assert chunked.status == "completed" and chunked.file.bytes == len(large), chunked
whole = client.files.create(file=("again.txt", large), purpose="user_data")
assert whole.bytes == len(large), whole
sea = client.vector_stores.create(name="sea")
attached = client.vector_stores.files.create_and_poll(done.file.id, vector_store_id=sea.id)
assert attached.status == "completed", attached
too_large = client.vector_stores.files.create_and_poll(chunked.file.id, vector_store_id=sea.id)
assert too_large.status == "failed" and "bytes" in too_large.last_error.message, too_large
assert client.vector_stores.search(sea.id, query="lighthouse keeper").data[0].filename == "ships.txt"

# Expiry of files and of stores.
brief = client.files.create(file=("brief.txt", b"brief"), purpose="assistants", expires_after={"anchor": "created_at", "seconds": 3600})
assert brief.expires_at == brief.created_at + 3600, brief
refused(lambda: client.files.create(file=("b.txt", b"b"), purpose="assistants", expires_after={"anchor": "created_at", "seconds": 5}), "3600 to")
refused(lambda: client.vector_stores.create(expires_after={"anchor": "last_active_at", "days": 400}), "1 to 365")
refused(lambda: client.vector_stores.create(expires_after={"anchor": "created_at", "days": 4}), "last_active_at")
aged = client.vector_stores.create(name="aged", expires_after={"anchor": "last_active_at", "days": 3})
assert aged.expires_at == aged.last_active_at + 3 * 86400, aged
assert client.vector_stores.update(aged.id, name="older").expires_after.days == 3
assert client.vector_stores.update(aged.id, expires_after=None).expires_after is None

# Filters of lists.
assert {file.filename for file in client.files.list(purpose="user_data")} == {"again.txt"}
assert [file.status for file in client.vector_stores.files.list(sea.id, filter="completed")] == ["completed"]
mixed = client.vector_stores.file_batches.upload_and_poll(sea.id, files=[("good.txt", b"a good text"), ("bad.pdf", b"%PDF-1.4 bad")])
assert (mixed.file_counts.completed, mixed.file_counts.failed) == (1, 1), mixed
names = [file.status for file in client.vector_stores.file_batches.list_files(mixed.id, vector_store_id=sea.id, filter="failed")]
assert names == ["failed"], names
refused(lambda: client.vector_stores.files.list(sea.id, filter="lost"), "`filter`")
refused(lambda: client.vector_stores.files.list(sea.id, limit=1000), "1 to 100")
refused(lambda: client.vector_stores.files.list(sea.id, after="file-none"), "names no item")

# Pages: every item once, in both directions, also while items are deleted.
shelf = client.vector_stores.create(name="shelf")
books = [client.vector_stores.files.upload_and_poll(vector_store_id=shelf.id, file=(f"{at}.txt", b"book %d" % at)).id for at in range(23)]
for order in ("asc", "desc"):
    paged = [file.id for file in client.vector_stores.files.list(shelf.id, limit=4, order=order)]
    assert sorted(paged) == sorted(books) and len(paged) == 23, paged
    assert paged == (books if order == "asc" else books[::-1]), paged
before = client.vector_stores.files.list(shelf.id, limit=3, order="asc", before=books[10])
assert [file.id for file in before.data] == books[7:10], before
seen = []
for file in client.vector_stores.files.list(shelf.id, limit=4):
    seen.append(file.id)
    client.vector_stores.files.delete(file.id, vector_store_id=shelf.id)
assert seen == books[::-1], seen
uploads = [file.id for file in client.files.list(limit=5)]
assert len(uploads) == len(set(uploads)), uploads
seen = []
for item in client.vector_stores.list(limit=2):
    if item.id != "vs_default":
        seen.append(item.id)
        client.vector_stores.delete(item.id)
assert len(seen) == len(set(seen)) and {store.id, other.id, sea.id, aged.id, shelf.id} == set(seen), seen
print("the contract holds")
