// Where the bytes of the file are: sections, code by function, weights.

function sizesView(bundle) {
  const { sizes } = bundle;
  const kind = (section) => section.name === ".packager.constants" ? "weights" : section.code ? "code"
    : section.name.startsWith(".nv_fatbin") ? "GPU code" : section.mapped ? "other data" : "not mapped";
  const colors = { weights: "weights", code: "code", "GPU code": "gpu", "other data": "data", "not mapped": "bx" };
  const sums = new Map(Object.keys(colors).map((name) => [name, 0]));
  for (const section of sizes.sections) sums.set(kind(section), sums.get(kind(section)) + section.bytes);
  const parts = [...sums].map(([label, value]) => ({ label, value, color: colors[label], text: bytes(value) }));
  const mapped = sizes.sections.reduce((sum, section) => sum + (section.mapped ? section.bytes : 0), 0);
  const sections = sortedTable([...sizes.sections], [
    { name: "section", value: (s) => s.name, show: (s) => [h("span", { class: `dot ${colors[kind(s)]}` }), h("code", {}, s.name)] },
    { name: "is", short: true, value: kind, show: kind },
    { name: "size", number: true, value: (s) => s.bytes, show: (s) => meter(bytes(s.bytes), s.bytes / sizes.file, colors[kind(s)]) },
    { name: "of the file", number: true, value: (s) => s.bytes, show: (s) => percent(s.bytes / sizes.file) },
  ], { sort: 2, label: "section" });
  const owner = (symbol) => (symbol.owner === "runtime" ? "bx" : tint(bundle, symbol.owner));
  const symbols = sortedTable([...sizes.symbols], [
    { name: "function", value: (s) => s.name, show: (s) => [h("span", { class: `dot ${owner(s)}` }), h("code", {}, s.name)] },
    { name: "from", short: true, value: (s) => s.owner, show: (s) => s.owner },
    { name: "section", value: (s) => s.section, show: (s) => h("code", {}, s.section) },
    { name: "size", number: true, value: (s) => s.bytes, show: (s) => meter(bytes(s.bytes), s.bytes / sizes.symbols[0].bytes, owner(s)) },
  ], { sort: 3, label: "function", search: (s) => `${s.name} ${s.owner}`, placeholder: "Filter functions" });
  const constants = sizes.constants.length && sortedTable([...sizes.constants], [
    { name: "constant", value: (c) => c.name, show: (c) => c.name },
    { name: "type", value: (c) => `${c.dtype} ${shape(c.shape)}`, show: (c) => `${c.dtype} ${shape(c.shape)}` },
    { name: "size", number: true, value: (c) => c.bytes, show: (c) => meter(bytes(c.bytes), c.bytes / sizes.constants[0].bytes, "weights") },
    { name: "from", value: (c) => c.sources.join(", "), show: (c) => c.sources.join(", ") || DASH },
  ], { sort: 2, label: "constant", search: (c) => `${c.name} ${c.sources.join(" ")}`, placeholder: "Filter constants" });
  const tiles = [
    ...sizes.constants.map((c) => ({ label: c.name, value: c.bytes, color: "weights", text: `${c.dtype} ${shape(c.shape)}` })),
    { label: "other constants", value: sizes.other_constants, color: "weights", text: "" },
    ...sizes.symbols.map((s) => ({ label: s.name, value: s.bytes, color: owner(s), text: `code of ${s.owner}` })),
    { label: "other functions", value: sizes.other_symbols, color: "bx", text: "" },
    ...sizes.sections.filter((s) => kind(s) === "GPU code").map((s) => ({ label: s.name, value: s.bytes, color: "gpu", text: "GPU code" })),
  ].filter((tile) => tile.value > 0).sort((one, other) => other.value - one.value);
  return h("div", {},
    card("File", h("p", { class: "muted" }, `${bytes(sizes.file)}, of which ${bytes(mapped)} are mapped into memory. Weights are ${
      { embedded: "embedded", external: "in a file of their own", none: "none" }[sizes.storage]}.`),
      stackedBar(parts, "The file"),
      h("ul", { class: "legend" }, parts.filter((p) => p.value).map((p) => h("li", {}, h("span", { class: `dot ${p.color}` }), `${p.label} ${p.text}`)))),
    card("Weights and functions", treemap(tiles, 1000, 360)),
    card("Sections", sections),
    constants ? card("Weights", constants) : null,
    sizes.symbols.length ? card("Code by function", symbols) : null);
}

// A squarified treemap: rows of tiles along the shorter side, as square as they get.
function treemap(tiles, width, height) {
  const total = tiles.reduce((sum, tile) => sum + tile.value, 0);
  const shown = tiles.filter((tile) => tile.value / total > 0.0004);
  const scale = (width * height) / (shown.reduce((sum, tile) => sum + tile.value, 0) || 1);
  const boxes = [];
  let [x, y, w, t] = [0, 0, width, height], rest = shown.map((tile) => ({ ...tile, area: tile.value * scale }));
  const worst = (row, side) => {
    const sum = row.reduce((all, tile) => all + tile.area, 0);
    return Math.max(...row.map((tile) => Math.max((side * side * tile.area) / (sum * sum), (sum * sum) / (side * side * tile.area))));
  };
  while (rest.length) {
    const side = Math.min(w, t);
    let row = [rest[0]], taken = 1;
    while (taken < rest.length && worst([...row, rest[taken]], side) <= worst(row, side)) row.push(rest[taken++]);
    const depth = row.reduce((sum, tile) => sum + tile.area, 0) / side;
    let along = 0;
    for (const tile of row) {
      const length = tile.area / depth;
      boxes.push(w >= t ? { tile, x, y: y + along, w: depth, h: length } : { tile, x: x + along, y, w: length, h: depth });
      along += length;
    }
    if (w >= t) [x, w] = [x + depth, w - depth];
    else [y, t] = [y + depth, t - depth];
    rest = rest.slice(taken);
  }
  return svg("svg", { class: "treemap", viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `The largest: ${shown.slice(0, 5).map((tile) => `${tile.label} ${bytes(tile.value)}`).join(", ")}` },
    boxes.map(({ tile, ...b }) => svg("g", { class: tile.color, ...tipped(tile.label, bytes(tile.value), tile.text) },
      svg("rect", { class: "tile", x: b.x + 0.5, y: b.y + 0.5, width: Math.max(b.w - 1, 0.2), height: Math.max(b.h - 1, 0.2), rx: 2 }),
      b.w > 60 && b.h > 18 ? svg("text", { x: b.x + 6, y: b.y + 15 }, fitted(tile.label, b.w - 12, "tile")) : null,
      b.w > 60 && b.h > 34 ? svg("text", { class: "sub", x: b.x + 6, y: b.y + 29 }, bytes(tile.value)) : null)));
}
