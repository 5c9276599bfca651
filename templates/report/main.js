// The page: header, tabs, and what each tab shows. A tab is made when it is first opened.

const D = JSON.parse(document.getElementById("data").textContent);
let current = 0; // the bundle that is shown
const views = new Map();

const context = {
  openFunction: (bundle, item) => details.openFunction(bundle, item),
  openNode: (bundle, flow, node) => details.openNode(bundle, flow, node),
  openCall: (bundle, call, symbol) => {
    const item = bundle.functions.find((one) => one.symbol === symbol);
    if (item) details.openFunction(bundle, item);
  },
  showInGraph: (symbol) => {
    go("graph");
    graphOf().openSymbol(symbol);
  },
};
const details = detailsPanel(context);
const graphOf = () => views.get(`graph ${current}`);

function overview(bundle) {
  const top = bundle.functions.slice(0, 6).filter((item) => item.us || item.flops);
  const timed = Boolean(bundle.measured);
  const value = (item) => (timed ? item.us || 0 : item.flops * item.calls);
  const largest = Math.max(...top.map(value)) || 1;
  const backends = bundle.backends.filter((backend) => backend.functions);
  const { verify } = bundle;
  const warnings = verify.findings.filter((finding) => finding.severity === "warning").length;
  return h("div", {},
    h("div", { class: "figures" }, bundle.figures.filter((figure) => known(figure.value)).map((figure) =>
      h("div", { class: "figure" }, h("strong", {}, UNITS[figure.unit](figure.value)), h("span", {}, figure.label)))),
    h("div", { class: "columns" },
      card("Who computes what",
        stackedBar(backends.map((b) => ({ label: b.kind, value: timed ? b.us || 0 : b.flops, color: tint(bundle, b.kind), text: timed ? microseconds(b.us) : flops(b.flops) })), timed ? "Time by backend" : "FLOPs by backend"),
        h("div", { class: "scroll" }, h("table", {},
          h("thead", {}, h("tr", {}, ["backend", "functions", "calls", "FLOPs", "time", "code"].map((name, i) => h("th", { scope: "col", class: i ? "number" : "" }, name)))),
          h("tbody", {}, backends.map((b) => h("tr", {}, h("td", { class: "short" }, dot(bundle, b.kind), b.kind), [count(b.functions), count(b.calls), flops(b.flops), microseconds(b.us), bytes(b.code)].map((text) => h("td", { class: "number" }, text)))))))),
      card(timed ? "Where the time goes" : "Where the work is",
        h("ol", { class: "ranking" }, top.map((item) => h("li", {},
          h("button", { type: "button", class: "link", onclick: () => context.openFunction(bundle, item) }, dot(bundle, item.backend), item.label),
          meter(timed ? `${microseconds(item.us)} · ${percent(item.share)}` : flops(item.flops * item.calls), value(item) / largest, tint(bundle, item.backend))))),
        timed ? null : h("p", { class: "muted" }, "Times are not known: give --run, or --profile with what packager bench --profile-json wrote."))),
    bundle.measured ? timeline(bundle, context) : null,
    card("Verified",
      h("p", {}, badge(verify.ok ? "accepted" : "not accepted", verify.ok ? "good" : "bad"), " ",
        verify.findings.length ? `${plural(verify.findings.length - warnings, "error")}, ${plural(warnings, "warning")}` : "no findings", " ",
        h("button", { type: "button", class: "link go", onclick: () => go("verify") }, "Show checks"))),
    h("div", { class: "columns" }, bundle.tables.filter((table) => ["About", "Tensors", "Run-time extents", "CUDA graphs"].includes(table.title)).map((table) => card(table.title, plainTable(table)))));
}

