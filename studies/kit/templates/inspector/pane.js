// One side of the page: a run and a step, its workflows, the list of its rollouts and the one that is read.

const ORDERS = {
  kept: ["as kept", null],
  worst: ["lowest reward first", (run, a, b) => order(run.kept.reward[a], run.kept.reward[b])],
  best: ["highest reward first", (run, a, b) => order(run.kept.reward[b], run.kept.reward[a])],
  turns: ["most turns first", (run, a, b) => run.kept.turns[b] - run.kept.turns[a]],
  kl: ["largest KL first", (run, a, b) => order(run.kept.kl[b], run.kept.kl[a])],
};

/** Ascending, what is missing last. */
function order(a, b) {
  return (a == null) - (b == null) || a - b;
}

class Pane {
  /** `side` is 0 or 1; `changed(pane)` is called after every change. */
  constructor(side, changed) {
    this.side = side;
    this.changed = changed;
    this.state = { run: 0, step: 0, workflow: null, outcome: null, words: "", order: "kept", all: false, row: null };
    this.chart = new Chart((step) => this.update({ step, row: null }));
    this.list = new List("Rollouts", (row) => this.describe(row), (row) => this.open(row));
    this.reader = new Reader((row) => this.open(row, true));
    this.build();
  }

  get run() {
    return RUNS[this.state.run];
  }

  build() {
    const on = (name, event, act) => ({ "aria-label": name, on: { [event]: act } });
    const runs = RUNS.map((run, at) => make("option", { value: at, text: plain(run.name) }));
    this.runs = make("select", { ...on("Run", "change", () => this.go(Number(this.runs.value))), hidden: RUNS.length < 2 }, ...runs);
    this.earlier = button("‹", () => this.move(-1), { "aria-label": "Previous step" });
    this.later = button("›", () => this.move(1), { "aria-label": "Next step" });
    const slid = () => this.update({ step: Number(this.slider.value), row: null });
    this.slider = make("input", { type: "range", min: 0, ...on("Step", "input", slid) });
    this.where = make("output", { class: "where", "aria-live": "polite" });
    this.marks = make("div", { class: "marks" });
    this.flows = make("div", { class: "flows", role: "group", "aria-label": "Workflows" });
    const typed = settled(() => this.update({ words: this.search.value }), 150);
    const search = on("Search in the words of rollouts", "input", typed);
    this.search = make("input", { type: "search", placeholder: "search their words", ...search });
    const ended = () => this.update({ outcome: this.outcomes.value === "" ? null : Number(this.outcomes.value) });
    this.outcomes = make("select", on("Outcome", "change", ended));
    const orders = Object.entries(ORDERS).map(([key, [name]]) => make("option", { value: key, text: name }));
    this.orders = make("select", on("Order", "change", () => this.update({ order: this.orders.value })), ...orders);
    this.all = make("input", { type: "checkbox", on: { change: () => this.update({ all: this.all.checked }) } });
    this.found = make("output", { class: "faint found", "aria-live": "polite" });
    const every = make("label", {}, this.all, " all steps");
    const filters = make("div", { class: "filters", role: "search" }, this.search, this.outcomes, this.orders, every, this.found);
    const steps = make("div", { class: "steps" }, this.runs, this.earlier, this.slider, this.later, this.where);
    const over = make("div", { class: "over" }, make("div", { class: "plots" }, this.chart.box, this.marks), this.flows);
    const body = make("div", { class: "body" }, make("div", { class: "side" }, filters, this.list.box), this.reader.box);
    this.box = make("section", { class: "pane", tabindex: -1 }, steps, over, body);
  }

  /** Shows another run at the step nearest to this one. */
  go(run) {
    const step = RUNS[run].nearest(this.run.steps[this.state.step] ?? 0);
    this.update({ run, step, workflow: null, row: null });
  }

  move(by) {
    const step = Math.min(this.run.steps.length - 1, Math.max(0, this.state.step + by));
    if (step !== this.state.step) this.update({ step, row: null });
  }

