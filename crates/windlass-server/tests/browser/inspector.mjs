// Drives the inspector in Chromium: `node inspector.mjs SERVER_PROGRAM FOLDER`. It prints one line for each thing that it
// has seen, and exits with 1 at the first that is not so. `playwright-core` and `axe-core` are found through NODE_PATH.
import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const require = createRequire(process.env.WINDLASS_BROWSER_MODULES + "/");
const { chromium } = require("playwright-core");
const axeSource = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const [program, folder] = process.argv.slice(2);
const store = join(folder, "store.db");
// A loaded machine may need long for anything.
const PATIENCE = 180_000;
// What the browser says about requests to a server that was killed.
const isOfDeadServer = text => /net::ERR_(CONNECTION|INCOMPLETE|EMPTY|SOCKET)|status of (401|503)/.test(text);

let server, base;
async function startServer(port = "0", variables = {}) {
  const env = { ...process.env, ...variables };
  server = spawn(program, [`127.0.0.1:${port}`, store], { stdio: ["ignore", "pipe", "inherit"], env });
  const line = await new Promise((resolve, reject) => {
    server.stdout.once("data", data => resolve(String(data)));
    server.once("exit", code => reject(new Error(`the server ended with ${code}`)));
  });
  base = line.match(/http:\S+/)[0];
}
async function killServer() {
  const ended = new Promise(resolve => server.once("exit", resolve));
  server.kill("SIGKILL");
  await ended;
}
function check(fact, text) {
  if (!fact) throw new Error(`not so: ${text}`);
  console.log(`seen: ${text}`);
}
const api = async (path, body) => {
  const init = body && { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  return (await fetch(base + path, init)).json();
};
async function until(text, probe) {
  for (const deadline = Date.now() + PATIENCE; Date.now() < deadline;) {
    if (await probe()) return check(true, text);
    await new Promise(resolve => setTimeout(resolve, 50));
  }
  check(false, text);
}

// Transfers of this process never end, and one run is a dead letter.
await startServer("0", { WINDLASS_CLERK_HANGS: "1", WINDLASS_CLERK_BURIES: "1" });
const port = new URL(base).port;
const browser = await chromium.launch({ executablePath: process.env.WINDLASS_CHROMIUM, args: ["--no-sandbox"] });
const errors = [];
async function newPage(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.on("console", message => message.type() === "error" && !isOfDeadServer(message.text()) && errors.push(message.text()));
  page.on("pageerror", error => errors.push(String(error)));
  return page;
}
async function checkAccessibility(page, name) {
  // The engine is evaluated by the debugger, which the page's policy does not concern.
  await page.evaluate(axeSource);
  const found = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] }));
  for (const one of found.violations) console.log(one.id, one.nodes.slice(0, 3).map(node => node.html).join("\n   "));
  check(found.violations.length === 0, `no violation of accessibility rules on ${name}`);
}