function functionsView(bundle) {
  const timed = Boolean(bundle.measured);
  const most = Math.max(...bundle.functions.map((item) => item.us || 0)) || 1;
  const work = Math.max(...bundle.functions.map((item) => item.flops * item.calls)) || 1;
  const name = (item) => h("span", { class: "function" }, h("span", {}, dot(bundle, item.backend), item.label), h("code", { class: "muted" }, item.symbol));
  const columns = [
    { name: "function", value: (f) => f.label, show: name },
    { name: "backend", short: true, value: (f) => f.backend, show: (f) => f.backend },
    { name: "calls", number: true, value: (f) => f.calls, show: (f) => count(f.calls) },
    timed && { name: "time", number: true, value: (f) => f.us, show: (f) => (known(f.us) ? meter(microseconds(f.us), f.us / most, tint(bundle, f.backend)) : DASH), help: "of all calls in a run" },
    timed && { name: "share", number: true, value: (f) => f.share, show: (f) => percent(f.share) },
    timed && { name: "GFLOP/s", number: true, value: (f) => f.gflops_per_second, show: (f) => (f.gflops_per_second ? f.gflops_per_second.toFixed(1) : DASH) },
    timed && { name: "GB/s", number: true, value: (f) => f.gb_per_second, show: (f) => (f.gb_per_second ? f.gb_per_second.toFixed(1) : DASH) },
    bundle.functions.some((f) => known(f.roof)) && { name: "of roofline", number: true, value: (f) => f.roof, show: (f) => (known(f.roof) ? meter(percent(f.roof), f.roof, tint(bundle, f.backend)) : DASH), help: "the share of the rate that the given peaks allow" },
    { name: "FLOPs", number: true, value: (f) => f.flops * f.calls, show: (f) => (timed ? flops(f.flops * f.calls) : meter(flops(f.flops * f.calls), (f.flops * f.calls) / work, tint(bundle, f.backend))), help: "of all calls in a run" },
    { name: "moved", number: true, value: (f) => (f.bytes_read + f.bytes_written) * f.calls, show: (f) => bytes((f.bytes_read + f.bytes_written) * f.calls), help: "bytes read and written by all calls in a run" },
    { name: "code", number: true, value: (f) => f.code, show: (f) => (f.code ? bytes(f.code) : DASH) },
    bundle.functions.some((f) => f.candidates.length) && { name: "candidates", number: true, value: (f) => (f.candidates[0] ? f.candidates[0].candidates.length : 0), show: (f) => (f.candidates[0] ? count(f.candidates[0].candidates.length) : DASH) },
  ].filter(Boolean);
  return h("div", {}, card("Primitive functions", sortedTable([...bundle.functions], columns, {
      sort: columns.findIndex((column) => column.name === (timed ? "time" : "FLOPs")), label: "function",
      open: (item) => context.openFunction(bundle, item),
      search: (f) => `${f.label} ${f.symbol} ${f.backend} ${f.nodes.join(" ")}`, placeholder: "Filter by operator, symbol, backend or node",
    })), timed ? roofline(bundle, D.peaks, context) : null);
}

function placementView(bundle) {
  return h("div", {},
    bundle && bundle.choices.length ? card("Choices", h("p", { class: "muted" }, "Equal regions of the model that several backends can compute; a session runs one alternative of each."),
      bundle.choices.map((choice) => h("details", { open: bundle.choices.length <= 12 },
        h("summary", {}, h("code", {}, choice.name), ` ${choice.problem} `, h("span", { class: "muted" }, plural(choice.regions.length, "region"))),
        alternatives(bundle, choice), h("p", { class: "muted" }, clipped(choice.regions.map((region) => region.join(", ")).join("; "), 400))))) : null,
    bundle && bundle.undone.length ? card("Not taken", h("p", { class: "muted" }, "Parts that a backend matched and that were left to others."),
      plainTable({ columns: ["backend", "operators", "nodes", "why"], rows: bundle.undone.map((item) => [item.backend, item.operators.join(", "), clipped(item.nodes.join(", "), 200), item.reason]) })) : null,
    D.records ? D.records.placements.map(placementCard) : null,
    D.records && D.records.records.length ? card("Measured candidates", D.records.records.map((record) => h("details", { open: D.records.records.length <= 8 },
      h("summary", {}, record.problem, h("span", { class: "muted" }, ` ${record.device}`)),
      h("table", {}, h("tbody", {}, record.timings.map((timing) => h("tr", {}, h("td", {}, timing.candidate),
        h("td", { class: "number" }, slowdown(timing, Math.max(...record.timings.map((t) => t.slower_us)) || 1)))))),
      h("p", { class: "muted" }, record.revision)))) : null);
}

