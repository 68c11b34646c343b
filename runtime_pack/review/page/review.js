// The review page. Everything that is shown was written by a model, a page or a program: it is set as
// text and never as markup, and signs that would move other text about are spelled out.

const TOKEN_KEY = "runtime-pack-token";
const PAGE = 100;
// Controls, format signs, what has no character, line separators, and fillers that look like nothing.
const UNSEEN =
  /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\ufe00-\ufe0f\u{e0100}-\u{e01ef}]/u;
const VIEWS = [
  ["runs", "Runs"],
  ["approvals", "Approvals"],
  ["denials", "Denials"],
  ["events", "Events"],
  ["logs", "Logs"],
];
const WELL = { verified: "good", signed: "good", chained: "good", open: "warn", tampered: "bad", unreadable: "bad" };
const RUN_TAGS = { running: "good", waiting: "warn", suspended: "warn", interrupted: "warn", error: "bad", damaged: "bad" };

const $ = (id) => document.getElementById(id);
let overview = null;
let version = "";
let drawn = 0;
let follows = true;

// ── text ──────────────────────────────────────────────────────────────────────────────────────

// Nodes that show a text as it is: what cannot be seen is spelled as its code point.
function shown(text, lines = false) {
  const nodes = [];
  let plain = "";
  for (const sign of String(text)) {
    if ((lines && sign === "\n") || !UNSEEN.test(sign)) {
      plain += sign;
      continue;
    }
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
    const code = sign.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    nodes.push(el("span", { class: "esc" }, document.createTextNode(`U+${code}`)));
  }
  if (plain || !nodes.length) nodes.push(document.createTextNode(plain));
  return nodes;
}

// The same for an attribute, which holds no nodes.
const spelled = (text) => shown(text).map((node) => node.textContent).join("");

function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    if (child instanceof Node) made.append(child);
    else made.append(...shown(child));
  }
  return made;
}

// A value from a log: of its own direction, and breaking where it has to.
const value = (text, kind = "") => el("span", { class: `v ${kind}` }, text ?? "–");
const tag = (text, kind = "", attributes = {}) => el("span", { class: `tag ${kind}`, ...attributes }, text);
const link = (view, fields, ...children) => el("a", { href: address(view, fields) }, ...children);

function address(view, fields = {}) {
  const query = new URLSearchParams(Object.entries(fields).filter(([, each]) => each));
  return `#${view}${[...query].length ? `?${query}` : ""}`;
}

function time(text, short = false) {
  if (!text) return el("span", { class: "time" }, "–");
  const [day, rest] = String(text).split("T");
  const clock = (rest ?? "").replace(/\.(\d{3})\d*.*$/, ".$1").replace(/\+.*$/, "");
  return el("time", { class: "time", title: spelled(text) }, short && clock ? clock : `${day} ${clock}`);
}

const number = (count) => Number(count).toLocaleString("en");

function table(caption, heads, rows, empty) {
  if (!rows.length) return el("p", { class: "quiet" }, empty);
  return el(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", {}, caption),
      el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col", class: head.startsWith("#") ? "num" : null }, head.replace(/^#/, ""))))),
      el("tbody", {}, rows),
    ),
  );
}

function facts(pairs) {
  return el("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, what, wide]) => el("div", { class: wide ? "wide" : null }, el("dt", {}, name), el("dd", {}, what ?? "–"))));
}

function say(text) {
  $("said").replaceChildren(...shown(text));
}

function fail(text) {
  $("alert").hidden = !text;
  $("alert").replaceChildren(...shown(text ?? ""));
}

// ── asking ────────────────────────────────────────────────────────────────────────────────────

// The token comes behind the # of the address, which is sent to nobody, and is taken out of it at once.
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem(TOKEN_KEY, given);
    history.replaceState(null, "", "/#runs");
  }
  return sessionStorage.getItem(TOKEN_KEY);
}

