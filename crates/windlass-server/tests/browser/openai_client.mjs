// Talks to a server with the official OpenAI client for JavaScript: `node openai_client.mjs URL`.
import assert from "node:assert";
import { createRequire } from "node:module";

const require = createRequire(process.env.WINDLASS_BROWSER_MODULES + "/");
const OpenAI = require("openai").default ?? require("openai");
const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "none" });

const plain = await client.chat.completions.create({ model: "clerk", messages: [{ role: "user", content: "hello" }] });
assert.equal(plain.choices[0].message.content, "Done after 0 outputs.");
let text = "";
for await (const chunk of await client.chat.completions.create({ model: "clerk", messages: [{ role: "user", content: "hello" }], stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, "Done after 0 outputs.");
const response = await client.responses.create({ model: "clerk", input: "hello" });
assert.equal(response.output_text, "Done after 0 outputs.");
const kinds = [];
let streamed = "";
for await (const event of await client.responses.create({ model: "clerk", input: "hello", stream: true })) {
  kinds.push(event.type);
  if (event.type === "response.output_text.delta") streamed += event.delta;
}
assert.equal(streamed, "Done after 0 outputs.");
assert.equal(kinds.at(-1), "response.completed");
// The agent calls its own tools; the client gets the answer after them.
const ask = content => ({ model: "clerk", messages: [{ role: "user", content }] });
const worked = await client.chat.completions.create(ask("fail please"));
assert.equal(worked.choices[0].message.content, "Done after 2 outputs.");
assert.equal(worked.choices[0].finish_reason, "stop");
text = "";
for await (const chunk of await client.chat.completions.create({ ...ask("fail please"), stream: true })) {
  text += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(text, "Done after 2 outputs.");
assert.equal((await client.responses.create({ model: "clerk", input: "fail please" })).output_text, "Done after 2 outputs.");
const stream = client.responses.stream({ model: "clerk", input: "fail please" });
for await (const event of stream) kinds.push(event.type);
assert.equal((await stream.finalResponse()).output_text, "Done after 2 outputs.");
// Tools of the client are refused, and not ignored.
const tools = [{ type: "function", function: { name: "now", parameters: { type: "object", properties: {} } } }];
const isRefused = error => error.status === 400 && error.code === "tools_not_supported";
await assert.rejects(client.chat.completions.create({ ...ask("hello"), tools }), isRefused);
await assert.rejects(client.chat.completions.create({ ...ask("hello"), tools, stream: true }), isRefused);
await assert.rejects(client.responses.create({ model: "clerk", input: "hello", tools: [{ type: "function", name: "now", parameters: {}, strict: false }] }), isRefused);
console.log("all seen");