function placementCard(found) {
  const slowest = Math.max(...found.plans.map((plan) => plan.us)) || 1;
  return card(`Measured placement on ${found.device}, ${plural(found.threads, "thread")}`,
    D.bundles.length && !found.matches ? h("p", {}, badge("of another model", "warn")) : null,
    h("table", {}, h("tbody", {}, found.plans.map((plan) => h("tr", {}, h("td", {}, plan.name === "fastest" ? h("strong", {}, "measured fastest") : plan.name),
      h("td", { class: "number" }, meter(microseconds(plan.us), plan.us / slowest, plan.name === "fastest" ? "b1" : "bx")))))),
    h("details", { open: Object.keys(found.choices).length <= 30 }, h("summary", {}, plural(Object.keys(found.choices).length, "class of regions").replace("regionss", "regions")),
      plainTable({ columns: ["problem", "fastest alternative"], rows: Object.entries(found.choices) })),
    h("p", { class: "muted" }, found.revision));
}

function verifyView(bundle) {
  const { verify } = bundle;
  return h("div", {},
    card("Checks", h("p", {}, badge(verify.ok ? "accepted" : "not accepted", verify.ok ? "good" : "bad"), " on the machine where this report was made"),
      h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["check", "result", "note"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, verify.checks.map((check) => h("tr", {}, h("td", {}, check.name),
          h("td", {}, badge(check.status, { passed: "good", failed: "bad", skipped: "" }[check.status])), h("td", {}, check.note))))))),
    verify.findings.map((finding) => card([badge(finding.severity, finding.severity === "error" ? "bad" : "warn"), ` ${finding.what}`],
      plainTable({ columns: ["", ""], rows: [["check", finding.check], ["where", finding.where], ["why", finding.why], ["hint", finding.hint]] }))),
    h("div", { class: "columns" }, bundle.tables.filter((table) => !["About", "Tensors", "Run-time extents", "CUDA graphs"].includes(table.title) && table.rows.length).map((table) => card(table.title, plainTable(table)))),
    bundle.stages.length ? card("Build", stages(bundle)) : null);
}

function stages(bundle) {
  const longest = Math.max(...bundle.stages.map((stage) => stage.seconds)) || 1;
  return h("table", {}, h("tbody", {}, bundle.stages.map((stage) => h("tr", {}, h("td", {}, stage.name),
    h("td", { class: "number" }, meter(microseconds(stage.seconds * 1e6), stage.seconds / longest, "b0"))))));
}

