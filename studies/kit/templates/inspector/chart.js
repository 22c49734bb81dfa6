// The overview of a run: shares of workflows stacked over training, and one curve below on the same axis.

const EDGE = { left: 40, right: 12, top: 16, bottom: 22 };
const STACK = 190; // px
const CURVE = 110;

/** Ends of the stretch of the axis that belongs to each step: half-way to its neighbours. */
function stretches(steps) {
  const width = steps.length > 1 ? (steps[steps.length - 1] - steps[0]) / (steps.length - 1) : 1;
  const ends = steps.slice(1).map((step, at) => (steps[at] + step) / 2);
  return [steps[0] - width / 2, ...ends, steps[steps.length - 1] + width / 2];
}

class Chart {
  /** `choose(place)` is called when the reader picks a step. */
  constructor(choose) {
    this.choose = choose;
    this.stack = make("div", { class: "stack" });
    this.curve = make("div", { class: "curve" });
    this.select = make("select", { "aria-label": "Curve", on: { change: () => this.paint() } });
    this.thin = make("span", { class: "faint" });
    const which = make("label", { class: "which", text: "Curve " }, this.select, this.thin);
    this.box = make("div", { class: "overview" }, this.stack, which, this.curve);
    this.width = 0;
    new ResizeObserver(() => this.resized()).observe(this.box);
  }

  resized() {
    if (Math.abs(this.box.clientWidth - this.width) < 2) return;
    this.paint();
  }

  /** Shows a run at the place of a step; `beside` is the optimiser step of the other side, if it shows this run. */
  show(run, place, beside) {
    if (run === this.run && place === this.place && beside === this.beside) return;
    if (run !== this.run) {
      const names = Object.keys(run.columns);
      const first = names.find((name) => /reward/.test(name)) ?? names[0];
      const kept = names.includes(this.select.value) ? this.select.value : first;
      this.select.replaceChildren(...names.map((name) => make("option", { value: name, text: plain(name) })));
      if (kept != null) this.select.value = kept;
      this.select.parentElement.hidden = this.curve.hidden = !names.length;
    }
    Object.assign(this, { run, place, beside });
    this.paint();
  }

  paint() {
    if (!this.run || !this.run.steps.length) return;
    this.width = this.box.clientWidth || 600;
    this.ends = stretches(this.run.steps);
    const [low, high] = [this.ends[0], this.ends[this.ends.length - 1]];
    this.x = (step) => EDGE.left + ((step - low) / (high - low)) * (this.width - EDGE.left - EDGE.right);
    this.stack.replaceChildren(this.frame(STACK, this.says(), (plot) => this.bands(plot)));
    this.curve.replaceChildren(this.frame(CURVE, `${plain(this.select.value)} over steps`, (plot) => this.lines(plot)));
  }

  /** A drawing of so many px with the axis of steps, what `inside` adds, marks of transitions and the chosen step. */
  frame(height, label, inside) {
    const plot = draw("svg", { width: this.width, height, viewBox: `0 0 ${this.width} ${height}`, role: "img", "aria-label": label });
    inside(plot);
    const base = height - EDGE.bottom;
    const { steps, marks } = this.run;
    for (const step of ticks(steps[0], steps[steps.length - 1], this.width / 90)) {
      plot.append(draw("text", { class: "tick", x: this.x(step), y: height - 6, "text-anchor": "middle", text: step }));
    }
    for (const [step, label] of marks) {
      const line = { class: "mark", x1: this.x(step), x2: this.x(step), y1: EDGE.top - 4, y2: base };
      plot.append(draw("line", line, draw("title", { text: plain(label) })));
    }
    if (this.beside != null) plot.append(this.cursor(this.beside, base, "beside"));
    plot.append(this.cursor(steps[this.place], base, "chosen"), ...plot.querySelectorAll(".name, .dot, .value")); // words on top
    plot.addEventListener("click", (event) => this.click(event, plot));
    return plot;
  }

  cursor(step, base, kind) {
    const head = draw("path", { d: `M${this.x(step) - 5} 2h10l-5 8z` });
    return draw("g", { class: `cursor ${kind}` }, draw("line", { x1: this.x(step), x2: this.x(step), y1: 8, y2: base }), head);
  }

  click(event, plot) {
    const at = event.clientX - plot.getBoundingClientRect().left;
    const place = this.ends.slice(1, -1).filter((end) => this.x(end) <= at).length;
    this.choose(place);
  }

  says() {
    const { steps, shares, workflows } = this.run;
    const row = shares[this.place];
    const largest = row.map((share, at) => [share ?? 0, at]).sort((a, b) => b[0] - a[0]).slice(0, 4);
    const parts = largest.map(([share, at]) => `${plain(workflows[at])} ${percent(share)}`).join(", ");
    return `Shares of workflows over steps ${steps[0]} to ${steps[steps.length - 1]}; at step ${steps[this.place]}: ${parts}`;
  }

  bands(plot) {
    const base = STACK - EDGE.bottom;
    const y = (share) => base - share * (base - EDGE.top);
    const under = this.run.shares.map(() => 0);
    const width = this.run.shares[0].length; // workflows beyond have no share
    const names = [];
    const stacked = this.run.workflows.slice(0, width).map((name, at) => [name, at]);
    stacked.sort((a, b) => STACKED.indexOf(a[0]) - STACKED.indexOf(b[0]));
    const grey = stacked.filter(([name]) => HUES.get(name) === 7);
    for (const own of [...stacked.filter(([name]) => HUES.get(name) < 7).map((each) => [each]), grey]) {
      if (!own.length) continue;
      const hue = HUES.get(own[0][0]);
      const sums = this.run.shares.map((row) => (row[0] == null ? null : own.reduce((sum, [, at]) => sum + row[at], 0)));
      const over = sums.map((sum, at) => under[at] + (sum ?? 0));
      plot.append(draw("path", { class: `band h${hue}`, d: this.outline(sums, under, over, y) }));
      names.push([own.length > 1 ? "others" : own[0][0], sums, under.slice(), over]);
      over.forEach((top, at) => (under[at] = top));
    }
    for (const each of names) this.label(plot, y, ...each);
    for (const share of [0, 0.5, 1]) plot.append(this.height(y(share), percent(share)));
  }

