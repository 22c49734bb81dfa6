from dataclasses import dataclass, replace

import numpy as np
import pytest

from minimodel.model.vocabulary import ANSWER, END, READ, SEARCH, VERIFY
from minimodel.tasks.environment import Environment
from minimodel.tasks.facts import draw_facts
from minimodel.tasks.script import Script, decide, turn_targets, write
from minimodel.tasks.task import Task, played_world
from sim.mdp.exact import occupancy
from sim.mdp.policy import PolicyTables
from sim.mdp.worlds import ReadMore, Verify, World, read_more_world, seed_a, verify_world
from sim.records.config import ConfigError
from sim.records.rng import uniforms

SEED_A = replace(seed_a(), unknown_kinds=3)
READ_MORE = replace(read_more_world(), unknown_kinds=3)

# --- the table --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world", "rows"),
    [
        (SEED_A, {"start": [0.97, 0.03], "fresh": [0, 1], "failed": [1, 0]}),
        (replace(SEED_A, may_guess=False), {"start": [1, 0], "failed": [1, 0]}),
        (replace(SEED_A, known_visible=True), {"start_known": [0.97, 0.03], "start_unknown": [0.97, 0.03]}),
        (verify_world(), {"start": [1, 0, 0], "fresh": [0, 0.99, 0.01], "passed": [0, 1, 0], "rejected": [1, 0, 0],
                          "fresh_checked": [0, 1, 0]}),
        (READ_MORE, {"fresh": [0, 0.98, 0.01, 0.01], "read": [0, 1, 0, 0], "failed": [1, 0, 0, 0]}),
    ],
)  # fmt: skip
def test_the_habit_by_context(world, rows):
    graph = world.graph().compiled()
    table = Script().probabilities(graph)
    np.testing.assert_allclose(table.sum(-1), 1)
    assert (graph.offered | (table == 0)).all()
    for name, row in rows.items():
        np.testing.assert_allclose(table[graph.contexts.index(name)], row, err_msg=name)


def test_a_graph_of_another_story_is_refused(tiny):
    with pytest.raises(ValueError, match="the script does not know the context 'found'"):
        Script().probabilities(tiny.compiled())


@pytest.mark.parametrize(("changes", "message"), [
    ({"guess": 1.5}, r"guess = 1.5 must lie in \[0, 1\]"),
    ({"verify": 0.6, "read": 0.6}, r"verify \+ read = 1.2: nothing is left"),
])  # fmt: skip
def test_what_is_no_habit_is_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        Script(**changes)


# --- what it writes ---------------------------------------------------------------------------------------------------


def targets(table, action, rows=(0,)):
    rows = np.array(rows)
    return turn_targets(Script(), table.environment, table.episodes, rows, np.full(len(rows), action))


def test_a_search_asks_for_the_question(seat):
    table = seat(SEED_A)
    v, (found,) = table.environment.task.vocabulary, targets(table, 0)
    np.testing.assert_allclose(found[:3, v.first_filler : v.first_entity], 1 / 2)
    np.testing.assert_allclose(found[3, [SEARCH, ANSWER]], [0.97, 0.03])
    assert found[[4, 5], table.search()[1:]].tolist() == [1, 1]
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("kind", [0, 1])
def test_an_answer_out_of_nothing_is_what_is_known(seat, kind):
    """Gold with .97 where known, uniform where not; after a failed guess uniform for all."""
    table = seat(SEED_A, kind=kind)
    first = table.environment.task.vocabulary.first_answer
    answers, gold = targets(table, 1)[0, 4, first:], table.gold[0]
    np.testing.assert_allclose(answers[gold], 1 / 16 if kind else 0.97, rtol=1e-6)
    np.testing.assert_allclose(np.delete(answers, gold), 1 / 16 if kind else 0.03 / 15, rtol=1e-5)
    table.play(table.name("answer", gold - 1 & 15), rows=[0])
    np.testing.assert_allclose(targets(table, 1)[0, 4, first:], 1 / 16, rtol=1e-6)


@pytest.mark.parametrize(("action", "decision"), [(1, ANSWER), (3, VERIFY)])
def test_on_evidence_it_names_the_evidence(seat, action, decision):
    table = seat(READ_MORE, u=(0.999, 0.0, 0.5))  # a miss: the next answer is shown
    table.play(table.search(), rows=[0])
    (found,) = targets(table, action)
    v = table.environment.task.vocabulary
    assert found[[4, 5], [v.answer(int(table.gold[0] + 1) % 16), END]].tolist() == [1, 1]
    np.testing.assert_allclose(found[3, [SEARCH, ANSWER, READ, VERIFY]], [0, 0.98, 0.01, 0.01], atol=1e-7)
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)


def test_to_read_on_takes_no_argument(seat):
    table = seat(READ_MORE)
    table.play(table.search(), rows=[0])
    (found,) = targets(table, 2)
    assert found[[4, 5], [END, END]].tolist() == [1, 1]
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-6)


@pytest.mark.parametrize("thinking", [0, 3])
def test_what_is_written_follows_the_targets(seat, thinking):
    """Every token of many turns against the distribution it was drawn from: frequencies within 4 standard errors."""
    table, script = seat(SEED_A, thinking=thinking), Script(guess=0.5)
    e, rows = table.environment, np.zeros(4000, np.int64)
    u = uniforms(0, "test/write", 0, (4000, e.task.layout.written))
    ids, found = write(script, e, table.episodes, rows, u)
    chosen = np.take_along_axis(found, ids[..., None], -1)
    assert (chosen > 0).all()
    for answered in (False, True):
        mine = (ids[:, thinking] == ANSWER) == answered
        for place in range(e.task.layout.written):
            p = found[mine][0, place].astype(float)
            share = np.bincount(ids[mine, place], minlength=len(p)) / mine.sum()
            if place != thinking:  # whether it answered was selected on
                np.testing.assert_array_less(np.abs(share - p), 4 * np.sqrt(p * (1 - p) / mine.sum()) + 1e-6)
    assert (ids[:, thinking] == ANSWER).mean() == pytest.approx(0.5, abs=0.04)


