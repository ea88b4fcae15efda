// The script of the inspector: actions, live updates, time travel and keys. Pages are rendered by the server; this script
// replaces their content with a newer rendering, and never builds markup from text of a run.
"use strict";

const $ = (selector, within = document) => within.querySelector(selector);
const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];

// ---- messages -------------------------------------------------------------------------------------------------------
let toastTimer;
function toast(text) {
  const box = $("#toast");
  box.textContent = text;
  box.classList.add("show");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => box.classList.remove("show"), 5000);
}

// ---- login ----------------------------------------------------------------------------------------------------------
// The key of a login is kept for this origin, port included; a cookie goes to every port of the host.
const PAGE_KEY = "windlass-page-key";
const readKey = () => { try { return localStorage.getItem(PAGE_KEY); } catch { return null; } };
function keyHeaders() {
  const key = readKey();
  return key ? { "x-windlass-page-key": key } : {};
}
const loggedIn = $("[data-page-key]");
// Who has a key has logged in here, and can end that.
const logOut = $("#log-out");
if (logOut && readKey()) logOut.hidden = false;
async function endLogin() {
  await fetch("/logout", { method: "POST", headers: keyHeaders(), redirect: "manual" }).catch(() => null);
  localStorage.removeItem(PAGE_KEY);
  location.href = "/login";
}
if (loggedIn) {
  localStorage.setItem(PAGE_KEY, loggedIn.dataset.pageKey);
  location.replace("/");
}

async function call(method, path, body) {
  const init = { method, headers: { accept: "application/json", ...keyHeaders() } };
  if (body !== undefined) {
    init.headers["content-type"] = "application/json";
    init.body = JSON.stringify(body);
  }
  const response = await fetch(path, init);
  const text = await response.text();
  let parsed = null;
  try { parsed = JSON.parse(text); } catch { /* not every answer is JSON */ }
  if (!response.ok) {
    const error = new Error(parsed?.error?.message ?? `the server answered ${response.status}`);
    error.code = parsed?.error?.code;
    if (error.code === "page_key") location.href = "/login";
    throw error;
  }
  return parsed;
}

const runPath = (run, rest = "") => `/v1/runs/${encodeURIComponent(run)}${rest}`;

// ---- refreshing -----------------------------------------------------------------------------------------------------
let refreshing = null;
let again = false;
let refreshMs = 0;
async function refresh(address = location.href) {
  if (refreshing) { again = true; return refreshing; }
  const began = performance.now();
  refreshing = (async () => {
    const response = await fetch(address, { headers: { accept: "text/html" } });
    if (!response.ok && response.status !== 404) throw new Error(`the server answered ${response.status}`);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    swapMain(page);
  })();
  try { await refreshing; } catch (error) { setLive("lost"); } finally { refreshing = null; refreshMs = performance.now() - began; }
  if (again) { again = false; return refresh(); }
}

// Replaces the content, and keeps what the person is doing: focus, open details, typed text and the place.
function swapMain(page) {
  const fresh = $("main", page);
  if (!fresh) return;
  const open = new Set($$("main details[open][id], main [id] details.drop[open]").map(keyOf));
  const typed = new Map($$("main textarea[id], main select[id], main input[id]:not([type=range])").filter(isChanged).map(({ id, value, checked }) => [id, { value, checked }]));
  const focused = document.activeElement?.id;
  const places = new Map($$(".ask").map(card => [card.dataset.digest, card.getBoundingClientRect().top]));
  const journals = $$("main > details[open] > summary h2").map(title => title.textContent.replace(/\d+/g, "#"));
  $("main").replaceChildren(...[...fresh.childNodes].map(node => document.importNode(node, true)));
  $$("main details").filter(details => open.has(keyOf(details))).forEach(details => { details.open = true; });
  $$("main > details > summary h2").filter(title => journals.includes(title.textContent.replace(/\d+/g, "#"))).forEach(title => { title.closest("details").open = true; });
  for (const [id, kept] of typed) { const field = document.getElementById(id); if (field) { field.value = kept.value; if (field.type === "checkbox") field.checked = kept.checked; } }
  if (focused && focused !== "main") document.getElementById(focused)?.focus({ preventScroll: true });
  const [count, freshCount] = [$("#waiting-count"), $("#waiting-count", page)];
  if (count && freshCount) { count.textContent = freshCount.textContent; count.hidden = freshCount.hidden; }
  document.title = page.title;
  watchCards(places);
}
const keyOf = details => details.id || `${details.closest("[id]")?.id}|${details.className}|${$("summary", details)?.textContent}`;
const isChanged = field => {
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  return field.tagName === "SELECT" ? [...field.options].some(option => option.selected !== option.defaultSelected) : field.value !== field.defaultValue;
};

