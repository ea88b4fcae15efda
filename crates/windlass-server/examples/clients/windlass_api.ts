// The typed client of a Windlass server, without dependencies.
//
// Generated from the OpenAPI description: `cargo run -p windlass-server --example generate_clients`. Do not edit.

/** An error that the server has reported. */
export class ApiFailure extends Error {
  status: number;
  code: string;
  constructor(status: number, code: string, message: string) {
    super(`${status} ${code}: ${message}`);
    this.status = status;
    this.code = code;
  }
}

/** An event of a stream. */
export interface ServerEvent {
  kind: string;
  data: any;
  id?: string;
}

type RequestBody = { json?: unknown; text?: string };

/** The address and the token of a server. */
export class ApiConnection {
  private url: string;
  private token: string | undefined;
  constructor(url: string, token?: string) {
    this.url = url.replace(/\/$/, "");
    this.token = token;
  }

  private async open(method: string, path: string, query: Record<string, unknown>, headers: Record<string, string>, body: RequestBody): Promise<Response> {
    const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null);
    const search = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    let sent: string | undefined;
    if (body.json !== undefined) {
      headers["content-type"] = "application/json";
      sent = JSON.stringify(body.json);
    } else if (body.text !== undefined) {
      headers["content-type"] = "text/plain";
      sent = body.text;
    }
    const response = await fetch(this.url + path + (search ? `?${search}` : ""), { method, headers, body: sent });
    if (!response.ok) {
      const detail = (await response.json().catch(() => ({}))) as { error?: { code: string; message: string } };
      throw new ApiFailure(response.status, detail.error?.code ?? "", detail.error?.message ?? "");
    }
    return response;
  }

  protected async text(method: string, path: string, query: Record<string, unknown>, body: RequestBody = {}): Promise<string> {
    return (await this.open(method, path, query, { accept: "*/*" }, body)).text();
  }

  protected async json<T>(method: string, path: string, query: Record<string, unknown>, body: RequestBody = {}): Promise<T> {
    return (await this.open(method, path, query, { accept: "application/json" }, body)).json() as Promise<T>;
  }

  /** Yields events until `end`. A lost connection is made again after the last event that has an id. */
  protected async *events(method: string, path: string, query: Record<string, unknown>): AsyncGenerator<ServerEvent> {
    let lastId: string | undefined;
    for (;;) {
      try {
        const headers: Record<string, string> = { accept: "text/event-stream" };
        if (lastId !== undefined) headers["last-event-id"] = lastId;
        const response = await this.open(method, path, query, headers, {});
        let buffer = "";
        const decoder = new TextDecoder();
        for await (const chunk of (response.body ?? []) as AsyncIterable<Uint8Array>) {
          buffer += decoder.decode(chunk, { stream: true });
          for (let end = buffer.indexOf("\n\n"); end >= 0; end = buffer.indexOf("\n\n")) {
            const lines = buffer.slice(0, end).split("\n");
            buffer = buffer.slice(end + 2);
            const field = (name: string) => lines.filter(line => line.startsWith(`${name}:`)).map(line => line.slice(name.length + 1).trim()).join("");
            if (!field("data")) continue;
            lastId = field("id") || lastId;
            const kind = field("event") || "message";
            yield { kind, data: JSON.parse(field("data")), id: field("id") || undefined };
            if (kind === "end") return;
          }
        }
      } catch (error) {
        if (error instanceof ApiFailure) throw error;
        await new Promise(resolve => setTimeout(resolve, 200));
      }
    }
  }
}

/** The agents of the server. */
export interface AgentPage {
  /** The agents, by name. */
  agents: Array<AgentSummary>;
}

/** An agent of the server. */
export interface AgentSummary {
  /** Build of the agent. */
  build: string;
  /** Name of the agent. */
  name: string;
  /** Tools of the agent and of the agents that it reaches. Those of tool sources are only known at run time. */
  tools: Array<ToolSummary>;
}

/** An argument as it is displayed. */
export interface ArgumentText {
  /** The value as literal text. A line break in it is shown as `\n` and also breaks the line. */
  lines: Array<string>;
  name: string;
}

/** A build of an agent that has declined a run. */
export interface BuildRefusal {
  /** The build. */
  build: string;
  /** The reason: a tool that is gone, for example. */
  reason: string;
}

