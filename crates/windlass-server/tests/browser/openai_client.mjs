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
console.log("all seen");