// ---- live updates ---------------------------------------------------------------------------------------------------
function setLive(state) {
  const live = $("#live");
  if (!live) return;
  live.classList.toggle("on", state === "on");
  live.classList.toggle("lost", state === "lost");
  $(".word", live).textContent = state === "lost" ? "reconnecting" : "live";
}

let source = null;
let retry = null;
let retries = 0;
let soon = null;
// A refresh that is planned takes further events along: a run that writes all the time must not put it off for ever. The page
// of a long run costs more, and is refreshed less often.
function refreshSoon(delay = 120) {
  if (soon !== null && delay > 0) return;
  clearTimeout(soon);
  soon = setTimeout(() => { soon = null; refresh(); }, delay && Math.max(delay, 3 * refreshMs));
}

// One stream for a page: browsers open few connections to a server. A hidden page has none, and looks again when it is shown.
function connect() {
  clearTimeout(retry);
  source?.close();
  source = null;
  // The pages of the login belong to nobody yet.
  if (document.hidden || !$("#waiting-count") || $(".login")) return;
  const run = $("[data-live=run], [data-live=queued]");
  const address = run ? runPath(run.dataset.run, `/events?from=${run.dataset.records ?? 0}`) : "/v1/inbox/events";
  source = new EventSource(address);
  source.wasLost = retries > 0;
  source.onopen = () => { retries = 0; setLive("on"); if (source.wasLost) { source.wasLost = false; refreshSoon(); } };
  source.onerror = () => {
    setLive("lost");
    if (!source) return;
    source.wasLost = true;
    // A browser comes back by itself after a lost connection, and gives up after any answer that is no stream.
    if (source.readyState === EventSource.CLOSED) connectLater();
  };
  source.addEventListener("record", () => refreshSoon());
  source.addEventListener("end", () => { source.close(); setTimeout(refreshSoon, 400); });
  let first = true;
  source.addEventListener("inbox", event => {
    const { total } = JSON.parse(event.data);
    const count = $("#waiting-count");
    // The first event may already say more than the page that was rendered before it. Its number of waiting calls may be
    // newer than its cards.
    const shown = $("[data-live=inbox]") ? $$(".ask").length : Number(count.textContent);
    const isNews = !first || shown !== total;
    count.textContent = total;
    count.hidden = total === 0;
    if (isNews && $("[data-live=inbox], [data-live=runs]")) refreshSoon();
    first = false;
  });
}

// Connects again after a refusal: at once where the login has ended with its server, later where the server is busy.
function connectLater() {
  clearTimeout(retry);
  const wait = Math.min(30_000, 500 * 2 ** Math.min(retries, 10));
  retries += 1;
  retry = setTimeout(async () => {
    if (document.hidden) return;
    try {
      const { status } = await fetch("/v1/me");
      if (status === 401) location.assign("/login");
      else if (status === 200) connect();
      else connectLater();
    } catch { connectLater(); }
  }, wait);
}

// Sums that are still being read.
setInterval(() => { if (!document.hidden && $("[data-live=costs]")) refreshSoon(); }, 2000);

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refreshSoon(0);
  connect();
});

// ---- calls that were displayed --------------------------------------------------------------------------------------
// A call can be approved after every end of its card was on the screen: of its arguments, of its change, and of the card.
// A card that came or moved under the pointer takes no click for a moment.
const CLICK_GUARD_MS = 700;
const SEEN_PARTS = Array.from({ length: 101 }, (_, part) => part / 100);
const seenDigests = new Set();
const movedAt = new Map();
const endsOf = card => [...$$("table.args tr:last-child > td > div:last-child, .change pre > span:last-child, .evidence > :last-child", card), $(".do", card)].filter(Boolean);
// A picture that could not be loaded is complete too, but it has no width.
const hasPictures = place => $$(".evidence img", place).every(picture => picture.complete && picture.naturalWidth > 0);
const unseenEnds = new WeakMap();
const ends = new IntersectionObserver(entries => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    const card = entry.target.closest(".ask");
    const unseen = card && unseenEnds.get(card);
    if (!unseen) continue;
    noteSeen(entry, unseen);
    if (unseen.size === 0) { seenDigests.add(card.dataset.digest); updateCard(card); }
  }
}, { threshold: SEEN_PARTS });

