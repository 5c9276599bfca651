// Elements and texts. All texts go through text nodes: nothing of the data is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function scaled(value, factor, units) {
  let index = 0;
  while (Math.abs(value) >= factor && index < units.length - 1) {
    value /= factor;
    index += 1;
  }
  const digits = index === 0 && Number.isInteger(value) ? 0 : value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${units[index]}`.trim();
}

const DASH = "–";
const known = (value) => value !== null && value !== undefined;
const bytes = (value) => (known(value) ? scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]) : DASH);
const flops = (value) => (known(value) ? scaled(value, 1000, ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"]) : DASH);
const count = (value) => (known(value) ? value.toLocaleString("en-US") : DASH);
const percent = (value) => (known(value) ? `${(100 * value).toFixed(value < 0.0995 ? 1 : 0)} %` : DASH);
const microseconds = (value) => (known(value) ? time(value) : DASH);
const gflops = (value) => (known(value) ? scaled(value, 1000, ["GFLOP/s", "TFLOP/s", "PFLOP/s"]) : DASH);
const gigabytes = (value) => (known(value) ? scaled(value, 1000, ["GB/s", "TB/s"]) : DASH);

function time(us) {
  if (us === 0) return "0 µs";
  if (us < 0.1) return `${(us * 1000).toFixed(0)} ns`;
  return scaled(us, 1000, ["µs", "ms", "s"]);
}

const UNITS = { bytes, flops, count, ms: (value) => microseconds(known(value) ? value * 1000 : value) };
const shape = (extents) => (extents.length ? extents.join("×") : "scalar");
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
const clipped = (text, most) => (text.length > most ? `${text.slice(0, Math.max(most - 1, 0))}…` : text);

// A text that fits into a width, as its font really is.
const fontOf = { title: "600 13px", sub: "11px", shape: "10px", tile: "11.5px" };
const pen = document.createElement("canvas").getContext("2d");
function fitted(text, width, kind) {
  pen.font = `${fontOf[kind]} ${getComputedStyle(document.body).fontFamily}`;
  if (pen.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (pen.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? `${text.slice(0, low)}…` : "";
}

// The class that gives an element its backend's color.
function tint(bundle, kind) {
  const found = bundle.backends.find((backend) => backend.kind === kind);
  return found ? `b${found.color % 10}` : "bx";
}

const dot = (bundle, kind) => h("span", { class: `dot ${tint(bundle, kind)}`, "aria-hidden": "true" });
const badge = (text, kind) => h("span", { class: `badge ${kind || ""}` }, text);

function card(title, ...content) {
  return h("section", { class: "card" }, title ? h("h2", {}, title) : null, content);
}

function legend(bundle, more) {
  const items = bundle.backends.filter((backend) => backend.functions).map((b) => [tint(bundle, b.kind), b.kind]);
  return h("ul", { class: "legend" }, [...items, ...(more || [])].map(([color, text]) =>
    h("li", {}, h("span", { class: `dot ${color}`, "aria-hidden": "true" }), text)));
}

// A tip that follows the pointer; what it says is in the labels of the elements, too.
const tip = h("div", { class: "tip", "aria-hidden": "true" });
function showTip(event, ...lines) {
  tip.replaceChildren(...lines.filter(Boolean).map((line, index) => h(index ? "div" : "strong", {}, line)));
  tip.classList.add("shown");
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - box.height - 8))}px`;
}
const hideTip = () => tip.classList.remove("shown");
const tipped = (...lines) => ({ onpointermove: (event) => showTip(event, ...lines), onpointerleave: hideTip });

// What answers to a click answers to Enter and Space.
function pressable(action) {
  return {
    tabindex: "0",
    role: "button",
    onclick: action,
    onkeydown: (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        action(event);
      }
    },
  };
}
