// The runs: an index that is read at once, and for each step a packed block with words that is unpacked when it is needed.

/** One run: its overview, the list of its rollouts, and their words by step. */
class Run {
  constructor(given, place) {
    Object.assign(this, given);
    this.place = place;
    this.total = this.kept.step.length;
    this.first = new Array(this.steps.length + 1).fill(0); // rollouts stand in order of steps
    for (const step of this.kept.step) this.first[step + 1] += 1;
    for (let step = 0; step < this.steps.length; step += 1) this.first[step + 1] += this.first[step];
    this.mates = new Map(); // group -> its rollouts
    this.kept.group.forEach((group, row) => (this.mates.get(group) ?? this.mates.set(group, []).get(group)).push(row));
    this.packs = new Map();
    this.lowered = new Map();
  }

  /** Rollouts of a step, or of all for null. */
  rows(step) {
    const [from, to] = step == null ? [0, this.total] : [this.first[step], this.first[step + 1]];
    return Array.from({ length: to - from }, (_, at) => from + at);
  }

  keptAt(step) {
    return this.first[step + 1] - this.first[step];
  }

  /** Place of the step that is nearest to an optimiser step. */
  nearest(step) {
    let best = 0;
    this.steps.forEach((each, at) => (best = Math.abs(each - step) < Math.abs(this.steps[best] - step) ? at : best));
    return best;
  }

  /** Promise of a step's block: {texts, episodes}. */
  pack(step) {
    if (!this.packs.has(step)) this.packs.set(step, unpack(`r${this.place}-${step}`));
    return this.packs.get(step);
  }

  /** Promise of one rollout with its words. */
  async episode(row) {
    const step = this.kept.step[row];
    const pack = await this.pack(step);
    return { ...pack.episodes[row - this.first[step]], texts: pack.texts };
  }

  /** Promise of the rows whose words hold `text`, in any case. */
  async holding(rows, text) {
    const wanted = text.toLowerCase();
    await Promise.all([...new Set(rows.map((row) => this.kept.step[row]))].map((step) => this.lower(step)));
    return rows.filter((row) => this.lowered.get(this.kept.step[row])[row - this.first[this.kept.step[row]]].includes(wanted));
  }

  async lower(step) {
    if (this.lowered.has(step)) return;
    const { texts, episodes } = await this.pack(step);
    const own = (each, row) => {
      const [task, role] = this.groups[this.kept.group[this.first[step] + row]];
      const said = each.turns.flatMap((turn) => [texts[turn.action], texts[turn.generated], texts[turn.observed]]);
      return [task, role, texts[each.prompt], ...said, ...each.extras.flat()].join("\n").toLowerCase();
    };
    this.lowered.set(step, episodes.map(own));
  }
}

/** The content of a block, from base 64 of deflated JSON. */
async function unpack(name) {
  const element = document.getElementById(name);
  if (!element) return { texts: [], episodes: [] };
  const bytes = Uint8Array.from(atob(JSON.parse(element.textContent)), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

/** Entry of a column in which equal entries are written once. */
function entry(column, at) {
  return Array.isArray(column) ? column[at] : column;
}

const RUNS = JSON.parse(document.getElementById("index").textContent).runs.map((run, place) => new Run(run, place));

// The order in which workflows are stacked, the same in all runs: the first run's, then what others add.
const STACKED = [...new Set(RUNS.flatMap((run) => run.workflows))];

// A workflow has one colour in all runs: the seven that are largest over them have one each, the others are grey.
const HUES = (() => {
  const size = new Map();
  for (const run of RUNS) run.workflows.forEach((name, at) => size.set(name, (size.get(name) ?? 0) + mean(run.shares.map((row) => row[at]))));
  const order = [...size.keys()].sort((a, b) => size.get(b) - size.get(a));
  return new Map(order.map((name, at) => [name, Math.min(at, 7)]));
})();

function mean(values) {
  const there = values.filter((value) => value != null);
  return there.length ? there.reduce((sum, value) => sum + value, 0) / there.length : 0;
}