// Takes an end that is on the screen out of those that nobody has seen.
function noteSeen(entry, unseen) {
  if (entry.intersectionRect.bottom >= entry.boundingClientRect.bottom - 1) unseen.delete(entry.target);
  // A line that is higher than the window counts when its lower edge is in view, which is no event of its own.
  [...unseen].map(end => [end, end.getBoundingClientRect()])
    .filter(([, place]) => place.height > innerHeight && place.bottom > 0 && place.bottom <= innerHeight + 1)
    .forEach(([end]) => unseen.delete(end));
}

const isFresh = card => Date.now() - (movedAt.get(card.dataset.digest) ?? 0) < CLICK_GUARD_MS;
const isSeen = card => seenDigests.has(card.dataset.digest) && hasPictures(card);
const EXECUTING = new Set(["approve", "confirm_not_executed"]);

function updateCard(card) {
  const fresh = isFresh(card);
  $$("button[data-act], form[data-act] button", card).forEach(button => {
    const name = button.dataset.act ?? button.closest("form[data-act]").dataset.act;
    button.disabled = fresh || (EXECUTING.has(name) && !isSeen(card));
  });
}

function watchCards(places) {
  ends.disconnect();
  for (const card of $$(".ask")) {
    const { digest } = card.dataset;
    const before = places.get(digest);
    if (before === undefined || Math.abs(before - card.getBoundingClientRect().top) > 1) {
      movedAt.set(digest, Date.now());
      setTimeout(() => $$(".ask").filter(one => one.dataset.digest === digest).forEach(updateCard), CLICK_GUARD_MS + 20);
    }
    unseenEnds.set(card, new Set(endsOf(card)));
    endsOf(card).forEach(end => ends.observe(end));
    // A picture that is still loading has not been seen.
    $$(".evidence img", card).filter(picture => !picture.complete).forEach(picture => ["load", "error"].forEach(name => picture.addEventListener(name, () => updateCard(card))));
    updateCard(card);
  }
}

// ---- decisions ------------------------------------------------------------------------------------------------------
async function decide(card, decision, { forRun = false, digest = card.dataset.digest } = {}) {
  $$("button", card).forEach(button => { button.disabled = true; });
  try {
    await call("POST", runPath(card.dataset.run, "/decisions"), {
      call: card.dataset.call, attempt: Number(card.dataset.attempt), displayed: digest, decision, for_run: forRun,
    });
    toast("The decision is posted.");
  } catch (error) {
    toast(error.message);
  }
  await refresh();
}

