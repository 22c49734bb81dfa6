import math
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fullscale.dialogue.tags import invalid_text, parse
from fullscale.environment import Environment, Task
from fullscale.tools.checker import luck
from fullscale.tools.toolbox import Patience, Toolbox
from fullscale.world.passages import Passage
from fullscale.world.questions import Question
from sim.mdp.worlds import PRESETS, Verify, World, read_more_world, verify_world
from sim.records.config import ConfigError, from_dict, to_dict
from sim.records.tables import Outcome

PERU = Question("peru", "What is the capital of Peru?", ("Lima", "Ciudad de los Reyes"))
LIMA = Passage(
    "1", "Lima", "Lima is a city on the coast. " + "It is old and large. " * 30 + "Peru has it as its capital."
)
CUSCO = Passage(
    "2", "Cusco", "Cusco lies high. Its people are proud. One day they left for the coast, for Lima it is said."
)
FINAL = World(wrong_answer_ends=True)
CHECK = Verify(sensitivity=0.9, specificity=0.8)


class Shelf:
    """Finds what was put under a query; counts who is at it."""

    def __init__(self, **found):
        self.found = {"lima": (LIMA, CUSCO), "cusco": (CUSCO,), "nothing": (), **found}

    def search(self, query, k):
        found = self.found[query]
        if callable(found):
            return found()
        return found[:k]


def play(world, *texts, u=0.5, **options):
    """One episode; returns it and its steps."""
    task = {name: options.pop(name) for name in ("documents", "chunk_words", "any_order") if name in options}
    environment = Environment(Task(world, **task), options.pop("shelf", Shelf()), **options)
    episode = environment.begin(PERU, [u] * world.turns)
    return episode, [environment.act([episode], [text])[0] for text in texts]


# --- each action by hand ----------------------------------------------------------------------------------------------


def test_a_search_shows_the_first_piece_of_what_it_finds():
    episode, (step,) = play(World(), "<search>lima</search>", documents=2, chunk_words=3)
    assert (
        step.observation
        == "\n\n<information>Doc 1 (Title: Lima) Lima is a\nDoc 2 (Title: Cusco) Cusco lies high.</information>\n\n"
    )
    assert (step.action, step.done, step.correct, step.failed) == (0, False, False, False)
    assert (episode.context, episode.searched, episode.turn, episode.hit) == ("fresh", True, 1, True)
    assert episode.documents == (LIMA, CUSCO)


def test_a_search_that_finds_nothing_says_so_and_leaves_nothing_in_hand():
    episode, steps = play(World(), "<search>lima</search>", "<search>nothing</search>")
    assert "No document was found." in steps[1].observation
    assert [step.hit for step in steps] == [True, False]
    assert episode.documents == ()
    assert episode.context == "fresh"


def test_a_right_answer_solves_and_a_gold_answer_is_any_of_them():
    for said in ("Lima", " the LIMA. ", "ciudad de los reyes"):
        episode, (step,) = play(World(), f"I know: <answer>{said}</answer>")
        assert (step.action, step.correct, step.done, step.observation) == (1, True, True, "")
        assert (episode.reward, episode.outcome, episode.turn) == (1.0, Outcome.SOLVED, 1)


def test_a_wrong_answer_ends_or_may_be_retried_as_the_world_says():
    episode, (step,) = play(FINAL, "<answer>Cusco</answer>")
    assert (step.done, step.correct, step.observation) == (True, False, "")
    assert (episode.reward, episode.outcome) == (0.0, Outcome.WRONG)
    episode, steps = play(World(), "<answer>Cusco</answer>", "<answer>Lima</answer>")
    assert "That answer is wrong." in steps[0].observation
    assert [step.context for step in steps] == [0, 2]  # start, failed
    assert (episode.reward, episode.outcome, episode.candidate) == (1.0, Outcome.SOLVED, "Lima")


