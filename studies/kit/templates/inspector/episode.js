// One rollout, turn by turn: what the policy wrote, what came back, and what is known of its tokens.

const SHORT_PROMPT = 400; // characters: a longer one is folded, most of it is the same for every rollout
const LONG_PROMPT = 1500; // characters shown before "show all"
const LONG_TEXT = 6000;
const LONG_EXTRA = 300;
const LONG_OBSERVATION = 1200;
const MOST_MATES = 64;

let VIEW = null; // how tokens are coloured, on both sides; null until the reader chooses
const READERS = [];

class Reader {
  /** `choose(row)` is called when the reader picks another rollout of the group. */
  constructor(choose) {
    this.choose = choose;
    this.box = make("article", { class: "reader", "aria-label": "Rollout" });
    READERS.push(this);
  }

  async show(run, row) {
    const key = `${run.place}/${row}`;
    this.wanted = key;
    if (row == null) return this.nothing();
    let episode;
    try {
      episode = await run.episode(row);
    } catch (error) {
      return this.nothing(`Its words cannot be unpacked (${error}): the file is damaged, or the browser is older than 2023.`);
    }
    if (this.wanted !== key) return undefined; // another one was opened meanwhile
    Object.assign(this, { run, row, episode, views: possible(episode) });
    return this.paint();
  }

  nothing(why = "No rollout is open: choose one from the list.") {
    this.episode = null;
    this.box.replaceChildren(make("p", { class: "faint empty", text: why }));
  }

  get view() {
    if (this.views.includes(VIEW)) return VIEW;
    return VIEW == null && this.views.includes("logp") ? "logp" : "text";
  }

  paint() {
    if (!this.episode) return;
    const how = "Point at a token, or go to it with Tab and the arrows, to read its values.";
    this.told = make("output", { class: "told", "aria-live": "polite", text: how });
    const parts = [this.head(), this.facts(), this.mates(), this.prompt(), this.looks(), this.turns()];
    if (this.withTokens()) parts.push(this.told);
    this.box.replaceChildren(...parts.filter(Boolean));
  }

  withTokens() {
    return this.episode.turns.some((turn) => turn.tokens);
  }

  head() {
    const { run, row } = this;
    const outcome = run.outcomes[run.kept.outcome[row]];
    const step = make("span", { class: "faint", text: ` step ${run.steps[run.kept.step[row]]}` });
    const title = make("h2", { text: `Rollout ${row + 1}` }, step);
    return make("div", { class: "head" }, title, make("span", { class: `chip ${outcome.replaceAll(" ", "-")}`, text: outcome }));
  }

  facts() {
    const { run, row, episode } = this;
    const [task, role] = run.groups[run.kept.group[row]];
    const [oldest, newest, taken] = episode.versions;
    const counts = episode.turns.map((turn) => turn.counts[0]);
    const wrote = counts.some((each) => each == null) ? null : counts.reduce((sum, each) => sum + each, 0);
    const prompt = episode.texts[episode.prompt].trim().replace(/\s+/g, " ");
    const told = [
      ["reward", number(run.kept.reward[row])],
      ["workflow", plain(run.workflows[run.kept.workflow[row]])],
      ["turns", run.kept.turns[row]],
      ["tokens written", wrote == null ? null : wrote.toLocaleString("en")],
      ["KL to the reference", run.kept.kl[row] == null ? null : `${number(run.kept.kl[row])} nats`],
      ["policy version", newest == null ? null : oldest === newest ? newest : `${oldest} to ${newest}`],
      ["taken at version", taken],
      ["role", role === "main" ? null : plain(role)],
      ["task", prompt && prompt.startsWith(task) ? null : plain(task)], // where there is no id it is the prompt
      ...episode.extras.map(([name, value]) => [plain(name), typeof value === "number" ? number(value) : words(value, LONG_EXTRA)]),
    ];
    const there = told.filter(([, value]) => value != null && value !== "");
    const fact = ([name, value]) => make("div", {}, make("dt", { text: name }), make("dd", {}, value));
    return make("dl", { class: "facts" }, ...there.map(fact));
  }

  /** The other rollouts of the group. */
  mates() {
    const { run, row } = this;
    const all = run.mates.get(run.kept.group[row]);
    if (all.length < 2) return null;
    const chips = all.slice(0, MOST_MATES).map((mate) => {
      const outcome = run.outcomes[run.kept.outcome[mate]];
      const reward = number(run.kept.reward[mate]);
      const title = `rollout ${mate + 1}: ${outcome}, reward ${reward}, ${plain(run.workflows[run.kept.workflow[mate]])}`;
      const given = { class: `mate ${outcome.replaceAll(" ", "-")}`, "aria-current": mate === row ? "true" : null };
      return button(reward, () => this.choose(mate), { ...given, title, "aria-label": title });
    });
    const rest = all.length > MOST_MATES ? make("span", { class: "faint", text: ` and ${all.length - MOST_MATES} more` }) : null;
    const label = make("span", { class: "faint", text: `same prompt: ${all.length} rollouts, reward ` });
    return make("div", { class: "mates" }, label, ...chips, rest);
  }