/** A call as it is displayed for a decision. It leaves nothing out. Every text on it is escaped. */
export interface CallSheet {
  /** The arguments, in full. */
  arguments: Array<ArgumentText>;
  /** The change that the call would make, if it can be shown. */
  change?: ChangeText | null;
  /** The calls that an approval covers. */
  covers: string;
  /** The calls that an approval for the run would cover; absent if the tool requires approval every time. */
  covers_always?: string | null;
  /** Digest of the sheet, of the call and of its run. */
  digest: string;
  /** What the tool saw when the call was held, if it has saved that. */
  evidence?: EvidenceText | null;
  /** Facts about the call: its effect and its sources. */
  notes: Array<string>;
  /** Further lines of a question. */
  question: Array<string>;
  /** Sentence that says what is asked. */
  title: string;
}

/** A change as it is displayed. */
export interface ChangeText {
  is_refused: boolean;
  lines: Array<string>;
  title: string;
}

/** The costs of runs. */
export interface CostReport {
  /** By agent. */
  agents: Record<string, CostSum>;
  /** Currency of the price list. */
  currency: string;
  /** By day, as `2026-11-17`. */
  days: Record<string, CostSum>;
  /** By model. */
  models: Record<string, CostSum>;
  /** Number of other runs in the sums, which `runs` leaves out. */
  more_runs: number;
  /** Number of older runs that are left out, because a report has a limited number of runs. */
  omitted_runs: number;
  /** Date of the price list. */
  prices_as_of: string;
  /** Source of the price list. */
  prices_source: string;
  /** By run: those that have cost most. */
  runs: Record<string, CostSum>;
  /** Everything together. */
  total: CostSum;
  /** Number of runs that are not counted yet: their journals are read now, and a later report has them. */
  unread_runs: number;
}

/** Tokens and money. */
export interface CostSum {
  /** Tokens of audio, input plus output. */
  audio_tokens: number;
  /** Input tokens from a cache. */
  cached_tokens: number;
  /** Cost in the currency of the price list, of the requests whose cost is known; absent if it is known of none. */
  cost?: number | null;
  /** Input tokens. */
  input_tokens: number;
  /** Output tokens. */
  output_tokens: number;
  /** Output tokens of reasoning. */
  reasoning_tokens: number;
  /** Model requests. */
  requests: number;
  /** Requests whose cost is unknown. */
  unpriced_requests: number;
}

/** A decision and the sheet that was displayed. */
export interface DecisionBody {
  /** Number of the hold that was displayed. */
  attempt: number;
  /** Path of the call. */
  call: string;
  /** The decision. */
  decision: DecisionInput;
  /** Digest of the sheet that was displayed. */
  displayed: string;
  /** True if the approval or rejection covers all calls of this tool by this agent in this run. */
  for_run?: boolean;
  /** Signature of an approver, if the store has approvers. A rejection needs none. */
  signature?: SignatureInput | null;
}

export type DecisionInput = {
  type: "approve";
} | {
  /** The arguments. `displayed` is the digest of the sheet with these arguments. */
  arguments: Record<string, unknown>;
  type: "approve_edited";
} | {
  /** Reason for the model. */
  message?: string | null;
  type: "reject";
} | {
  /** Result of the execution. */
  output: string;
  type: "confirm_executed";
} | {
  type: "confirm_not_executed";
} | {
  type: "outcome_unknown";
} | {
  type: "answer";
  /** The answer. */
  value: unknown;
};

/** The exact bytes that an approver signs, and every part of them. A client makes the bytes anew from the parts that its
user has seen, and signs those. */
export interface DecisionStatement {
  /** Agent that made the call. */
  agent: string;
  /** Name of the approver with this key. */
  approver: string;
  /** The arguments of the call as canonical JSON text. */
  arguments: string;
  /** Number of the hold. */
  attempt: number;
  /** Person who decides. */
  decided_by: string;
  /** The decision to post, with a `signature` added. */
  decision: DecisionBody;
  /** Digest of the tool and the arguments. */
  digest: string;
  /** Digest of the sheet that was displayed. */
  displayed: string;
  /** Domain of the store's approvers. */
  domain: string;
  /** Public key of the approver. */
  key: string;
  /** The bytes that are signed, in hex digits. */
  message: string;
  /** Path of the call: the ids of the enclosing calls, and its own. */
  path: Array<string>;
  /** The decision as the journal has it. */
  recorded_decision: unknown;
  /** The scope as the journal has it. */
  recorded_scope: unknown;
  /** Run of the call. */
  run: string;
  /** Tool of the call. */
  tool: string;
}