async function ask(name, fields = {}, body = undefined) {
  const query = new URLSearchParams(Object.entries(fields).filter(([, each]) => each !== "" && each !== null && each !== undefined));
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(TOKEN_KEY)}` };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const answer = await fetch(`api/${name}?${query}`, {
    method: body === undefined ? "GET" : "POST",
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    redirect: "error",
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(answer.status === 401 ? "The token is missing or wrong: open the address that the command printed." : told.error);
  return told;
}

// ── the top of the page ───────────────────────────────────────────────────────────────────────

function drawTop(view) {
  $("tabs").replaceChildren(
    ...VIEWS.map(([name, words]) =>
      el("li", {}, el("a", { href: `#${name}`, "aria-current": name === view ? "page" : null }, words, name === "approvals" && overview?.waiting ? [" ", tag(number(overview.waiting), "warn")] : null)),
    ),
  );
  if (!overview) return;
  const { verify, kill } = overview;
  const words = { none: "not verified yet", open: "open end", signed: "signed", chained: "chained" };
  const badge = el("a", { class: `tag ${WELL[verify.worst] ?? ""}`, href: "#logs", id: "verify", title: "What holds of the logs" }, `log: ${words[verify.worst] ?? verify.worst}${verify.left ? " …" : ""}`);
  $("state").replaceChildren(
    el("li", {}, badge),
    el("li", {}, killTag(kill)),
    el("li", {}, el("span", { class: `tag ${follows ? "good live" : "bad"}`, id: "live" }, follows ? "live" : "not connected")),
  );
  fail(overview.fault ? `The logs cannot be read: ${overview.fault}. What is shown was read before.` : "");
}

function killTag(kill) {
  if (kill.reason) return tag(kill.reason, "bad", { id: "kill" });
  if (kill.asked) return tag(`${kill.asked} asked to end`, "warn", { id: "kill", title: spelled(kill.words.join("; ")) });
  return tag(kill.file ? "kill switch: not thrown" : "no run asked to end", "", { id: "kill", title: spelled(kill.file ?? "no file is looked at") });
}

// ── views ─────────────────────────────────────────────────────────────────────────────────────

async function runsView(fields) {
  const skip = Number(fields.skip ?? 0);
  const { rows, more } = await ask("runs", { limit: PAGE, skip });
  const lines = rows.map((row) => {
    const saved = row.saved;
    return el(
      "tr",
      { class: row.denials ? "deny" : saved?.pending ? "ask" : null },
      el("th", { scope: "row" }, link("run", { id: row.run }, value(row.run, "id"))),
      el("td", {}, saved ? tag(saved.status, RUN_TAGS[saved.status] ?? "") : el("span", { class: "quiet" }, "log only")),
      el("td", {}, saved?.pending ? link("approvals", {}, `${saved.pending} waiting`) : value(saved?.stop?.code ?? "")),
      el("td", {}, value(row.agent ?? saved?.task ?? "")),
      el("td", {}, time(row.first)),
      el("td", {}, time(row.last)),
      el("td", { class: "num" }, saved ? `${saved.turns} / ${saved.steps}` : ""),
      el("td", { class: "num" }, number(row.events ?? 0)),
      el("td", { class: "num" }, row.denials ? link("events", { run: row.run, denied: "1" }, number(row.denials)) : "0"),
    );
  });
  return [
    el("h1", {}, "Runs"),
    facts([
      ["Looking at", value(overview.target, "id"), true],
      ["Events", number(overview.events)],
      ["Denials", link("denials", {}, number(overview.denials))],
      ["Saved runs", number(overview.saved_runs)],
      ["Waiting for a person", overview.waiting ? link("approvals", {}, number(overview.waiting)) : "0"],
      ["Lines that are no event", overview.unreadable ? link("events", { code: "UNREADABLE" }, number(overview.unreadable)) : "0"],
    ]),
    table("Runs, the one with the latest event first", ["Run", "Status", "Stopped by", "Agent", "First event", "Last event", "#Turns / steps", "#Events", "#Denials"], lines, "No run has written an event yet."),
    pager("runs", skip ? address("runs", { skip: Math.max(0, skip - PAGE) || "" }) : null, more ? address("runs", { skip: skip + PAGE }) : null),
    stopAll(),
  ];
}

