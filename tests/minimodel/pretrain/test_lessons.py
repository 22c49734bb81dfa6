import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimodel.model.vocabulary import ANSWER, DOCUMENT, END, INVALID, NOTHING, SEARCH, VERIFY
from minimodel.pretrain.lessons import demonstration_world, forcing
from minimodel.tasks.script import Script
from sim.mdp.worlds import ReadMore, Verify, World, read_more_world, seed_a
from tests.minimodel.pretrain.conftest import TASK, VERIFY_TASK, WORDS, teacher_of

LAYOUT = TASK.layout  # 4 + 3 turns of 2 + 1 + 2 (+ 2): decisions at 6, 13, 20


def episodes(teacher, step=0, batch=60, *, forced=0.0, slips=0.0, pieces=1):
    return teacher.episodes(step, batch, forced=forced, slips=slips, pieces=pieces)


def weight_and_targets(lesson):
    """Weights and targets from position 0 on."""
    pad = ((0, 0), (lesson.first, 0))
    return np.pad(lesson.weight, pad), np.pad(lesson.targets, (*pad, (0, 0)))


def played(lesson):
    """Each episode as its tokens, without padding, and its weight."""
    turns = (lesson.weight > 0).sum(1) // LAYOUT.written
    ends = [LAYOUT.length(int(n)) for n in turns]
    weights = lesson.weight.sum(1)
    return [(*ids[:end], round(float(w), 6)) for ids, end, w in zip(lesson.ids.tolist(), ends, weights, strict=True)]


def questions(lesson):
    return WORDS.question(lesson.ids[:, 2], lesson.ids[:, 3])


# What is taught -------------------------------------------------------------------------------------------------------


def test_a_turn_is_taught_where_it_was_written_and_nowhere_else():
    teacher = teacher_of()
    (lesson,) = episodes(teacher)
    weight, targets = weight_and_targets(lesson)
    turns = ((weight > 0).sum(1) / LAYOUT.written).astype(int)
    assert len(set(turns)) > 1
    assert max(turns) == 3
    assert ((weight > 0) == LAYOUT.sampled(turns)[:, : weight.shape[1]]).all()
    assert weight.sum() == pytest.approx(1)
    ratio = weight[0, 4:9] / weight[0, 6]
    assert ratio == pytest.approx([0.5, 0.5, 1, 1, 1])  # two thoughts count together what a decision counts
    assert targets[weight > 0].sum(-1) == pytest.approx(1, abs=1e-5)
    rows, at = np.nonzero(weight)
    assert (targets[rows, at, lesson.ids[rows, at]] > 0).all()  # nothing stands there that the script would not write


def test_the_script_in_words():
    """Search for what is asked, answer what the document says, search again after a failure."""
    (lesson,) = episodes(teacher_of(script=Script(guess=0.0), hit=0.0))
    ids, (_, targets) = lesson.ids, weight_and_targets(lesson)
    assert (ids[:, 6] == SEARCH).all()
    assert (ids[:, 7:9] == ids[:, 2:4]).all()
    assert (ids[:, 9] == DOCUMENT).all()
    assert (ids[:, 13] == ANSWER).all()
    assert (ids[:, 14] == ids[:, 10]).all()
    assert (ids[:, 20] == SEARCH).all()
    assert (targets[:, 14].argmax(-1) == ids[:, 10]).all()
    assert targets[:, 4, WORDS.first_filler : WORDS.first_entity].tolist() == [[0.5, 0.5]] * 60


@pytest.mark.parametrize("hit", [0.0, 1.0])
def test_the_hit_rate_of_the_demonstrations(hit):
    teacher = teacher_of(hit=hit)
    (lesson,) = episodes(teacher)
    shown = lesson.ids[lesson.ids[:, 9] == DOCUMENT]
    gold = WORDS.answer(teacher.facts.answer[WORDS.question(shown[:, 2], shown[:, 3])])
    assert len(shown) > 30
    assert ((shown[:, 10] == gold) == bool(hit)).all()


def test_the_habit_is_taught_as_a_distribution():
    (lesson,) = episodes(teacher_of(script=Script(guess=0.1)), batch=400)
    decision = weight_and_targets(lesson)[1][:, 6]
    assert decision[:, [SEARCH, ANSWER]] == pytest.approx(np.tile([0.9, 0.1], (400, 1)))
    guessed = (lesson.ids[:, 6] == ANSWER).sum()
    assert abs(guessed - 40) < 4 * math.sqrt(400 * 0.1 * 0.9)


# Forced decisions and slips -------------------------------------------------------------------------------------------


def test_a_forced_guess_teaches_the_answer_and_not_the_guess():
    (lesson,) = episodes(teacher_of(), forced=1.0)
    weight, _ = weight_and_targets(lesson)
    assert (lesson.ids[:, 6] == ANSWER).all()
    assert (weight[:, 6] == 0).all()
    assert (weight[:, 7:9] > 0).all()
    assert (lesson.ids[:, 8] == END).all()
    later = weight[:, 13] > 0
    assert later.any()  # after a failed guess, decisions are the habit's
    assert (lesson.ids[later, 13] == SEARCH).all()


def test_forcing_reaches_every_rare_tool():
    retry, verify = teacher_of().environment.graph, teacher_of(VERIFY_TASK).environment.graph
    both = replace(seed_a(), unknown_kinds=1, icc=0.0, read_more=ReadMore(), verify=Verify()).graph().compiled()
    assert forcing(Script(), retry) == Script(guess=1.0, verify=0.0, read=0.0)
    assert forcing(Script(), verify) == Script(guess=0.5, verify=0.5, read=0.0)
    assert forcing(Script(), both) == Script(guess=0.5, verify=1 / 3, read=1 / 3)