function compareView() {
  const [one, other] = D.bundles;
  const row = (label, a, b, unit, less = true) => {
    const ratio = known(a) && known(b) && a > 0 ? b / a : null;
    const better = ratio === null || Math.abs(ratio - 1) < 0.005 || !less ? "" : ratio < 1 ? "good" : "bad";
    return h("tr", {}, h("td", {}, label), h("td", { class: "number" }, UNITS[unit](a)), h("td", { class: "number" }, UNITS[unit](b)),
      h("td", { class: "number" }, ratio === null ? DASH : badge(Math.abs(ratio - 1) < 0.005 ? "=" : `${ratio.toFixed(2)} ×`, better)));
  };
  const kinds = [...new Set(D.bundles.flatMap((bundle) => bundle.backends.filter((b) => b.functions).map((b) => b.kind)))];
  const of = (bundle, kind) => bundle.backends.find((b) => b.kind === kind) || { us: null, flops: 0, calls: 0 };
  const timed = D.bundles.every((bundle) => bundle.measured);
  const head = (first) => h("thead", {}, h("tr", {}, h("th", { scope: "col" }, first), [`A: ${one.name}`, `B: ${other.name}`, "B / A"].map((name) => h("th", { scope: "col", class: "number" }, name))));
  const byNodes = (bundle) => {
    const found = new Map();
    for (const item of bundle.functions) {
      const key = item.nodes.join("\n") || item.symbol;
      const sum = found.get(key) || { label: item.label, nodes: item.nodes, us: null, flops: 0, kinds: new Set() };
      if (known(item.us)) sum.us = (sum.us || 0) + item.us;
      sum.flops += item.flops * item.calls;
      sum.kinds.add(item.backend);
      found.set(key, sum);
    }
    return found;
  };
  const [a, b] = D.bundles.map(byNodes);
  const pairs = [...new Set([...a.keys(), ...b.keys()])].map((key) => ({ key, a: a.get(key), b: b.get(key) }));
  const amount = (side) => (side ? (timed ? side.us : side.flops) : null);
  const text = (value) => (timed ? microseconds(value) : flops(value));
  const who = (bundle, side) => (side ? [...side.kinds].map((kind) => [dot(bundle, kind), kind, " "]) : h("span", { class: "muted" }, "split otherwise"));
  const columns = [
    { name: "nodes", value: (p) => (p.a || p.b).label, show: (p) => h("span", { class: "function" }, h("span", {}, (p.a || p.b).label), h("code", { class: "muted" }, clipped((p.a || p.b).nodes.join(", "), 70))) },
    { name: "A by", short: true, value: (p) => (p.a ? [...p.a.kinds].join() : ""), show: (p) => who(one, p.a) },
    { name: "B by", short: true, value: (p) => (p.b ? [...p.b.kinds].join() : ""), show: (p) => who(other, p.b) },
    { name: "A", number: true, value: (p) => amount(p.a), show: (p) => text(amount(p.a)) },
    { name: "B", number: true, value: (p) => amount(p.b), show: (p) => text(amount(p.b)) },
    { name: "B − A", number: true, value: (p) => (p.a && p.b ? amount(p.b) - amount(p.a) : null), show: (p) => {
      const change = p.a && p.b && known(amount(p.a)) && known(amount(p.b)) ? amount(p.b) - amount(p.a) : null;
      return change === null ? DASH : h("span", { class: change < 0 ? "less" : change > 0 ? "greater" : "" }, `${change < 0 ? "−" : "+"}${text(Math.abs(change))}`);
    } },
  ];
  return h("div", {},
    card("Side by side", h("div", { class: "scroll" }, h("table", {}, head(""), h("tbody", {}, one.figures.map((figure, index) =>
      known(figure.value) || known(other.figures[index].value) ? row(figure.label, figure.value, other.figures[index].value, figure.unit, figure.unit !== "count") : null))))),
    card("Backends", D.bundles.map((bundle, index) => [h("h3", {}, `${"AB"[index]}: ${bundle.name}`),
      stackedBar(bundle.backends.filter((x) => x.functions).map((x) => ({ label: x.kind, value: timed ? x.us || 0 : x.flops, color: tint(bundle, x.kind), text: timed ? microseconds(x.us) : flops(x.flops) })), bundle.name)]),
      h("div", { class: "scroll" }, h("table", {}, head(timed ? "time by" : "FLOPs by"), h("tbody", {}, kinds.filter((kind) => !timed || known(of(one, kind).us) || known(of(other, kind).us)).map((kind) =>
        row(kind, timed ? of(one, kind).us : of(one, kind).flops, timed ? of(other, kind).us : of(other, kind).flops, timed ? "us" : "flops")))))),
    card("By nodes of the model", sortedTable(pairs, columns, { sort: 3, label: "part", search: (p) => `${(p.a || p.b).label} ${p.key}`, placeholder: "Filter by operator or node" })));
}
UNITS.us = microseconds;