/** The differences between two runs. */
export interface DiffSummary {
  /** Number of leading records that are equal. */
  common_records: number;
  /** Fields that differ in the first differing record. */
  fields: Array<FieldChange>;
  /** Steps of the first run after the common ones. */
  first_steps: Array<string>;
  /** True if the runs are equal. */
  is_same: boolean;
  /** Steps of the second run after the common ones. */
  second_steps: Array<string>;
}

/** The body of an error. */
export interface ErrorBody {
  /** The error. */
  error: ErrorDetail;
}

/** An error in the body of an answer. */
export interface ErrorDetail {
  /** Code for programs. */
  code: string;
  /** Message for people. */
  message: string;
}

/** The evidence of a call as it is displayed: the screen that a click would hit, for example. */
export interface EvidenceText {
  /** Digest of the whole evidence. */
  digest: string;
  /** The sentences of the tool. */
  lines: Array<string>;
  /** Address of the picture, if there is one. */
  picture?: string | null;
}

/** A field that differs. */
export interface FieldChange {
  /** Path of the field. */
  field: string;
  /** Value in the first run. */
  first?: unknown;
  /** Value in the second run. */
  second?: unknown;
}

/** The workers and a page of the queue. */
export interface FleetSummary {
  /** Run after which the next page begins; absent on the last one. */
  next?: string | null;
  /** Runs in the queue that have not ended, by id. */
  queue: Array<QueuedSummary>;
  /** The workers. */
  workers: Array<WorkerSummary>;
}

/** A fork of a run. */
export interface ForkBody {
  /** Sequence number of the record at which the run is forked. */
  at: number;
  /** The change that the fork makes. */
  change?: ForkInput;
  /** Id of the fork; a new one if absent. */
  run?: string | null;
  /** True if a worker continues the fork. */
  start?: boolean;
}

export type ForkInput = {
  type: "unchanged";
} | {
  /** The text. */
  text: string;
  type: "model_text";
} | {
  /** Path of the call. */
  call: string;
  /** True if the call failed with this output. */
  is_failure?: boolean;
  /** The output. */
  output: string;
  type: "call_output";
} | {
  /** Path of the call. */
  call: string;
  /** Reason for the model. */
  message?: string | null;
  type: "reject";
};

/** A call that waits for a person. */
export interface InboxItem {
  /** Agent that made the call. */
  agent: string;
  /** JSON Schema that an answer must satisfy. */
  answer_schema?: unknown;
  /** The arguments as JSON text. */
  arguments: string;
  /** JSON Schema of the arguments, if the tool is known. */
  arguments_schema?: unknown;
  /** Time of the question in milliseconds since 1970. */
  asked_at: number;
  /** Number of the hold: a call can be held more than once. */
  attempt: number;
  /** Path of the call through nested agents. */
  call: string;
  /** Effect of the tool. */
  effect?: string | null;
  /** Time at which the call is rejected, in milliseconds since 1970. */
  expires_at?: number | null;
  /** For a call in doubt, the time at which its driver was last seen. */
  last_driver_seen?: number | null;
  /** Names of those who look at the call now. */
  looking: Array<string>;
  /** The decision that was posted and can be corrected until it is taken. */
  posted?: PostedView | null;
  /** `approval`, `in_doubt` or `question`. */
  reason: "approval" | "in_doubt" | "question";
  /** Run of the call. */
  run: string;
  /** Agent that the run started with. */
  run_agent: string;
  /** The call as it is displayed. A decision names its digest. */
  sheet: CallSheet;
  /** Tool of the call. */
  tool: string;
}

/** A page of the inbox. */
export interface InboxPage {
  /** The calls, oldest first. */
  calls: Array<InboxItem>;
  /** Number of calls that wait and that the person may see. */
  total: number;
}

/** Input for a run. */
export interface InputBody {
  /** Text of a message. */
  input: string;
}

/** A look at a call. */
export interface LookBody {
  /** Path of the call. */
  call: string;
  /** Run of the call. */
  run: string;
}

/** The others who look at a call. */
export interface LookSummary {
  /** Names. */
  others: Array<string>;
}

/** The result of an order for a run. */
export interface OrderSummary {
  /** Id of the run. */
  run: string;
}

/** A person and their rights. */
export interface PersonSummary {
  /** Name of the person, as decisions record it. */
  name: string;
  /** Rights by agent; `*` stands for every agent. */
  roles: Record<string, Array<string>>;
}

/** A decision that was posted. */
export interface PostedSummary {
  /** Path of the call. */
  call: string;
  /** Person who decided. */
  decided_by: string;
  /** Run of the call. */
  run: string;
}