  /** The label of a height on the axis to the left. */
  height(y, text) {
    return draw("text", { class: "tick", x: EDGE.left - 6, y: y + 4, "text-anchor": "end", text });
  }

  /** The outline of a band in stairs, one piece for each stretch of steps that have shares. */
  outline(sums, under, over, y) {
    let path = "";
    for (let at = 0; at < sums.length; at += 1) {
      if (sums[at] == null) continue;
      const from = at;
      while (at + 1 < sums.length && sums[at + 1] != null) at += 1;
      path += `M${this.x(this.ends[from]).toFixed(1)} ${y(under[from]).toFixed(1)}`;
      const stair = (level, end) => (path += `V${y(level).toFixed(1)}H${this.x(end).toFixed(1)}`);
      for (let each = from; each <= at; each += 1) stair(over[each], this.ends[each + 1]);
      for (let each = at; each >= from; each -= 1) stair(under[each], this.ends[each]);
      path += "z";
    }
    return path;
  }

  /** Writes a band's name where it is thickest, if it fits there. */
  label(plot, y, name, sums, under, over) {
    const text = plain(name).slice(0, 40);
    const sure = (at) => (sums[at] == null ? 0 : over[at]);
    const half = text.length * 4 + 4;
    let best = null;
    for (let x = EDGE.left + half; x <= this.width - EDGE.right - half; x += 12) {
      let [low, high] = [0, 1];
      for (let at = 0; at < sums.length; at += 1) {
        if (this.x(this.ends[at]) > x + half || this.x(this.ends[at + 1]) < x - half) continue;
        low = Math.max(low, under[at]);
        high = Math.min(high, sure(at));
      }
      if (!best || high - low > best[0]) best = [high - low, x, (low + high) / 2];
    }
    if (!best || y(0) - y(best[0]) < 15) return;
    plot.append(draw("text", { class: "name", x: best[1], y: y(best[2]) + 4, "text-anchor": "middle", text }));
  }

  lines(plot) {
    const name = this.select.value;
    const others = RUNS.filter((run) => run !== this.run && name in run.columns);
    const inside = (run) => run.columns[name].filter((value, at) => value != null && this.spans(run.steps[at]));
    const all = [this.run, ...others].flatMap(inside);
    if (!all.length) {
      const middle = { class: "tick", x: this.width / 2, y: CURVE / 2, "text-anchor": "middle" };
      plot.append(draw("text", { ...middle, text: "no values" }));
      return;
    }
    let [low, high] = [Infinity, -Infinity];
    for (const value of all) [low, high] = [Math.min(low, value), Math.max(high, value)];
    if (low === high) [low, high] = [low - 0.5, high + 0.5];
    const base = CURVE - EDGE.bottom;
    const y = (value) => base - ((value - low) / (high - low)) * (base - EDGE.top);
    for (const value of [low, high]) plot.append(this.height(y(value), number(value)));
    const names = others.length === 1 ? plain(others[0].name) : count(others.length, "other run");
    this.thin.textContent = others.length ? ` thin: ${names}` : "";
    for (const run of others) {
      const title = draw("title", { text: plain(run.name) });
      plot.append(draw("path", { class: "line other", d: this.trace(run, name, y) }, title));
    }
    plot.append(draw("path", { class: "line own", d: this.trace(this.run, name, y) }));
    const value = this.run.columns[name][this.place];
    if (value == null) return;
    const x = this.x(this.run.steps[this.place]);
    const right = x < this.width - 80;
    const place = { x: x + (right ? 8 : -8), y: Math.max(EDGE.top, y(value) - 6), "text-anchor": right ? "start" : "end" };
    plot.append(draw("circle", { class: "dot", cx: x, cy: y(value), r: 4 }), draw("text", { class: "value", ...place, text: number(value) }));
  }

  /** Whether a step lies on the axis. */
  spans(step) {
    return step >= this.ends[0] && step <= this.ends[this.ends.length - 1];
  }

  trace(run, name, y) {
    let [path, pen] = ["", "M"];
    run.columns[name].forEach((value, at) => {
      const step = run.steps[at];
      if (value == null || !this.spans(step)) pen = "M";
      else {
        const alone = pen === "M" ? "h0" : ""; // a point without neighbours is a dot
        path += `${pen}${this.x(step).toFixed(1)} ${y(value).toFixed(1)}${alone}`;
        pen = "L";
      }
    });
    return path;
  }
}

/** Whole numbers between two ends, about `wanted` of them, in steps of 1, 2 or 5 times a power of ten. */
function ticks(low, high, wanted) {
  if (high <= low) return [low];
  const rough = (high - low) / Math.max(2, wanted);
  const power = 10 ** Math.floor(Math.log10(rough));
  const width = Math.max(1, [1, 2, 5, 10].find((each) => each * power >= rough) * power);
  const found = [];
  for (let at = Math.ceil(low / width) * width; at <= high; at += width) found.push(at);
  return found;
}