function pager(view, before, after) {
  if (!before && !after) return null;
  return el("nav", { class: "buttons", "aria-label": "Pages" }, before ? el("a", { href: before }, "← Back") : null, after ? el("a", { href: after, id: "more" }, "More →") : null);
}

function stopAll() {
  if (!overview.can_stop) return null;
  return el(
    "section",
    {},
    el("h2", {}, "Kill switch"),
    el("p", { class: "quiet" }, "Ends every saved run that is not over: here, or after its step in hand by the process that drives it."),
    el("div", { class: "buttons" }, el("button", { class: "no", type: "button", onclick: confirmStop, id: "stop" }, "Stop every run…")),
  );
}

async function runView(fields) {
  const { saved, rows, after, job } = await ask("run", { id: fields.id, after: fields.after, limit: PAGE });
  const parts = [el("h1", {}, "Run ", value(fields.id, "id"))];
  if (saved) {
    const ledger = saved.ledger?.used ?? {};
    parts.push(
      facts([
        ["Status", tag(saved.status, RUN_TAGS[saved.status] ?? "")],
        saved.stop ? ["Stopped by", value(`${saved.stop.code}: ${saved.stop.message}`), true] : null,
        ["Context", saved.label ? labelTags(saved.label) : "–"],
        ["Turns / steps", `${saved.turns ?? "–"} / ${saved.steps ?? "–"}`],
        ["Used", value(Object.entries(ledger).map(([name, used]) => `${name} ${used}`).join(", "))],
        ["Saved", time(saved.saved_at)],
        saved.cancel ? ["Asked to end", tag(saved.cancel, "warn")] : null,
        saved.problem ? ["Problem", tag(saved.problem, "bad"), true] : null,
      ]),
      ...(saved.requests ?? []).map(requestCard),
      resumeBar(fields.id, saved, job),
    );
  }
  parts.push(
    el("h2", {}, "Timeline"),
    table("Events in the order of time", ["Time", "Event", "Step", "What", "Details"], timeline(rows), "The logs hold no event of this run."),
    pager("run", fields.after ? address("run", { id: fields.id }) : null, after ? address("run", { id: fields.id, after }) : null),
  );
  return parts;
}

function timeline(rows) {
  const lines = [];
  let turn = null;
  for (const row of rows) {
    const now = /^t\d+/.exec(row.step ?? "")?.[0] ?? null;
    if (now && now !== turn) {
      lines.push(el("tr", { class: "turn" }, el("td", { colspan: "5" }, `Turn ${now.slice(1)}`)));
      turn = now;
    }
    lines.push(
      el(
        "tr",
        { class: row.code.endsWith("D") || row.code === "EGR004O" ? "deny" : row.code === "APR001O" ? "ask" : null },
        el("td", {}, time(row.at, true)),
        el("td", { class: "keep" }, eventLink(row), " ", el("span", { class: "quiet" }, value(row.type))),
        el("td", { class: "keep" }, value(row.step ?? "", "id")),
        el("td", {}, row.tool ? value(row.tool) : null, row.host ? [" ", value(row.host, "id")] : null, row.rule ? [" ", tag(row.rule)] : null, row.reason ? [" ", tag(row.reason)] : null, row.result && row.result !== row.reason ? [" ", tag(row.result)] : null),
        el("td", {}, row.stale ? [tag(row.stale, "bad"), " "] : null, details(row.more ?? {})),
      ),
    );
  }
  return lines;
}