def test_the_last_turn_is_the_limit():
    world = World(turns=2)
    episode, steps = play(world, "<search>lima</search>", "<answer>Cusco</answer>")
    assert (steps[1].done, steps[1].observation) == (True, "")
    assert (episode.reward, episode.outcome) == (0.0, Outcome.TURN_LIMIT)
    assert play(world, "hm", "<answer>Lima</answer>")[0].outcome is Outcome.SOLVED
    assert play(replace(FINAL, turns=1), "<answer>Cusco</answer>")[0].outcome is Outcome.WRONG
    assert play(world, "hm", "hm")[0].outcome is Outcome.TURN_LIMIT


def test_a_guess_is_an_answer_before_any_search():
    assert play(World(), "<answer>Cusco</answer>", "<search>lima</search>")[0].guessed
    assert play(World(), "<answer>Lima</answer>")[0].guessed
    assert not play(World(), "<search>lima</search>", "<answer>Lima</answer>")[0].guessed
    assert not play(World(), "<answer></answer>", "<search>lima</search>")[0].guessed  # it was none


def test_a_guess_that_is_wrong_may_end_the_episode():
    episode, _ = play(World(), "<answer>Cusco</answer>", ends_on_guess=True)
    assert (episode.outcome, episode.reward, episode.guessed) == (Outcome.WRONG, 0.0, True)
    episode, _ = play(World(), "<search>lima</search>", "<answer>Cusco</answer>", ends_on_guess=True)
    assert not episode.done
    assert play(World(), "<answer>Lima</answer>", ends_on_guess=True)[0].outcome is Outcome.SOLVED


def test_reading_on_shows_the_next_piece_of_the_first_document():
    world = replace(read_more_world(), verify=None)
    texts = ("<search>cusco</search>", "<read></read>", "<search>cusco</search>", "<read></read>")
    episode, steps = play(world, *texts, chunk_words=8)
    assert "Doc 1 (Title: Cusco) Cusco lies high. Its people are proud. One</information>" in steps[0].observation
    assert steps[1].observation == "\n\n<information>day they left for the coast, for Lima</information>\n\n"
    assert [step.hit for step in steps] == [False, True, False, True]
    assert episode.context == "read"


def test_evidence_stays_in_hand_while_reading_on():
    world = replace(read_more_world(), verify=None)
    _, steps = play(world, "<search>lima</search>", "<read></read>", "<search>nothing</search>", chunk_words=8)
    assert "Lima" not in steps[1].observation
    assert [step.hit for step in steps] == [True, True, False]  # a new search is new evidence
    _, steps = play(world, "<search>lima</search>", "<answer>x</answer>")
    assert [step.hit for step in steps] == [True, False]  # as in the tool graph, where a failed answer uses it up


def test_there_may_be_no_more_to_read():
    world = replace(read_more_world(), verify=None)
    for query in ("cusco", "nothing"):
        episode, (_, step) = play(world, f"<search>{query}</search>", "<read></read>")
        assert "There is no more to read." in step.observation
        assert (step.action, step.failed, episode.done) == (2, False, False)


@pytest.mark.parametrize(
    ("candidate", "u", "passes"),
    [("Lima", 0.89, True), ("Lima", 0.91, False), ("Cusco", 0.19, True), ("Cusco", 0.21, False)],
)
def test_a_check_errs_by_its_rates(candidate, u, passes):
    world = World(verify=CHECK)
    episode, (_, step) = play(world, "<search>lima</search>", f"<verify>{candidate}</verify>", u=u)
    assert ("passed" in step.observation, "failed" in step.observation) == (passes, not passes)
    assert episode.context == ("passed" if passes else "rejected")
    assert (episode.checked, episode.candidate, episode.done) == (True, candidate, False)


def test_a_check_is_decided_by_the_luck_of_its_turn():
    environment = Environment(Task(World(verify=CHECK)), Shelf())
    outcomes = []
    for turn in (1, 2):
        episode = environment.begin(PERU, [0.99 if t == turn else 0.0 for t in range(4)])
        environment.act([episode], ["<search>lima</search>"])
        outcomes.append(environment.act([episode], ["<verify>Lima</verify>"])[0].observation)
    assert ["failed" in said for said in outcomes] == [True, False]