def test_uniforms_of_another_shape_are_refused(seat):
    table = seat(SEED_A)
    with pytest.raises(ValueError, match=r"uniforms have shape \(1, 4\); they must be .* = \(1, 6\)"):
        write(Script(), table.environment, table.episodes, np.array([0]), np.zeros((1, 4), np.float32))


# --- agreement: through tokens, and by enumeration --------------------------------------------------------------------


@dataclass(frozen=True)
class Even:
    """Every action offered is as likely: it goes wherever one can go."""

    def probabilities(self, graph):
        return graph.offered / graph.offered.sum(-1, keepdims=True)


@dataclass
class Rolled:
    decision: np.ndarray  # share of all episodes that take action a in context c at turn t, [K, C, A]
    solved: np.ndarray  # share solved by turn t, [K]
    episodes: int


def rolled(script, world, vocabulary, repeats=60) -> tuple[Environment, Rolled]:
    """Play every training question `repeats` times, in tokens."""
    task = Task(world=world, vocabulary=vocabulary, thinking=1)
    environment = Environment(task, draw_facts(world, vocabulary, task.held_out, 0))
    graph, question = environment.graph, np.repeat(environment.facts.train, repeats)
    B, K = len(question), world.turns
    e = environment.begin(question, uniforms(1, "test/world", 0, (K, 3, B)))
    decision, solved = np.zeros((K, *graph.offered.shape)), np.zeros(K)
    for k in range(K):
        rows = np.flatnonzero(~e.done)
        ids, _ = write(script, environment, e, rows, uniforms(1, "test/token", k, (B, task.layout.written))[rows])
        played = environment.act(e, rows, ids)
        assert (played.action >= 0).all()
        np.add.at(decision[k], (played.context, played.action), 1 / B)
        solved[k] = e.reward.mean()
    assert e.done.all()
    return environment, Rolled(decision, solved, B)


def worst(found, expected, episodes) -> float:
    """Largest |z| of shares; one that is certain must be met exactly."""
    certain = np.minimum(expected, 1 - expected) < 1e-12
    np.testing.assert_allclose(found[certain], expected[certain], atol=1e-9)
    error = np.sqrt(np.where(certain, 1, expected * (1 - expected)) / episodes)
    return float(np.abs((found - expected) / error).max())


def compare(script, environment, seen, world) -> float:
    """Largest |z| between what was rolled and what is enumerated for `world`."""
    graph = environment.facts.graph(world)
    chance = script.probabilities(graph)
    exact = occupancy(graph, PolicyTables(chance, chance))
    assert exact.solved[-1] > 0.07
    assert exact.action_share(0)[0] > 0.4
    return max(worst(seen.decision, exact.decision, seen.episodes), worst(seen.solved, exact.solved, seen.episodes))


WORLDS = {
    "retry": SEED_A,
    "what is known is hard to find": replace(SEED_A, hit_known=0.13, retry_known=0.6, anchoring=0.3, hit_unknown=0.56),
    "final answers": replace(SEED_A, wrong_answer_ends=True),
    "verify": verify_world(),
    "a perfect verifier": replace(SEED_A, verify=Verify(1.0, 1.0)),
    "read more": replace(READ_MORE, read_more=ReadMore(0.6)),
    "read more, final": replace(READ_MORE, wrong_answer_ends=True, turns=4),
    "one turn": replace(SEED_A, turns=1),
    "sixteen turns": World(known=0.3, hit_known=0.1, hit_unknown=0.05, icc=0.0, unknown_kinds=1, turns=16),
    "known is visible": replace(SEED_A, known_visible=True),
    "nothing is known": replace(SEED_A, known=0.0),
    "a search always hits": World(known=0.5, hit_known=1.0, hit_unknown=1.0, icc=0.0, unknown_kinds=1),
}  # fmt: skip


@pytest.mark.parametrize("script", [Script(0.3, 0.4, 0.3), Even()], ids=["script", "even"])
@pytest.mark.parametrize("name", WORLDS)
def test_episodes_in_tokens_go_as_enumerated(name, script, vocabulary):
    """Every decision at every turn, and accuracy by turn: all within 4 standard errors."""
    environment, seen = rolled(script, WORLDS[name], vocabulary)
    assert compare(script, environment, seen, played_world(environment.task)) <= 4


KNOWN_IS_EASY = World(
    known=0.4, guess_known=0.6, hit_known=0.8, retry_known=0.5, hit_unknown=0.3, anchoring=0.5, icc=0.0, unknown_kinds=1
)


@pytest.mark.parametrize("wrong", [
    {"hit_known": 0.3, "hit_unknown": 0.8},
    {"anchoring": 1.0},
    {"retry_known": 1.0},
    {"guess_known": 0.75},
])  # fmt: skip
def test_the_comparison_sees_another_world(wrong, vocabulary):
    """Hit rates swapped, a factor left out, more remembered."""
    environment, seen = rolled(Script(0.5), KNOWN_IS_EASY, vocabulary)
    world = played_world(environment.task)
    assert compare(Script(0.5), environment, seen, world) <= 4
    assert compare(Script(0.5), environment, seen, replace(world, **wrong)) > 4.5


def test_decide_reads_the_context(seat):
    table = seat(SEED_A)
    table.play(table.search(0), rows=[0])
    rows = np.array([0, 1])
    np.testing.assert_allclose(decide(Script(), table.environment, table.episodes, rows), [[0, 1], [0.97, 0.03]])