  prompt() {
    const text = this.episode.texts[this.episode.prompt];
    if (!text) return null;
    const [, , told] = this.run.groups[this.run.kept.group[this.row]];
    const short = text.length <= SHORT_PROMPT;
    const long = `Prompt, ${count(text.length, "character")}: `;
    const summary = make("summary", { text: short ? "Prompt" : long }, short ? null : make("span", { text: plain(told) }));
    return make("details", { class: "prompt", open: short ? "" : null }, summary, words(text, LONG_PROMPT));
  }

  /** The choice of what tokens are coloured by, with its legend. */
  looks() {
    if (!this.withTokens()) return null;
    const group = make("div", { class: "looks", role: "group", "aria-label": "Colour tokens by" });
    for (const [key, { name }] of Object.entries(VIEWS)) {
      const there = this.views.includes(key);
      const title = there ? null : "not recorded for this rollout";
      group.append(button(name, () => colour(key), { "aria-pressed": key === this.view, disabled: !there, title }));
    }
    const view = VIEWS[this.view];
    if (!view.legend) return group;
    const steps = view.legend().map(([kind, text]) => make("li", {}, make("span", { class: `swatch tok ${kind}`, "aria-hidden": "true" }), text));
    return make("div", {}, group, make("p", { class: "faint about", text: view.about }), make("ul", { class: "legend" }, ...steps));
  }

  turns() {
    const all = this.episode.turns.map((turn, at) => this.turn(turn, at));
    return make("ol", { class: "turns" }, ...all);
  }

  turn(turn, at) {
    const { texts } = this.episode;
    const [wrote, back] = turn.counts;
    const [logp, reference, entropy] = turn.decision;
    const told = [
      wrote == null ? null : `wrote ${count(wrote, "token")}`,
      back ? `${count(back, "token")} came back` : null,
      logp == null ? null : `log-prob of the decision ${number(logp)}`,
      apart(logp, reference) == null ? null : `KL ${number(apart(logp, reference))}`,
      entropy == null ? null : `entropy ${number(entropy)}`,
      texts[turn.context] ? `context ${plain(texts[turn.context])}` : null,
    ];
    const head = make("h3", { text: `Turn ${at} ` }, make("span", { class: "action", text: plain(texts[turn.action]) }));
    const about = make("p", { class: "faint about", text: told.filter(Boolean).join(" · ") });
    const wordless = !texts[turn.generated] && !texts[turn.observed];
    const body = turn.tokens && (this.view !== "text" || wordless) ? this.tokens(turn, at) : this.texts(turn);
    return make("li", { class: "turn" }, head, about, ...body);
  }

  texts(turn) {
    const { texts } = this.episode;
    const [generated, observed] = [turn.generated, turn.observed].map((at) => texts[at].replace(/^\n+|\n+$/g, "")); // no blank edges
    if (!generated && !observed) return [make("p", { class: "faint", text: "Its words were not kept." })];
    return [
      generated ? this.part("wrote", "the policy wrote", words(generated, LONG_TEXT)) : null,
      observed ? this.part("back", "came back", words(observed, LONG_OBSERVATION)) : null,
    ].filter(Boolean);
  }

  part(kind, label, content) {
    return make("div", { class: kind }, make("div", { class: "who", text: label }), content);
  }

  /** Stretches of sampled tokens and of others in turn; the first of the rollout's others is the prompt. */
  tokens(turn, place) {
    const of = scope(this.episode, turn);
    const parts = [];
    for (let from = 0, to; from < of.tokens.count; from = to) {
      const sampled = entry(of.tokens.kind, from) > 0;
      for (to = from + 1; to < of.tokens.count && entry(of.tokens.kind, to) > 0 === sampled; ) to += 1;
      const opening = !sampled && from === 0 && place === 0 && to < of.tokens.count;
      if (opening && this.episode.texts[this.episode.prompt]) continue; // it stands above
      const label = sampled ? "the policy wrote" : opening ? "prompt" : "came back";
      const tell = (text) => (this.told.textContent = text);
      parts.push(this.part(sampled ? "wrote" : "back", label, strip(of, from, to, this.view, `Tokens: ${label}`, tell)));
    }
    return parts;
  }
}

/** Colours tokens on both sides by a view. */
function colour(view) {
  VIEW = view;
  const pressed = document.activeElement?.closest(".looks") != null;
  const side = READERS.find((reader) => reader.box.contains(document.activeElement));
  for (const reader of READERS) reader.paint();
  if (pressed && side) side.box.querySelector('.looks [aria-pressed="true"]')?.focus();
}