// Builds the value of a form from its fields, each of which has the path of its part. A value that was absent stays absent
// unless its field was changed.
function formValue(form) {
  let whole;
  for (const field of $$("[data-path]", form)) {
    if (field.dataset.absent && !isChanged(field)) continue;
    let value;
    const isNone = field.dataset.nullable && field.value === "";
    switch (field.dataset.kind) {
      case "number": value = field.value === "" ? null : Number(field.value); break;
      case "boolean": value = field.checked; break;
      case "json":
        try { value = JSON.parse(field.value || "null"); } catch { throw new Error(`${field.labels[0]?.textContent ?? "A field"} is not JSON.`); }
        break;
      default: value = isNone ? null : field.value;
    }
    if (!isExact(value)) throw new Error(`${field.labels[0]?.textContent ?? "A field"} has a number that a browser would change.`);
    const path = JSON.parse(field.dataset.path);
    if (path.length === 0) return value;
    whole ??= {};
    let place = whole;
    // Defined and not assigned, so that `__proto__` is a name like any other.
    path.slice(0, -1).forEach(name => { if (!Object.hasOwn(place, name)) define(place, name, {}); place = place[name]; });
    define(place, path.at(-1), value);
  }
  return whole ?? {};
}
// Integers above this size are read as other ones.
const isExact = value => typeof value === "object" ? Object.values(value ?? {}).every(isExact) : typeof value !== "number" || Math.abs(value) <= Number.MAX_SAFE_INTEGER;
const define = (place, name, value) => Object.defineProperty(place, name, { value, enumerable: true, configurable: true, writable: true });

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Shows the edited call as the server would record it, before it can be approved.
async function reviewEdit(card, form) {
  let before, shown, values;
  try {
    values = formValue(form);
    before = await call("POST", runPath(card.dataset.run, "/review"), { call: card.dataset.call });
    shown = await call("POST", runPath(card.dataset.run, "/review"), { call: card.dataset.call, arguments: values });
  } catch (error) {
    toast(error.message);
    return;
  }
  const dialog = $("#dialog");
  const title = element("h2", "Approve the edited call?");
  title.id = "dialog-title";
  const table = element("table", undefined, "args");
  const body = table.createTBody();
  const proposed = new Map(before.sheet.arguments.map(argument => [argument.name, argument.lines.join("\n")]));
  for (const argument of shown.sheet.arguments) {
    const row = body.insertRow();
    const name = element("th", argument.name);
    name.scope = "row";
    // What differs from the model's call is marked, so that no change goes unnoticed.
    const isNew = !proposed.has(argument.name);
    if (isNew || proposed.get(argument.name) !== argument.lines.join("\n")) {
      row.className = "changed";
      name.append(element("span", isNew ? "new" : "changed", "mark"));
    }
    row.append(name);
    const cell = row.insertCell();
    argument.lines.forEach(text => cell.append(element("div", text)));
  }
  const notes = element("ul", undefined, "notes");
  shown.sheet.notes.forEach(text => notes.append(element("li", text)));
  const actions = element("div", undefined, "do");
  const approve = element("button", "Approve these arguments", "yes");
  const close = element("button", "Back");
  approve.disabled = true;
  approve.onclick = async () => {
    dialog.close();
    await decide(card, { type: "approve_edited", arguments: values }, { digest: shown.sheet.digest });
  };
  close.onclick = () => dialog.close();
  actions.append(approve, close);
  const parts = [title, element("p", shown.sheet.title)];
  if (shown.sheet.evidence) {
    const { lines, picture } = shown.sheet.evidence;
    const evidence = element("figure", undefined, "evidence");
    evidence.append(element("figcaption", "What the tool saw when the call was held"), ...lines.map(text => element("p", text)));
    if (picture) { const image = element("img", undefined, "shot"); image.src = picture; image.alt = "picture of what the tool saw"; evidence.append(image); }
    parts.push(evidence);
  }
  parts.push(table, notes);
  if (shown.sheet.change) {
    const change = element("figure", undefined, "change");
    change.append(element("figcaption", shown.sheet.change.title), element("pre", shown.sheet.change.lines.join("\n")));
    parts.push(change);
  }
  dialog.replaceChildren(...parts, actions);
  dialog.showModal();
  // As for a card: every end has been on the screen, every picture is loaded, and no click was on its way.
  const seen = { dataset: { digest: shown.sheet.digest } };
  movedAt.set(shown.sheet.digest, Date.now());
  const unseen = new Set([...$$("table.args tr:last-child > td > div:last-child, .change pre, .evidence > :last-child", dialog), actions]);
  const update = () => { approve.disabled = unseen.size > 0 || isFresh(seen) || !hasPictures(dialog); };
  const observer = new IntersectionObserver(entries => {
    entries.filter(entry => entry.isIntersecting).forEach(entry => noteSeen(entry, unseen));
    update();
  }, { threshold: SEEN_PARTS });
  unseen.forEach(end => observer.observe(end));
  $$(".evidence img", dialog).forEach(picture => picture.addEventListener("load", update));
  setTimeout(update, CLICK_GUARD_MS + 10);
  dialog.addEventListener("close", () => observer.disconnect(), { once: true });
  // From the start, and not from the button: the call is read on the way to it.
  title.tabIndex = -1;
  title.focus();
  dialog.scrollTop = 0;
}