/** A decision that was posted and is not taken yet. */
export interface PostedView {
  /** Person who decided. */
  decided_by?: string | null;
  /** Description of the decision. */
  decision: string;
  /** Time of the decision in milliseconds since 1970. */
  posted_at: number;
}

/** The state of a run in the queue. */
export interface QueueState {
  /** Number of attempts since the run last made progress. */
  attempt: number;
  /** The builds that have declined the run: none of their workers takes it. */
  declined_by: Array<BuildRefusal>;
  /** Reason of the last failure. */
  reason?: string | null;
  /** `ready`, `waiting`, `taken`, `parked`, `ended` or `dead_letter`. */
  state: "ready" | "waiting" | "taken" | "parked" | "ended" | "dead_letter";
  /** Worker that has the run. */
  worker?: string | null;
}

/** A run in the queue. */
export interface QueuedSummary {
  /** Agent of the run. */
  agent: string;
  /** Number of attempts since the run last made progress. */
  attempt: number;
  /** The builds that have declined the run: none of their workers takes it. */
  declined_by: Array<BuildRefusal>;
  /** Reason of the last failure. */
  reason?: string | null;
  /** Id of the run. */
  run: string;
  /** `ready`, `waiting`, `taken`, `parked`, `ended` or `dead_letter`. */
  state: "ready" | "waiting" | "taken" | "parked" | "ended" | "dead_letter";
  /** Tenant of the run. */
  tenant: string;
  /** Worker that has the run. */
  worker?: string | null;
}

/** A page of records. */
export interface RecordPage {
  /** Sequence number of the next page; absent if there are no more records now. */
  next?: number | null;
  /** The records as the journal has them, with their sequence numbers. */
  records: Array<Record<string, unknown>>;
}

/** A call to display. */
export interface ReviewBody {
  /** Arguments in place of the model's. */
  arguments?: Record<string, unknown> | null;
  /** Path of the call. */
  call: string;
}

/** A run in detail. */
export interface RunDetail {
  /** Agent that the run started with. */
  agent: string;
  /** Cost in currency units, of the requests whose cost is known; absent if it is known of none. */
  cost?: number | null;
  /** Time of creation in milliseconds since 1970; absent for a run that is queued. */
  created_at?: number | null;
  /** The agent that is current. */
  current_agent: string;
  /** Owner of the lease, if somebody drives the run. */
  driver?: string | null;
  /** Reason of a failed run. */
  failure?: string | null;
  /** Output of a finished run. */
  output?: string | null;
  /** The calls that wait for a person. */
  pending: Array<InboxItem>;
  /** State of the run in the queue, if it was submitted. */
  queue?: QueueState | null;
  /** Number of records in the journal. */
  records: number;
  /** Id of the run. */
  run: string;
  /** Session of the run. */
  session?: string | null;
  /** Time before which a queued run does not start, in milliseconds since 1970. */
  start_at?: number | null;
  /** `queued`, `running`, `paused`, `finished`, `failed` or `cancelled`. */
  status: "queued" | "running" | "paused" | "finished" | "failed" | "cancelled";
  /** Number of turns. */
  turns: number;
  /** Model requests whose cost is unknown. */
  unpriced_requests: number;
  /** Time of the last change of the status in milliseconds since 1970; absent for a run that is queued. */
  updated_at?: number | null;
  /** Usage of models, with nested agents. */
  usage: unknown;
}

/** A page of runs. */
export interface RunPage {
  /** Cursor of the next page; absent on the last one. */
  next?: string | null;
  /** The runs: first those that are queued, by their ids, and then the others, newest first. */
  runs: Array<RunSummary>;
}

/** A run to start. */
export interface RunStart {
  /** Agent that starts the run. */
  agent: string;
  /** Input of the run: the text of a message. */
  input: string;
  /** Priority among the runs of the same person; higher ones are taken first. */
  priority?: number | null;
  /** Id of the run; a new one if absent. Starting the same run again has no effect. */
  run?: string | null;
  /** Session of the run, whose history the run continues. */
  session?: string | null;
  /** Time before which the run does not start, in milliseconds since 1970. */
  start_at?: number | null;
}

/** The state of a run after one of its records. */
export interface RunStateView {
  /** The agent that was current. */
  agent: string;
  /** Sequence number of the record. */
  at: number;
  /** The items that the next model request would contain. The instructions of the agent are not in the journal. */
  model_input: Array<unknown>;
  /** Calls that waited for a person. */
  pending: Array<string>;
  /** The status at that record. */
  status: string;
  /** Number of turns. */
  turns: number;
}