function details(more) {
  const parts = [];
  const add = (text) => parts.push(parts.length ? " · " : "", text);
  if (more.elapsed_us !== undefined) add(duration(more.elapsed_us));
  if (more.input_tokens || more.output_tokens) add(`${number(more.input_tokens ?? 0)} in, ${number(more.output_tokens ?? 0)} out`);
  if (more.cost) add(`cost ${(more.cost / 1e6).toFixed(6)}`);
  if (more.from && more.to && more.to.integrity) add(el("span", {}, labelTags(more.from), " → ", labelTags(more.to)));
  if (more.hop) add(`hop ${more.hop}`);
  if (more.nearest_entry) add(el("span", {}, "entry ", value(more.nearest_entry, "id")));
  if (more.decided_by) add(value(`by ${more.decided_by}`));
  for (const name of ["reasons", "layers", "ip", "sources", "block", "kind", "finish", "fence_signals"]) {
    const what = more[name];
    if (what) add(value(Array.isArray(what) ? what.join(", ") : what));
  }
  return el("span", {}, parts);
}

const duration = (us) => (us < 1000 ? `${us} µs` : us < 1e6 ? `${(us / 1000).toFixed(1)} ms` : `${(us / 1e6).toFixed(2)} s`);

function labelTags(label) {
  const bad = { external: "warn", secret: "bad" };
  return el("span", {}, tag(label.integrity, bad[label.integrity] ?? ""), " ", tag(label.confidentiality, bad[label.confidentiality] ?? ""));
}

const eventLink = (row) => (row.id ? link("event", { id: row.id }, value(row.code, "id")) : value(row.code, "id"));

async function denialsView(fields) {
  const { rows, more } = await ask("denials", { limit: 500, ...fields });
  const lines = rows.map((row) =>
    el(
      "tr",
      { class: "deny" },
      el("td", { class: "num" }, number(row.times)),
      el("th", { scope: "row" }, value(row.host ?? row.tool ?? "–", "id")),
      el("td", {}, value(row.host ? (row.tool ?? "tunnel") : "")),
      el("td", {}, row.rule ? tag(row.rule) : null, " ", value(row.reason ?? row.result ?? "")),
      el("td", {}, value(row.code, "id"), row.code === "EGR004O" ? [" ", tag("reported only", "warn")] : null),
      el("td", { class: "num" }, number(row.runs)),
      el("td", {}, time(row.last)),
      el("td", {}, row.event ? link("event", { id: row.event }, "Why?") : null, " ", link("events", { host: row.host, tool: row.host ? "" : row.tool, code: row.code }, "All")),
    ),
  );
  return [
    el("h1", {}, "Denials"),
    filterForm("denials", fields, ["run", "host", "rule", "tool", "agent"]),
    table(`What was refused, by host and rule${more ? " (the most frequent 500)" : ""}`, ["#Times", "Host or tool", "Asked by", "Rule", "Event", "#Runs", "Last", ""], lines, "Nothing was refused."),
  ];
}

async function eventsView(fields) {
  const { rows, after } = await ask("events", { ...fields, limit: PAGE });
  const lines = rows.map((row) =>
    el(
      "tr",
      { class: row.code.endsWith("D") || row.code === "EGR004O" ? "deny" : row.code === "APR001O" ? "ask" : null },
      el("td", {}, time(row.at)),
      el("th", { scope: "row" }, eventLink(row)),
      el("td", {}, value(row.type ?? "")),
      el("td", {}, row.run ? link("run", { id: row.run }, value(row.run, "id")) : null),
      el("td", { class: "keep" }, value(row.step ?? "", "id")),
      el("td", {}, value([row.tool, row.host].filter(Boolean).join(" "))),
      el("td", {}, row.rule ? tag(row.rule) : null, " ", value(row.reason ?? row.result ?? "")),
    ),
  );
  const { after: _now, ...others } = fields;
  return [
    el("h1", {}, "Events"),
    filterForm("events", fields, ["run", "agent", "host", "rule", "code", "tool"], true),
    table("The newest first", ["Time", "Code", "Type", "Run", "Step", "Tool and host", "Rule and reason"], lines, "No event fits."),
    pager("events", fields.after ? address("events", others) : null, after ? address("events", { ...others, after }) : null),
  ];
}