async function act(name, target) {
  const card = target.closest(".ask");
  const form = target.closest("form") ?? target;
  const forRun = target.dataset.forRun === "1";
  if (card && isFresh(card)) return;
  if (card && EXECUTING.has(name) && !isSeen(card)) return toast("Scroll to the end of the call first.");
  switch (name) {
    case "approve": return decide(card, { type: "approve" }, { forRun });
    case "reject": {
      const message = $("[name=message]", form)?.value.trim();
      return decide(card, message ? { type: "reject", message } : { type: "reject" }, { forRun });
    }
    case "edit": return reviewEdit(card, form);
    case "confirm_executed": return decide(card, { type: "confirm_executed", output: $("[name=output]", form).value });
    case "confirm_not_executed": return decide(card, { type: "confirm_not_executed" });
    case "outcome_unknown": return decide(card, { type: "outcome_unknown" });
    case "answer": {
      let value;
      try { value = formValue(form); } catch (error) { return toast(error.message); }
      return decide(card, { type: "answer", value });
    }
    case "new-run": return openDialog("#new-run");
    case "close": return $("#dialog").close();
    case "start": return startRun(form);
    case "fork": return askFork(target.dataset.run, Number(target.dataset.at));
    case "log-out": return endLogin();
    case "cancel": return confirmCancel(target.dataset.run);
    case "revive":
      await call("POST", runPath(target.dataset.run, "/revive")).catch(error => toast(error.message));
      return refresh();
  }
}

function openDialog(template) {
  const dialog = $("#dialog");
  dialog.replaceChildren($(template).content.cloneNode(true));
  dialog.showModal();
}

async function startRun(form) {
  const fields = Object.fromEntries(new FormData(form));
  if (!fields.run) delete fields.run;
  try {
    const started = await call("POST", "/v1/runs", fields);
    location.href = `/runs/${encodeURIComponent(started.run)}`;
  } catch (error) {
    toast(error.message);
  }
}

function askFork(run, at) {
  const dialog = $("#dialog");
  const form = element("form");
  const title = element("h2", `Fork at record ${at}`);
  title.id = "dialog-title";
  const kind = element("select");
  kind.id = "fork-kind";
  [["unchanged", "Go on from here, unchanged"], ["model_text", "The model says something else"], ["call_output", "A call has another output"], ["reject", "A call is rejected"]]
    .forEach(([value, text]) => { const option = element("option", text); option.value = value; kind.append(option); });
  const label = (id, text) => { const made = element("label", text); made.htmlFor = id; return made; };
  const callId = element("input"); callId.id = "fork-call"; callId.setAttribute("list", "fork-calls");
  // The calls on the page are offered.
  const known = element("datalist"); known.id = "fork-calls";
  $$("details.call[data-path]").forEach(one => { const option = element("option"); option.value = one.dataset.path; known.append(option); });
  const text = element("textarea"); text.id = "fork-text"; text.rows = 3;
  const [callLabel, textLabel] = [label("fork-call", "Call"), label("fork-text", "Text")];
  const update = () => {
    callId.hidden = callLabel.hidden = kind.value !== "call_output" && kind.value !== "reject";
    text.hidden = textLabel.hidden = kind.value === "unchanged";
  };
  kind.onchange = update;
  const actions = element("div", undefined, "do");
  const back = element("button", "Close");
  back.type = "button";
  back.onclick = () => dialog.close();
  actions.append(element("button", "Fork and run", "yes"), back);
  form.append(title, label("fork-kind", "What is different"), kind, callLabel, callId, known, textLabel, text, actions);
  form.onsubmit = async event => {
    event.preventDefault();
    const change = { type: kind.value };
    if (kind.value === "model_text") change.text = text.value;
    if (kind.value === "call_output") Object.assign(change, { call: callId.value, output: text.value });
    if (kind.value === "reject") Object.assign(change, { call: callId.value, message: text.value || null });
    try {
      const fork = await call("POST", runPath(run, "/fork"), { at, change, start: true });
      location.href = `/runs/${encodeURIComponent(fork.run)}`;
    } catch (error) { toast(error.message); }
  };
  dialog.replaceChildren(form);
  update();
  dialog.showModal();
}

function confirmCancel(run) {
  const dialog = $("#dialog");
  const title = element("h2", "Cancel this run?");
  title.id = "dialog-title";
  const actions = element("div", undefined, "do");
  const [yes, no] = [element("button", "Cancel the run", "no"), element("button", "Let it go on")];
  yes.onclick = async () => {
    dialog.close();
    await call("POST", runPath(run, "/cancel")).then(() => toast("The order is posted."), error => toast(error.message));
  };
  no.onclick = () => dialog.close();
  actions.append(yes, no);
  dialog.replaceChildren(title, element("p", "Calls that have started get time to end; nothing else starts."), actions);
  dialog.showModal();
}

