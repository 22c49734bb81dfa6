// Tokens, coloured by what is known of each, with its values under the pointer and, by the arrows, under the focus.

const BOUNDS = {
  logp: [0.1, 0.5, 1, 2, 4, 7],
  kl: [0.05, 0.3, 1],
  entropy: [0.1, 0.3, 0.6, 1, 1.5, 2.5],
  version: [1, 2, 3, 5, 9, 17],
};

/** The place of a size among ascending bounds: 0 below the first. */
function level(size, bounds) {
  return bounds.filter((bound) => size >= bound).length;
}

/** The legend of a scale: each colour with the end of its range. */
function scale(bounds) {
  const texts = [`below ${number(bounds[0])}`, ...bounds.slice(1).map((bound) => `to ${number(bound)}`), "more"];
  return texts.map((text, at) => [`s${at}`, text]);
}

/** Ways to look at tokens: the value of one, its colour, and the legend. `of` holds the rollout, its turn and the columns. */
const VIEWS = {
  text: { name: "words" },
  logp: {
    name: "log-prob",
    value: (of, at) => milli(of.tokens.logp, at),
    colour: (value) => `s${level(-value, BOUNDS.logp)}`,
    about: "Nats by which the policy that sampled a token found it unlikely (minus log-probability)",
    legend: () => scale(BOUNDS.logp),
  },
  kl: {
    name: "KL",
    value: (of, at) => apart(milli(of.tokens.logp, at), milli(of.tokens.reference, at)),
    colour: (value) => `${value < 0 ? "n" : "p"}${level(Math.abs(value), BOUNDS.kl)}`,
    about: "Log-probability minus that under the reference, nats: its mean over samples is the KL divergence",
    legend: () => [["n3", "below −1"], ["n2", "to −.3"], ["n1", "to −.05"], ["p0", "to .05"], ["p1", "to .3"], ["p2", "to 1"], ["p3", "more"]],
  },
  entropy: {
    name: "entropy",
    value: (of) => of.turn.decision[2],
    colour: (value) => `s${level(value, BOUNDS.entropy)}`,
    about: "Mean entropy of the distributions of the turn's first tokens, nats: one value a turn",
    legend: () => scale(BOUNDS.entropy),
  },
  version: {
    name: "version",
    value: (of, at) => apart(of.newest, entry(of.tokens.version, at)),
    colour: (value) => `s${level(value, BOUNDS.version)}`,
    about: "Versions between the policy that sampled a token and the learner's when it took the rollout (or the newest that wrote in it)",
    legend: () => ["0", "1", "2", "3 and 4", "5 to 8", "9 to 16", "17 and more"].map((text, at) => [`s${at}`, text]),
  },
};

function milli(column, at) {
  const value = entry(column, at);
  return value == null ? null : value / 1000;
}

function apart(a, b) {
  return a == null || b == null ? null : a - b;
}

/** The views for which some token of a rollout has a value, `text` always. */
function possible(episode) {
  const there = (key) => episode.turns.some((turn) => turn.tokens && some({ ...scope(episode, turn) }, VIEWS[key].value));
  return Object.keys(VIEWS).filter((key) => key === "text" || there(key));
}

function some(of, value) {
  for (let at = 0; at < of.tokens.count; at += 1) if (entry(of.tokens.kind, at) > 0 && value(of, at) != null) return true;
  return false;
}

function scope(episode, turn) {
  const [, newest, taken] = episode.versions;
  return { turn, tokens: turn.tokens, texts: episode.texts, newest: taken ?? newest };
}

/** The text of a token; its id where the text is not known. */
function piece(of, at) {
  return of.tokens.piece ? of.texts[of.tokens.piece[at]] : `⟨${of.tokens.id[at]}⟩`;
}

/** All that is known of a token, in a line. */
function facts(of, at) {
  const parts = [`token ${at + 1} of ${of.tokens.count}`, `“${plain(piece(of, at)).replace(/\n/g, "⏎")}”`, `id ${of.tokens.id[at]}`];
  const kind = entry(of.tokens.kind, at);
  parts.push(["came back", "sampled, not trained on", "sampled, trained on"][kind]);
  const logp = milli(of.tokens.logp, at);
  const reference = milli(of.tokens.reference, at);
  const proximal = milli(of.tokens.proximal, at);
  if (logp != null) parts.push(`log-prob ${number(logp)}`);
  if (proximal != null && logp != null) parts.push(`at the update ${number(proximal)} (ratio ${number(Math.exp(proximal - logp))})`);
  if (reference != null) parts.push(`reference ${number(reference)}`);
  if (apart(logp, reference) != null) parts.push(`KL ${number(apart(logp, reference))}`);
  if (kind > 0 && of.turn.decision[2] != null) parts.push(`entropy of the turn ${number(of.turn.decision[2])}`);
  if (entry(of.tokens.version, at) != null) parts.push(`version ${entry(of.tokens.version, at)}`);
  return parts.join(" · ");
}

const MOST_TOKENS = 1200;

/** The tokens `from` up to `to` of a turn; `tell` is given the facts of one. */
function strip(of, from, to, view, label, tell) {
  const box = make("div", { class: "words tokens", role: "group", "aria-label": label });
  const put = (first, last) => {
    for (let at = first; at < last; at += 1) box.append(token(of, at, view, at === from));
  };
  put(from, Math.min(to, from + MOST_TOKENS));
  if (to - from > MOST_TOKENS) {
    const rest = button(`Show all ${count(to - from, "token")}`, () => (rest.remove(), put(from + MOST_TOKENS, to)), { class: "rest" });
    box.append(rest);
  }
  const say = (event) => event.target.dataset.at != null && tell(facts(of, Number(event.target.dataset.at)));
  for (const event of ["focusin", "mouseover"]) box.addEventListener(event, say);
  box.addEventListener("keydown", (event) => walk(event, box));
  return box;
}

function token(of, at, view, first) {
  const given = { class: "tok", tabindex: first ? 0 : -1, "data-at": at };
  const value = view === "text" || entry(of.tokens.kind, at) === 0 ? null : VIEWS[view].value(of, at);
  if (value != null) given.class += ` ${VIEWS[view].colour(value)}`;
  const nodes = shown(piece(of, at).replace(/\n/g, "⏎\n"));
  if (nodes.length === 1 && nodes[0].nodeType === Node.TEXT_NODE) return make("span", { ...given, text: nodes[0].data });
  return make("span", given, ...nodes.map((node) => (node.nodeType === Node.TEXT_NODE ? node : document.createTextNode(node.textContent))));
}

/** Arrows go from token to token; only one of them is in the order of tabulator stops. */
function walk(event, box) {
  const here = event.target.closest(".tok");
  if (!here || event.ctrlKey || event.metaKey || event.altKey) return;
  const all = [...box.querySelectorAll(".tok")];
  const at = all.indexOf(here);
  const next = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
  if (next == null) return;
  event.preventDefault();
  event.stopPropagation();
  const there = all[Math.min(all.length - 1, Math.max(0, next))];
  here.tabIndex = -1;
  there.tabIndex = 0;
  there.focus();
}
