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
