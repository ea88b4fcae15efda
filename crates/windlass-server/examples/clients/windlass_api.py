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


class AgentPage(TypedDict):
    """The agents of the server."""

    agents: list[AgentSummary]  # The agents, by name.


class AgentSummary(TypedDict):
    """An agent of the server."""

    build: str  # Build of the agent.
    name: str  # Name of the agent.
    tools: list[ToolSummary]  # Tools of the agent and of the agents that it reaches. Those of tool sources are only known at run time.


class ArgumentText(TypedDict):
    """An argument as it is displayed."""

    lines: list[str]  # The value as literal text. A line break in it is shown as `\n` and also breaks the line.
    name: str


class BuildRefusal(TypedDict):
    """A build of an agent that has declined a run."""

    build: str  # The build.
    reason: str  # The reason: a tool that is gone, for example.


class CallSheet(TypedDict):
    """A call as it is displayed for a decision. It leaves nothing out. Every text on it is escaped."""

    arguments: list[ArgumentText]  # The arguments, in full.
    change: NotRequired[ChangeText | None]  # The change that the call would make, if it can be shown.
    covers: str  # The calls that an approval covers.
    covers_always: NotRequired[str | None]  # The calls that an approval for the run would cover; absent if the tool requires approval every time.
    digest: str  # Digest of the sheet, of the call and of its run.
    evidence: NotRequired[EvidenceText | None]  # What the tool saw when the call was held, if it has saved that.
    notes: list[str]  # Facts about the call: its effect and its sources.
    question: list[str]  # Further lines of a question.
    title: str  # Sentence that says what is asked.


class ChangeText(TypedDict):
    """A change as it is displayed."""

    is_refused: bool
    lines: list[str]
    title: str


class CostReport(TypedDict):
    """The costs of runs."""

    agents: dict[str, CostSum]  # By agent.
    currency: str  # Currency of the price list.
    days: dict[str, CostSum]  # By day, as `2026-11-17`.
    models: dict[str, CostSum]  # By model.
    more_runs: int  # Number of other runs in the sums, which `runs` leaves out.
    omitted_runs: int  # Number of older runs that are left out, because a report has a limited number of runs.
    prices_as_of: str  # Date of the price list.
    prices_source: str  # Source of the price list.
    runs: dict[str, CostSum]  # By run: those that have cost most.
    total: CostSum  # Everything together.
    unread_runs: int  # Number of runs that are not counted yet: their journals are read now, and a later report has them.


class CostSum(TypedDict):
    """Tokens and money."""

    audio_tokens: int  # Tokens of audio, input plus output.
    cached_tokens: int  # Input tokens from a cache.
    cost: NotRequired[float | None]  # Cost in the currency of the price list, of the requests whose cost is known; absent if it is known of none.
    input_tokens: int  # Input tokens.
    output_tokens: int  # Output tokens.
    reasoning_tokens: int  # Output tokens of reasoning.
    requests: int  # Model requests.
    unpriced_requests: int  # Requests whose cost is unknown.


class DecisionBody(TypedDict):
    """A decision and the sheet that was displayed."""

    attempt: int  # Number of the hold that was displayed.
    call: str  # Path of the call.
    decision: DecisionInput  # The decision.
    displayed: str  # Digest of the sheet that was displayed.
    for_run: NotRequired[bool]  # True if the approval or rejection covers all calls of this tool by this agent in this run.
    signature: NotRequired[SignatureInput | None]  # Signature of an approver, if the store has approvers. A rejection needs none.


class DecisionInputApprove(TypedDict):
    """Approves the call with the model's arguments."""

    type: Literal["approve"]


class DecisionInputApproveEdited(TypedDict):
    """Approves the call with other arguments."""

    arguments: dict[str, Any]  # The arguments. `displayed` is the digest of the sheet with these arguments.
    type: Literal["approve_edited"]


class DecisionInputReject(TypedDict):
    """Rejects the call."""

    message: NotRequired[str | None]  # Reason for the model.
    type: Literal["reject"]