function filterForm(view, fields, names, denied = false) {
  const inputs = names.map((name) => el("label", {}, name, el("input", { type: "text", name, value: fields[name] ?? "", autocomplete: "off", spellcheck: "false", maxlength: "300" })));
  const submit = (event) => {
    event.preventDefault();
    location.hash = address(view, Object.fromEntries(new FormData(event.target)));
  };
  return el(
    "form",
    { class: "filter", onsubmit: submit, role: "search" },
    inputs,
    denied ? el("label", { class: "check" }, el("input", { type: "checkbox", name: "denied", value: "1", checked: fields.denied === "1" }), "denied only") : null,
    el("button", { type: "submit" }, "Show"),
    el("span", { class: "quiet" }, "* and ? are patterns"),
  );
}

async function eventView(fields) {
  const { events } = await ask("event", { id: fields.id });
  const { suggestion } = await ask("why", { id: fields.id, private: fields.private });
  const parts = [];
  for (const each of events) {
    parts.push(
      el("h1", {}, value(each.code, "id"), " ", el("span", { class: "quiet" }, value(each.meaning ?? "no event of ours"))),
      each.stale ? el("p", { class: "card bad" }, "The line is another one than was indexed: somebody wrote into the log. See what verification says.") : null,
      facts([
        ["Time", time(each.at)],
        ["Run", each.run ? link("run", { id: each.run }, value(each.run, "id")) : "–"],
        ["Step", value(each.step ?? "–", "id")],
        ["Line", value(`${each.line ?? "–"} of ${each.log}`, "id"), true],
      ]),
      el(
        "div",
        { class: "two" },
        el("section", {}, el("h2", {}, "The event"), el("pre", { tabindex: "0" }, shown(each.text, true), each.cut ? " …" : null)),
        el("section", {}, why(each, suggestion, fields)),
      ),
    );
  }
  return parts;
}

function why(each, suggestion, fields) {
  const parts = [el("h2", {}, "What it means")];
  if (each.rule || each.reason) parts.push(el("p", {}, each.rule ? [tag(each.rule, "bad"), " "] : null, value(each.reason ?? "")));
  for (const text of [each.reason_meaning, each.reason_advice, each.advice]) if (text && text !== "None.") parts.push(el("p", {}, words(text)));
  if (!suggestion) return parts;
  parts.push(el("h2", {}, "What would admit it"));
  if (suggestion.fault) return [...parts, el("p", { class: "card bad" }, `The policy ${suggestion.policy} is refused: ${suggestion.fault}`)];
  parts.push(el("p", { class: "quiet" }, suggestion.policy ? value(suggestion.policy, "id") : "No policy file was named; this is against an empty one."));
  if (suggestion.diff) parts.push(el("pre", { id: "diff", tabindex: "0" }, suggestion.diff.replace(/\n$/, "").split("\n").map(diffLine)));
  else if (!suggestion.left.length) parts.push(el("p", {}, "The policy admits it by now."));
  for (const change of suggestion.changes) if (change.opens) parts.push(el("p", {}, "It opens ", value(change.opens), "."));
  for (const left of suggestion.left) parts.push(el("p", { class: "card warn" }, value(left.why)));
  if (suggestion.also.length) parts.push(el("p", { class: "card warn" }, `It admits ${number(suggestion.also.length)} other recorded denials that cannot be told from it.`));
  if (suggestion.left.some((left) => left.why.includes("private address")) && !fields.private) parts.push(el("p", {}, link("event", { id: fields.id, private: "1" }, "Propose an entry for the private address")));
  return parts;
}

// Our own advice marks names with backticks.
const words = (text) => text.split("`").map((part, at) => (at % 2 ? el("code", {}, part) : part));

function diffLine(line) {
  const kind = line.startsWith("+++") || line.startsWith("---") || line.startsWith("@@") ? "hunk" : line.startsWith("+") ? "add" : line.startsWith("-") ? "del" : "row";
  return el("span", { class: kind }, line || " ");
}