  /** Opens a rollout; one that the filters hide is shown in the list by dropping them, where `anyway`. */
  open(row, anyway = false) {
    if (row == null) return;
    if (anyway && !this.list.rows.includes(row)) Object.assign(this.state, { workflow: null, outcome: null, words: "" });
    this.update({ row, step: this.run.kept.step[row] });
  }

  further(by) {
    if (this.list.rows.length) this.open(this.list.further(by));
  }

  /** Opens the next rollout of the same prompt. */
  mate() {
    const all = this.run.mates.get(this.run.kept.group[this.state.row]) ?? [];
    if (all.length) this.open(all[(all.indexOf(this.state.row) + 1) % all.length], true);
  }

  nextWorkflow() {
    const names = [...this.flows.querySelectorAll("[data-name]")].map((each) => Number(each.dataset.name));
    const at = names.indexOf(this.state.workflow ?? -1);
    this.update({ workflow: names[at + 1] ?? null, row: null });
  }

  async update(changes) {
    const before = this.listed;
    Object.assign(this.state, changes);
    this.controls();
    const { run, step, workflow, outcome, words: text, order: by, all } = this.state;
    this.listed = JSON.stringify([run, all ? null : step, workflow, outcome, text, by]);
    if (this.listed !== before || this.state.row == null) {
      const asked = this.listed;
      const rows = await this.rows();
      if (asked !== this.listed) return; // the reader went on meanwhile
      if (!rows.includes(this.state.row)) this.state.row = rows[0] ?? null;
      this.list.show(rows, this.state.row);
      this.tell(rows.length);
    } else this.list.mark(this.state.row);
    this.changed(this);
    await this.reader.show(this.run, this.state.row);
  }

  async rows() {
    const { step, workflow, outcome, words: text, order: by, all } = this.state;
    const { kept } = this.run;
    let rows = this.run.rows(all ? null : step);
    if (workflow != null) rows = rows.filter((row) => kept.workflow[row] === workflow);
    if (outcome != null) rows = rows.filter((row) => kept.outcome[row] === outcome);
    if (text) rows = await this.run.holding(rows, text);
    const compare = ORDERS[by][1];
    return compare ? rows.sort((a, b) => compare(this.run, a, b) || a - b) : rows;
  }

  controls() {
    const { run, state } = this;
    this.runs.value = String(state.run);
    Object.assign(this.slider, { max: Math.max(0, run.steps.length - 1), value: String(state.step) });
    const step = run.steps[state.step];
    this.slider.setAttribute("aria-valuetext", `step ${step}`);
    this.earlier.disabled = state.step === 0;
    this.later.disabled = state.step >= run.steps.length - 1;
    const kept = run.keptAt(state.step);
    const all = run.rollouts[state.step] ?? 0;
    const part = kept === all ? "" : `, ${kept.toLocaleString("en")} kept`;
    this.where.textContent = step == null ? "no steps" : `step ${step} · ${count(all, "rollout")}${part}`;
    this.box.setAttribute("aria-label", `${this.side ? "Other side" : "Run"} ${plain(run.name)}, step ${step}`);
    if (document.activeElement !== this.search) this.search.value = state.words;
    this.all.checked = state.all;
    this.orders.value = state.order;
    this.outcomesThere();
    this.workflows();
    this.marked();
    this.chart.show(run, state.step, this.beside?.());
  }

  outcomesThere() {
    if (this.outcomesOf !== this.run) {
      const there = [...new Set(this.run.kept.outcome)].sort((a, b) => a - b);
      const options = there.map((code) => make("option", { value: code, text: this.run.outcomes[code] }));
      this.outcomes.replaceChildren(make("option", { value: "", text: "any outcome" }), ...options);
      this.outcomesOf = this.run;
    }
    this.outcomes.value = this.state.outcome == null ? "" : String(this.state.outcome);
  }

