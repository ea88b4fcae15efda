// A small typed client of a Windlass server, without dependencies. As a program it starts a run, shows the call that waits,
// approves it and prints the end: `node windlass_client.ts http://127.0.0.1:4816 TOKEN clerk "pay Ropeworks"` (node 22 or
// newer; before 23.6 with --experimental-strip-types).

export type RunStatus = "queued" | "running" | "paused" | "finished" | "failed" | "cancelled";

/** A call as an approver reads it. A decision names its digest. */
export interface CallSheet {
  title: string;
  question: string[];
  notes: string[];
  arguments: { name: string; lines: string[] }[];
  covers: string;
  digest: string;
}

export interface InboxItem {
  run: string;
  call: string;
  attempt: number;
  agent: string;
  tool: string;
  reason: "approval" | "in_doubt" | "question";
  arguments: string;
  sheet: CallSheet;
}

export interface RunDetail {
  run: string;
  agent: string;
  status: RunStatus;
  records: number;
  turns: number;
  output: string | null;
  failure: string | null;
  cost: number | null;
  unpriced_requests: number;
  pending: InboxItem[];
}

export type Decision =
  | { type: "approve" }
  | { type: "approve_edited"; arguments: Record<string, unknown> }
  | { type: "reject"; message?: string }
  | { type: "confirm_executed"; output: string }
  | { type: "confirm_not_executed" }
  | { type: "outcome_unknown" }
  | { type: "answer"; value: unknown };

export type JournalRecord = { seq: number; at: number } & Record<string, unknown>;

/** An error that the server has reported. */
export class WindlassError extends Error {
  status: number;
  code: string;
  constructor(status: number, code: string, message: string) {
    super(`${status} ${code}: ${message}`);
    this.status = status;
    this.code = code;
  }
}

/** The runs of a server. */
export class WindlassClient {
  private url: string;
  private token: string | undefined;
  constructor(url: string, token?: string) {
    this.url = url.replace(/\/$/, "");
    this.token = token;
  }

  private async open(method: string, path: string, body?: unknown, accept = "application/json"): Promise<Response> {
    const headers: Record<string, string> = { accept };
    if (body !== undefined) headers["content-type"] = "application/json";
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    const response = await fetch(this.url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    if (!response.ok) {
      const detail = (await response.json().catch(() => ({}))) as { error?: { code: string; message: string } };
      throw new WindlassError(response.status, detail.error?.code ?? "", detail.error?.message ?? "");
    }
    return response;
  }

  /** Starts a run. Starting the same run again has no effect. */
  async startRun(agent: string, input: string, run?: string): Promise<{ run: string; is_repeated: boolean }> {
    return (await this.open("POST", "/v1/runs", { agent, input, run })).json();
  }

  async openRun(run: string): Promise<RunDetail> {
    return (await this.open("GET", `/v1/runs/${encodeURIComponent(run)}`)).json();
  }

  /** Decides about a call, as it was displayed in this item. */
  async decide(item: InboxItem, decision: Decision): Promise<void> {
    const body = { call: item.call, attempt: item.attempt, displayed: item.sheet.digest, decision };
    await this.open("POST", `/v1/runs/${encodeURIComponent(item.run)}/decisions`, body);
  }

  async cancelRun(run: string): Promise<void> {
    await this.open("POST", `/v1/runs/${encodeURIComponent(run)}/cancel`);
  }

  /** Yields the records of a run as they are written, until it ends. */
  async *events(run: string, first = 0): AsyncGenerator<JournalRecord> {
    const response = await this.open("GET", `/v1/runs/${encodeURIComponent(run)}/events?from=${first}`, undefined, "text/event-stream");
    if (!response.body) return;
    let buffer = "";
    for await (const chunk of response.body.pipeThrough(new TextDecoderStream()) as unknown as AsyncIterable<string>) {
      buffer += chunk;
      for (let end = buffer.indexOf("\n\n"); end >= 0; end = buffer.indexOf("\n\n")) {
        const lines = buffer.slice(0, end).split("\n");
        buffer = buffer.slice(end + 2);
        const field = (name: string) => lines.filter(line => line.startsWith(name + ":")).map(line => line.slice(name.length + 1).trim()).join("");
        if (field("event") === "end") return;
        if (field("event") === "record") yield JSON.parse(field("data")) as JournalRecord;
      }
    }
  }
}

const [url, token, agent, text] = process.argv.slice(2);
if (text !== undefined) {
  const client = new WindlassClient(url, token === "-" ? undefined : token);
  const { run } = await client.startRun(agent, text);
  for await (const record of client.events(run)) {
    if (!("call_held" in record)) continue;
    for (const item of (await client.openRun(run)).pending) {
      console.log(item.sheet.title);
      for (const argument of item.sheet.arguments) console.log(`  ${argument.name}: ${argument.lines.join(" ")}`);
      await client.decide(item, { type: "approve" });
    }
  }
  const end = await client.openRun(run);
  console.log(end.status, end.output);
  process.exit(0);
}
