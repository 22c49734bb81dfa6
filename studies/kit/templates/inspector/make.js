// Elements and words. Text enters the document through text nodes alone: what a rollout wrote is never parsed.

const OPTIONS = new Set(["text", "on", "hidden", "checked", "disabled"]);

/** An element with attributes, children (elements or texts; null is left out), `text`, and `on` = {event: handler}. */
function make(tag, given = {}, ...children) {
  return fill(document.createElement(tag), given, children);
}

/** The same in SVG. */
function draw(tag, given = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), given, children);
}

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (!OPTIONS.has(name) && value != null) element.setAttribute(name, value);
  }
  for (const name of ["hidden", "checked", "disabled"]) if (name in given) element[name] = Boolean(given[name]);
  for (const [event, handler] of Object.entries(given.on ?? {})) element.addEventListener(event, handler);
  if (given.text != null) element.append(String(given.text));
  element.append(...children.filter((child) => child != null));
  return element;
}

function button(text, act, given = {}) {
  return make("button", { type: "button", text, on: { click: act }, ...given });
}

/** A number with three significant digits and no leading zero. */
function number(value) {
  if (value == null) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  const usual = size >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)));
  const text = size >= 1e6 || size < 1e-4 ? value.toExponential(2) : usual;
  return text.replace(/^(-?)0\./, "$1.").replace("-", "−");
}

/** A share in per cent. */
function percent(share) {
  if (share == null) return "–";
  return share > 0 && share < 0.01 ? "<1 %" : `${Math.round(100 * share)} %`;
}

/** A count with its noun. */
function count(amount, noun) {
  return `${amount.toLocaleString("en")} ${noun}${amount === 1 ? "" : "s"}`;
}

// Characters that cannot be seen or that turn the order of others round: controls, zero widths, bidirectional marks, tags.
// Not the two joiners U+200C and U+200D: scripts and pictographs are written with them.
const UNSEEN = new RegExp(
  "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e" +
    "\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]|\\udb40[\\udc00-\\udfff]",
);

/** The nodes of a text in which what cannot be seen is named. */
function shown(text) {
  if (!UNSEEN.test(text)) return [document.createTextNode(text)];
  const nodes = [];
  for (const part of text.split(new RegExp(`(${UNSEEN.source})`))) {
    if (!part) continue;
    nodes.push(UNSEEN.test(part) ? make("span", { class: "unseen", text: named(part) }) : document.createTextNode(part));
  }
  return nodes;
}

/** The same as one string, for places that take no elements. */
function plain(text) {
  return text.split(new RegExp(`(${UNSEEN.source})`)).map((part) => (UNSEEN.test(part) ? named(part) : part)).join("");
}

function named(character) {
  const code = character.codePointAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  return code === 0x7f ? "\u2421" : `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** A text that is cut at `limit` characters, with a button that shows the rest. */
function words(text, limit, given = {}) {
  const block = make("div", { class: "words", ...given });
  if (text.length <= limit * 1.2) return fill(block, {}, shown(text));
  let end = limit;
  if (/[\ud800-\udbff]/.test(text[end - 1])) end -= 1; // not through the middle of a character
  const whole = () => block.replaceChildren(...shown(text));
  const all = button(`Show all ${count(text.length, "character")}`, whole, { class: "rest" });
  return fill(block, {}, [...shown(text.slice(0, end)), "… ", all]);
}

/** The end of a text, from a whole word. */
function tail(text, limit) {
  return text.length <= limit ? text : `…${text.slice(-limit).replace(/^\S{0,12}\s/, " ")}`;
}

/** Calls `act` once, after the last of a series of calls. */
function settled(act, wait) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => act(...given), wait);
  };
}