  /** The workflows of the step, largest share first; on the other side with the difference to this one. */
  workflows() {
    const { run, state } = this;
    const shares = run.shares[state.step] ?? [];
    const kept = new Array(run.workflows.length).fill(0);
    for (const row of run.rows(state.step)) kept[run.kept.workflow[row]] += 1;
    const there = run.workflows.map((_, at) => at).filter((at) => kept[at] || shares[at] > 0 || at === state.workflow);
    there.sort((a, b) => (shares[b] ?? 0) - (shares[a] ?? 0) || kept[b] - kept[a]);
    const focused = this.flows.contains(document.activeElement) ? document.activeElement.dataset.name : null;
    const line = (name, at, share, amount) => {
      const difference = at == null ? null : this.difference?.(name, share);
      const given = { class: "flow", "aria-pressed": state.workflow === at };
      if (at != null) given["data-name"] = at;
      const act = () => this.update({ workflow: state.workflow === at ? null : at, row: null });
      const swatch = make("span", { class: `swatch ${at == null ? "none" : `h${HUES.get(name)}`}`, "aria-hidden": "true" });
      const label = make("span", { class: "label", text: plain(name) });
      const apart = difference == null ? null : make("span", { class: "difference", text: difference });
      const much = make("span", { class: "share", text: at == null ? "" : `${percent(share)} ` }, apart);
      const read = make("span", { class: "faint kept", text: amount.toLocaleString("en") });
      return fill(button("", act, given), {}, [swatch, label, much, read]);
    };
    const titles = ["workflow", "share", "to read"].map((text) => make("span", { text }));
    const head = make("div", { class: "flow-head faint", "aria-hidden": "true" }, ...titles);
    const every = line("all", null, null, run.keptAt(state.step));
    this.flows.replaceChildren(head, every, ...there.map((at) => line(run.workflows[at], at, shares[at], kept[at])));
    if (focused != null) this.flows.querySelector(`[data-name="${focused}"]`)?.focus();
  }

  marked() {
    if (this.marksOf === this.run) return;
    const lines = this.run.marks.map(([step, label, calibrated, signal]) => {
      const text = `step ${step}: ${plain(label)}`;
      const go = button(text, () => this.update({ step: this.run.nearest(step), row: null }), { title: plain(signal) });
      return make("li", {}, go, make("span", { class: "faint", text: calibrated ? " calibrated" : " uncalibrated" }));
    });
    this.marks.replaceChildren(...(lines.length ? [make("ul", { "aria-label": "Transitions found" }, ...lines)] : []));
    this.marksOf = this.run;
  }

  describe(row) {
    const { run } = this;
    const { kept } = run;
    const [task, role, prompt] = run.groups[kept.group[row]];
    const outcome = run.outcomes[kept.outcome[row]];
    const step = this.state.all ? `step ${run.steps[kept.step[row]]}` : null;
    const flow = this.state.workflow == null ? plain(run.workflows[kept.workflow[row]]) : count(kept.turns[row], "turn");
    const ended = outcome === "not recorded" ? null : outcome;
    const first = [row + 1, step, ended, number(kept.reward[row]), role === "main" ? null : plain(role), flow];
    const lines = [first.filter((part) => part != null).join(" · "), plain(prompt) || `task ${plain(task)}`, tail(plain(kept.last[row]), 48)];
    return [lines, outcome.replaceAll(" ", "-")];
  }

  tell(found) {
    const all = this.state.all ? this.run.total : this.run.keptAt(this.state.step);
    this.found.textContent = found === all ? count(all, "rollout") : `${found.toLocaleString("en")} of ${count(all, "rollout")}`;
    if (all) return;
    const near = this.run.kept.step.length ? this.run.steps[this.run.kept.step[this.nearestKept()]] : null;
    this.found.textContent = "no rollout of this step was kept";
    if (near != null) this.found.append(" ", button(`go to step ${near}`, () => this.update({ step: this.run.nearest(near), row: null })));
  }

  /** A rollout of the step nearest to this one that has any. */
  nearestKept() {
    const here = this.run.steps[this.state.step];
    const away = (row) => Math.abs(this.run.steps[this.run.kept.step[row]] - here);
    return this.run.kept.step.reduce((best, _, row) => (away(row) < away(best) ? row : best), 0);
  }
}