# --- what is invalid --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["Lima", "<search>lima", "<answer></answer>", "<search>a<answer>b</answer>", "<verify>Lima</verify>", "<x>y</x>"],
)
def test_an_invalid_turn_is_told_so_and_changes_nothing_but_the_turn(text):
    episode, (_, step) = play(World(), "<search>lima</search>", text)
    assert (step.action, step.latency_s, step.correct, step.hit) == (-1, 0.0, False, True)
    assert invalid_text(("search", "answer")) in step.observation
    assert step.written.reason
    assert (episode.turn, episode.context, episode.documents) == (2, "fresh", (LIMA, CUSCO))


def test_an_action_is_valid_where_the_worlds_graph_offers_it():
    world = verify_world()
    texts = ("<answer>Lima</answer>", "<search>lima</search>", "<search>lima</search>", "<verify>Lima</verify>")
    episode, steps = play(world, *texts, u=0.0)
    assert [step.action for step in steps] == [-1, 0, -1, 2]
    assert steps[0].written.reason == "answer is not offered here; search are"
    assert not episode.guessed


def test_in_any_order_all_tools_but_a_second_check_and_a_forbidden_guess():
    world = replace(verify_world(), turns=9)
    texts = ["<answer>Lima</answer>", "<verify>Cusco</verify>", "<verify>Lima</verify>", *["<search>lima</search>"] * 2]
    episode, steps = play(world, *texts, any_order=True)
    assert [step.action for step in steps] == [-1, 2, -1, 0, 0]
    assert episode.context == "fresh_checked"
    assert Environment(Task(world, any_order=True), Shelf()).offered(episode) == ("search", "answer")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_actions_and_contexts_are_those_of_the_worlds_graph(name):
    world = PRESETS[name]()
    environment = Environment(Task(world), Shelf())
    graph = world.graph()
    assert (environment.actions, environment.contexts) == (graph.actions, graph.contexts)
    assert environment.stop == tuple(f"</{each}>" for each in graph.actions)


TEXTS = st.sampled_from(
    [
        "<search>lima</search>",
        "<search>nothing</search>",
        "<read></read>",
        "<verify>Lima</verify>",
        "<answer>x</answer>",
        "x",
    ]
)


@given(st.sampled_from(sorted(PRESETS)), st.booleans(), st.lists(TEXTS, min_size=9, max_size=9), st.floats(0, 0.99))
def test_every_episode_ends_once_and_every_context_is_the_worlds(name, any_order, texts, u):
    world = PRESETS[name]()
    environment = Environment(Task(world, any_order=any_order), Shelf())
    episode = environment.begin(PERU, [u] * world.turns)
    while not episode.done:
        before = environment.offered(episode)
        (step,) = environment.act([episode], [texts[episode.turn]])
        assert episode.context in environment.contexts
        assert step.action == -1 or environment.actions[step.action] in before
        assert (step.observation == "") == step.done == episode.done
        assert parse(step.observation).name is None
    assert episode.turn <= world.turns
    assert episode.outcome in {Outcome.WRONG, Outcome.TURN_LIMIT}
    assert episode.reward == 0.0


# --- tools that fail --------------------------------------------------------------------------------------------------


def broken():
    raise ConnectionError("no route")


def test_a_tool_that_fails_ends_its_episode_alone_without_a_reward():
    shelf = Shelf(broken=broken, hang=threading.Event().wait)
    toolbox = Toolbox(Patience(timeout_s=0.1, attempts=2, backoff_s=0.0))
    environment = Environment(Task(), shelf, toolbox)
    episodes = [environment.begin(PERU) for _ in range(4)]
    queries = ("broken", "lima", "hang")
    steps = environment.act(episodes, [*(f"<search>{each}</search>" for each in queries), "<answer>Lima</answer>"])
    assert [step.failed for step in steps] == [True, False, True, False]
    failure = Outcome.INFRASTRUCTURE_FAILURE
    assert [e.outcome for e in episodes] == [failure, Outcome.NOT_RECORDED, failure, Outcome.SOLVED]
    assert [e.reward for e in episodes[1::2]] == [0.0, 1.0]
    assert all(math.isnan(e.reward) for e in episodes[::2])
    assert [step.observation == "" for step in steps] == [True, False, True, True]
    assert "ConnectionError: no route" in steps[0].reason
    assert "no reply within 0.1 s" in steps[2].reason
    assert steps[2].latency_s >= 0.2