class DecisionInputConfirmExecuted(TypedDict):
    """Resolves a call in doubt: it was executed."""

    output: str  # Result of the execution.
    type: Literal["confirm_executed"]


class DecisionInputConfirmNotExecuted(TypedDict):
    """Resolves a call in doubt: it was not executed, and is executed again."""

    type: Literal["confirm_not_executed"]


class DecisionInputOutcomeUnknown(TypedDict):
    """Resolves a call in doubt: nobody knows, and the model is told so."""

    type: Literal["outcome_unknown"]


class DecisionInputAnswer(TypedDict):
    """Answers the question of a call."""

    type: Literal["answer"]
    value: Any  # The answer.


DecisionInput: TypeAlias = "DecisionInputApprove | DecisionInputApproveEdited | DecisionInputReject | DecisionInputConfirmExecuted | DecisionInputConfirmNotExecuted | DecisionInputOutcomeUnknown | DecisionInputAnswer"


class DecisionStatement(TypedDict):
    """The exact bytes that an approver signs, and every part of them. A client makes the bytes anew from the parts that its user has seen, and signs those."""

    agent: str  # Agent that made the call.
    approver: str  # Name of the approver with this key.
    arguments: str  # The arguments of the call as canonical JSON text.
    attempt: int  # Number of the hold.
    decided_by: str  # Person who decides.
    decision: DecisionBody  # The decision to post, with a `signature` added.
    digest: str  # Digest of the tool and the arguments.
    displayed: str  # Digest of the sheet that was displayed.
    domain: str  # Domain of the store's approvers.
    key: str  # Public key of the approver.
    message: str  # The bytes that are signed, in hex digits.
    path: list[str]  # Path of the call: the ids of the enclosing calls, and its own.
    recorded_decision: Any  # The decision as the journal has it.
    recorded_scope: Any  # The scope as the journal has it.
    run: str  # Run of the call.
    tool: str  # Tool of the call.


class DiffSummary(TypedDict):
    """The differences between two runs."""

    common_records: int  # Number of leading records that are equal.
    fields: list[FieldChange]  # Fields that differ in the first differing record.
    first_steps: list[str]  # Steps of the first run after the common ones.
    is_same: bool  # True if the runs are equal.
    second_steps: list[str]  # Steps of the second run after the common ones.


class ErrorBody(TypedDict):
    """The body of an error."""

    error: ErrorDetail  # The error.


class ErrorDetail(TypedDict):
    """An error in the body of an answer."""

    code: str  # Code for programs.
    message: str  # Message for people.


class EvidenceText(TypedDict):
    """The evidence of a call as it is displayed: the screen that a click would hit, for example."""

    digest: str  # Digest of the whole evidence.
    lines: list[str]  # The sentences of the tool.
    picture: NotRequired[str | None]  # Address of the picture, if there is one.


class FieldChange(TypedDict):
    """A field that differs."""

    field: str  # Path of the field.
    first: NotRequired[Any]  # Value in the first run.
    second: NotRequired[Any]  # Value in the second run.


class FleetSummary(TypedDict):
    """The workers and a page of the queue."""

    next: NotRequired[str | None]  # Run after which the next page begins; absent on the last one.
    queue: list[QueuedSummary]  # Runs in the queue that have not ended, by id.
    workers: list[WorkerSummary]  # The workers.


class ForkBody(TypedDict):
    """A fork of a run."""

    at: int  # Sequence number of the record at which the run is forked.
    change: NotRequired[ForkInput]  # The change that the fork makes.
    run: NotRequired[str | None]  # Id of the fork; a new one if absent.
    start: NotRequired[bool]  # True if a worker continues the fork.


class ForkInputUnchanged(TypedDict):
    """No change."""

    type: Literal["unchanged"]


class ForkInputModelText(TypedDict):
    """Another answer of the model: a text without calls."""

    text: str  # The text.
    type: Literal["model_text"]


class ForkInputCallOutput(TypedDict):
    """Another output of a call."""

    call: str  # Path of the call.
    is_failure: NotRequired[bool]  # True if the call failed with this output.
    output: str  # The output.
    type: Literal["call_output"]