const TABS = [
  ["compare", "Compare", () => D.bundles.length === 2, compareView],
  ["overview", "Overview", (bundle) => bundle, overview],
  ["graph", "Graph", (bundle) => bundle && bundle.runs.length, (bundle) => graphView(bundle, context)],
  ["functions", "Functions", (bundle) => bundle, functionsView],
  ["memory", "Memory", (bundle) => bundle && bundle.runs.length, (bundle) => memoryView(bundle, context)],
  ["sizes", "Sizes", (bundle) => bundle, sizesView],
  ["placement", "Placement", (bundle) => D.records || (bundle && (bundle.choices.length || bundle.undone.length)), placementView],
  ["verify", "Requirements", (bundle) => bundle, verifyView],
];

const main = h("main", { id: "panel", role: "tabpanel", tabindex: "-1" });
const tabs = h("nav", { class: "tabs", role: "tablist", "aria-label": "Parts of the report" });
const pick = D.bundles.length === 2 ? h("select", { "aria-label": "Bundle", onchange: (event) => { current = Number(event.target.value); draw(); } },
  D.bundles.map((bundle, index) => h("option", { value: index }, `${"AB"[index]}: ${bundle.name}`))) : null;
const themes = ["auto", "light", "dark"];
let theme = 0;
const themeButton = h("button", { type: "button", class: "icon", onclick: () => setTheme((theme + 1) % 3) });
function setTheme(index) {
  theme = index;
  document.documentElement.dataset.theme = themes[theme];
  themeButton.textContent = ["◐", "☀", "☾"][theme];
  themeButton.title = `Theme: ${themes[theme]}`;
  themeButton.setAttribute("aria-label", themeButton.title);
}
const subtitle = h("p", { class: "muted" });

const available = () => TABS.filter(([, , has]) => has(D.bundles[current]));
const wanted = () => {
  const name = location.hash.slice(1);
  return available().find(([id]) => id === name) || available()[0];
};
function go(name) {
  if (location.hash.slice(1) !== name) history.replaceState(null, "", `#${name}`);
  draw();
}

function draw() {
  const bundle = D.bundles[current];
  const [name, title, , make] = wanted();
  const compares = name === "compare";
  subtitle.textContent = compares || !bundle ? "" : bundle.subtitle;
  tabs.replaceChildren(...available().map(([id, text]) => h("button", {
    type: "button", role: "tab", id: `tab-${id}`, "aria-selected": String(id === name), "aria-controls": "panel", tabindex: id === name ? "0" : "-1",
    onclick: () => { details.close(); go(id); document.getElementById(`tab-${id}`).focus(); },
    onkeydown: (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const all = available().map(([other]) => other);
      const next = all[(all.indexOf(id) + step + all.length) % all.length];
      go(next);
      document.getElementById(`tab-${next}`).focus();
    },
  }, text)));
  if (pick) pick.hidden = compares;
  const key = compares ? name : `${name} ${current}`;
  if (!views.has(key)) views.set(key, make(bundle));
  main.className = name;
  main.setAttribute("aria-labelledby", `tab-${name}`);
  if (main.firstChild !== views.get(key)) main.replaceChildren(views.get(key));
  document.title = `${title} · ${D.title} · packager report`;
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.closest("input, select, textarea");
  if (event.key === "/" && !typing) {
    event.preventDefault();
    if (main.className !== "graph" && D.bundles[current] && D.bundles[current].runs.length) go("graph");
    if (graphOf()) graphOf().focusSearch();
  }
  if (event.key === "Escape" && !typing) details.close();
});
addEventListener("hashchange", draw);

setTheme(0);
document.getElementById("app").append(
  h("header", { class: "top" },
    h("div", { class: "name" }, h("h1", {}, D.title), subtitle),
    h("div", { class: "tools" }, pick, themeButton)),
  tabs, main, details.element, tip,
  h("footer", { class: "muted" }, `made by packager ${D.version}; loads nothing from the network`));
draw();
document.documentElement.dataset.ready = "true";