async function approvalsView() {
  const { rows, by } = await ask("approvals");
  const open = rows.filter((row) => !row.decision && !row.expired);
  return [
    el("h1", {}, "Approvals", el("span", { class: "count" }, `${open.length} waiting`)),
    el("p", { class: "quiet" }, "You decide as ", value(by), ". A call is judged again before it runs, and runs with exactly the arguments shown."),
    ...(rows.length ? rows.map(requestCard) : [el("p", {}, "Nothing waits for a person.")]),
  ];
}

function requestCard(row) {
  const external = row.label.integrity === "external";
  const decided = row.decision;
  return el(
    "article",
    { class: `card ${external ? "warn" : ""}`, "data-request": row.request, "aria-label": spelled(`Request for ${row.tool}`) },
    el(
      "header",
      {},
      el("h3", {}, value(row.tool)),
      labelTags(row.label),
      decided ? tag(`${decided.verdict} by ${decided.decided_by}`, decided.verdict === "approve" ? "good" : "bad") : row.expired ? tag("too late", "bad") : tag("waits for you", "warn"),
    ),
    el("p", {}, "Run ", link("run", { id: row.run }, value(row.run, "id")), ", step ", value(row.step, "id"), row.asker !== row.run ? [", asked by its sub-run ", value(row.asker, "id")] : null),
    el("pre", { tabindex: "0", "aria-label": "Arguments" }, shown(row.arguments, true)),
    row.redacted ? el("p", { class: "quiet" }, "A secret of this machine stands in the arguments, and its name is shown in its place.") : null,
    el("p", {}, "It needs a person because:"),
    el("ul", {}, row.reasons.map((reason) => el("li", {}, value(reason)))),
    external
      ? el("p", {}, el("strong", {}, "The model has read something from outside: a page may have asked for this call."), row.label.sources?.length ? [" Sources: ", value(row.label.sources.slice(0, 12).join(", "), "id")] : null)
      : null,
    el("p", { class: "quiet" }, "Asked ", time(row.created_at), row.expires_at ? [", too late after ", time(row.expires_at)] : null),
    decided || row.expired ? (row.can_resume ? el("div", { class: "buttons" }, resumeButton(row.run)) : null) : decisionBar(row),
  );
}

function decisionBar(row) {
  return el(
    "div",
    { class: "buttons" },
    el("button", { type: "button", class: "yes", onclick: () => confirmDecision(row, "approve"), "aria-label": spelled(`Approve ${row.tool}`) }, "Approve…"),
    el("button", { type: "button", class: "no", onclick: () => confirmDecision(row, "deny"), "aria-label": spelled(`Deny ${row.tool}`) }, "Deny…"),
    el("button", { type: "button", disabled: row.redacted, onclick: () => confirmDecision(row, "edit"), "aria-label": spelled(`Edit and approve ${row.tool}`) }, "Edit…"),
  );
}

function resumeBar(run, saved, job) {
  const parts = [];
  if (job) parts.push(tag(job.state === "running" ? "being taken up" : `taken up: ${["completed", "failed", "wrong usage", "waits again", "budget used up"][job.code] ?? "ended"}`, job.state === "running" ? "good live" : job.code === 0 ? "good" : "warn", { id: "job" }));
  if (job?.text && job.code) parts.push(value(job.text));
  if (saved.can_resume && job?.state !== "running") parts.push(resumeButton(run));
  return parts.length ? el("div", { class: "buttons" }, parts) : null;
}

const resumeButton = (run) => el("button", { type: "button", onclick: () => resume(run) }, "Take the run up");

// ── doing ─────────────────────────────────────────────────────────────────────────────────────

