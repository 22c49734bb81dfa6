// The page: one side or two, the address, and the keys.

const PANES = [new Pane(0, changed), new Pane(1, changed)];
const [LEFT, RIGHT] = PANES;
const find = (name) => document.getElementById(name);
let comparing = false;
let active = LEFT;

LEFT.beside = () => (comparing && RIGHT.run === LEFT.run ? RIGHT.run.steps[RIGHT.state.step] : null);
RIGHT.beside = () => (RIGHT.run === LEFT.run ? LEFT.run.steps[LEFT.state.step] : null);
RIGHT.difference = (name, share) => {
  const at = LEFT.run.workflows.indexOf(name);
  const there = LEFT.run.shares[LEFT.state.step]?.[at];
  if (share == null || there == null) return null;
  const points = Math.round(100 * (share - there));
  return points ? `${points > 0 ? "+" : "−"}${Math.abs(points)}` : "±0";
};

const keep = settled(() => history.replaceState(null, "", `#${address()}`), 100);

function changed(pane) {
  if (comparing) {
    const other = pane === LEFT ? RIGHT : LEFT;
    other.chart.show(other.run, other.state.step, other.beside());
    if (pane === LEFT) RIGHT.workflows();
  }
  keep();
}

// What a side shows, by its name in the address.
const PARTS = {
  run: [(pane) => (RUNS.length > 1 ? pane.state.run + 1 : null), (pane, text) => ({ run: RUNS[text - 1] ? text - 1 : 0 })],
  step: [(pane) => pane.run.steps[pane.state.step], (pane, text, run) => ({ step: run.nearest(Number(text) || 0) })],
  workflow: [(pane) => pane.run.workflows[pane.state.workflow], (pane, text, run) => ({ workflow: known(run.workflows.indexOf(text)) })],
  outcome: [(pane) => pane.run.outcomes[pane.state.outcome], (pane, text, run) => ({ outcome: known(run.outcomes.indexOf(text)) })],
  words: [(pane) => pane.state.words || null, (pane, text) => ({ words: text })],
  order: [(pane) => (pane.state.order === "kept" ? null : pane.state.order), (pane, text) => ({ order: Object.hasOwn(ORDERS, text) ? text : "kept" })],
  all: [(pane) => (pane.state.all ? "yes" : null), (pane, text) => ({ all: text === "yes" })],
  episode: [(pane) => (pane.state.row == null ? null : pane.state.row + 1), (pane, text, run) => episodeNamed(run, Number(text))],
};

function known(at) {
  return at < 0 ? null : at;
}

function episodeNamed(run, number) {
  if (!Number.isInteger(number) || number < 1 || number > run.total) return {};
  return { row: number - 1, step: run.kept.step[number - 1] };
}

function address() {
  const parts = new URLSearchParams();
  for (const pane of comparing ? PANES : [LEFT]) {
    for (const [name, [read]] of Object.entries(PARTS)) {
      if (read(pane) != null) parts.set((pane.side ? "with." : "") + name, read(pane));
    }
  }
  if (VIEW != null) parts.set("tokens", VIEW);
  return parts.toString();
}

/** Shows what the address names; what it does not name is at its start. */
function follow() {
  const parts = new URLSearchParams(location.hash.slice(1));
  if (Object.hasOwn(VIEWS, parts.get("tokens") ?? "")) VIEW = parts.get("tokens");
  compare([...parts.keys()].some((name) => name.startsWith("with.")), false);
  for (const pane of comparing ? PANES : [LEFT]) {
    const given = { run: 0, step: null, workflow: null, outcome: null, words: "", order: "kept", all: false, row: null };
    for (const [name, [, write]] of Object.entries(PARTS)) {
      const text = parts.get((pane.side ? "with." : "") + name);
      if (text != null) Object.assign(given, write(pane, text, RUNS[given.run]));
    }
    given.step ??= RUNS[given.run].kept.step[0] ?? 0; // the first that has rollouts to read: a run may have kept one step
    pane.update(given);
  }
}

