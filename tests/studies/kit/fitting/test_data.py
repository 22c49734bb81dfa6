"""What is read of a run: counts by hand, three kinds of places, and refusals that name the way out."""

import numpy as np
import pytest

from sim.learning import presets
from sim.learning.loop import train
from sim.records.config import replace
from sim.records.steps import StepTable
from sim.records.store import Store
from studies.kit.fitting.data import FitError, Observed, from_columns, load


def columns(T=3, **more):
    """Ten rollouts: nine search first, one guesses wrong; six are right at the second turn, ..."""
    shares = {"search_share/turn0": 0.9, "search_share/turn1": 0.1, "search_share/turn2": 0.2}
    shares |= {"accuracy/turn0": 0.0, "accuracy/turn1": 0.6, "accuracy/turn2": 0.7}
    made = {f"behaviour/{name}": np.full(T, value) for name, value in shares.items()}
    return {"step": np.arange(T) * 2 + 5, **made, **more}


def test_the_digest_of_steps_does_not_hang_on_a_turn_that_only_later_ones_reach():
    """A reading has a column for every turn that any of its rollouts reaches."""
    short = columns()
    longer = {
        **short,
        "behaviour/search_share/turn3": np.zeros(3),
        "behaviour/accuracy/turn3": short["behaviour/accuracy/turn2"],
    }
    read = [from_columns("a", each, rollouts=10) for each in (short, longer)]
    assert read[0].digest() == read[1].digest()
    reached = {**longer, "behaviour/search_share/turn3": np.array([0.0, 0.0, 0.1])}
    later = from_columns("a", reached, rollouts=10)
    assert later.digest() != read[1].digest()
    last = int(later.steps[1])
    assert later.between(None, last).digest() == read[0].between(None, last).digest()


def test_what_the_later_turns_show_by_hand():
    seen = from_columns("hand", columns(), rollouts=10)
    fresh, failed, searches = seen.decided()
    # before turn 1: nine on evidence, one whose guess failed; before turn 2: one searched, six solved, three failed
    assert fresh[0].tolist() == [9, 1]
    assert failed[0].tolist() == [1, 3]
    assert searches[0].tolist() == [1, 2]
    assert seen.unsearched.tolist() == [1, 1, 1]
    assert (seen.turns, len(seen)) == (3, 3)


def test_contexts_are_those_that_the_simulator_counts():
    config = replace(
        presets.null(), {"habit": (("start/answer", 0.0), *presets.null().habit[1:]), "steps": 1, "keep_rollouts": 0}
    )
    run = train(config, (0,), study="data")
    seen = from_columns("run", {name: values[0] for name, values in run.columns.items()}, 1024)
    fresh, failed, searches = seen.decided()
    rollouts = run.rollouts[0]
    graph = config.graph()
    turn, context, action = rollouts.turns.index, rollouts.turns.context, rollouts.turns.action
    for t in (1, 2, 3):
        at = turn == t
        in_fresh, in_failed = (at & (context == graph.contexts.index(c)) for c in ("fresh", "failed"))
        assert (in_fresh.sum(), in_failed.sum()) == (fresh[0, t - 1], failed[0, t - 1])
        assert (action[at] == graph.actions.index("search")).sum() == searches[0, t - 1]
    assert fresh[0].min() > 100
    assert failed[0].min() > 100


def test_steps_between_keep_both_ends_and_the_digest_knows_them():
    seen = from_columns("a", columns(5), rollouts=10)
    part = seen.between(7, 11)
    assert part.steps.tolist() == [7, 9, 11]
    assert part.digest() != seen.digest()
    assert part.digest() == from_columns("another name", columns(5), rollouts=10).between(6, 12).digest()
    with pytest.raises(FitError, match="no step from 6 to 6"):
        seen.between(6, 6)


@pytest.mark.parametrize("name", ["rollouts", "train/rollouts"])
def test_the_table_may_say_how_many_rollouts_there_are(name):
    assert from_columns("a", columns(**{name: np.array([10, 20, 30])})).rollouts.tolist() == [10, 20, 30]


def test_a_number_of_rollouts_that_is_not_the_tables_is_refused():
    counted = columns(rollouts=np.array([10, 20, 30]))
    with pytest.raises(FitError, match="a says that a step has 10 to 30 rollouts, not 10: leave --rollouts out"):
        from_columns("a", counted, 10)
    assert from_columns("a", columns(rollouts=np.full(3, 10)), 10).rollouts.tolist() == [10, 10, 10]


def test_refusals_name_what_is_missing():
    whole = columns()
    with pytest.raises(FitError, match="--rollouts"):
        from_columns("a", whole)
    with pytest.raises(FitError, match="accuracy/turn2"):
        from_columns("a", {k: v for k, v in whole.items() if k != "behaviour/accuracy/turn2"}, 10)
    with pytest.raises(FitError, match="'verify' in up to 30 %"):
        from_columns("a", {**whole, "behaviour/verify_share/turn1": np.array([0.0, 0.3, 0.1])}, 10)
    with pytest.raises(FitError, match="step 7 is not a share"):
        from_columns("a", {**whole, "behaviour/accuracy/turn0": np.array([0.0, np.nan, 0.0])}, 10)
    with pytest.raises(FitError, match="do not fit together"):
        Observed("a", np.arange(3), np.zeros((3, 2)), np.zeros((3, 3)), np.full(3, 8))


def test_a_run_is_found_as_a_file_and_in_a_store(tmp_path):
    StepTable(columns()).save(tmp_path / "mine.npz")
    assert load(str(tmp_path / "mine.npz"), rollouts=10).name == "mine"
    store = Store(tmp_path / "store")
    (record,) = train(replace(presets.null(), {"steps": 2, "prompts": 4}), (3,), study="data").records()
    store.save(record)
    by_key = load(record.key, store=store.root)
    assert by_key.rollouts.tolist() == [32, 32]
    assert load(str(store.root / record.key)).digest() == by_key.digest()
    assert load(record.key[:5], store=store.root).digest() == by_key.digest()
    with pytest.raises(FitError, match="no run 'elsewhere'"):
        load("elsewhere", store=store.root)
    with pytest.raises(FitError, match="a step has 32 rollouts, not 8"):
        load(record.key, store=store.root, rollouts=8)
    (tmp_path / "rollouts of mine").mkdir()
    with pytest.raises(FitError, match=r"`metastable read '.*/rollouts of mine'` reads them first"):
        load(str(tmp_path / "rollouts of mine"), store=store.root)
    (tmp_path / "broken.npz").write_bytes(b"not an archive")
    with pytest.raises(FitError, match="cannot be read"):
        load(str(tmp_path / "broken.npz"))
