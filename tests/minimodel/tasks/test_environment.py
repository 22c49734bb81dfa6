from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from minimodel.model.vocabulary import (
    ANSWER,
    DOCUMENT,
    END,
    INVALID,
    NOTHING,
    PAD,
    PASS,
    QUESTION,
    READ,
    REJECT,
    SEARCH,
    VERIFY,
    WRONG,
)
from minimodel.tasks.environment import Environment
from minimodel.tasks.task import Task
from sim.mdp.worlds import ReadMore, Verify, World, verify_world
from sim.records.tables import Outcome

HIT, MISS = 0.0, 1 - 2.0**-24
RETRY = World(known=0.25, hit_known=0.4, hit_unknown=0.6, icc=0.0, unknown_kinds=1)
VERIFY_WORLD = replace(RETRY, verify=Verify(0.9, 0.8), read_more=ReadMore(0.5))


def at(table, row=0):
    return table.environment.graph.source.states[table.episodes.node[row]].name


# --- each action by hand ----------------------------------------------------------------------------------------------


def test_a_prompt_asks_for_an_entitys_relation(seat):
    table = seat(RETRY)
    v, f, q = table.environment.task.vocabulary, table.environment.facts, table.episodes.question
    prompt = table.environment.prompts(q)
    assert prompt[0].tolist() == [1, QUESTION, v.entity(int(f.entity[q[0]])), v.relation(int(f.relation[q[0]]))]
    assert len({tuple(p) for p in prompt.tolist()}) == len(q)


def test_a_hit_shows_the_right_answer_and_it_solves(seat):
    table = seat(RETRY, u=(HIT, 0.3, 0.5))
    gold = table.gold[0]
    seen = table.play(table.search(), rows=[0])
    assert (at(table), table.episodes.evidence[0]) == ("fresh hit", gold)
    v = table.environment.task.vocabulary
    assert seen.observation.tolist() == [[DOCUMENT, v.answer(int(gold))]]
    assert (seen.action[0], seen.node[0], seen.context[0], seen.tool_tokens[0]) == (0, 0, 0, 500)
    assert seen.latency_s[0] == pytest.approx(0.8)
    last = table.play(table.name("answer", gold), rows=[0])
    assert last.observation.tolist() == [[PAD, PAD]]
    assert (last.done[0], last.correct[0], last.tool_tokens[0]) == (True, True, 4)
    assert (table.episodes.reward[0], table.episodes.outcome[0], table.episodes.turn[0]) == (1.0, Outcome.SOLVED, 2)
    assert (table.episodes.searched[0], table.episodes.guessed[0]) == (True, False)


def test_a_miss_shows_a_wrong_answer_and_it_fails(seat):
    table = seat(RETRY, u=(MISS, 0.0, 0.5))
    gold = table.gold[0]
    seen = table.play(table.search(), rows=[0])
    shown = seen.observation[0, 1] - table.environment.task.vocabulary.first_answer
    assert shown == (gold + 1) % 16 == table.episodes.evidence[0]
    assert at(table) == "fresh miss"
    failed = table.play(table.name("answer", shown), rows=[0])
    assert failed.observation.tolist() == [[WRONG, NOTHING]]
    assert (at(table), table.episodes.evidence[0]) == ("failed (answered)", -1)
    assert not failed.done[0]
    assert not failed.correct[0]
    assert (table.episodes.reward[0], table.episodes.outcome[0]) == (0.0, -1)


def test_truth_is_in_the_tokens(seat):
    """A right document copied wrongly fails; the right answer to a wrong document solves."""
    right, wrong = seat(RETRY, u=(HIT, 0.0, 0.5)), seat(RETRY, u=(MISS, 0.0, 0.5))
    for table, answer in ((right, right.gold[0] + 1), (wrong, wrong.gold[0])):
        table.play(table.search(), rows=[0])
        played = table.play(table.name("answer", answer % 16), rows=[0])
        assert played.correct[0] == (table is wrong)
    assert at(right) == "failed (answered)"
    assert right.episodes.outcome[0] == -1
    assert wrong.episodes.outcome[0] == Outcome.SOLVED