function compare(yes, start = true) {
  comparing = yes;
  RIGHT.box.hidden = !yes;
  document.body.classList.toggle("comparing", yes);
  find("compare").setAttribute("aria-pressed", String(yes));
  if (!yes) {
    activate(LEFT);
    LEFT.controls();
    keep();
  } else if (start) {
    const { run, step, workflow } = LEFT.state;
    const last = LEFT.run.steps.length - 1;
    const beside = RUNS.length > 1 ? (run + 1) % RUNS.length : run;
    const there = beside === run ? (step === last ? 0 : last) : RUNS[beside].nearest(LEFT.run.steps[step]);
    LEFT.controls();
    RIGHT.update({ run: beside, step: there, workflow: beside === run ? workflow : null, row: null });
    activate(RIGHT);
  }
}

function activate(pane) {
  active = pane;
  for (const each of PANES) each.box.classList.toggle("active", each === pane);
}

/** What each run is, and what of it cannot be shown. */
function about() {
  const list = (title, items) => {
    const lines = items.map((text) => make("li", { text }));
    return items.length ? make("details", {}, make("summary", { text: title }), make("ul", {}, ...lines)) : null;
  };
  return RUNS.map((run) => {
    const all = run.rollouts.reduce((sum, each) => sum + each, 0);
    const ends = `, ${run.steps[0]} to ${run.steps[run.steps.length - 1]}`;
    const span = run.steps.length ? count(run.steps.length, "step") + ends : "no steps";
    const kept = run.total === all ? "" : `, ${run.total.toLocaleString("en")} to read`;
    const told = ` · ${count(all, "rollout")}${kept} · ${span} · actions ${plain(run.actions.join(", "))}`;
    const head = make("p", { class: "sub" }, make("b", { text: plain(run.name) }), told);
    const absent = run.absent.map(([what, why]) => `${plain(what)}: ${plain(why)}`);
    const missing = run.absent.length ? `Not here: ${run.absent.map(([what]) => plain(what)).join(", ")}` : "";
    const notes = run.notes.map((note) => make("p", { class: "note", text: plain(note) }));
    const folded = run.folded.map(([title, lines]) => list(plain(title), lines.map(plain)));
    return make("div", { class: "run" }, head, ...notes, ...folded, list(missing, absent));
  });
}

const KEYS = {
  j: () => active.further(1),
  k: () => active.further(-1),
  "]": () => active.move(1),
  "[": () => active.move(-1),
  g: () => active.mate(),
  w: () => active.nextWorkflow(),
  "/": () => (active.search.focus(), active.search.select()),
  t: () => nextView(),
  c: () => compare(!comparing),
  o: () => comparing && (activate(active === LEFT ? RIGHT : LEFT), active.box.focus()),
  "?": () => find("help").showModal(),
  Escape: () => clear(),
};

function nextView() {
  const there = active.reader.views ?? ["text"];
  colour(there[(there.indexOf(active.reader.view) + 1) % there.length]);
  keep();
}

function clear() {
  active.search.value = "";
  if (document.activeElement === active.search) active.list.box.focus();
  active.update({ words: "", outcome: null, workflow: null });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || find("help").open) return;
  const typing = event.target.matches('input[type="search"], select');
  if (typing && event.key !== "Escape") return;
  const act = Object.hasOwn(KEYS, event.key) ? KEYS[event.key] : null;
  if (!act) return;
  event.preventDefault();
  act();
});
for (const pane of PANES) for (const event of ["focusin", "pointerdown"]) pane.box.addEventListener(event, () => activate(pane));
find("compare").addEventListener("click", () => compare(!comparing));
find("help-open").addEventListener("click", () => find("help").showModal());
find("help-close").addEventListener("click", () => find("help").close());
find("about").append(...about());
find("panes").append(...PANES.map((pane) => pane.box));
addEventListener("hashchange", follow);
follow();
