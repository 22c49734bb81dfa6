"""Faults that other projects shipped, in how runs of the language model keep tokens, versions, luck and their place.

Written as ``test_known_faults_agent.py`` is; the faults are in ``known_fault_mutations_agent_runs.py``.
"""

from collections import Counter

import numpy as np
import pytest
import torch

from fullscale.agent import collecting
from fullscale.agent.compaction import Compaction
from fullscale.agent.record import to_rollouts
from fullscale.agent.schedules import Asynchronous
from fullscale.engine.protocol import Spoken, Turn
from fullscale.rollout.staleness import staleness
from minimodel.agent.schedule import Lag
from sim.learning.credit import GroupCredit
from sim.learning.normalisers import TokenMean
from sim.learning.penalties import EntropyBonus
from sim.learning.rule import Rule
from sim.learning.weights import ppo_clip
from sim.records import staleness as of_record
from tests.fullscale.agent.conftest import single_threaded  # noqa: F401  a fixture of this module as well
from tests.fullscale.agent.small import (
    ASKED,
    Noted,
    alone,
    batch,
    begin,
    differing,
    encode,
    engine,
    learners_logp,
    minibatch,
    moved,
    parameters,
    policy_of,
    taught,
    tokenizer,
    training,
)
from tests.fullscale.agent.written import written
from tests.fullscale.known_fault_mutations_agent_runs import MUTATIONS
from tests.mutations import fails_under

SMALL = {"prompts": 2, "group": 2, "steps": 2}


# --- tokens, on both sides ----------------------------------------------------------------------------------------------


class Spelling:
    """An engine that writes a search letter by letter, which no encoder would; and keeps what it was given to read."""

    def __init__(self):
        self.turn, self.read = [encode(c)[0] for c in "<search>capital of France</search>"], []

    def publish(self, version, network):
        self.version = version

    def play(self, prompts, reply, settings, uniforms, between=None):
        self.read.append([list(p) for p in prompts])
        return [self._episode(row, list(prompt), reply) for row, prompt in enumerate(prompts)]

    def _episode(self, row, ids, reply):
        marks, turns = [False] * len(ids), []
        ids, marks = ids + self.turn, marks + [True] * len(self.turn)
        turns.append(Turn(tuple(self.turn), tokenizer().decode(self.turn), "stop"))
        (said,) = reply([row], turns)
        assert said.ids is None
        sampled, zeros = np.array(marks), np.zeros(len(ids), np.float32)
        return Spoken(
            np.array(ids), sampled, zeros, zeros, np.where(sampled, self.version, -1), 0 * sampled, 0 * sampled,
            tuple(turns), "over",
        )  # fmt: skip


def test_f8_what_was_sampled_is_what_is_read_and_trained_on():
    spelling = Spelling()
    played = batch(
        dict.fromkeys(range(3)), versions=np.array([[[0, 1, 2]]]), playing=spelling, questions=ASKED[:1], group=1
    )
    text = tokenizer().decode(spelling.turn)
    assert len(encode(text)) < len(spelling.turn)  # re-encoded, it would be other tokens
    ids, sampled = played.ids[0, 0], played.sampled[0, 0]
    assert ids[sampled].tolist() == spelling.turn * 3
    assert len(spelling.read) == 3
    for (before,), (after,) in zip(spelling.read[:-1], spelling.read[1:], strict=True):
        assert after[: len(before) + len(spelling.turn)] == before + spelling.turn
    assert (minibatch(played, Rule()).ids[0, 0] & (1 << 40) - 1).tolist() == ids.tolist()
    kept = to_rollouts(played, 2).tokens
    assert kept.id[kept.sampled].tolist() == spelling.turn * 3


# --- both sides of a ratio --------------------------------------------------------------------------------------------


def test_f9_one_temperature_on_both_sides():
    columns = begin(training(**SMALL, temperature=0.6, watched=2)).go()
    assert (columns["mismatch/mean"] < 1e-4).all()
    assert (columns["mismatch/mean"] > 0).all()
    played = batch(taught(), temperature=0.6, group=2)
    assert np.abs(learners_logp(policy_of(taught(), 0.6), played) - played.logp).max() < 1e-3
    assert np.abs(learners_logp(policy_of(taught()), played) - played.logp).max() > 0.1


def test_f10_one_support_on_both_sides():
    """The engine's log-prob is that of the whole vocabulary, as is the learner's."""
    played = batch(taught(), group=2)
    q, g, t = (int(x[0]) for x in np.nonzero(played.sampled))
    own = alone(taught(), played.ids[q, g, : t + 1])[-1]
    assert float(own.exp().sum()) == pytest.approx(1)
    assert float(played.logp[q, g, t]) == pytest.approx(float(own[played.ids[q, g, t]]), abs=1e-4)
    assert np.abs(learners_logp(policy_of(taught()), played) - played.logp).max() < 1e-3


def test_f11_a_position_predicts_the_next_token_of_its_own_segment():
    """Same weights, two segments in a row: every ratio is 1. Rolled by one, none would be."""
    played = batch(taught(), group=2, how={"compaction": Compaction(at_tokens=280)}, context_tokens=400)
    assert played.segment.max() > 0
    found, here = learners_logp(policy_of(taught()), played), played.sampled
    assert np.abs(found - played.logp)[here].max() < 1e-3
    assert (found[~here] == 0).all()
    assert np.abs(np.roll(found, 1, -1) - played.logp)[here].max() > 1


# --- versions ---------------------------------------------------------------------------------------------------------


class PublishedMeanwhile(Noted):
    """Newer weights arrive while the sixth token is being made: after it was asked for, before it is there."""

    def __init__(self, of, newer):
        super().__init__(of)
        self.newer = newer

    def play(self, prompts, reply, settings, uniforms, between=None):
        def asked(row, place):
            if place == 5 and self.of.published.version == 3:
                self.of.publish(4, self.newer)
            return uniforms(row, place)

        return self.of.play(prompts, reply, settings, asked, between)


