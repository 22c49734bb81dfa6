// A list of thousands of rollouts of which only the lines in view are in the document.

const LINE = 66; // px, as in the style sheet
const SPARE = 8; // lines above and below the view

class List {
  /** `describe(row)` gives [lines, class]; `choose(row)` is called when the reader picks one. */
  constructor(label, describe, choose) {
    this.describe = describe;
    this.choose = choose;
    this.rows = [];
    this.chosen = null;
    this.prefix = `list${(List.made = (List.made ?? 0) + 1)}`;
    this.space = make("div", { class: "space", role: "presentation" });
    const on = { scroll: () => this.paint(), keydown: (event) => this.key(event), click: (event) => this.click(event) };
    this.box = make("div", { class: "list", role: "listbox", tabindex: 0, "aria-label": label, on }, this.space);
    new ResizeObserver(() => this.paint()).observe(this.box);
  }

  show(rows, chosen) {
    this.rows = rows;
    this.space.style.height = `${rows.length * LINE}px`;
    this.mark(chosen, true);
  }

  /** Marks a rollout as the one that is read and brings it into view. */
  mark(chosen, afresh = false) {
    this.chosen = chosen;
    const at = this.rows.indexOf(chosen);
    if (at >= 0) {
      const top = at * LINE;
      const height = this.box.clientHeight || 6 * LINE;
      if (top < this.box.scrollTop || top + LINE > this.box.scrollTop + height) this.box.scrollTop = top - (height - LINE) / 2;
    } else if (afresh) this.box.scrollTop = 0;
    this.paint();
  }

  /** The rollout `by` lines further on; the first where none is chosen. */
  further(by) {
    const at = this.rows.indexOf(this.chosen);
    return this.rows[at < 0 ? 0 : Math.min(this.rows.length - 1, Math.max(0, at + by))];
  }

  paint() {
    const from = Math.max(0, Math.floor(this.box.scrollTop / LINE) - SPARE);
    const to = Math.min(this.rows.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / LINE) + SPARE);
    const lines = [];
    for (let at = from; at < to; at += 1) lines.push(this.line(at));
    this.space.replaceChildren(...lines);
    const there = this.rows.indexOf(this.chosen);
    if (there >= from && there < to) this.box.setAttribute("aria-activedescendant", `${this.prefix}-${this.chosen}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  line(at) {
    const row = this.rows[at];
    const [lines, kind] = this.describe(row);
    const given = {
      role: "option", id: `${this.prefix}-${row}`, class: `line ${kind}`, "data-at": at, "aria-selected": row === this.chosen,
      "aria-setsize": this.rows.length, "aria-posinset": at + 1,
    };
    const line = make("div", given, ...lines.map((text) => make("div", { text })));
    line.style.top = `${at * LINE}px`;
    return line;
  }

  click(event) {
    const line = event.target.closest("[data-at]");
    if (line) this.choose(this.rows[Number(line.dataset.at)]);
  }

  key(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / LINE) - 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (by == null || !this.rows.length || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.choose(this.further(by));
  }
}
