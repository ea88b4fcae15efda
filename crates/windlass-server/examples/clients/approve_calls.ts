// Starts a run, shows each call that waits, approves it and prints the end, with the generated client:
// `node approve_calls.ts http://127.0.0.1:4816 TOKEN clerk "pay Ropeworks"` (node 22 or newer; before 23.6 with
// --experimental-strip-types).
import { WindlassApi } from "./windlass_api.ts";

const [url, token, agent, text] = process.argv.slice(2);
const api = new WindlassApi(url, token === "-" ? undefined : token);
const { run } = await api.startRun({ agent, input: text });
for await (const event of api.streamEvents(run)) {
  if (event.kind !== "record" || !("call_held" in event.data)) continue;
  for (const item of (await api.openRun(run)).pending) {
    console.log(item.sheet.title);
    for (const argument of item.sheet.arguments) console.log(`  ${argument.name}: ${argument.lines.join(" ")}`);
    // The decision names the sheet that was shown: a call that has changed since is not approved.
    await api.decide(run, { call: item.call, attempt: item.attempt, displayed: item.sheet.digest, decision: { type: "approve" } });
  }
}
const end = await api.openRun(run);
console.log(end.status, end.output);
