// Times: the calls of the median run one after the other, and the rates of the functions under the roofline.

function timeline(bundle, context) {
  const { slices } = bundle.measured;
  if (!slices.length) return null;
  const kinds = new Map(bundle.functions.map((item) => [item.symbol, item]));
  const end = Math.max(...slices.map((slice) => slice.start + slice.us)) || 1;
  const bars = slices.map((slice, number) => {
    const item = kinds.get(slice.symbol);
    const lines = [item ? item.label : slice.symbol, microseconds(slice.us), `at ${microseconds(slice.start)}`, slice.symbol];
    return h("div", {
      class: `slice ${item ? tint(bundle, item.backend) : "bx"}`, style: { left: `${(100 * slice.start) / end}%`, width: `${(100 * slice.us) / end}%` },
      "aria-label": lines.join(", "), ...tipped(...lines), ...pressable(() => context.openCall(bundle, number, slice.symbol)),
    }, slice.us / end > 0.05 ? h("span", {}, lines[0]) : null);
  });
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => h("span", {}, microseconds(part * end)));
  return card("One run",
    h("p", { class: "muted" }, `The run of median length, ${plural(slices.length, "call")}, measured call by call: ${bundle.measured.about}.`),
    h("div", { class: "strip", role: "group", "aria-label": "Calls of a run in time" }, bars),
    h("div", { class: "under flush muted" }, ticks), legend(bundle));
}

function roofline(bundle, peaks, context) {
  const points = bundle.functions.filter((f) => f.gflops_per_second > 0 && f.bytes_read + f.bytes_written > 0)
    .map((item) => ({ item, x: item.flops / (item.bytes_read + item.bytes_written), y: item.gflops_per_second }));
  if (points.length < 2) return null;
  const [width, height, left, bottom] = [1000, 260, 62, 36];
  const { gflops_per_second: top, gb_per_second: slope } = peaks;
  const range = (values) => [10 ** Math.floor(Math.log10(Math.min(...values))), 10 ** Math.ceil(Math.log10(Math.max(...values)) + 0.05)];
  const [x0, x1] = range(points.map((p) => p.x));
  const [y0, y1] = range([...points.map((p) => p.y), ...(top ? [top] : [])]);
  const along = (v, low, high) => (Math.log10(v) - Math.log10(low)) / (Math.log10(high) - Math.log10(low) || 1);
  const x = (v) => left + along(v, x0, x1) * (width - left - 26), y = (v) => height - bottom - along(v, y0, y1) * (height - bottom - 12);
  const decades = (low, high) => Array.from({ length: Math.round(Math.log10(high / low)) + 1 }, (_, i) => low * 10 ** i);
  const number = (v) => (v >= 1 ? count(v) : String(Number(v.toPrecision(1))));
  const roof = [];
  if (top || slope) {
    const limit = (v) => Math.min(top || Infinity, slope ? v * slope : Infinity);
    const knee = top && slope ? top / slope : null;
    const xs = [x0, ...(knee > x0 && knee < x1 ? [knee] : []), x1].filter((v) => limit(v) >= y0 * 0.5);
    roof.push(svg("path", { class: "roof", d: `M${xs.map((v) => `${x(v)} ${y(Math.max(Math.min(limit(v), y1), y0))}`).join("L")}` }));
  }
  const most = Math.max(...points.map((p) => p.item.us || 0)) || 1;
  return card("Work and speed",
    h("p", { class: "muted" }, top || slope
      ? "Each circle is a function, as large as its time. The line is the roofline of the peaks that were given."
      : "Each circle is a function, as large as its time. With --peak-gflops and --peak-gb the roofline is drawn."),
    svg("svg", { class: "scatter", viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Functions by FLOP per byte and GFLOP/s" },
      decades(x0, x1).map((v) => [svg("path", { class: "grid", d: `M${x(v)} 12V${height - bottom}` }),
        svg("text", { class: "tick", x: x(v), y: height - bottom + 16, "text-anchor": "middle" }, number(v))]),
      decades(y0, y1).map((v) => [svg("path", { class: "grid", d: `M${left} ${y(v)}H${width - 26}` }),
        svg("text", { class: "tick", x: left - 8, y: y(v) + 4, "text-anchor": "end" }, number(v))]),
      svg("text", { class: "tick", x: (width + left) / 2, y: height - 4, "text-anchor": "middle" }, "FLOP per byte"),
      svg("text", { class: "tick", transform: `translate(14,${(height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, "GFLOP/s"),
      roof,
      points.sort((a, b) => b.item.us - a.item.us).map(({ item, ...p }) => {
        const lines = [item.label, `${gflops(item.gflops_per_second)}, ${gigabytes(item.gb_per_second)}`, `${microseconds(item.us)}, ${percent(item.share)} of the run`, item.roof && `${percent(item.roof)} of the roofline`, item.symbol];
        return svg("circle", { class: `point ${tint(bundle, item.backend)}`, cx: x(p.x), cy: y(p.y), r: 4 + 12 * Math.sqrt((item.us || 0) / most),
          "aria-label": lines.filter(Boolean).join(", "), ...tipped(...lines), ...pressable(() => context.openFunction(bundle, item)) });
      })));
}