def test_a_guess_is_an_answer_before_any_search(seat):
    table = seat(RETRY)
    table.play(table.name("answer", table.gold[0]), table.name("answer", table.gold[1] - 1 & 15))
    assert table.episodes.guessed[:3].tolist() == [True, True, False]
    assert table.episodes.reward[:2].tolist() == [1.0, 0.0]
    assert at(table, 1) == "failed (guessed)"
    table.play(table.search(1), rows=[1])
    table.play(table.name("answer", table.gold[1]), rows=[1])
    assert (table.episodes.outcome[1], table.episodes.turn[1]) == (Outcome.SOLVED, 3)


def test_a_failed_guess_anchors_the_search_after_it(seat):
    """Hit rate .6 x .5 for an unknown question: a draw of .4 hits before the failure and not after it."""
    table = seat(RETRY, kind=1, u=(0.4, 0.0, 0.5))
    table.play(table.name("answer", table.gold[0] - 1 & 15), table.search(1))
    table.play(table.search(0), rows=[0])
    assert (at(table, 1), at(table, 0)) == ("fresh hit", "fresh miss (guessed)")


def test_a_search_for_another_question_misses(seat):
    table = seat(RETRY, u=(HIT, 0.0, 0.5))
    decision, entity, relation = table.search(0)
    v = table.environment.task.vocabulary
    another = entity - 1 if entity > v.first_entity else entity + 1
    table.play([decision, another, relation], table.search(1), rows=[0, 1])
    assert (at(table, 0), at(table, 1)) == ("fresh miss", "fresh hit")
    assert table.episodes.searched[:2].all()


@pytest.mark.parametrize(("u", "candidate", "seen"), [
    (0.85, 0, PASS), (0.95, 0, REJECT), (0.15, 1, PASS), (0.25, 1, REJECT),
])  # fmt: skip
def test_verify_judges_the_candidate_it_is_given(seat, u, candidate, seen):
    """Sensitivity .9, specificity .8; the document is wrong, the candidate right (0) or not (1)."""
    table = seat(VERIFY_WORLD)
    table.episodes.draws[0, 0], table.episodes.draws[1, 0] = MISS, u
    table.play(table.search(), rows=[0])
    named = (table.gold[0] + candidate) % 16
    played = table.play(table.name("verify", named), rows=[0])
    assert played.observation.tolist() == [[seen, NOTHING]]
    assert at(table) == f"{'passed' if seen == PASS else 'rejected'} {('hit', 'miss')[candidate]} (checked)"
    assert (played.tool_tokens[0], table.episodes.evidence[0]) == (4, named)


def test_reading_on_mends_a_miss_and_keeps_a_hit(seat):
    for first, u, name in ((MISS, 0.45, "read hit"), (MISS, 0.55, "read miss"), (HIT, MISS, "read hit")):
        table = seat(VERIFY_WORLD)
        table.episodes.draws[0, 0], table.episodes.draws[1, 0] = first, u
        table.play(table.search(), rows=[0])
        seen = table.play([READ, END, END], rows=[0])
        assert at(table) == name
        assert (seen.observation[0, 0], seen.tool_tokens[0]) == (DOCUMENT, 500)
        assert (table.episodes.evidence[0] == table.gold[0]) == (name == "read hit")


def test_wrong_documents_are_uniform_over_wrong_answers(seat):
    table = seat(replace(RETRY, turns=1), u=(MISS, 0.0, 0.5))
    rows = np.arange(len(table.gold))
    table.episodes.draws[0, 1] = np.arange(len(rows)) / len(rows)
    seen = table.play(*(table.search(r) for r in rows))
    step = (seen.observation[:, 1] - table.environment.task.vocabulary.first_answer - table.gold) % 16
    counts = np.bincount(step, minlength=16)
    assert counts[0] == 0
    assert counts.sum() == len(rows)
    assert counts[1:].max() - counts[1:].min() <= 1


def test_latency_is_the_quantile_of_the_actions_law(seat):
    table = seat(VERIFY_WORLD, u=(HIT, 0.0, 0.9))
    searched = table.play(table.search(), [SEARCH, END, END], rows=[0, 1])
    verified = table.play(table.name("verify", table.gold[0]), rows=[0])
    law = [stats.lognorm(sigma, scale=0.8).ppf(np.float32(0.9)) for sigma in (0.6, 0.3)]
    np.testing.assert_allclose([*searched.latency_s, *verified.latency_s], [law[0], 0.0, law[1]])