class ForkInputReject(TypedDict):
    """A rejection of a call."""

    call: str  # Path of the call.
    message: NotRequired[str | None]  # Reason for the model.
    type: Literal["reject"]


ForkInput: TypeAlias = "ForkInputUnchanged | ForkInputModelText | ForkInputCallOutput | ForkInputReject"


class InboxItem(TypedDict):
    """A call that waits for a person."""

    agent: str  # Agent that made the call.
    answer_schema: NotRequired[Any]  # JSON Schema that an answer must satisfy.
    arguments: str  # The arguments as JSON text.
    arguments_schema: NotRequired[Any]  # JSON Schema of the arguments, if the tool is known.
    asked_at: int  # Time of the question in milliseconds since 1970.
    attempt: int  # Number of the hold: a call can be held more than once.
    call: str  # Path of the call through nested agents.
    effect: NotRequired[str | None]  # Effect of the tool.
    expires_at: NotRequired[int | None]  # Time at which the call is rejected, in milliseconds since 1970.
    last_driver_seen: NotRequired[int | None]  # For a call in doubt, the time at which its driver was last seen.
    looking: list[str]  # Names of those who look at the call now.
    posted: NotRequired[PostedView | None]  # The decision that was posted and can be corrected until it is taken.
    reason: Literal["approval", "in_doubt", "question"]  # `approval`, `in_doubt` or `question`.
    run: str  # Run of the call.
    run_agent: str  # Agent that the run started with.
    sheet: CallSheet  # The call as it is displayed. A decision names its digest.
    tool: str  # Tool of the call.


class InboxPage(TypedDict):
    """A page of the inbox."""

    calls: list[InboxItem]  # The calls, oldest first.
    total: int  # Number of calls that wait and that the person may see.


class InputBody(TypedDict):
    """Input for a run."""

    input: str  # Text of a message.


class LookBody(TypedDict):
    """A look at a call."""

    call: str  # Path of the call.
    run: str  # Run of the call.


class LookSummary(TypedDict):
    """The others who look at a call."""

    others: list[str]  # Names.


class OrderSummary(TypedDict):
    """The result of an order for a run."""

    run: str  # Id of the run.


class PersonSummary(TypedDict):
    """A person and their rights."""

    name: str  # Name of the person, as decisions record it.
    roles: dict[str, list[str]]  # Rights by agent; `*` stands for every agent.


class PostedSummary(TypedDict):
    """A decision that was posted."""

    call: str  # Path of the call.
    decided_by: str  # Person who decided.
    run: str  # Run of the call.


class PostedView(TypedDict):
    """A decision that was posted and is not taken yet."""

    decided_by: NotRequired[str | None]  # Person who decided.
    decision: str  # Description of the decision.
    posted_at: int  # Time of the decision in milliseconds since 1970.


class QueueState(TypedDict):
    """The state of a run in the queue."""

    attempt: int  # Number of attempts since the run last made progress.
    declined_by: list[BuildRefusal]  # The builds that have declined the run: none of their workers takes it.
    reason: NotRequired[str | None]  # Reason of the last failure.
    state: Literal["ready", "waiting", "taken", "parked", "ended", "dead_letter"]  # `ready`, `waiting`, `taken`, `parked`, `ended` or `dead_letter`.
    worker: NotRequired[str | None]  # Worker that has the run.


class QueuedSummary(TypedDict):
    """A run in the queue."""

    agent: str  # Agent of the run.
    attempt: int  # Number of attempts since the run last made progress.
    declined_by: list[BuildRefusal]  # The builds that have declined the run: none of their workers takes it.
    reason: NotRequired[str | None]  # Reason of the last failure.
    run: str  # Id of the run.
    state: Literal["ready", "waiting", "taken", "parked", "ended", "dead_letter"]  # `ready`, `waiting`, `taken`, `parked`, `ended` or `dead_letter`.
    tenant: str  # Tenant of the run.
    worker: NotRequired[str | None]  # Worker that has the run.