function dialog(title, parts, word, kind, act) {
  const box = $("ask");
  const problem = el("p", { class: "card bad", role: "alert", hidden: true });
  const submit = async (event) => {
    event.preventDefault();
    const button = event.submitter;
    if (button) button.disabled = true;
    try {
      await act(Object.fromEntries(new FormData(event.target)));
      box.close();
      await draw(true);
    } catch (error) {
      problem.hidden = false;
      problem.replaceChildren(...shown(error.message));
    } finally {
      if (button) button.disabled = false;
    }
  };
  box.replaceChildren(
    el(
      "form",
      { onsubmit: submit },
      el("h2", { id: "ask-title" }, title),
      parts,
      problem,
      el("div", { class: "buttons" }, el("button", { type: "submit", class: kind }, word), el("button", { type: "button", onclick: () => box.close() }, "Leave it")),
    ),
  );
  box.showModal();
}

function confirmDecision(row, verdict) {
  const titles = { approve: "Approve", deny: "Deny", edit: "Edit and approve" };
  const parts = [];
  if (verdict === "edit") parts.push(el("label", { for: "edited" }, "Arguments, as JSON"), area("edited", row.arguments));
  else parts.push(el("pre", {}, shown(row.arguments, true)));
  parts.push(
    el("label", { for: "reason" }, verdict === "deny" ? "Reason; the model reads it" : "Reason, for the record"),
    el("input", { type: "text", id: "reason", name: "reason", maxlength: "1000", autocomplete: "off", autofocus: true }),
  );
  if (row.can_resume) parts.push(el("label", { class: "check" }, el("input", { type: "checkbox", name: "resume", value: "1", checked: true }), "and take the run up at once"));
  dialog(`${titles[verdict]} ${row.tool}`, parts, titles[verdict], verdict === "deny" ? "no" : "yes", async (given) => {
    await ask("decide", {}, {
      run: row.run,
      request: row.request,
      verdict: verdict === "deny" ? "deny" : "approve",
      arguments_sha256: row.arguments_sha256,
      reason: given.reason,
      ...(verdict === "edit" ? { edited: given.edited } : {}),
    });
    say(`${titles[verdict]}: recorded`);
    if (given.resume) await resume(row.run);
  });
}

function area(name, text) {
  const made = el("textarea", { id: name, name, spellcheck: "false" });
  made.value = text;
  return made;
}

async function resume(run) {
  try {
    await ask("resume", {}, { run });
    say("The run is being taken up");
    location.hash = address("run", { id: run });
    await draw(true);
  } catch (error) {
    fail(error.message);
  }
}

function confirmStop() {
  const parts = [
    el("p", {}, "Every saved run that is not over is ended for good, and nothing of it is taken up again."),
    el("label", { for: "confirm" }, "Write the word stop"),
    el("input", { type: "text", id: "confirm", name: "confirm", autocomplete: "off" }),
    el("label", { for: "reason" }, "Reason, for the record"),
    el("input", { type: "text", id: "reason", name: "reason", maxlength: "1000", autocomplete: "off" }),
  ];
  dialog("Stop every run", parts, "Stop every run", "no", async (given) => {
    const { replies } = await ask("stop", {}, { confirm: given.confirm, reason: given.reason });
    const failed = replies.filter((reply) => reply.status === "failed");
    if (failed.length) throw new Error(`${failed.length} could not be ended: ${failed[0].message}`);
    say(`${replies.length} runs are over or asked to end`);
  });
}