/** A run in a list. */
export interface RunSummary {
  /** Agent that the run started with. */
  agent: string;
  /** Time of creation in milliseconds since 1970; absent for a run that is queued. */
  created_at?: number | null;
  /** Owner of the lease, if somebody drives the run. */
  driver?: string | null;
  /** Number of records in the journal. */
  records: number;
  /** Id of the run. */
  run: string;
  /** Time before which a queued run does not start, in milliseconds since 1970. */
  start_at?: number | null;
  /** `queued`, `running`, `paused`, `finished`, `failed` or `cancelled`. */
  status: "queued" | "running" | "paused" | "finished" | "failed" | "cancelled";
  /** Time of the last change of the status in milliseconds since 1970; absent for a run that is queued. */
  updated_at?: number | null;
}

/** A page of the items of a session. */
export interface SessionItems {
  /** The items, oldest first. */
  items: Array<unknown>;
  /** Id of the session. */
  session: string;
  /** Number of items in the session. */
  total: number;
}

/** A page of sessions. */
export interface SessionPage {
  /** Session after which the next page begins; absent on the last one. */
  next?: string | null;
  /** Ids of the sessions, in order. */
  sessions: Array<string>;
}

/** The signature of an approver under the message of a statement. */
export interface SignatureInput {
  /** Public key of the approver: `ed25519:` and 64 hex digits. */
  key: string;
  /** The Ed25519 signature in 128 hex digits. */
  value: string;
}

/** A run that was started. */
export interface StartedRun {
  /** True if the same run was started before. */
  is_repeated: boolean;
  /** Id of the run. */
  run: string;
}

/** A decision that an approver is about to sign. */
export interface StatementBody {
  /** The decision, without a signature. */
  decision: DecisionBody;
  /** Public key of the approver: `ed25519:` and 64 hex digits. */
  key: string;
}

/** A tool of an agent. */
export interface ToolSummary {
  /** Agent that has the tool. */
  agent: string;
  /** JSON Schema of the arguments. */
  arguments_schema: unknown;
  /** Description for the model. */
  description: string;
  /** Effect of a call: `pure`, `idempotent` or `once`. */
  effect: "pure" | "idempotent" | "once";
  /** Name of the tool. */
  name: string;
}

/** The result of a verification. */
export interface VerifySummary {
  /** True if every hash matches, the records replay, and nothing is forged. */
  is_whole: boolean;
  /** Reason why the journal is not whole. */
  problem?: string | null;
  /** Number of records. */
  records: number;
}

/** A worker. */
export interface WorkerSummary {
  /** Number of renewals of its lease. */
  beat: number;
  /** Name of the worker. */
  name: string;
  /** Time of the last renewal in milliseconds since 1970, on the worker's clock. */
  renewed_at: number;
}

/** The operations of a Windlass server. */
export class WindlassApi extends ApiConnection {
  /** Returns metrics in the text format of Prometheus. */
  showMetrics(): Promise<string> {
    return this.text("GET", `/metrics`, {});
  }

  /** Lists the agents of the server with their tools. */
  listAgents(): Promise<AgentPage> {
    return this.json("GET", `/v1/agents`, {});
  }

  /** Shows tokens and money by run, agent, model and day. */
  showCosts(query: { days?: number; limit?: number } = {}): Promise<CostReport> {
    return this.json("GET", `/v1/costs`, query);
  }

  /** Shows the workers and the queue. */
  showFleet(query: { after?: string; limit?: number; state?: string } = {}): Promise<FleetSummary> {
    return this.json("GET", `/v1/fleet`, query);
  }

  /** Lists the calls that wait for a person, oldest first. */
  listInbox(query: { limit?: number; skip?: number } = {}): Promise<InboxPage> {
    return this.json("GET", `/v1/inbox`, query);
  }

  /** Streams the number of calls that wait, as it changes. */
  streamInbox(): AsyncGenerator<ServerEvent> {
    return this.events("GET", `/v1/inbox/events`, {});
  }

  /** Says that the person looks at a call, for a few seconds. */
  lookAtCall(body: LookBody): Promise<LookSummary> {
    return this.json("POST", `/v1/inbox/looking`, {}, { json: body });
  }

  /** Returns the person of the request and their rights. */
  whoAmI(): Promise<PersonSummary> {
    return this.json("GET", `/v1/me`, {});
  }