class RecordPage(TypedDict):
    """A page of records."""

    next: NotRequired[int | None]  # Sequence number of the next page; absent if there are no more records now.
    records: list[dict[str, Any]]  # The records as the journal has them, with their sequence numbers.


class ReviewBody(TypedDict):
    """A call to display."""

    arguments: NotRequired[dict[str, Any] | None]  # Arguments in place of the model's.
    call: str  # Path of the call.


class RunDetail(TypedDict):
    """A run in detail."""

    agent: str  # Agent that the run started with.
    cost: NotRequired[float | None]  # Cost in currency units, of the requests whose cost is known; absent if it is known of none.
    created_at: NotRequired[int | None]  # Time of creation in milliseconds since 1970; absent for a run that is queued.
    current_agent: str  # The agent that is current.
    driver: NotRequired[str | None]  # Owner of the lease, if somebody drives the run.
    failure: NotRequired[str | None]  # Reason of a failed run.
    output: NotRequired[str | None]  # Output of a finished run.
    pending: list[InboxItem]  # The calls that wait for a person.
    queue: NotRequired[QueueState | None]  # State of the run in the queue, if it was submitted.
    records: int  # Number of records in the journal.
    run: str  # Id of the run.
    session: NotRequired[str | None]  # Session of the run.
    start_at: NotRequired[int | None]  # Time before which a queued run does not start, in milliseconds since 1970.
    status: Literal["queued", "running", "paused", "finished", "failed", "cancelled"]  # `queued`, `running`, `paused`, `finished`, `failed` or `cancelled`.
    turns: int  # Number of turns.
    unpriced_requests: int  # Model requests whose cost is unknown.
    updated_at: NotRequired[int | None]  # Time of the last change of the status in milliseconds since 1970; absent for a run that is queued.
    usage: Any  # Usage of models, with nested agents.


class RunPage(TypedDict):
    """A page of runs."""

    next: NotRequired[str | None]  # Cursor of the next page; absent on the last one.
    runs: list[RunSummary]  # The runs: first those that are queued, by their ids, and then the others, newest first.


class RunStart(TypedDict):
    """A run to start."""

    agent: str  # Agent that starts the run.
    input: str  # Input of the run: the text of a message.
    priority: NotRequired[int | None]  # Priority among the runs of the same person; higher ones are taken first.
    run: NotRequired[str | None]  # Id of the run; a new one if absent. Starting the same run again has no effect.
    session: NotRequired[str | None]  # Session of the run, whose history the run continues.
    start_at: NotRequired[int | None]  # Time before which the run does not start, in milliseconds since 1970.


class RunStateView(TypedDict):
    """The state of a run after one of its records."""

    agent: str  # The agent that was current.
    at: int  # Sequence number of the record.
    model_input: list[Any]  # The items that the next model request would contain. The instructions of the agent are not in the journal.
    pending: list[str]  # Calls that waited for a person.
    status: str  # The status at that record.
    turns: int  # Number of turns.


class RunSummary(TypedDict):
    """A run in a list."""

    agent: str  # Agent that the run started with.
    created_at: NotRequired[int | None]  # Time of creation in milliseconds since 1970; absent for a run that is queued.
    driver: NotRequired[str | None]  # Owner of the lease, if somebody drives the run.
    records: int  # Number of records in the journal.
    run: str  # Id of the run.
    start_at: NotRequired[int | None]  # Time before which a queued run does not start, in milliseconds since 1970.
    status: Literal["queued", "running", "paused", "finished", "failed", "cancelled"]  # `queued`, `running`, `paused`, `finished`, `failed` or `cancelled`.
    updated_at: NotRequired[int | None]  # Time of the last change of the status in milliseconds since 1970; absent for a run that is queued.


class SessionItems(TypedDict):
    """A page of the items of a session."""

    items: list[Any]  # The items, oldest first.
    session: str  # Id of the session.
    total: int  # Number of items in the session.


class SessionPage(TypedDict):
    """A page of sessions."""

    next: NotRequired[str | None]  # Session after which the next page begins; absent on the last one.
    sessions: list[str]  # Ids of the sessions, in order.