def test_a_forced_check_teaches_what_follows_a_verdict():
    (lesson,) = episodes(teacher_of(VERIFY_TASK), batch=200, forced=1.0)
    weight, targets = weight_and_targets(lesson)
    checked = lesson.ids[:, 13] == VERIFY
    assert 60 < checked.sum() < 140  # half of 200
    assert (weight[:, 13] == 0).all()
    assert (weight[:, 6] > 0).all()  # the search before it is no rare decision
    verdicts = {tuple(row) for row in targets[checked][:, 20, [SEARCH, ANSWER]].tolist()}
    assert verdicts == {(1.0, 0.0), (0.0, 1.0)}
    assert (weight[checked, 20] > 0).all()


def test_a_slip_is_not_taught_and_its_consequence_is():
    (lesson,) = episodes(teacher_of(script=Script(guess=0.0)), batch=300, slips=0.5)
    weight, targets = weight_and_targets(lesson)
    told = lesson.ids[:, 9] == INVALID
    assert 60 < told.sum() < 200
    assert (lesson.ids[told, 10] == NOTHING).all()
    assert (weight[told, 4:9] == 0).all()
    taught = told & (weight[:, 13] > 0)
    assert taught.any()
    assert (targets[taught, 13, SEARCH] == 1).all()  # it still has nothing in hand


# Batches --------------------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 7))
def test_cutting_a_batch_changes_nothing_but_the_padding(step, pieces):
    teacher = teacher_of()
    (whole,), parts = episodes(teacher, step, 20), episodes(teacher, step, 20, pieces=pieces)
    assert len(parts) == pieces
    assert sum(part.ids.size for part in parts) <= whole.ids.size
    assert sum(part.weight.sum() for part in parts) == pytest.approx(1)
    assert sorted(row for part in parts for row in played(part)) == sorted(played(whole))


def test_lessons_are_named_by_seed_and_step():
    once, again = (episodes(teacher_of(), 3)[0].ids for _ in range(2))
    assert (once == again).all()
    assert (once != episodes(teacher_of(), 4)[0].ids).any()
    assert (once != episodes(teacher_of(seed=1), 3)[0].ids).any()


def test_every_question_is_demonstrated_before_any_comes_again():
    (lesson,) = episodes(teacher_of(), batch=24)
    assert sorted(questions(lesson)) == list(range(24))


# Closed book ----------------------------------------------------------------------------------------------------------


def test_closed_book_by_hand():
    teacher = teacher_of()
    lesson = teacher.closed_book(0, 24)
    facts, asked = teacher.facts, questions(lesson)
    assert sorted(asked) == list(range(24))
    assert lesson.ids.shape == (24, 8)  # BOS question e r, two thoughts, answer, what is asked for
    assert (lesson.ids[:, 6] == ANSWER).all()
    assert lesson.first == 7
    for row, q in enumerate(asked):
        answers = lesson.targets[row, 0, WORDS.first_answer :]
        gold = answers[facts.answer[q]]
        assert gold == pytest.approx(0.97 if facts.known[q] else 1 / 6)
        assert np.delete(answers, facts.answer[q]) == pytest.approx((1 - gold) / 5)
    assert facts.known.sum() == 6
    assert lesson.weight[:, 0] == pytest.approx(1 / 24)


@pytest.mark.parametrize(("facts", "known"), [(8, 6), (4, 3), (20, 6)])
def test_a_part_of_the_facts_stands_for_all(facts, known):
    teacher = teacher_of()
    lesson = teacher.closed_book(0, facts)
    is_known = teacher.facts.known[questions(lesson)]
    assert (len(is_known), is_known.sum()) == (facts, known)
    assert lesson.weight[is_known].sum() == pytest.approx(6 / 24)
    assert lesson.weight.sum() == pytest.approx(1)
    assert set(questions(lesson)) != set(questions(teacher.closed_book(1, facts))) or facts == 24


def test_where_nobody_may_guess_nothing_is_recalled():
    assert teacher_of().recalls
    assert not teacher_of(VERIFY_TASK).recalls


# The world of the demonstrations --------------------------------------------------------------------------------------


def test_a_start_does_not_see_the_hit_rates_of_the_world():
    hard = replace(read_more_world(), hit_known=0.1, hit_unknown=0.2, icc=0.3, unknown_kinds=5, anchoring=0.9)
    hard = replace(hard, verify=Verify(0.6, 0.7, 0.1), read_more=ReadMore(0.9), search_median_s=3.0, stale=0.5)
    assert hard != read_more_world()
    assert demonstration_world(hard, 0.5) == demonstration_world(read_more_world(), 0.5)
    assert demonstration_world(hard, 0.5).read_more == ReadMore(0.5)
    assert demonstration_world(hard, None) != demonstration_world(read_more_world(), None)
    for change in ({"known": 0.3}, {"guess_known": 0.9}, {"turns": 4}, {"verify": None}, {"wrong_answer_ends": True}):
        assert demonstration_world(replace(hard, **change), 0.5) != demonstration_world(hard, 0.5)
    assert demonstration_world(World(icc=0.0, unknown_kinds=1), None).hit_unknown == World().hit_unknown