def test_f22_a_token_is_labelled_with_the_version_that_made_it():
    older, newer = taught(), moved(taught(), 0.2)
    playing = PublishedMeanwhile(engine(3, older), newer)
    played = batch(older, playing=playing, questions=ASKED[:1], group=2)
    for g in range(2):
        ids, sampled = played.ids[0, g, : played.length[0, g]], played.sampled[0, g]
        version = played.version[0, g][sampled]
        assert version[:6].tolist() == [3] * 6
        assert set(version[6:].tolist()) == {4}
        own = {3: alone(older, ids), 4: alone(newer, ids)}
        for t in np.flatnonzero(sampled):
            said, made = played.logp[0, g, t], int(played.version[0, g, t])
            assert said == pytest.approx(float(own[made][t - 1, ids[t]]), abs=2e-4)
    kept = to_rollouts(played, 5)
    assert kept.segments.version_oldest.tolist() == [3, 3]
    assert kept.segments.version_newest.tolist() == [4, 4]


def test_f23_staleness_is_judged_by_token():
    """10 tokens of version 3, 30 of 4, 60 of 5, learner at 6: 3, 1 and 1.5 behind. Unlabelled: covered less, no lag of 0."""
    mask = np.arange(101)[None, None] > 0
    version = np.concatenate([[-1], [3] * 10, [4] * 30, [5] * 60])[None, None]
    played = written(mask, version=version)
    found = staleness(played.version, played.sampled, 6)
    assert [found[f"staleness/{x}"] for x in ("oldest", "newest", "token_mean", "coverage")] == [3, 1, 1.5, 1]
    kept = of_record.staleness(to_rollouts(played, 6))
    assert (kept.oldest, kept.newest, kept.token_mean, kept.coverage) == (3, 1, 1.5, 1)
    unknown = np.where(version == 5, -1, version)
    found = staleness(unknown, played.sampled, 6)
    assert [found[f"staleness/{x}"] for x in ("oldest", "newest", "token_mean", "coverage")] == [3, 2, 2.25, 0.4]
    columns = begin(training(**SMALL | {"steps": 3}, schedule=Lag(2))).go()
    assert columns["staleness/oldest"].tolist() == columns["staleness/token_mean"].tolist() == [0, 1, 2]


def test_f24_slow_questions_are_trained_as_often_as_fast_ones():
    """Played beside the learner, each of nine questions once an epoch, however long it takes."""
    run = begin(training(steps=6, prompts=3, group=2, schedule=Asynchronous()))
    asked, shipped = [], run.collector.batch

    def batch_of(step):
        found = shipped(step)
        asked.extend(q.id for q in found[0].questions)
        return found

    run.collector.batch = batch_of
    run.go()
    assert Counter(asked) == dict.fromkeys((q.id for q in ASKED), 2)


# --- randomness and going on ------------------------------------------------------------------------------------------


def test_f28_every_member_of_a_group_has_a_stream_of_its_own():
    """Eight samples, eight texts; and neither company nor order changes one."""
    network = taught()
    whole = batch(network, group=8)
    for group in whole.ids:
        assert len({row.tobytes() for row in group}) == 8
    half = batch(network, questions=ASKED[2:4], group=8, how={"first": 2})
    T = half.ids.shape[-1]
    np.testing.assert_array_equal(half.ids, whole.ids[2:, :, :T])
    versions = np.random.default_rng(0).integers(0, 3, (4, 8, 1)).repeat(3, -1)
    served = batch(dict.fromkeys(range(3), network), group=8, versions=versions)
    np.testing.assert_array_equal(served.ids, whole.ids)
    again = batch(network, group=8, seed=4)
    assert (again.ids[..., :260] != whole.ids[..., :260]).any()


def test_f30_resumption_neither_skips_nor_repeats_a_question(tmp_path, monkeypatch):
    """Given up in its second step and gone on with: every question as often, and an equal end."""
    asked, shipped = [], collecting.Collector.batch

    def listening(self, step):
        found = shipped(self, step)
        asked.append([q.id for q in found[0].questions])
        return found

    monkeypatch.setattr(collecting.Collector, "batch", listening)
    rule = Rule(GroupCredit(), ppo_clip(), TokenMean(), (EntropyBonus(0.1),))  # every step has something to learn
    config = training(**SMALL | {"steps": 3, "rule": rule}, schedule=Lag(1))
    whole = begin(config)
    columns = whole.go()
    assert (np.diff(columns["update/moved"]) > 0).all()
    uninterrupted, first = asked.copy(), begin(config, tmp_path)
    asked.clear()

    def interrupt(row):
        if row["step"] == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        first.go(interrupt)
    assert asked.pop() == uninterrupted[1]  # the second step is lost, and made again
    rest = begin(config, tmp_path)
    found = rest.go()
    assert asked == uninterrupted
    assert found["step"].tolist() == [0, 1, 2]
    assert differing(found, columns) == []
    assert torch.equal(parameters(rest), parameters(whole))


# --- the tests themselves ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "mutate"),
    [pytest.param(n, m, marks=[pytest.mark.long] if slow else []) for n, _, m, slow in MUTATIONS],
    ids=[f"{n.split('_')[1]}: {fault}" for n, fault, *_ in MUTATIONS],
)
def test_the_mutation_makes_its_test_fail(name, mutate, request, monkeypatch):
    fails_under(mutate, name, globals(), request, monkeypatch)


def test_every_fault_has_a_mutation():
    assert {name for name, *_ in MUTATIONS} == {name for name in globals() if name.startswith("test_f")}