  /** Lists runs, newest first, in pages. */
  listRuns(query: { after?: string; agent?: string; limit?: number; search?: string; session?: string; status?: string; updated_before?: number; updated_from?: number } = {}): Promise<RunPage> {
    return this.json("GET", `/v1/runs`, query);
  }

  /** Starts a run. Starting the same run again has no effect. */
  startRun(body: RunStart): Promise<StartedRun> {
    return this.json("POST", `/v1/runs`, {}, { json: body });
  }

  /** Stores an exported run. */
  importRun(body: string): Promise<RunSummary> {
    return this.json("POST", `/v1/runs/import`, {}, { text: body });
  }

  /** Opens a run. */
  openRun(run: string): Promise<RunDetail> {
    return this.json("GET", `/v1/runs/${encodeURIComponent(run)}`, {});
  }

  /** Cancels a run. */
  cancelRun(run: string): Promise<OrderSummary> {
    return this.json("POST", `/v1/runs/${encodeURIComponent(run)}/cancel`, {});
  }

  /** Decides about a call that waits, or corrects a decision that is not taken. */
  decide(run: string, body: DecisionBody): Promise<PostedSummary> {
    return this.json("POST", `/v1/runs/${encodeURIComponent(run)}/decisions`, {}, { json: body });
  }

  /** Compares a run with another. */
  diffRuns(run: string, query: { with: string }): Promise<DiffSummary> {
    return this.json("GET", `/v1/runs/${encodeURIComponent(run)}/diff`, query);
  }

  /** Streams the records of a run as server-sent events. */
  streamEvents(run: string, query: { from?: number } = {}): AsyncGenerator<ServerEvent> {
    return this.events("GET", `/v1/runs/${encodeURIComponent(run)}/events`, query);
  }

  /** Returns the journal of a run as one text. */
  exportRun(run: string): Promise<string> {
    return this.text("GET", `/v1/runs/${encodeURIComponent(run)}/export`, {});
  }

  /** Forks a run at one of its records. */
  forkRun(run: string, body: ForkBody): Promise<RunSummary> {
    return this.json("POST", `/v1/runs/${encodeURIComponent(run)}/fork`, {}, { json: body });
  }

  /** Adds input for the next model request of a run. */
  addInput(run: string, body: InputBody): Promise<OrderSummary> {
    return this.json("POST", `/v1/runs/${encodeURIComponent(run)}/input`, {}, { json: body });
  }

  /** Lists records of a run's journal. */
  listRecords(run: string, query: { from?: number; limit?: number } = {}): Promise<RecordPage> {
    return this.json("GET", `/v1/runs/${encodeURIComponent(run)}/records`, query);
  }

  /** Puts a stored run into the queue. */
  resumeRun(run: string): Promise<OrderSummary> {
    return this.json("POST", `/v1/runs/${encodeURIComponent(run)}/resume`, {});
  }

  /** Returns a call as it is displayed for a decision, with edited arguments if given. */
  reviewCall(run: string, body: ReviewBody): Promise<InboxItem> {
    return this.json("POST", `/v1/runs/${encodeURIComponent(run)}/review`, {}, { json: body });
  }

  /** Makes a dead letter ready again. */
  reviveRun(run: string): Promise<OrderSummary> {
    return this.json("POST", `/v1/runs/${encodeURIComponent(run)}/revive`, {});
  }

  /** Returns the state of a run after one of its records. */
  runState(run: string, query: { at?: number } = {}): Promise<RunStateView> {
    return this.json("GET", `/v1/runs/${encodeURIComponent(run)}/state`, query);
  }

  /** Returns the exact bytes that an approver signs for a decision. Nothing is decided. */
  stateDecision(run: string, body: StatementBody): Promise<DecisionStatement> {
    return this.json("POST", `/v1/runs/${encodeURIComponent(run)}/statement`, {}, { json: body });
  }

  /** Verifies the journal of a run. */
  verifyRun(run: string): Promise<VerifySummary> {
    return this.json("GET", `/v1/runs/${encodeURIComponent(run)}/verify`, {});
  }

  /** Lists the sessions of the store. */
  listSessions(query: { after?: string; limit?: number } = {}): Promise<SessionPage> {
    return this.json("GET", `/v1/sessions`, query);
  }

  /** Returns the items of a session. */
  openSession(session: string, query: { from?: number; limit?: number } = {}): Promise<SessionItems> {
    return this.json("GET", `/v1/sessions/${encodeURIComponent(session)}`, query);
  }
}
