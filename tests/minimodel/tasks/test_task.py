from dataclasses import replace

import numpy as np
import pytest

from minimodel.model.vocabulary import ANSWER, READ, SEARCH, VERIFY, Vocabulary
from minimodel.tasks.task import Task, played_world
from sim.mdp.worlds import PRESETS, read_more_world, seed_a
from sim.records.config import ConfigError, from_dict, to_dict


def test_the_layout_is_that_of_the_world():
    task = Task(world=replace(seed_a(), turns=6), thinking=12)
    assert (task.layout.turns, task.layout.thinking, task.layout.written) == (6, 12, 15)


@pytest.mark.parametrize("name", PRESETS)
def test_decisions_are_the_tokens_of_the_graphs_actions(name):
    task = Task(world=PRESETS[name]())
    assert task.actions == task.graph().compiled().actions
    assert [task.vocabulary.word(i) for i in task.decisions] == list(task.actions)


def test_decisions_by_hand():
    assert Task(world=read_more_world()).decisions == (SEARCH, ANSWER, READ, VERIFY)


def test_the_graph_counts_the_tokens_of_a_turn():
    graph = Task(thinking=5).graph().compiled()
    on = graph.offered[graph.context[: graph.states]]
    assert (graph.generated[: graph.states][on] == 8).all()
    assert set(graph.observed[: graph.states].max(-1)[on]) == {4, 500}


def test_an_answer_out_of_nothing_is_right_by_chance():
    task = Task(world=seed_a(), vocabulary=Vocabulary(answers=20))
    assert played_world(task) == replace(seed_a(), guess_unknown=0.05, stale=0.05)
    np.testing.assert_allclose(task.graph().compiled().probability[1:, 0, 1].max(-1), 0.95)


def test_a_task_is_written_down_and_read_back():
    task = Task(world=read_more_world(), vocabulary=Vocabulary(answers=20), thinking=1)
    assert from_dict(to_dict(task)) == task


@pytest.mark.parametrize(("field", "value"), [("thinking", -1), ("held_out", 1.0), ("held_out", -0.1)])
def test_refusals_name_the_field(field, value):
    with pytest.raises(ConfigError, match=f"{field} = {value}"):
        Task(**{field: value})