try {
  const [page, watcher] = [await newPage(), await newPage()];
  await watcher.goto(base + "/");
  check(await watcher.getByText("Nothing waits.").isVisible(), "an empty inbox says so");
  await page.goto(base + "/runs");
  await page.getByRole("button", { name: "Start a run…" }).click();
  await page.getByLabel("Agent").last().selectOption("clerk");
  await page.getByLabel("Input").fill("pay Ropeworks");
  await page.getByLabel(/^Id/).fill("invoices");
  await page.getByRole("button", { name: "Start", exact: true }).click();
  await page.waitForURL("**/runs/invoices");
  await until("the run page shows the call that waits, without a reload", () => page.locator(".ask").isVisible());
  await until("the inbox of another page shows it as well", () => watcher.locator(".ask").isVisible());
  const sheet = await watcher.locator(".ask").innerText();
  check(sheet.includes("\\u{202e}") && sheet.includes("480"), "every argument is shown, hidden characters as escapes");
  await until("one page says that the other looks at the call", async () => (await api("/v1/inbox")).calls[0].looking.length > 0);

  // Transfers that are under way when the process is killed.
  for (const run of ["wire-done", "wire-undone", "wire-lost"]) await api("/v1/runs", { run, agent: "banker", input: "wire" });
  await until("the transfers have started", async () => {
    const runs = await Promise.all(["wire-done", "wire-undone", "wire-lost"].map(run => api(`/v1/runs/${run}/records?limit=500`)));
    return runs.every(one => JSON.stringify(one).includes("call_started"));
  });

  // Killed with SIGKILL, and started again at the same address: both pages come back by themselves.
  await killServer();
  await until("the page says that it reconnects", () => watcher.locator("#live.lost").isVisible());
  await startServer(port);
  await until("the page is live again", () => watcher.locator("#live.on").isVisible());

  // A stream that is refused is closed by the browser: the page connects again, and asks for a login if that is over.
  const refuseWith = async (status, shown) => {
    await watcher.route(/\/v1\/(inbox\/events|me)$/, route => route.fulfill({ status, body: "{}" }));
    await watcher.reload();
    await until(`the page sees a stream that is refused with ${status}`, shown);
    await watcher.unrouteAll();
  };
  await refuseWith(503, () => watcher.locator("#live.lost").isVisible());
  await until("the page is live after a refused stream", () => watcher.locator("#live.on").isVisible());
  await refuseWith(401, () => watcher.url().endsWith("/login"));
  await watcher.goto(base + "/");
  await until("the page is live after a login", () => watcher.locator("#live.on").isVisible());

  // The three answers for calls in doubt.
  const doubt = run => watcher.locator(".ask", { hasText: run });
  // A card may be replaced at any time.
  const scrollTo = run => watcher.evaluate(run => $$(".ask").find(card => card.innerText.includes(run))?.querySelector(".do").scrollIntoView({ block: "end" }), run);
  const canAnswer = async (run, name) => { await scrollTo(run); return doubt(run).getByRole("button", { name }).isEnabled(); };
  await watcher.bringToFront();
  await until("each transfer is in doubt", async () => (await api("/v1/inbox?limit=100")).calls.filter(one => one.reason === "in_doubt").length === 3);
  await until("the inbox asks about each of them", async () => await watcher.locator(".ask", { hasText: "wire" }).count() === 3);
  if (process.env.WINDLASS_SCREENSHOTS) await watcher.screenshot({ path: join(process.env.WINDLASS_SCREENSHOTS, "doubts.png"), fullPage: true });
  await checkAccessibility(watcher, "an inbox with calls in doubt");
  await doubt("wire-done").getByText("It happened…").click();
  await doubt("wire-done").getByLabel("Its result, for the model").fill("the bank says so");
  await doubt("wire-done").getByRole("button", { name: "It happened, with this result" }).click();
  await until("the given result is the output", async () => JSON.stringify(await api("/v1/runs/wire-done/state")).includes("the bank says so"));
  await until("the call can be run again", () => canAnswer("wire-undone", "It did not: run it"));
  await doubt("wire-undone").getByRole("button", { name: "It did not: run it" }).click();
  await until("the call was executed again", async () => JSON.stringify(await api("/v1/runs/wire-undone/state")).includes("wired by the bank"));
  await until("the last one can be answered", () => canAnswer("wire-lost", /Nobody knows/));
  await doubt("wire-lost").getByRole("button", { name: /Nobody knows/ }).click();
  await until("the model goes on without knowing", async () => (await api("/v1/runs/wire-lost")).status === "finished");
  await until("only the payment waits", async () => await watcher.locator(".ask").count() === 1);

  // By keyboard alone.
  await page.bringToFront();
  await page.reload();
  await until("the displayed call can be approved", () => page.locator(".ask button[data-act=approve]").first().isEnabled());
  await page.keyboard.press("j");
  await page.keyboard.press("y");
  await until("the run ends after the approval by keyboard", async () => (await api("/v1/runs/invoices")).status === "finished");
  await until("the page shows the end of the run", () => page.locator(".run-head .status.good").isVisible());
  await watcher.bringToFront();
  await until("the inbox of the other page is empty again", () => watcher.getByText("Nothing waits.").isVisible());
  const records = (await api("/v1/runs/invoices/records?limit=500")).records;
  check(records.filter(one => one.call_settled?.call === "pay-1").length === 1, "the payment has settled once");
  const bars = await page.locator(".timeline .row").count();
  check(bars === 6, `the timeline has its rows: start, two turns, two calls, end (${bars})`);
  check(await page.locator(".timeline rect.waiting").count() === 1, "the wait for a person is a bar");

  // Time travel and a fork from there.
  await page.bringToFront();
  const held = records.find(one => one.call_settled?.call === "pay-1").seq;
  await page.locator("#travel").fill(String(held));
  await until("the run is shown as it was", () => page.getByText(`as it was at record ${held}`).isVisible());
  await until("the exact model input is shown", () => page.getByText("What the model is shown at record").isVisible());
  await page.getByRole("button", { name: "Fork here…" }).click();
  await page.getByLabel("What is different").selectOption("call_output");
  await page.getByLabel("Call").fill("pay-1");
  await page.getByLabel("Text").fill("the bank was closed");
  await page.getByRole("button", { name: "Fork and run" }).click();
  await page.waitForURL(address => !address.pathname.endsWith("/invoices"));
  const fork = decodeURIComponent(new URL(page.url()).pathname.split("/").pop());
  await until("the fork ends by itself", async () => (await api(`/v1/runs/${fork}`)).status === "finished");
  await page.goto(`${base}/diff?first=invoices&second=${fork}`);
  check(await page.getByText("records are the same").isVisible(), "the two runs are compared");

  // Edit, in a form from the schema.
  await api("/v1/runs", { run: "edited", agent: "clerk", input: "pay Pilots" });
  await page.goto(base + "/");
  await until("the next call waits", () => page.locator(".ask").isVisible());
  await page.locator(".ask summary", { hasText: "Edit" }).click();
  await page.getByLabel(/^euros/).fill("7");
  await page.getByRole("button", { name: "Review the edited call" }).click();
  // The server makes the sheet of the edited call.
  await until("the edited call is displayed before it is approved", async () => (await page.locator("dialog").innerText()).includes("7"));
  await page.getByRole("button", { name: "Approve these arguments" }).click();
  await until("the edited call was executed", async () => JSON.stringify(await api("/v1/runs/edited/state")).includes("paid 7 euros"));

  // Values that were not given stay so, and a change is marked. A number that a script would change has no form.
  await api("/v1/runs", { run: "posted", agent: "clerk", input: "post 7" });
  await until("a call with optional arguments waits", () => page.locator(".ask", { hasText: "post_message" }).isVisible());
  await page.locator(".ask summary", { hasText: "Edit" }).click();
  await page.getByLabel(/^text/).fill("final");
  await page.getByRole("button", { name: "Review the edited call" }).click();
  await until("the changed argument is marked", async () => (await page.locator("dialog .mark").allInnerTexts()).join() === "changed");
  await page.getByRole("button", { name: "Approve these arguments" }).click();
  await until("the edited call has ended", async () => (await api("/v1/runs/posted")).status === "finished");
  const posted = (await api("/v1/runs/posted/records?limit=500")).records.find(one => one.call_settled?.call.startsWith("post-"));
  check(JSON.stringify(posted).includes(JSON.stringify('posted {"channel":7,"text":"final"}').slice(1, -1)), `nothing else was added ${JSON.stringify(posted)}`);
  await api("/v1/runs", { run: "large", agent: "clerk", input: "post 9007199254740993" });
  const large = page.locator(".ask", { hasText: "9007199254740993" });
  await until("a call with a large integer waits", () => large.isVisible());
  check(await large.locator("form[data-act=edit]").count() === 0, "a number that a script would change has no form");
  await large.getByRole("button", { name: /^Approve y/ }).click();
  await until("the large integer is executed as it is", async () => JSON.stringify(await api("/v1/runs/large/records?limit=500")).includes("posted"));

  // Question, rejection with a reason.
  await api("/v1/runs", { run: "colours", agent: "clerk", input: "ask me" });
  await until("a question waits", () => page.getByText("Which colour?").isVisible());
  await page.getByLabel("Your answer").fill("green");
  await page.getByRole("button", { name: "Answer" }).click();
  await until("the answer reached the tool", async () => JSON.stringify(await api("/v1/runs/colours/state")).includes("green"));
  await api("/v1/runs", { run: "rejected", agent: "clerk", input: "pay Pirates" });
  // The question may still be on the page.
  const pirates = page.locator(".ask", { hasText: "Pirates" });
  await until("another call waits", () => pirates.isVisible());
  await until("the answered question is gone", async () => await page.locator(".ask").count() === 1);
  await pirates.focus();
  await page.keyboard.press("n");
  await page.keyboard.type("we do not pay pirates");
  await pirates.getByRole("button", { name: "Reject", exact: true }).click();
  await until("the model was told the reason", async () => JSON.stringify(await api("/v1/runs/rejected/state")).includes("pirates"));

  // The screen that a click would hit, its picture, and the picture in the output.
  await api("/v1/runs", { run: "clicked", agent: "clerk", input: "click it" });
  const click = page.locator(".ask", { hasText: "What the tool saw" });
  await until("the call shows what its tool saw", () => click.isVisible());
  check((await click.innerText()).includes("https://shop.example/pay"), "the sentences of the tool are shown");
  const isPainted = locator => locator.evaluate(picture => picture.complete && picture.naturalWidth > 0);
  await until("the picture of the screen is painted", () => isPainted(click.locator(".evidence img")));
  await until("the click can be approved", () => click.locator("button[data-act=approve]").first().isEnabled());
  // A picture that could not be loaded is complete, and nobody has seen it.
  const [isComplete, isWithheld] = await click.evaluate(async card => {
    const picture = card.querySelector(".evidence img");
    const { src } = picture;
    picture.removeAttribute("src");
    updateCard(card);
    const states = [picture.complete, card.querySelector("button[data-act=approve]").disabled];
    picture.src = src;
    await picture.decode();
    updateCard(card);
    return states;
  });
  check(isComplete && isWithheld, "a call whose picture is broken cannot be approved");
  await click.locator("button[data-act=approve]").first().click();
  await until("the click is done", async () => (await api("/v1/runs/clicked")).status === "finished");
  await page.goto(base + "/runs/clicked");
  await page.locator("details.call summary").first().click();
  await until("the screenshot in the output is painted", () => isPainted(page.locator("details.call img.shot").first()));
  await page.goto(base + "/");

  // A fork in which a call is rejected; the calls of the page are offered.
  await page.goto(base + "/runs/invoices");
  const waited = records.find(one => one.call_held?.call === "pay-1").seq;
  await page.locator("#travel").fill(String(waited));
  await until("the run is shown as it waited", () => page.getByText(`as it was at record ${waited}`).isVisible());
  await page.getByRole("button", { name: "Fork here…" }).click();
  await page.getByLabel("What is different").selectOption("reject");
  check(await page.locator("#fork-calls option[value='pay-1']").count() === 1, "the calls of the run are offered");
  await page.getByLabel("Call").fill("pay-1");
  await page.getByLabel("Text").fill("not this time");
  await page.getByRole("button", { name: "Fork and run" }).click();
  await page.waitForURL(address => !address.pathname.endsWith("/invoices"));
  const other = decodeURIComponent(new URL(page.url()).pathname.split("/").pop());
  await until("the model of the fork was told so", async () => JSON.stringify(await api(`/v1/runs/${other}/state`)).includes("not this time"));
  await page.goto(base + "/");

  // A call whose end is below the window is not approved before that end was on the screen.
  const low = await newPage({ viewport: { width: 700, height: 220 } });
  await api("/v1/runs", { run: "long", agent: "clerk", input: `pay ${"Ropeworks and others ".repeat(60)}` });
  await until("the long call waits", async () => (await api("/v1/inbox")).total === 1);
  await low.goto(base + "/");
  await low.waitForTimeout(1500);
  check(await low.locator(".ask .do > button.yes").isDisabled(), "the long call cannot be approved from its first lines");
  await low.evaluate(() => { document.activeElement?.blur(); const card = document.querySelector(".ask"); card.focus({ preventScroll: true }); });
  await low.keyboard.press("y");
  await until("`y` says what is missing", async () => (await low.locator("#toast").innerText()).includes("Scroll to the end"));
  check((await api("/v1/inbox")).calls[0].posted === null, "nothing is decided");
  for (let place = 0; place < 40; place += 1) { await low.mouse.wheel(0, 100); await low.waitForTimeout(30); }
  await until("the call can be approved after its end was seen", () => low.locator(".ask .do > button.yes").isEnabled());
  // A card that moves under the pointer takes no click at first.
  const guarded = await low.evaluate(() => { const card = document.querySelector(".ask"); watchCards(new Map([[card.dataset.digest, -1000]])); return card.querySelector(".do > button.yes").disabled; });
  check(guarded, "a card that has moved takes no click at first");
  await low.locator(".ask .do > button.yes").click();
  await until("the long call is approved", async () => (await api("/v1/runs/long")).status === "finished");
  await low.context().close();

  // A login: the cookie and the key of the page together change something, and each alone does not.
  const guardedServer = spawn(program, ["127.0.0.1:0", join(folder, "people.db"), "anna:anna-token:administer", "ben:ben-token:approve"], { stdio: ["ignore", "pipe", "inherit"] });
  try {
    const guardedBase = String(await new Promise(resolve => guardedServer.stdout.once("data", resolve))).match(/http:\S+/)[0];
    const person = await newPage();
    await person.goto(guardedBase + "/runs");
    await person.getByLabel("Your token").fill("anna-token");
    await person.getByRole("button", { name: "Open" }).click();
    await person.waitForURL(guardedBase + "/");
    const cookies = await person.context().cookies();
    check(cookies.length === 1 && cookies[0].httpOnly && !cookies[0].value.includes("anna-token"), "the cookie is no token");
    const second = await person.context().newPage();
    await second.goto(guardedBase + "/runs");
    await second.getByRole("button", { name: "Start a run…" }).click();
    await second.getByLabel("Input").fill("hello");
    await second.getByLabel(/^Id/).fill("greeting");
    await second.getByRole("button", { name: "Start", exact: true }).click();
    await second.waitForURL("**/runs/greeting");
    check(true, "another tab of the same login starts a run");
    // Another person sees that she looks at a call.
    const send = (token, path, body) => fetch(guardedBase + path, { method: "POST", headers: { authorization: `Bearer ${token}`, "content-type": "application/json" }, body: JSON.stringify(body) });
    await send("anna-token", "/v1/runs", { run: "paid", agent: "clerk", input: "pay Pilots" });
    await person.goto(guardedBase + "/");
    await until("her inbox has the call", () => person.locator(".ask").isVisible());
    const ben = await newPage();
    await ben.goto(guardedBase + "/login");
    await ben.getByLabel("Your token").fill("ben-token");
    await ben.getByRole("button", { name: "Open" }).click();
    await ben.waitForURL(guardedBase + "/");
    await until("his card says that anna looks at it", async () => (await ben.locator(".ask .looking").innerText()).includes("anna looks at this"));
    await checkAccessibility(ben, "the inbox of a person who is logged in");
    await ben.getByRole("button", { name: "Log out" }).click();
    await ben.waitForURL(guardedBase + "/login");
    await checkAccessibility(ben, "the login");
    check((await ben.context().cookies()).length === 0 && await ben.evaluate(() => localStorage.length) === 0, "a log out leaves neither cookie nor key");
    await ben.goto(guardedBase + "/");
    await ben.waitForURL(guardedBase + "/login");
    check(true, "who has logged out reads nothing");
    await ben.context().close();
    await second.goto(guardedBase + "/runs");
    await second.evaluate(() => localStorage.clear());
    await second.getByRole("button", { name: "Start a run…" }).click();
    await second.getByLabel("Input").fill("hello");
    await second.getByRole("button", { name: "Start", exact: true }).click();
    await second.waitForURL("**/login");
    check(true, "a page without its key changes nothing and asks for the token");
    errors.splice(0, errors.length, ...errors.filter(one => !one.includes("403")));
  } finally {
    guardedServer.kill("SIGKILL");
  }

  // Download, and look at the file.
  const text = await (await fetch(`${base}/v1/runs/invoices/export`)).text();
  await page.goto(base + "/look");
  await page.locator("#file").setInputFiles({ name: "invoices.windlass", mimeType: "text/plain", buffer: Buffer.from(text) });
  await page.waitForURL("**/look/*");
  check(await page.getByText("from a file").isVisible(), "a downloaded run is looked at from its file");
  // Dropped on any page, and travelled in.
  await page.goto(base + "/runs");
  await page.evaluate(text => {
    const files = new DataTransfer();
    files.items.add(new File([text], "invoices.windlass", { type: "text/plain" }));
    document.body.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
  }, text);
  await page.waitForURL("**/look/*");
  await page.locator("#travel").fill("2");
  await until("a dropped file is looked at as it was at a record", () => page.getByText("as it was at record 2").isVisible());
  await page.goto(base + "/look");
  await page.locator("#file").setInputFiles({ name: "bad.windlass", mimeType: "text/plain", buffer: Buffer.from(text.replace("Ropeworks", "Popeworks")) });
  await until("a changed file is refused", async () => (await page.locator("#toast").innerText()).length > 5);
  errors.splice(0, errors.length, ...errors.filter(one => !one.includes("422")));

  // A live session: what was said and heard, and the run of its call.
  mkdirSync(join(folder, "live"));
  const said = (id, role, part, more) => ({ type: "item_changed", item: { id, kind: { type: "message", role, parts: [part] }, ...more }, after: null });
  writeFileSync(join(folder, "live", "talk.jsonl"), [
    { type: "opened", format: 2, agent: "clerk" },
    said("i1", "user", { type: "audio", transcript: "Pay <b>Ropeworks</b>, please" }),
    said("i2", "assistant", { type: "audio", transcript: "It is paid", heard_ms: 1200 }, { status: "interrupted", agent: "clerk" }),
  ].map(entry => JSON.stringify(entry) + "\n").join(""));
  await page.goto(base + "/runs");
  await page.getByRole("link", { name: "Live sessions" }).click();
  await page.getByRole("link", { name: "talk" }).click();
  await until("the spoken turns of a live session are shown", () => page.getByText("Pay <b>Ropeworks</b>, please").isVisible());
  check(await page.getByText("heard for 1.2 s").isVisible() && await page.getByText("interrupted").isVisible(), "what was heard of a turn is shown");

  // Looks and accessibility, in light and dark and on a phone.
  await api("/v1/runs", { run: "nested", agent: "front", input: "research it" });
  await api("/v1/runs", { run: "notes", agent: "clerk", input: "write it" });
  await api("/v1/runs", { run: "printing", agent: "clerk", input: "fail please" });
  await until("nested calls wait, too", async () => (await api("/v1/inbox")).total === 2);
  await until("the other run has ended", async () => (await api("/v1/runs/printing")).status === "finished");
  for (const [scheme, width] of [["light", 1280], ["dark", 1280], ["light", 390], ["dark", 390]]) {
    const view = await newPage({ colorScheme: scheme, viewport: { width, height: 844 } });
    for (const [name, path] of [["inbox", "/"], ["runs", "/runs"], ["run", "/runs/nested"], ["failure", "/runs/printing"], ["past", "/runs/invoices?at=3"], ["costs", "/costs"], ["fleet", "/fleet"], ["look", "/look"], ["clicked", "/runs/clicked"], ["live", "/live"], ["talk", "/live/talk"], ["diff", `/diff?first=invoices&second=${fork}`]]) {
      await view.goto(base + path);
      await view.waitForTimeout(150);
      const overflow = await view.evaluate(() => document.documentElement.scrollWidth - innerWidth);
      check(overflow <= 0, `${name} fits a width of ${width}`);
      if (process.env.WINDLASS_SCREENSHOTS) await view.screenshot({ path: join(process.env.WINDLASS_SCREENSHOTS, `${name}-${scheme}-${width}.png`), fullPage: true });
      await checkAccessibility(view, `${name}, ${scheme}, ${width}`);
    }
    await view.context().close();
  }
  check(errors.length === 0, `no error in the console ${JSON.stringify(errors)}`);
  console.log("all seen");
} catch (error) {
  console.log(String(error?.stack ?? error), JSON.stringify(errors));
  process.exitCode = 1;
} finally {
  await browser.close();
  server.kill("SIGKILL");
}
