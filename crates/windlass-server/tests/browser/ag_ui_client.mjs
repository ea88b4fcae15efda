// Talks to a server with the official AG-UI client: `node ag_ui_client.mjs URL`.
import assert from "node:assert";
import { createRequire } from "node:module";

const require = createRequire(process.env.WINDLASS_BROWSER_MODULES + "/");
const { HttpAgent } = require("@ag-ui/client");
const base = process.argv[2];

// Runs an agent and notes what the client was told.
async function run(agent, parameters = {}) {
  const seen = { types: [], text: "", calls: [], results: [], interrupts: null, error: null };
  await agent.runAgent(parameters, {
    onEvent: ({ event }) => { seen.types.push(event.type); },
    onTextMessageContentEvent: ({ event }) => { seen.text += event.delta; },
    onToolCallEndEvent: ({ event, toolCallName }) => { seen.calls.push(toolCallName ?? event.toolCallId); },
    onToolCallResultEvent: ({ event }) => { seen.results.push(event.content); },
    onRunFinishedEvent: params => { if (params.outcome === "interrupt") seen.interrupts = params.interrupts; },
    onRunErrorEvent: ({ event }) => { seen.error = event.message; },
  });
  return seen;
}
const newAgent = (name, text) => new HttpAgent({
  url: `${base}/v1/ag-ui/${name}`, threadId: crypto.randomUUID(),
  initialMessages: [{ id: crypto.randomUUID(), role: "user", content: text }],
});

// Text, streamed.
const plain = newAgent("clerk", "hello");
const first = await run(plain);
assert.equal(first.text, "Done after 0 outputs.");
assert.equal(first.types[0], "RUN_STARTED");
assert.equal(first.types.at(-1), "RUN_FINISHED");
assert.equal(plain.messages.at(-1).content, "Done after 0 outputs.");

// A pause is an interrupt with everything that an approver reads; its answer goes on with the run.
const paying = newAgent("clerk", "pay Ropeworks");
const paused = await run(paying);
assert.equal(paused.interrupts.length, 1);
const [ask] = paused.interrupts;
assert.equal(ask.reason, "tool_call");
assert.ok(JSON.stringify(ask.metadata).includes("480"));
assert.ok(ask.responseSchema.properties.arguments.properties.euros);
const paid = await run(paying, { resume: [{ interruptId: ask.id, status: "resolved", payload: { approved: true } }] });
assert.ok(paid.results.some(text => text.includes("paid 480 euros")), JSON.stringify(paid));
assert.equal(paid.text, "Done after 2 outputs.");
// An answer that is repeated after it was taken is refused.
await assert.rejects(run(newAgent("clerk", "x"), { resume: [{ interruptId: ask.id, status: "resolved", payload: { approved: false } }] }));

// Rejected with a reason; edited; a question; a pause inside a nested agent.
const rejecting = newAgent("clerk", "pay Pirates");
const [pirates] = (await run(rejecting)).interrupts;
const refused = await run(rejecting, { resume: [{ interruptId: pirates.id, status: "resolved", payload: { approved: false, message: "we do not pay pirates" } }] });
assert.ok(refused.results.some(text => text.includes("pirates")));
const editing = newAgent("clerk", "pay Pilots");
const [pilots] = (await run(editing)).interrupts;
// Edited arguments are displayed before they are approved: what is recorded is the digest of the sheet that was sent.
const changed = { approved: true, arguments: { to: "Pilots", euros: 7, invoice: "P" } };
const review = await run(editing, { resume: [{ interruptId: pilots.id, status: "resolved", payload: changed }] });
const [changedAsk] = review.interrupts;
const { run: editedRun, sheet } = changedAsk.metadata.windlass;
assert.deepEqual(sheet.arguments.find(one => one.name === "euros").lines, ["7"]);
assert.notEqual(sheet.digest, pilots.metadata.windlass.sheet.digest);
const records = async () => (await (await fetch(`${base}/v1/runs/${editedRun}/records?limit=500`)).json()).records;
assert.ok(!JSON.stringify(await records()).includes("approve_edited"), "nothing is decided by an edit alone");
const edited = await run(editing, { resume: [{ interruptId: changedAsk.id, status: "resolved", payload: { approved: true } }] });
assert.ok(JSON.stringify(await records()).includes(sheet.digest), "the digest of what was displayed is recorded");
assert.ok(edited.results.some(text => text.includes("paid 7 euros")), JSON.stringify(edited));
const asking = newAgent("clerk", "ask me");
const [question] = (await run(asking)).interrupts;
assert.equal(question.reason, "input_required");
assert.deepEqual(question.responseSchema, { type: "string" });
const answered = await run(asking, { resume: [{ interruptId: question.id, status: "resolved", payload: "green" }] });
assert.ok(answered.results.some(text => text.includes("green")));
const nested = newAgent("front", "research it");
const [inside] = (await run(nested)).interrupts;
assert.equal(inside.toolCallId, undefined);
const done = await run(nested, { resume: [{ interruptId: inside.id, status: "cancelled" }] });
assert.equal(done.types.at(-1), "RUN_FINISHED");
console.log("all seen");
process.exit(0);