document.addEventListener("click", event => {
  const target = event.target.closest("button[data-act]");
  if (target && (target.type === "button" || !target.closest("form[data-act]"))) {
    event.preventDefault();
    act(target.dataset.act, target);
  }
});
document.addEventListener("submit", event => {
  const form = event.target.closest("form[data-act]");
  if (form) { event.preventDefault(); act(form.dataset.act, form); }
});

// ---- time travel ----------------------------------------------------------------------------------------------------
// A timer of its own, so that an event of the run does not cancel the movement of the slider.
let travelling = null;
document.addEventListener("input", event => {
  if (event.target.id !== "travel") return;
  const slider = event.target;
  $("#travel-at").textContent = slider.value;
  clearTimeout(travelling);
  travelling = setTimeout(async () => {
    const address = slider.value === slider.max ? slider.dataset.base : `${slider.dataset.base}?at=${slider.value}`;
    history.replaceState(null, "", address);
    await refresh();
    connect();
  }, 150);
});

// ---- files ----------------------------------------------------------------------------------------------------------
async function openFile(file) {
  if (!file) return;
  const response = await fetch("/look", { method: "POST", headers: { "content-type": "text/plain", ...keyHeaders() }, body: await file.text() });
  const text = await response.text();
  if (response.ok) { location.href = text; return; }
  let message = `the server answered ${response.status}`;
  try { message = JSON.parse(text).error.message; } catch { /* not JSON */ }
  toast(message);
}
document.addEventListener("change", event => { if (event.target.id === "file") openFile(event.target.files[0]); });
document.addEventListener("dragover", event => { event.preventDefault(); $("#drop-zone")?.classList.add("over"); });
document.addEventListener("dragleave", () => $("#drop-zone")?.classList.remove("over"));
document.addEventListener("drop", event => { event.preventDefault(); $("#drop-zone")?.classList.remove("over"); openFile(event.dataTransfer?.files[0]); });

// ---- keys -----------------------------------------------------------------------------------------------------------
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog[open]")) return;
  const cards = $$(".ask");
  const at = cards.findIndex(card => card.contains(document.activeElement));
  const card = cards[at];
  const focus = place => { const next = cards[Math.max(0, Math.min(cards.length - 1, place))]; next?.focus(); next?.scrollIntoView({ block: "nearest" }); };
  const openIn = name => { const details = card && $(`details.${name}`, card); if (details) { details.open = true; $("textarea, input, select", details)?.focus(); } };
  switch (event.key) {
    case "j": focus(at + 1); break;
    case "k": focus(at < 0 ? 0 : at - 1); break;
    case "y": {
      const button = card && $("button[data-act=approve]:not([data-for-run])", card);
      // A button that waits for the end of the call says so.
      if (button && (!button.disabled || !isSeen(card))) act("approve", button);
      break;
    }
    case "e": openIn("edit"); break;
    case "n": openIn("reject"); break;
    case "/": if (!$("#f-search")) return; $("#f-search").focus(); break;
    default: return;
  }
  event.preventDefault();
});

// ---- presence and times ---------------------------------------------------------------------------------------------
async function look() {
  const card = $$(".ask").find(one => one.contains(document.activeElement)) ?? $(".ask");
  if (!card || document.hidden) return;
  try {
    const { others } = await call("POST", "/v1/inbox/looking", { run: card.dataset.run, call: card.dataset.call });
    const line = $(".looking", card);
    line.hidden = others.length === 0;
    line.textContent = `${others.join(", ")} ${others.length === 1 ? "looks" : "look"} at this`;
  } catch { /* the next look may succeed */ }
}
setInterval(look, 5000);

function ago(ms) {
  if (ms < 5000) return "just now";
  const [value, unit] = ms < 60e3 ? [ms / 1e3, "s"] : ms < 3600e3 ? [ms / 60e3, "min"] : ms < 172800e3 ? [ms / 3600e3, "h"] : [ms / 86400e3, "days"];
  return `${Math.floor(value)} ${unit} ago`;
}
setInterval(() => {
  const now = Date.now();
  $$("time[data-at]").forEach(time => { const since = now - Number(time.dataset.at); if (since >= 0) time.textContent = ago(since); });
}, 10000);

addEventListener("hashchange", openTarget);
function openTarget() {
  const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target?.tagName === "DETAILS") target.open = true;
}
openTarget();
watchCards(new Map());
connect();
look();
