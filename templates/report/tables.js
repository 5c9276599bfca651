// Tables: of texts, and of values that sort and filter.

function plainTable(table) {
  const header = table.columns.some(Boolean);
  return h("div", { class: "scroll" }, h("table", { class: header ? "" : "facts" },
    header ? h("thead", {}, h("tr", {}, table.columns.map((name) => h("th", { scope: "col" }, name)))) : null,
    h("tbody", {}, table.rows.map((row) => h("tr", {}, row.map((cell, index) =>
      !header && index === 0 ? h("th", { scope: "row" }, cell) : h("td", {}, cell)))))));
}

const PAGE = 200;

// Columns: {name, value(row), show(row), number, short, help}. ``open`` is what a row does.
function sortedTable(rows, columns, { open, search, placeholder, sort, descending = true, label }) {
  let order = sort, falling = descending, wanted = "", most = PAGE;
  const body = h("tbody");
  const more = h("button", { class: "more", type: "button", onclick: () => { most = Infinity; draw(); } });
  const found = h("span", { class: "muted", role: "status" });
  const heads = columns.map((column, index) => h("th", { scope: "col", class: column.number ? "number" : "" },
    h("button", { type: "button", title: column.help, onclick: () => {
      falling = order === index ? !falling : Boolean(column.number);
      order = index;
      draw();
    } }, column.name)));

  function draw() {
    const kept = rows.filter((row) => !wanted || search(row).toLowerCase().includes(wanted));
    const { value } = columns[order];
    const sign = falling ? -1 : 1;
    kept.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      if (!known(a) || !known(b)) return known(a) ? -1 : known(b) ? 1 : 0;
      return sign * (typeof a === "string" ? a.localeCompare(b) : a - b);
    });
    heads.forEach((head, index) =>
      head.setAttribute("aria-sort", index !== order ? "none" : falling ? "descending" : "ascending"));
    body.replaceChildren(...kept.slice(0, most).map((row) => h("tr", open ? { class: "opens", onclick: () => open(row) } : {},
      columns.map((column, index) => {
        const shown = column.show(row);
        const content = open && index === 0
          ? h("button", { type: "button", class: "link", onclick: (event) => { event.stopPropagation(); open(row); } }, shown)
          : shown;
        return h("td", { class: column.number ? "number" : column.short ? "short" : "" }, content);
      }))));
    more.hidden = kept.length <= most;
    more.textContent = `Show all ${count(kept.length)}`;
    found.textContent = wanted ? `${count(kept.length)} of ${count(rows.length)}` : plural(rows.length, label);
  }

  const input = search ? h("input", {
    type: "search", placeholder, "aria-label": placeholder,
    oninput: (event) => { wanted = event.target.value.trim().toLowerCase(); most = PAGE; draw(); },
  }) : null;
  draw();
  return h("div", {},
    h("div", { class: "bar" }, input, found),
    h("div", { class: "scroll" }, h("table", { class: "sorted" }, h("thead", {}, h("tr", {}, heads)), body)),
    more);
}

// A number with a bar of its share.
function meter(text, share, color) {
  return h("span", { class: "meter" },
    h("span", { class: "track", "aria-hidden": "true" },
      h("span", { class: `value ${color || ""}`, style: { width: `${Math.min(100, Math.max(0, 100 * (share || 0)))}%` } })),
    h("span", {}, text));
}

// One bar of several parts: [{label, value, color, text}].
function stackedBar(parts, label) {
  const total = parts.reduce((sum, part) => sum + part.value, 0) || 1;
  return h("div", { class: "stack", role: "img", "aria-label": `${label}: ${parts.map((p) => `${p.label} ${p.text}`).join(", ")}` },
    parts.filter((part) => part.value > 0).map((part) => h("span", {
      class: `part ${part.color}`,
      style: { flex: `${part.value / total} 1 0` },
      ...tipped(part.label, part.text, percent(part.value / total)),
    }, part.value / total > 0.09 ? clipped(part.label, Math.floor(part.value / total * 110)) : "")));
}
