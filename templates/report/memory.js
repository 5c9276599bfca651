// The arena over the calls of a run: a rectangle for each tensor, from its first to its last call.

function memoryView(bundle, context) {
  const place = h("div");
  const draw = (run) => place.replaceChildren(arenaChart(bundle, run, context), blockTable(bundle, run, context));
  draw(bundle.runs[0]);
  return h("div", {}, h("div", { class: "bar" }, runSelect(bundle, draw), h("span", { class: "grow" }), legend(bundle)), place);
}

function blockName(run, block) {
  const writer = run.flow.nodes.find((node) => node.call !== null && node.writes.includes(block.tensor));
  const name = !writer ? "unwritten" : writer.kind === "copy" ? "copy" : writer.label;
  return run.flow.tensors[block.tensor].space === "workspace" ? `scratch of ${name}` : name;
}

function openBlock(bundle, run, block, context) {
  const writer = run.flow.nodes.find((node) => node.call !== null && node.writes.includes(block.tensor));
  if (writer) context.openNode(bundle, run.flow, writer);
}

function arenaChart(bundle, run, context) {
  const { arena, flow } = run;
  if (!arena.blocks.length) return card("Arena", h("p", { class: "muted" }, "This run needs no arena."));
  const calls = flow.calls, above = 70;
  const part = (value, all) => `${(100 * value) / all}%`;
  const blocks = arena.blocks.map((block) => {
    const tensor = flow.tensors[block.tensor];
    const name = blockName(run, block);
    const about = [name, `${bytes(block.bytes)} at ${bytes(block.offset)}`, `${tensor.dtype} ${shape(tensor.shape)}`,
      `calls ${block.first + 1} to ${block.last + 1} of ${calls}`];
    const roomy = (block.last + 1 - block.first) / calls > 0.07 && block.bytes / arena.end > 0.045;
    return h("div", {
      class: `block ${block.backend ? tint(bundle, block.backend) : "bx"}`,
      style: {
        left: part(block.first, calls), width: part(block.last + 1 - block.first, calls),
        bottom: part(block.offset, arena.end), height: part(block.bytes, arena.end),
      },
      "aria-label": about.join(", "), ...tipped(...about), ...pressable(() => openBlock(bundle, run, block, context)),
    }, roomy ? h("span", {}, `${name} · ${bytes(block.bytes)}`) : null);
  });
  const steps = arena.live.map((live, call) => `L${call} ${above - (live / arena.end) * above}H${call + 1}`).join("");
  const chart = (content) => h("div", { class: "chart" },
    h("div", { class: "axis muted" }, h("span", {}, bytes(arena.end)), h("span", {}, "0")), content);
  return card("Arena over time",
    h("p", { class: "muted" }, `${bytes(arena.end)} for a run, of which ${bytes(arena.peak)} are in use at once (${percent(arena.peak / arena.end)}).`),
    h("h3", {}, "in use at each call"),
    chart(svg("svg", { viewBox: `0 0 ${calls} ${above}`, preserveAspectRatio: "none", height: above, role: "img", "aria-label": "Bytes in use at each call" },
      svg("path", { class: "area", d: `M0 ${above}${steps}V${above}Z` }))),
    h("h3", {}, "offset of each tensor"),
    chart(h("div", { class: "blocks", role: "group", "aria-label": "Tensors by offset and calls" }, blocks)),
    h("div", { class: "under muted" }, h("span", {}, "call 1"), h("span", {}, `call ${calls}`)));
}

function blockTable(bundle, run, context) {
  const columns = [
    { name: "written by", value: (b) => blockName(run, b), show: (b) => [dot(bundle, b.backend), blockName(run, b)] },
    { name: "tensor", value: (b) => shape(run.flow.tensors[b.tensor].shape), show: (b) => `${run.flow.tensors[b.tensor].dtype} ${shape(run.flow.tensors[b.tensor].shape)}` },
    { name: "size", number: true, value: (b) => b.bytes, show: (b) => meter(bytes(b.bytes), b.bytes / run.arena.end, b.backend ? tint(bundle, b.backend) : "bx") },
    { name: "offset", number: true, value: (b) => b.offset, show: (b) => count(b.offset) },
    { name: "first call", number: true, value: (b) => b.first, show: (b) => count(b.first + 1) },
    { name: "last call", number: true, value: (b) => b.last, show: (b) => count(b.last + 1) },
  ];
  return card("Tensors in the arena", sortedTable([...run.arena.blocks], columns, {
    sort: 2, label: "tensor", open: (block) => openBlock(bundle, run, block, context),
    search: (b) => `${blockName(run, b)} ${shape(run.flow.tensors[b.tensor].shape)}`, placeholder: "Filter tensors",
  }));
}