class SignatureInput(TypedDict):
    """The signature of an approver under the message of a statement."""

    key: str  # Public key of the approver: `ed25519:` and 64 hex digits.
    value: str  # The Ed25519 signature in 128 hex digits.


class StartedRun(TypedDict):
    """A run that was started."""

    is_repeated: bool  # True if the same run was started before.
    run: str  # Id of the run.


class StatementBody(TypedDict):
    """A decision that an approver is about to sign."""

    decision: DecisionBody  # The decision, without a signature.
    key: str  # Public key of the approver: `ed25519:` and 64 hex digits.


class ToolSummary(TypedDict):
    """A tool of an agent."""

    agent: str  # Agent that has the tool.
    arguments_schema: Any  # JSON Schema of the arguments.
    description: str  # Description for the model.
    effect: Literal["pure", "idempotent", "once"]  # Effect of a call: `pure`, `idempotent` or `once`.
    name: str  # Name of the tool.


class VerifySummary(TypedDict):
    """The result of a verification."""

    is_whole: bool  # True if every hash matches, the records replay, and nothing is forged.
    problem: NotRequired[str | None]  # Reason why the journal is not whole.
    records: int  # Number of records.


class WorkerSummary(TypedDict):
    """A worker."""

    beat: int  # Number of renewals of its lease.
    name: str  # Name of the worker.
    renewed_at: int  # Time of the last renewal in milliseconds since 1970, on the worker's clock.


