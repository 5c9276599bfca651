// The panel at the side: all that is known of one function or call.

function detailsPanel(context) {
  const title = h("h2", { id: "details-title" }), body = h("div", { class: "details-body" });
  let opener = null;
  const close = () => {
    panel.classList.remove("shown");
    document.body.classList.remove("beside");
    panel.setAttribute("inert", "");
    if (opener && document.contains(opener)) opener.focus();
  };
  const panel = h("aside", { class: "details", inert: true, "aria-labelledby": "details-title" },
    h("header", {}, title, h("button", { type: "button", class: "icon", "aria-label": "Close (Escape)", onclick: close }, "✕")), body);

  function open(heading, content) {
    if (!panel.contains(document.activeElement)) opener = document.activeElement;
    title.replaceChildren(...[heading].flat());
    body.replaceChildren(...content.flat(2).filter(Boolean));
    panel.classList.add("shown");
    document.body.classList.add("beside");
    panel.removeAttribute("inert");
    body.scrollTop = 0;
  }

  const section = (name, ...content) => h("section", {}, h("h3", {}, name), content);
  const list = (rows) => h("dl", {}, rows.filter((row) => row && known(row[1]) && row[1] !== "").map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  const names = (texts) => h("ul", { class: "names" }, texts.slice(0, 60).map((text) => h("li", {}, text)),
    texts.length > 60 ? h("li", { class: "muted" }, `and ${count(texts.length - 60)} more`) : null);

  function aboutFunction(bundle, item) {
    const moved = item.bytes_read + item.bytes_written;
    return [
      section("Function", list([
        ["backend", [dot(bundle, item.backend), item.backend]],
        ["symbol", h("code", {}, item.symbol)],
        ["pattern", item.composite],
        ["operators", item.ops.join(", ")],
        ["calls per run", count(item.calls)],
        ["code", item.code ? bytes(item.code) : null],
        ["CPU levels", item.levels.length ? `lowest, ${item.levels.join(", ")}` : null],
        ["calls libraries", item.libraries.join(", ")],
      ])),
      section("Work and time", list([
        ["FLOPs of a call", flops(item.flops)],
        ["bytes of a call", `${bytes(item.bytes_read)} read, ${bytes(item.bytes_written)} written`],
        ["FLOP per byte", moved ? (item.flops / moved).toFixed(item.flops / moved < 10 ? 2 : 0) : null],
        ["time in a run", known(item.us) ? `${microseconds(item.us)}, ${percent(item.share)}` : "not measured"],
        ["rate", known(item.gflops_per_second) ? `${gflops(item.gflops_per_second)}, ${gigabytes(item.gb_per_second)}` : null],
        ["of the roofline", known(item.roof) ? meter(percent(item.roof), item.roof, tint(bundle, item.backend)) : null],
      ])),
      ...item.candidates.map((candidates) => candidatesSection(section, candidates)),
      ...choicesOf(bundle, item.nodes).map((choice) => section("Alternatives", alternatives(bundle, choice))),
      item.nodes.length ? section(`Nodes of the model (${count(item.nodes.length)})`, names(item.nodes)) : null,
    ];
  }

  function tensors(flow, numbers) {
    return h("ul", { class: "tensors" }, numbers.map((number) => {
      const tensor = flow.tensors[number];
      const where = { arena: "arena", input: "input", output: "output", state: "state", constant: "weight", workspace: "scratch" }[tensor.space];
      return h("li", {}, badge(where, tensor.space), h("span", {}, tensor.name ? [h("strong", {}, tensor.name), " "] : null,
        `${tensor.dtype} ${shape(tensor.shape)}`, h("span", { class: "muted" }, ` ${bytes(tensor.bytes)}${["arena", "workspace"].includes(tensor.space) ? ` at ${count(tensor.place)}` : ""}`)));
    }));
  }

  const context_ = {
    element: panel,
    close,
    isOpen: () => panel.classList.contains("shown"),
    openFunction: (bundle, item) => open([dot(bundle, item.backend), item.label], [
      bundle.runs.length ? h("div", { class: "bar" }, h("button", { type: "button", onclick: () => context.showInGraph(item.symbol) }, "Show in graph")) : null,
      ...aboutFunction(bundle, item)]),
    openNode: (bundle, flow, node) => {
      const item = bundle.functions.find((one) => one.symbol === node.symbol);
      open([item ? dot(bundle, item.backend) : null, node.label], [
        section(node.call === null ? node.kind : `Call ${node.call + 1} of ${flow.calls}`, list([
          ["time", known(node.us) ? microseconds(node.us) : null],
          ["only if", node.condition],
          ["nodes", node.nodes.length && node.nodes.length <= 8 ? node.nodes.join(", ") : null],
        ])),
        node.reads.length ? section("Reads", tensors(flow, node.reads)) : null,
        node.writes.length ? section("Writes", tensors(flow, node.writes)) : null,
        ...(item ? aboutFunction(bundle, item) : []),
      ]);
    },
  };
  return context_;
}

function candidatesSection(section, found) {
  const slowest = Math.max(...found.candidates.map((one) => one.slower_us || 0)) || 1;
  return section(found.device ? `Candidates on ${found.device}` : "Candidates",
    h("p", { class: "muted" }, found.problem, found.stale ? " – measured with another revision of the code" : "",
      found.device ? "" : " – not measured: give records of packager tune"),
    h("table", {}, h("tbody", {}, found.candidates.map((one) => h("tr", {},
      h("td", {}, one.name, one.used ? [" ", badge("used", "good")] : null),
      h("td", { class: "number" }, slowdown(one, slowest)))))));
}

function choicesOf(bundle, nodes) {
  const own = new Set(nodes);
  return bundle.choices.filter((choice) => choice.regions.some((region) => region.some((node) => own.has(node))));
}

function alternatives(bundle, choice) {
  const slowest = Math.max(...choice.alternatives.map((way) => way.slower_us || 0)) || 1;
  const timed = choice.alternatives.some((way) => known(way.slower_us));
  return h("div", { class: "scroll" }, h("table", { class: "even" }, h("tbody", {}, choice.alternatives.map((way) => h("tr", {},
    h("td", {}, way.backends.map((kind) => dot(bundle, kind)), h("span", { class: "breaks" }, way.name)),
    h("td", { class: "badges" }, way.used ? badge("used", "good") : null, way.measured_best ? badge("measured fastest", "best") : null,
      way.name === choice.fallback ? badge("fallback") : null, way.libraries.map((name) => badge(`needs ${name}`))),
    timed ? h("td", { class: "number" }, slowdown(way, slowest)) : null)))));
}

// By how much something is slower than the fastest, with the standard error.
function slowdown(one, slowest) {
  if (!known(one.slower_us)) return DASH;
  const error = one.error_us ? ` ± ${microseconds(one.error_us)}` : "";
  return meter(one.slower_us ? `+${microseconds(one.slower_us)}${error}` : "fastest", one.slower_us / slowest, "bx");
}
