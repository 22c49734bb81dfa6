from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from minimodel.model.vocabulary import END, SEARCH
from minimodel.tasks.environment import Environment
from minimodel.tasks.facts import draw_facts
from minimodel.tasks.script import Script, write
from minimodel.tasks.task import Task
from sim.mdp.worlds import read_more_world
from sim.records.rng import uniforms


def run(environment, question, draws, tokens, order=None, split=None):
    """Play scripted episodes; rows act in `order`, in two calls a turn where `split` says how many go first."""
    e = environment.begin(question, draws)
    order = np.arange(len(question)) if order is None else order
    seen = np.full((len(question), environment.task.world.turns, 4), -1.0)
    for k in range(environment.task.world.turns):
        alive = order[~e.done[order]]
        for rows in np.split(alive, [0 if split is None else min(split, len(alive))]):
            if len(rows):
                ids, _ = write(Script(0.3, 0.3, 0.3), environment, e, rows, tokens[k][rows])
                played = environment.act(e, rows, ids)
                seen[rows, k] = np.stack([played.action, played.node, played.observation[:, 1], played.latency_s], -1)
    return e, seen


@settings(max_examples=10)
@given(st.integers(0, 1000), st.integers(0, 40), st.booleans())
def test_what_happens_to_one_episode_depends_on_no_other(vocabulary, seed, split, ends_on_guess):
    """Same draws, same outcomes: in any order, in two calls instead of one, and in half the company."""
    task = Task(world=read_more_world(), vocabulary=vocabulary, held_out=0.0)
    environment = Environment(task, draw_facts(task.world, vocabulary, 0.0, seed), ends_on_guess=ends_on_guess)
    question, order = np.arange(0, 128, 3), np.argsort(uniforms(seed, "test/order", 0, (43,)))
    draws = uniforms(seed, "test/world", 0, (6, 3, 43))
    tokens = uniforms(seed, "test/token", 0, (6, 43, task.layout.written))
    whole, seen = run(environment, question, draws, tokens)
    assert 0.1 < whole.reward.mean() < 0.95
    assert whole.done.all()
    for e, same in (
        run(environment, question, draws, tokens, order, split),
        run(environment, question[::2], draws[:, :, ::2], tokens[:, ::2]),
    ):
        every = np.s_[:] if len(e.done) == len(question) else np.s_[::2]
        np.testing.assert_array_equal(same, seen[every])
        for name in ("node", "turn", "reward", "outcome", "searched", "guessed", "evidence"):
            np.testing.assert_array_equal(getattr(e, name), getattr(whole, name)[every])


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_any_tokens_can_be_played(vocabulary, seed):
    """Words drawn from the whole vocabulary, mostly invalid: evidence and node agree, and every episode ends in time."""
    world = replace(read_more_world(), turns=5, guess_known=1.0)
    task = Task(world=world, vocabulary=vocabulary, held_out=0.0, thinking=0)
    environment = Environment(task, draw_facts(world, vocabulary, 0.0, seed))
    e = environment.begin(np.arange(128), uniforms(seed, "test/world", 0, (5, 3, 128)))
    u = uniforms(seed, "test/any", 0, (5, 3, 128))
    names = [s.name for s in environment.graph.source.states]
    for k in range(5):
        alive = np.flatnonzero(~e.done)
        search = [[SEARCH] * len(alive), *environment.prompts(e.question[alive]).T[2:]]
        some = (u[k][:, alive] * vocabulary.size).astype(int)
        some[0] = np.array(task.decisions)[(u[k][0, alive] * 4).astype(int)]
        some[1] = np.where(u[k][2, alive] < 0.5, e.evidence[alive] % 16 + vocabulary.first_answer, some[1])
        some[2] = np.where(u[k][2, alive] < 0.9, END, some[2])
        environment.act(e, alive, np.where(u[k][1, alive] < 0.3, search, some).T)
        held = np.flatnonzero(~e.done & (e.evidence >= 0))
        assert [(" hit" in names[n]) for n in e.node[held]] == (e.evidence == environment.facts.answer)[held].tolist()
        free = np.flatnonzero(~e.done & (e.evidence < 0))
        assert {names[n].split()[0] for n in e.node[free]} <= {"start", "failed"}
    assert e.done.all()
    assert e.searched.mean() > 0.5