def test_tools_of_all_episodes_run_at_once():
    meet = threading.Barrier(4, timeout=10)
    environment = Environment(Task(), Shelf(meet=lambda: (meet.wait(), (LIMA,))[1]))
    episodes = [environment.begin(PERU) for _ in range(4)]
    assert not any(step.failed for step in environment.act(episodes, ["<search>meet</search>"] * 4))


def test_a_judge_may_grade_and_may_fail():
    environment = Environment(Task(World(turns=1)), Shelf(), grade=lambda question, said: said in question.text)
    episode = environment.begin(PERU)
    assert environment.act([episode], ["<answer>Peru</answer>"])[0].correct
    toolbox = Toolbox(Patience(attempts=1))
    failing = Environment(Task(), Shelf(), toolbox, grade=lambda question, said: broken())
    episode = failing.begin(PERU)
    failing.act([episode], ["<answer>Lima</answer>"])
    assert episode.outcome is Outcome.INFRASTRUCTURE_FAILURE


def test_an_episode_may_be_stopped_from_outside():
    episode, _ = play(World(), "<search>lima</search>")
    episode.stop(Outcome.TRUNCATED, 0.0)
    assert (episode.done, episode.outcome, episode.reward) == (True, Outcome.TRUNCATED, 0.0)


# --- many at once -----------------------------------------------------------------------------------------------------


def test_an_episode_does_not_depend_on_its_company():
    world = World(verify=CHECK, turns=3)
    scripts = [
        ["<search>lima</search>", "<verify>Lima</verify>", "<answer>Lima</answer>"],
        ["<search>cusco</search>", "<verify>Cusco</verify>", "<answer>Cusco</answer>"],
        ["x", "<search>nothing</search>", "<answer>Lima</answer>"],
    ]

    def together(order):
        environment = Environment(Task(world), Shelf())
        episodes = {i: environment.begin(PERU, luck(3, "test", i, world.turns)) for i in order}
        told = {i: [] for i in order}
        for turn in range(3):
            rows = [i for i in order if not episodes[i].done]
            for i, step in zip(
                rows, environment.act([episodes[i] for i in rows], [scripts[i][turn] for i in rows]), strict=True
            ):
                told[i].append((step.action, step.observation, step.correct, step.hit))
        return {i: (told[i], episodes[i].outcome) for i in order}

    whole = together([0, 1, 2])
    assert together([2, 1, 0]) == whole
    assert {i: together([i])[i] for i in (0, 1, 2)} == whole
    assert whole[0][1] is Outcome.SOLVED


def test_what_cannot_be_played_is_refused():
    environment = Environment(Task(FINAL), Shelf())
    over, other = environment.begin(PERU), environment.begin(PERU)
    environment.act([over], ["<answer>x</answer>"])
    with pytest.raises(ValueError, match=r"episodes \[1\] are over"):
        environment.act([other, over], ["", ""])
    with pytest.raises(ValueError, match="there twice"):
        environment.act([other, other], ["", ""])
    with pytest.raises(ValueError, match="1 texts for 2 episodes"):
        environment.act([other, over], [""])
    with pytest.raises(ValueError, match="0 uniforms for 4 turns"):
        Environment(Task(World(verify=CHECK)), Shelf()).begin(PERU)


def test_a_task_is_a_config():
    task = Task(read_more_world(), documents=2, any_order=True)
    assert from_dict(to_dict(task)) == task
    for bad, says in (({"documents": 0}, "documents = 0"), ({"chunk_words": 0}, "chunk_words = 0")):
        with pytest.raises(ConfigError, match=says):
            Task(**bad)
    with pytest.raises(ConfigError, match="known_visible"):
        Task(World(known_visible=True))