async function logsView() {
  const { logs, counts, left } = await ask("verify");
  const lines = logs.map((row) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, value(row.log, "id")),
      el("td", {}, tag(row.status, WELL[row.status] ?? "")),
      el("td", { class: "num" }, number(row.events ?? 0)),
      el("td", { class: "num" }, number(row.signed ?? 0)),
      el("td", { class: "num" }, number(row.heads ?? 0)),
      el("td", {}, row.fault ? value(row.fault) : null, (row.faults ?? []).map((fault) => el("div", {}, value(fault.line ? `line ${fault.line}: ${fault.problem}` : fault.problem))), row.removed ? value(`lines 1 to ${row.removed} were deleted on purpose`) : null),
    ),
  );
  const told = Object.entries(counts).map(([word, times]) => `${times} ${word}`).join(", ");
  return [
    el("h1", {}, "Logs", el("span", { class: "count" }, `${told || "none verified yet"}${left ? `, ${left} to go` : ""}`)),
    el("ul", { class: "quiet" }, [
      "verified: every line follows, to a head that was kept elsewhere",
      "signed: every line is under a checkpoint of a trusted key",
      "chained: every line follows, and nobody vouches for who wrote it",
      "open: the end is being written, or was cut or added to",
      "tampered: something does not hold; the lines are named",
    ].map((text) => el("li", {}, text))),
    table("What holds of each log", ["Log", "Status", "#Events", "#Signed", "#Heads", "What is wrong"], lines, "No log has been verified yet."),
    el("p", { class: "quiet" }, "What is shown on this page comes from an index and is no evidence. ", el("code", {}, "runtime-pack audit verify"), " says the same of one log, with the keys and heads that you give it."),
  ];
}

// ── following ─────────────────────────────────────────────────────────────────────────────────

const DRAW = { runs: runsView, run: runView, denials: denialsView, events: eventsView, event: eventView, approvals: approvalsView, logs: logsView };

function place() {
  const [view, query] = location.hash.slice(1).split("?");
  return { view: view in DRAW ? view : "runs", fields: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

async function draw(again = false) {
  const mine = ++drawn;
  const { view, fields } = place();
  const main = $("main");
  main.setAttribute("aria-busy", "true");
  try {
    overview = await ask("overview");
    version = overview.version;
    const parts = await DRAW[view](fields);
    if (mine !== drawn) return;
    drawTop(view);
    const kept = again ? keep() : null;
    main.replaceChildren(...parts.flat().filter(Boolean));
    if (again) restore(kept);
    else {
      window.scrollTo(0, 0);
      main.focus({ preventScroll: true });
      document.title = `${main.querySelector("h1")?.textContent ?? "Review"} · runtime-pack`;
    }
  } catch (error) {
    if (mine !== drawn) return;
    drawTop(view);
    fail(error.message);
  } finally {
    if (mine === drawn) main.setAttribute("aria-busy", "false");
  }
}

// A page that draws itself anew must not take the focus, the place or half a word from who uses it.
function keep() {
  const main = $("main");
  const active = document.activeElement;
  const inside = main.contains(active);
  const all = inside ? [...main.querySelectorAll("a, button, input, textarea, [tabindex]")] : [];
  return { at: all.indexOf(active), scrolls: [...main.querySelectorAll(".scroll, pre")].map((each) => [each.scrollLeft, each.scrollTop]) };
}

function restore(kept) {
  const main = $("main");
  if (kept.at >= 0) main.querySelectorAll("a, button, input, textarea, [tabindex]")[kept.at]?.focus({ preventScroll: true });
  [...main.querySelectorAll(".scroll, pre")].forEach((each, at) => kept.scrolls[at] && each.scrollTo(...kept.scrolls[at]));
}

const isBusy = () => $("ask").open || ["INPUT", "TEXTAREA"].includes(document.activeElement?.tagName) || String(getSelection()).length > 0;

async function follow() {
  let seen = 0;
  for (;;) {
    try {
      const told = await ask("changes", { since: version });
      if (!follows) { follows = true; drawTop(place().view); }
      // Saved runs and verification change without a line of a log: they are asked for now and then.
      const stale = Date.now() - seen > 5000;
      if ((told.version !== version || stale) && !isBusy() && !place().fields.after) {
        seen = Date.now();
        await draw(true);
      } else version = told.version;
    } catch {
      follows = false;
      drawTop(place().view);
      await new Promise((wake) => setTimeout(wake, 2000));
    }
  }
}

$("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
window.addEventListener("hashchange", () => { if (takeToken()) draw(); });
if (takeToken()) {
  draw().then(follow);
} else {
  fail("The token is missing: open the address that the command printed.");
  $("main").setAttribute("aria-busy", "false");
}
