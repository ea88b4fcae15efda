// The official TypeScript client of MCP against a server: it prints what it saw as JSON.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, decision, folder] = process.argv.slice(2);
const load = name => import(pathToFileURL(createRequire(folder + "/package.json").resolve(name)).href);
const { Client } = await load("@modelcontextprotocol/sdk/client/index.js");
const { StreamableHTTPClientTransport } = await load("@modelcontextprotocol/sdk/client/streamableHttp.js");
const { ElicitRequestSchema } = await load("@modelcontextprotocol/sdk/types.js");

const client = new Client({ name: "official", version: "1" }, { capabilities: { elicitation: {} } });
client.setRequestHandler(ElicitRequestSchema, async () => ({ action: "accept", content: { decision } }));
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const progress = [];
const seen = { version: transport.protocolVersion };
const { tools } = await client.listTools();
seen.tools = tools.map(tool => tool.name).sort();
seen.read_only = tools.filter(tool => tool.annotations?.readOnlyHint).map(tool => tool.name).sort();
const call = async (name, args) => {
    const onprogress = report => progress.push(report.message);
    const result = await client.callTool({ name, arguments: args }, undefined, { onprogress });
    const text = result.content.filter(part => part.type === "text").map(part => part.text);
    return { text, error: !!result.isError, structured: result.structuredContent ?? null };
};
seen.echo = await call("echo", { text: "grüezi" });
seen.measure = await call("measure", {});
seen.pay = await call("pay", { cents: 500 });
seen.fails = await call("fails", {});
seen.agent = await call("ask_cashier", { input: "pay" });
seen.resource = (await client.readResource({ uri: "till://prices" })).contents[0].text;
seen.prompt = (await client.getPrompt({ name: "greet", arguments: { name: "Ann" } })).messages[0].content.text;
seen.progress = progress;
await client.close();
console.log(JSON.stringify(seen));