# --- what is invalid --------------------------------------------------------------------------------------------------


def invalid_at_the_start(table):
    v, search = table.environment.task.vocabulary, table.search()
    return {
        "no decision": [v.filler(0), *search[1:]],
        "an observation": [DOCUMENT, *search[1:]],
        "no entity": [SEARCH, search[2], search[2]],
        "no relation": [SEARCH, search[1], search[1]],
        "no answer": [ANSWER, search[1], END],
        "no end": [ANSWER, v.answer(3), v.answer(3)],
        "not offered": [READ, END, END],
        "nothing to verify": [VERIFY, v.answer(3), END],
    }


@pytest.mark.parametrize("world", [RETRY, VERIFY_WORLD])
def test_what_is_not_an_action_uses_a_turn_and_nothing_else(seat, world):
    """Each form of it; the state stays."""
    table = seat(world)
    forms = list(invalid_at_the_start(table).values())
    played = table.play(*forms)
    assert (played.action == -1).all()
    assert (played.observation == [INVALID, NOTHING]).all()
    assert not played.correct.any()
    assert (played.latency_s == 0).all()
    assert (played.tool_tokens == 0).all()
    n, e = len(forms), table.episodes
    assert (e.turn[:n] == 1).all()
    assert (e.node[:n] == 0).all()
    assert not (e.searched | e.guessed | e.done)[:n].any()
    table.play(table.search(), rows=[0])
    assert (at(table), e.turn[0]) == ("fresh hit", 2)


def test_invalid_in_hand_keeps_the_evidence(seat):
    table = seat(VERIFY_WORLD)
    v, gold = table.environment.task.vocabulary, table.gold[0]
    for slip in (
        [READ, END, v.answer(0)],
        [READ, v.answer(0), END],
        [VERIFY, END, END],
        table.search(),
        [ANSWER, END, END],
    ):
        table = seat(VERIFY_WORLD)
        table.play(table.search(), rows=[0])
        assert table.play(slip, rows=[0]).action[0] == -1  # with a verify tool no search is offered on evidence
        assert (at(table), table.episodes.evidence[0]) == ("fresh hit", gold)


def test_a_second_verify_is_invalid(seat):
    table = seat(replace(VERIFY_WORLD, turns=6))
    table.episodes.draws[1, 0] = MISS
    table.play(table.search(), rows=[0])
    rejected = table.play(table.name("verify", table.gold[0]), rows=[0])
    assert (rejected.action[0], at(table)) == (3, "rejected hit (checked)")
    assert table.play(table.name("verify", table.gold[0]), rows=[0]).action[0] == -1
    table.play(table.search(), rows=[0])
    assert at(table) == "fresh hit (checked)"
    assert table.play(table.name("verify", table.gold[0]), rows=[0]).action[0] == -1
    assert table.play(table.name("answer", table.gold[0]), rows=[0]).correct[0]


def test_a_guess_that_the_world_forbids_is_invalid(seat):
    table = seat(verify_world())
    played = table.play(table.name("answer", table.gold[0]), rows=[0])
    assert (played.action[0], table.episodes.guessed[0], table.episodes.reward[0]) == (-1, False, 0.0)


# --- how it ends ------------------------------------------------------------------------------------------------------


def test_the_turn_limit(seat):
    table = seat(replace(RETRY, turns=3))
    for turn in range(3):
        played = table.play([PAD, PAD, PAD], rows=[0])
        assert played.done[0] == (turn == 2)
    assert (table.episodes.outcome[0], table.episodes.reward[0]) == (Outcome.TURN_LIMIT, 0.0)


def test_the_right_answer_in_the_last_turn_solves(seat):
    table = seat(replace(RETRY, turns=1))
    table.play(table.name("answer", table.gold[0]), table.name("answer", table.gold[1] - 1 & 15))
    assert table.episodes.outcome[:2].tolist() == [Outcome.SOLVED, Outcome.TURN_LIMIT]


