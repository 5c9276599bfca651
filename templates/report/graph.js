// The graph of a run: pan, zoom, search. Only what is in view is in the document.

const NEAREST = 2.5, FARTHEST = 0.02, MARGIN = 200;

function graphView(bundle, context) {
  let flow = bundle.runs[0].flow;
  let view = { x: 0, y: 0, scale: 1 };
  let byHeat = false, matches = [], match = -1, selected = -1, scheduled = false;
  const shown = { nodes: new Map(), edges: new Map() };
  const edgeLayer = svg("g"), nodeLayer = svg("g");
  const world = svg("g", { class: "world" }, edgeLayer, nodeLayer);
  const canvas = svg("svg", { class: "canvas", role: "application", tabindex: "0",
    "aria-label": "Graph of the calls of a run. Arrow keys pan, plus and minus zoom, slash searches." }, world);
  const functions = new Map(bundle.functions.map((item) => [item.symbol, item]));
  const found = h("span", { class: "muted", role: "status" });

  const weight = (node) => {
    if (node.call === null) return null;
    if (bundle.measured) return node.us;
    return functions.has(node.symbol) ? functions.get(node.symbol).flops : null;
  };
  let heaviest = 1;
  const titleOf = (node) => node.kind === "copy" ? "copy" : node.label;
  const tensorText = (number) => {
    const tensor = flow.tensors[number];
    return `${tensor.dtype} ${shape(tensor.shape)}`;
  };
  function subtitle(node) {
    if (node.call === null) return tensorText((node.writes.length ? node.writes : node.reads)[0]);
    if (known(node.us)) return `${microseconds(node.us)} · ${node.backend || "bundle"}`;
    const work = functions.get(node.symbol);
    return work && work.flops ? `${flops(work.flops)} · ${node.backend}` : node.backend || "by the bundle";
  }

  function drawNode(index) {
    const node = flow.nodes[index];
    const color = node.kind === "call" ? tint(bundle, node.backend) : "bx";
    const results = node.writes.filter((number) => flow.tensors[number].space !== "workspace").map((number) => shape(flow.tensors[number].shape));
    const label = `${node.kind === "call" ? "" : `${node.kind} `}${titleOf(node)}, ${subtitle(node)}${node.nodes.length ? `, from ${clipped(node.nodes.join(", "), 120)}` : ""}`;
    const share = heaviest ? Math.sqrt((weight(node) || 0) / heaviest) : 0;
    const element = svg("g", {
      class: `node ${node.kind} ${color}`, transform: `translate(${node.x},${node.y})`, "data-node": index,
      "aria-label": label, style: { "--heat": `${Math.round(85 * share)}%` }, ...pressable(() => select(index)),
      onfocus: () => reveal(index, false),
      onpointerenter: () => relate(index), onpointerleave: () => { hideTip(); relate(selected); },
      onpointermove: (event) => showTip(event, titleOf(node), node.symbol, subtitle(node), node.condition && `only if ${node.condition}`,
        clipped(node.nodes.join(", "), 160), node.kind === "call" && "click for more"),
    },
      svg("rect", { class: "box", width: node.width, height: node.height, rx: node.call === null ? node.height / 2 : 7 }),
      node.call === null ? null : svg("path", { class: "bar", d: `M7 0h-1a6 6 0 0 0-6 6v${node.height - 12}a6 6 0 0 0 6 6h1z` }),
      svg("text", { class: "title", x: node.width / 2 + (node.call === null ? 0 : 2), y: 19 }, fitted(titleOf(node), node.width - 18, "title")),
      svg("text", { class: "sub", x: node.width / 2 + (node.call === null ? 0 : 2), y: 34 },
        fitted(subtitle(node), node.width - 18, "sub")),
      node.call === null || !results.length ? null : svg("text", { class: "shape", x: node.width / 2 + 6, y: node.height + 14 },
        fitted(results.join(", "), node.width / 2 + 12, "shape")));
    mark(element, index);
    return element;
  }

  function drawEdge(index) {
    const edge = flow.edges[index];
    const [p, back] = [edge.points, edge.source >= edge.target];
    let path = `M${p[0]} ${p[1]}`;
    for (let i = 2; i < p.length; i += 2) {
      const [x0, y0, x1, y1] = [p[i - 2], p[i - 1], p[i], p[i + 1]];
      const bend = back ? -60 : Math.min(Math.abs(y1 - y0) / 2, 60);
      path += x0 === x1 && !back ? `L${x1} ${y1}` : `C${x0} ${y0 + bend} ${x1} ${y1 - bend} ${x1} ${y1}`;
    }
    const element = svg("path", { class: "edge", d: path, "data-edge": index });
    element.classList.toggle("near", edge.source === related || edge.target === related);
    return element;
  }

  function mark(element, index) {
    element.classList.toggle("found", matches.includes(index));
    element.classList.toggle("selected", index === selected);
  }

  let related = -1;
  function relate(index) {
    if (index === related) return;
    related = index;
    for (const [number, element] of shown.edges) {
      const edge = flow.edges[number];
      element.classList.toggle("near", edge.source === index || edge.target === index);
    }
  }

  const size = () => ({ width: canvas.clientWidth || 800, height: canvas.clientHeight || 600 });
  const schedule = () => {
    if (!scheduled) requestAnimationFrame(() => { scheduled = false; draw(); });
    scheduled = true;
  };

  function draw() {
    const { width, height } = size();
    world.setAttribute("transform", `translate(${view.x},${view.y}) scale(${view.scale})`);
    canvas.classList.toggle("far", view.scale < 0.33);
    canvas.classList.toggle("middle", view.scale < 0.6);
    canvas.classList.toggle("heat", byHeat);
    const left = -view.x / view.scale - MARGIN, top = -view.y / view.scale - MARGIN;
    const right = left + width / view.scale + 2 * MARGIN, bottom = top + height / view.scale + 2 * MARGIN;
    const inView = (x0, y0, x1, y1) => x1 >= left && x0 <= right && y1 >= top && y0 <= bottom;
    sync(shown.nodes, nodeLayer, flow.nodes, drawNode, (n) => inView(n.x, n.y, n.x + n.width, n.y + n.height));
    sync(shown.edges, edgeLayer, flow.edges, drawEdge, (edge, index) => inView(...bounds[index]));
  }

  function sync(elements, layer, items, make, isIn) {
    items.forEach((item, index) => {
      const element = elements.get(index);
      if (isIn(item, index)) {
        if (!element) {
          elements.set(index, make(index));
          layer.append(elements.get(index));
        }
      } else if (element && element !== document.activeElement) {
        element.remove();
        elements.delete(index);
      }
    });
  }

  let bounds = [];
  function show(run) {
    flow = run.flow;
    heaviest = Math.max(...flow.nodes.map((node) => weight(node) || 0), 0);
    bounds = flow.edges.map(({ points }) => {
      const xs = points.filter((_, i) => i % 2 === 0), ys = points.filter((_, i) => i % 2);
      return [Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)];
    });
    [selected, related] = [-1, -1];
    clear();
    search(box.value);
    atTop();
  }
  function clear() {
    for (const kind of ["nodes", "edges"]) shown[kind].clear();
    edgeLayer.replaceChildren();
    nodeLayer.replaceChildren();
  }

  function atTop() {
    const { width } = size();
    const scale = Math.max(Math.min(1, (width - 60) / flow.width), 0.75);
    view = { scale, x: (width - flow.width * scale) / 2, y: 24 };
    if (flow.width * scale > width) {
      const first = flow.nodes[0];
      view.x = width / 2 - (first.x + first.width / 2) * scale;
    }
    schedule();
  }
  function fit() {
    const { width, height } = size();
    const scale = Math.max(FARTHEST, Math.min((width - 40) / flow.width, (height - 40) / flow.height, 1.2));
    view = { scale, x: (width - flow.width * scale) / 2, y: (height - flow.height * scale) / 2 };
    schedule();
  }
  function zoom(factor, x, y) {
    const { width, height } = size();
    const [px, py] = [x ?? width / 2, y ?? height / 2];
    const scale = Math.min(NEAREST, Math.max(FARTHEST, view.scale * factor));
    view = { scale, x: px - ((px - view.x) * scale) / view.scale, y: py - ((py - view.y) * scale) / view.scale };
    schedule();
  }
  function pan(x, y) {
    view = { ...view, x: view.x + x, y: view.y + y };
    schedule();
  }
  function reveal(index, center) {
    const { width, height } = size();
    const node = flow.nodes[index];
    const scale = center ? Math.max(view.scale, 0.8) : view.scale;
    const [x, y] = [view.x + (node.x + node.width / 2) * scale, view.y + (node.y + node.height / 2) * scale];
    if (center || x < 40 || y < 30 || x > width - 40 || y > height - 30) {
      view = { scale, x: width / 2 - (node.x + node.width / 2) * scale, y: height / 2 - (node.y + node.height / 2) * scale };
    }
    draw();
  }
  function select(index, center = false) {
    const before = shown.nodes.get(selected);
    selected = index;
    if (before) before.classList.remove("selected");
    const element = shown.nodes.get(index);
    if (element) element.classList.add("selected");
    relate(index);
    if (index < 0) return;
    context.openNode(bundle, flow, flow.nodes[index]);
    requestAnimationFrame(() => reveal(index, center)); // the panel may have covered it
  }
  function follow(index, down) {
    const edge = flow.edges.find((e) => (down ? e.source : e.target) === index);
    if (!edge) return;
    const next = down ? edge.target : edge.source;
    reveal(next, false);
    const element = shown.nodes.get(next);
    if (element) element.focus();
  }

  const namesOf = (node) => [node.label, node.symbol, node.backend, node.kind, ...node.nodes,
    ...node.reads.map((number) => flow.tensors[number].name)];
  function search(text) {
    const wanted = text.trim().toLowerCase();
    matches = wanted ? flow.nodes.flatMap((node, index) =>
      namesOf(node).some((name) => name.toLowerCase().includes(wanted)) ? [index] : []) : [];
    match = -1;
    canvas.classList.toggle("searching", matches.length > 0);
    for (const [index, element] of shown.nodes) mark(element, index);
    found.textContent = wanted ? `${plural(matches.length, "match")}`.replace("matchs", "matches") : plural(flow.calls, "call") + (flow.left_out ? ` of ${count(flow.calls + flow.left_out)}` : "");
    if (matches.length) next(1, false);
  }
  function next(step, choose) {
    if (!matches.length) return;
    match = (match + step + matches.length) % matches.length;
    found.textContent = `${match + 1} of ${matches.length}`;
    reveal(matches[match], true);
    if (choose) select(matches[match], true);
  }

  const box = h("input", {
    type: "search", class: "find", placeholder: "Search operators, nodes, weights ( / )", "aria-label": "Search the graph",
    oninput: (event) => search(event.target.value),
    onkeydown: (event) => {
      if (event.key === "Enter") next(event.shiftKey ? -1 : 1, true);
      if (event.key === "Escape") { box.value = ""; search(""); canvas.focus(); }
    },
  });

  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const line = event.deltaMode ? 16 : 1;
    const { left, top } = canvas.getBoundingClientRect();
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY * line * 0.004), event.clientX - left, event.clientY - top);
    else if (event.shiftKey) pan(-event.deltaY * line, 0);
    else pan(-event.deltaX * line, -event.deltaY * line);
  }, { passive: false });
  const pointers = new Map();
  canvas.addEventListener("pointerdown", (event) => pointers.set(event.pointerId, event));
  addEventListener("pointerup", (event) => pointers.delete(event.pointerId));
  addEventListener("pointercancel", (event) => pointers.delete(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before || (pointers.size === 1 && !event.buttons)) return;
    if (pointers.size === 2) { // pinch
      const other = [...pointers.values()].find((pointer) => pointer.pointerId !== event.pointerId);
      const apart = (pointer) => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY);
      const { left, top } = canvas.getBoundingClientRect();
      zoom(apart(event) / (apart(before) || 1), other.clientX - left, other.clientY - top);
    } else {
      pan(event.clientX - before.clientX, event.clientY - before.clientY);
    }
    pointers.set(event.pointerId, event);
  });
  canvas.addEventListener("dblclick", (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    zoom(event.shiftKey ? 1 / 1.6 : 1.6, event.clientX - left, event.clientY - top);
  });
  canvas.addEventListener("keydown", (event) => {
    const on = event.target.closest("[data-node]");
    const keys = {
      "+": () => zoom(1.25), "=": () => zoom(1.25), "-": () => zoom(0.8), 0: fit, 1: atTop,
      ArrowUp: () => (on ? follow(Number(on.dataset.node), false) : pan(0, 80)),
      ArrowDown: () => (on ? follow(Number(on.dataset.node), true) : pan(0, -80)),
      ArrowLeft: () => pan(80, 0), ArrowRight: () => pan(-80, 0),
    };
    if (keys[event.key] && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  new ResizeObserver(schedule).observe(canvas);

  const button = (text, label, action) => h("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
  const heat = h("select", { "aria-label": "Color by", onchange: (event) => { byHeat = event.target.value === "heat"; schedule(); } },
    h("option", { value: "backend" }, "color: backend"),
    h("option", { value: "heat" }, bundle.measured ? "color: time" : "color: FLOPs"));
  const view_ = h("div", { class: "graph" },
    h("div", { class: "bar" }, box, found, h("span", { class: "grow" }), runSelect(bundle, show), heat,
      h("span", { class: "group" },
        button("−", "Zoom out (-)", () => zoom(0.8)), button("+", "Zoom in (+)", () => zoom(1.25)),
        button("Fit", "Show all (0)", fit), button("Top", "Go to the inputs (1)", atTop))),
    h("div", { class: "frame" }, canvas,
      h("div", { class: "corner" }, legend(bundle, [["bx", "inputs, outputs, copies"]])),
      h("div", { class: "hint muted" }, "scroll to pan · Ctrl + scroll to zoom · / to search")));
  requestAnimationFrame(() => show(bundle.runs[0]));
  return Object.assign(view_, {
    focusSearch: () => box.focus(),
    openSymbol: (symbol) => {
      const index = flow.nodes.findIndex((node) => node.symbol === symbol);
      if (index >= 0) requestAnimationFrame(() => requestAnimationFrame(() => { reveal(index, true); select(index, true); }));
    },
    openCall: (call) => {
      const index = flow.nodes.findIndex((node) => node.call === call);
      if (index >= 0) requestAnimationFrame(() => requestAnimationFrame(() => { reveal(index, true); select(index, true); }));
    },
  });
}

// Which run is shown: of several entries, or of the sizes of buckets.
function runSelect(bundle, choose) {
  if (bundle.runs.length < 2) return null;
  return h("select", { "aria-label": "Run", onchange: (event) => choose(bundle.runs[Number(event.target.value)]) },
    bundle.runs.map((run, index) => h("option", { value: index }, run.flow.label)));
}