class WindlassApi(ApiConnection):
    """The operations of a Windlass server."""

    def show_metrics(self) -> str:
        """Returns metrics in the text format of Prometheus."""
        return self._text("GET", f"/metrics", {})

    def list_agents(self) -> AgentPage:
        """Lists the agents of the server with their tools."""
        return cast("AgentPage", self._json("GET", f"/v1/agents", {}))

    def show_costs(self, *, days: int | None = None, limit: int | None = None) -> CostReport:
        """Shows tokens and money by run, agent, model and day."""
        return cast("CostReport", self._json("GET", f"/v1/costs", {"days": days, "limit": limit}))

    def show_fleet(self, *, after: str | None = None, limit: int | None = None, state: str | None = None) -> FleetSummary:
        """Shows the workers and the queue."""
        return cast("FleetSummary", self._json("GET", f"/v1/fleet", {"after": after, "limit": limit, "state": state}))

    def list_inbox(self, *, limit: int | None = None, skip: int | None = None) -> InboxPage:
        """Lists the calls that wait for a person, oldest first."""
        return cast("InboxPage", self._json("GET", f"/v1/inbox", {"limit": limit, "skip": skip}))

    def stream_inbox(self) -> Iterator[ServerEvent]:
        """Streams the number of calls that wait, as it changes."""
        return self._events("GET", f"/v1/inbox/events", {})

    def look_at_call(self, body: LookBody) -> LookSummary:
        """Says that the person looks at a call, for a few seconds."""
        return cast("LookSummary", self._json("POST", f"/v1/inbox/looking", {}, json_body=body))

    def who_am_i(self) -> PersonSummary:
        """Returns the person of the request and their rights."""
        return cast("PersonSummary", self._json("GET", f"/v1/me", {}))

    def list_runs(self, *, after: str | None = None, agent: str | None = None, limit: int | None = None, search: str | None = None, session: str | None = None, status: str | None = None, updated_before: int | None = None, updated_from: int | None = None) -> RunPage:
        """Lists runs, newest first, in pages."""
        return cast("RunPage", self._json("GET", f"/v1/runs", {"after": after, "agent": agent, "limit": limit, "search": search, "session": session, "status": status, "updated_before": updated_before, "updated_from": updated_from}))

    def start_run(self, body: RunStart) -> StartedRun:
        """Starts a run. Starting the same run again has no effect."""
        return cast("StartedRun", self._json("POST", f"/v1/runs", {}, json_body=body))

    def import_run(self, body: str) -> RunSummary:
        """Stores an exported run."""
        return cast("RunSummary", self._json("POST", f"/v1/runs/import", {}, text_body=body))

    def open_run(self, run: str) -> RunDetail:
        """Opens a run."""
        return cast("RunDetail", self._json("GET", f"/v1/runs/{quote(run, safe='')}", {}))

    def cancel_run(self, run: str) -> OrderSummary:
        """Cancels a run."""
        return cast("OrderSummary", self._json("POST", f"/v1/runs/{quote(run, safe='')}/cancel", {}))

    def decide(self, run: str, body: DecisionBody) -> PostedSummary:
        """Decides about a call that waits, or corrects a decision that is not taken."""
        return cast("PostedSummary", self._json("POST", f"/v1/runs/{quote(run, safe='')}/decisions", {}, json_body=body))

    def diff_runs(self, run: str, *, with_: str) -> DiffSummary:
        """Compares a run with another."""
        return cast("DiffSummary", self._json("GET", f"/v1/runs/{quote(run, safe='')}/diff", {"with": with_}))

    def stream_events(self, run: str, *, from_: int | None = None) -> Iterator[ServerEvent]:
        """Streams the records of a run as server-sent events."""
        return self._events("GET", f"/v1/runs/{quote(run, safe='')}/events", {"from": from_})

    def export_run(self, run: str) -> str:
        """Returns the journal of a run as one text."""
        return self._text("GET", f"/v1/runs/{quote(run, safe='')}/export", {})

    def fork_run(self, run: str, body: ForkBody) -> RunSummary:
        """Forks a run at one of its records."""
        return cast("RunSummary", self._json("POST", f"/v1/runs/{quote(run, safe='')}/fork", {}, json_body=body))

    def add_input(self, run: str, body: InputBody) -> OrderSummary:
        """Adds input for the next model request of a run."""
        return cast("OrderSummary", self._json("POST", f"/v1/runs/{quote(run, safe='')}/input", {}, json_body=body))

    def list_records(self, run: str, *, from_: int | None = None, limit: int | None = None) -> RecordPage:
        """Lists records of a run's journal."""
        return cast("RecordPage", self._json("GET", f"/v1/runs/{quote(run, safe='')}/records", {"from": from_, "limit": limit}))

    def resume_run(self, run: str) -> OrderSummary:
        """Puts a stored run into the queue."""
        return cast("OrderSummary", self._json("POST", f"/v1/runs/{quote(run, safe='')}/resume", {}))

    def review_call(self, run: str, body: ReviewBody) -> InboxItem:
        """Returns a call as it is displayed for a decision, with edited arguments if given."""
        return cast("InboxItem", self._json("POST", f"/v1/runs/{quote(run, safe='')}/review", {}, json_body=body))

    def revive_run(self, run: str) -> OrderSummary:
        """Makes a dead letter ready again."""
        return cast("OrderSummary", self._json("POST", f"/v1/runs/{quote(run, safe='')}/revive", {}))

    def run_state(self, run: str, *, at: int | None = None) -> RunStateView:
        """Returns the state of a run after one of its records."""
        return cast("RunStateView", self._json("GET", f"/v1/runs/{quote(run, safe='')}/state", {"at": at}))

    def state_decision(self, run: str, body: StatementBody) -> DecisionStatement:
        """Returns the exact bytes that an approver signs for a decision. Nothing is decided."""
        return cast("DecisionStatement", self._json("POST", f"/v1/runs/{quote(run, safe='')}/statement", {}, json_body=body))

    def verify_run(self, run: str) -> VerifySummary:
        """Verifies the journal of a run."""
        return cast("VerifySummary", self._json("GET", f"/v1/runs/{quote(run, safe='')}/verify", {}))

    def list_sessions(self, *, after: str | None = None, limit: int | None = None) -> SessionPage:
        """Lists the sessions of the store."""
        return cast("SessionPage", self._json("GET", f"/v1/sessions", {"after": after, "limit": limit}))

    def open_session(self, session: str, *, from_: int | None = None, limit: int | None = None) -> SessionItems:
        """Returns the items of a session."""
        return cast("SessionItems", self._json("GET", f"/v1/sessions/{quote(session, safe='')}", {"from": from_, "limit": limit}))