@pytest.mark.parametrize(("world", "how", "over"), [
    (RETRY, {}, False),
    (replace(RETRY, wrong_answer_ends=True), {}, True),
    (RETRY, {"ends_on_guess": True}, True),
])  # fmt: skip
def test_a_wrong_guess_may_end_the_episode(seat, world, how, over):
    table = seat(world, **how)
    played = table.play(table.name("answer", table.gold[0] - 1 & 15), table.name("answer", table.gold[1]))
    assert played.done.tolist() == [over, True]
    assert played.observation[0].tolist() == [WRONG, NOTHING]
    assert table.episodes.outcome[:2].tolist() == [Outcome.WRONG if over else -1, Outcome.SOLVED]
    assert table.episodes.reward[:2].tolist() == [0.0, 1.0]


def test_ends_on_guess_leaves_answers_after_a_search_alone(seat):
    table = seat(RETRY, ends_on_guess=True)
    table.play(table.search(), rows=[0])
    assert not table.play(table.name("answer", table.gold[0] - 1 & 15), rows=[0]).done[0]


# --- certain worlds ---------------------------------------------------------------------------------------------------


def test_a_search_that_always_hits_misses_another_question(seat):
    table = seat(replace(RETRY, hit_known=1.0, hit_unknown=1.0), kind=1, u=(MISS, 0.0, 0.5))
    decision, entity, relation = table.search(0)
    table.play([decision, entity, relation ^ 1], table.search(1), rows=[0, 1])
    assert (table.episodes.evidence[:2] == table.gold[:2]).tolist() == [False, True]
    table.play(*(table.name("answer", table.gold[r] - 1 & 15) for r in (0, 1)))
    assert {at(table, 0), at(table, 1)} == {"failed (answered)"}


def test_a_perfect_verifier_is_never_wrong(seat):
    for u in (HIT, MISS):
        table = seat(replace(RETRY, verify=Verify(1.0, 1.0)), u=(HIT, 0.0, 0.5))
        table.play(table.search(0), table.search(1))
        table.episodes.draws[1] = u
        played = table.play(table.name("verify", table.gold[0]), table.name("verify", table.gold[1] - 1 & 15))
        assert played.observation[:, 0].tolist() == [PASS, REJECT]


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_episodes_that_are_over_are_refused(seat):
    table = seat(RETRY)
    table.play(*(table.name("answer", table.gold[r]) for r in (0, 1)))
    with pytest.raises(ValueError, match=r"episodes \[1\] are over; act on those where `episodes.done` is False"):
        table.play(table.search(2), table.search(1), rows=[2, 1])
    assert table.episodes.turn[2] == 0


@pytest.mark.parametrize(("rows", "words", "message"), [
    ([0, 3, 3], [PAD] * 3, r"episodes \[3\] are named twice"),
    ([0], [PAD] * 2, r"written has shape \(1, 5\); a turn is \(rows, tokens sampled\) = \(1, 6\)"),
    ([0], [PAD, PAD, 58], "tokens run from 0 to 58; ids of the vocabulary are 0 to 57"),
    ([0], [PAD, PAD, -1], "tokens run from -1 to 17"),
])  # fmt: skip
def test_what_is_no_turn_is_refused(seat, rows, words, message):
    with pytest.raises(ValueError, match=message):
        seat(RETRY).play(*[words] * len(rows), rows=rows)


def test_what_cannot_begin_is_refused(seat):
    environment = seat(RETRY).environment
    draws = np.zeros((4, 3, 2), np.float32)
    with pytest.raises(ValueError, match="questions run from 0 to 128; there are 0 to 127"):
        environment.begin(np.array([0, 128]), draws)
    with pytest.raises(ValueError, match=r"draws have shape \(4, 3, 2\); they must be .* = \(4, 3, 1\)"):
        environment.begin(np.array([0]), draws)
    with pytest.raises(ValueError, match="questions run from -1"):
        environment.prompts(np.array([-1]))


def test_facts_of_other_words_are_refused(seat):
    environment = seat(RETRY).environment
    with pytest.raises(ValueError, match="128 facts with answers up to 15 do not fit 48 entities x 8 relations"):
        Environment(Task(world=RETRY), environment.facts)
