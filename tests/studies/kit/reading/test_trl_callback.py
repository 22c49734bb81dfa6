"""The record that is written while TRL's own trainer runs, against TRL's log of the same run and what was generated."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from sim.records.rollouts import Rollouts
from sim.records.tables import Outcome
from studies.kit.reading import keeping
from studies.kit.reading.fold import Reading, fold
from studies.kit.reading.formats import open_run
from studies.kit.reading.keeping import KeepingError
from tests.data.reading import make_trl

pytest.importorskip("trl", reason="the extra trl brings it")
pytest.importorskip("pyarrow", reason="the extra parquet brings it")

ROOT = Path(__file__).resolve().parents[4]
STEPS, BATCH = 3, 16


@dataclass
class Trained:
    """A run, its record, and what its reward function was given."""

    log: Reading
    record: Reading
    folder: Path
    given: list[dict[str, Any]]

    def rollouts(self, step: int) -> Rollouts:
        return Rollouts.load(self.folder / "rollouts" / f"step_{step}.npz")


def train(folder, make, reward=None, **changed):
    """Train with two callbacks: one that is attached to the trainer, and one that is not."""
    from studies.kit.trl import MetastableCallback

    given = []

    def watched(prompts, completions, completion_ids, **more):
        scores = reward(completions=completions, **more)
        given.extend(
            {"step": more["trainer_state"].global_step + 1, "prompt": p, "text": c, "ids": i, "reward": r}
            for p, c, i, r in zip(prompts, completions, completion_ids, scores, strict=True)
        )
        return scores

    with make_trl.quiet():
        trainer = make(folder, **({} if reward is None else {"reward": watched}), **changed)
        MetastableCallback(folder / "attached", tools=("search",)).attach(trainer)
        trainer.add_callback(MetastableCallback(folder / "alone", tools=("search",)))
        trainer.train()
    log = fold(open_run(folder, format="trl", tools=("search",)))
    return Trained(log, keeping.load(folder / "attached"), folder / "attached", given)


@pytest.fixture(scope="module")
def searches(tmp_path_factory):
    return train(
        tmp_path_factory.mktemp("searches"), make_trl.searches, make_trl.paid,
        max_steps=STEPS, per_device_train_batch_size=BATCH, beta=0.01, taught=120,
    )  # fmt: skip


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    return train(tmp_path_factory.mktemp("chats"), make_trl.chats, max_steps=3, num_iterations=2)


def assert_equal_tables(run):
    assert set(run.log.steps.names) <= set(run.record.steps.names)
    for name in run.log.steps.names:
        np.testing.assert_array_equal(run.log.steps[name], run.record.steps[name], err_msg=name)


def as_logged(episode, texts=True):
    turns = [(turn.action, *((turn.generated, turn.observed) if texts else ())) for turn in episode.turns]
    extras = tuple(sorted(episode.extras.items()))
    return episode.step, episode.task, episode.prompt, episode.reward, tuple(turns), extras


def test_the_record_is_what_is_read_from_the_log_as_far_as_it_goes(searches):
    assert_equal_tables(searches)
    assert searches.record.steps["train/rollouts"].tolist() == [BATCH] * STEPS
    assert 0.1 < searches.record.steps["behaviour/search_share/turn0"][0] < 0.95
    assert searches.log.workflows == searches.record.workflows
    assert Counter(map(as_logged, searches.record.episodes)) == Counter(map(as_logged, searches.log.episodes))
    assert len(searches.record.episodes) == STEPS * BATCH
    assert not searches.record.problems


def test_the_log_read_back_is_what_was_generated(searches):
    """What the reward function was given, which is TRL's public interface."""
    shown = Counter(
        (e.step, e.prompt, e.reward, "".join(t.generated + t.observed for t in e.turns)) for e in searches.log.episodes
    )
    assert shown == Counter((g["step"], g["prompt"], g["reward"], g["text"]) for g in searches.given)
    assert len(searches.given) == STEPS * BATCH


def test_ids_and_masks_are_those_that_were_generated(searches):
    from_search = make_trl.tokenizer().encode("</search>")
    for step in range(1, STEPS + 1):
        rollouts, found = searches.rollouts(step), Counter()
        for row in range(len(rollouts)):
            tokens = [turn.tokens for s in rollouts.trajectory(row).segments for turn in s.turns]
            ids, sampled = (np.concatenate([getattr(each, name) for each in tokens]) for name in ("id", "sampled"))
            begin = int(np.argmax(sampled))
            found[tuple(ids[begin:].tolist())] += 1
            came_back = np.flatnonzero(~sampled[begin:]) + begin
            if len(came_back):
                assert ids[came_back[0] - 1] == from_search[0]
        assert found == Counter(tuple(each["ids"]) for each in searches.given if each["step"] == step)
        sampled = rollouts.tokens.sampled
        assert int(sampled.sum()) == int(rollouts.turns.generated.sum()) > 5 * BATCH
        assert (rollouts.tokens.train == sampled).all()
        logged = searches.record.steps["logged/completions/mean_length"][step - 1]  # TRL counts by its own masks
        assert int(sampled.sum()) == round(logged * BATCH)


def test_log_probs_of_sampler_learner_and_reference_are_those_of_each_token(searches):
    tokens = searches.rollouts(1).tokens
    mine = tokens.sampled
    assert np.isnan(tokens.logp_behaviour[~mine]).all()
    assert (tokens.logp_behaviour[mine] <= 0).all()
    assert tokens.logp_behaviour[mine].min() < -0.5
    for other in (tokens.logp_proximal, tokens.logp_reference):  # at the first step all three are one network
        assert np.abs(np.exp(other - tokens.logp_behaviour) - 1)[mine].max() < 1e-4
    late = searches.rollouts(STEPS).tokens
    assert np.abs(np.exp(late.logp_proximal - late.logp_behaviour) - 1)[late.sampled].max() < 1e-4
    assert np.abs(late.logp_reference - late.logp_behaviour)[late.sampled].max() > 0.01
    assert searches.record.steps["drift/ratio_before/token/distance"].max() < 1e-4
    assert abs(searches.record.steps["drift/kl_token_sampled"][0]) < 1e-4


def test_what_the_trainer_logged_agrees_with_what_is_computed(searches):
    steps = searches.record.steps
    np.testing.assert_allclose(steps["logged/reward"], steps["train/reward"], rtol=1e-6)
    np.testing.assert_allclose(steps["logged/frac_reward_zero_std"], steps["train/degenerate_share"], rtol=1e-6)
    for step in range(1, STEPS + 1):  # TRL's KL is k3 of the same log-probs
        tokens = searches.rollouts(step).tokens
        gap = (tokens.logp_reference - tokens.logp_proximal)[tokens.sampled]
        assert np.mean(np.expm1(gap) - gap) == pytest.approx(steps["logged/kl"][step - 1], rel=0.2, abs=1e-6)
    assert steps["entropy/recorded/turn0"][0] > 0.01


def test_a_rollout_function_may_sample_from_any_version(searches):
    assert "staleness" in searches.record.absent
    assert all(each.take_version is None for each in searches.record.episodes)


def test_tool_calls_are_the_same_turns_in_record_and_log(chats):
    assert_equal_tables(chats)
    ours, theirs = (Counter(as_logged(e, texts=False) for e in r.episodes) for r in (chats.record, chats.log))
    assert ours == theirs
    assert chats.record.steps["behaviour/search_share/turn1"].tolist() == [0.25] * 3
    called = next(e for e in chats.record.episodes if [t.action for t in e.turns] == ["search", "answer"])
    assert called.turns[0].generated.startswith('I look.<tool_call>\n{"name": "search"')
    assert "<tool_response>\nThe key is in the attic.\n</tool_response>" in called.turns[0].observed
    assert called.turns[0].observed_tokens > 10
    assert called.turns[1].generated == "In the garden."


def test_a_batch_that_serves_two_steps_grows_stale_and_keeps_its_log_probs(chats):
    assert chats.record.steps["staleness/oldest"].tolist() == [0, 1, 0]
    versions = {e.step: (e.version_oldest, e.version_newest, e.take_version) for e in chats.record.episodes}
    assert versions == {1: (0, 0, 0), 2: (0, 0, 1), 3: (2, 2, 2)}
    first, second = (chats.rollouts(step).tokens for step in (1, 2))
    np.testing.assert_array_equal(first.id, second.id)
    np.testing.assert_array_equal(first.logp_proximal, second.logp_proximal)
    assert np.isfinite(first.logp_proximal[first.sampled]).all()
    assert set(first.version[first.sampled].tolist()) == {0}
    assert "no log-probabilities" in chats.record.absent["log-probabilities"]  # generation on a CPU gives none


@pytest.mark.parametrize("which", ["searches", "chats"])
def test_a_callback_that_is_not_attached_records_the_log(which, request):
    run = request.getfixturevalue(which)
    alone = keeping.load(run.folder.parent / "alone")
    assert "recorded from TRL's log: the callback was not attached to the trainer" in alone.notes
    assert "tokens" in alone.absent
    for name in run.log.steps.names:
        np.testing.assert_array_equal(run.log.steps[name], alone.steps[name], err_msg=name)
    assert Counter(map(as_logged, alone.episodes)) == Counter(map(as_logged, run.log.episodes))


def test_the_settings_tell_runs_apart(searches, chats):
    keys = {json.loads((each.folder / "manifest.json").read_text())["key"] for each in (searches, chats)}
    assert len(keys) == 2
    assert json.loads((searches.folder / "training.json").read_text())["beta"] == 0.01


TWO = """
import os
from pathlib import Path
from studies.kit.trl import MetastableCallback
from tests.data.reading import make_trl

root = Path({folder!r})
with make_trl.quiet():
    trainer = make_trl.searches(
        root / os.environ["RANK"], taught=120, per_device_train_batch_size=8, output_dir=str(root / "out")
    )
    MetastableCallback(root / "record", tools=("search",)).attach(trainer)
    trainer.train()
"""


@pytest.mark.long
def test_rollouts_of_all_processes_are_in_the_record(tmp_path):
    script = tmp_path / "two.py"
    script.write_text(TWO.format(folder=str(tmp_path)))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", str(script)]
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    log = fold(open_run(tmp_path / "out", tools=("search",)))
    run = Trained(log, keeping.load(tmp_path / "record"), tmp_path / "record", [])
    assert_equal_tables(run)
    assert run.record.rollouts.tolist() == [16] * 3
    assert Counter(map(as_logged, run.record.episodes)) == Counter(map(as_logged, log.episodes))
    assert run.record.steps["drift/ratio_before/token/distance"].max() < 1e-4


STATE = SimpleNamespace(is_world_process_zero=True, global_step=1)


def arguments(folder, *, log=True):
    return SimpleNamespace(log_completions=log, output_dir=str(folder), to_json_string=lambda: '{"seed": 1}')


def test_another_trainer_than_it_knows_is_recorded_from_its_log(tmp_path):
    from studies.kit.trl import MetastableCallback

    added = []
    strange = SimpleNamespace(add_callback=added.append, _generate=None)
    callback = MetastableCallback(tmp_path / "run")
    with pytest.warns(UserWarning, match="has no _generate_and_score_completions: it is read as TRL 1.16 has it"):
        callback.attach(strange)
    assert added == [callback]
    callback.on_train_begin(arguments(tmp_path), STATE, None)
    with pytest.raises(ValueError, match="nothing to record: attach"):
        MetastableCallback(tmp_path / "other").on_train_begin(arguments(tmp_path, log=False), STATE, None)


def test_a_folder_in_use_is_refused_before_training(tmp_path):
    from studies.kit.trl import MetastableCallback

    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(KeepingError, match="name another folder"):
        MetastableCallback(tmp_path).on_train_begin(arguments(tmp_path), STATE, None)
    with pytest.raises(ValueError, match="keep=-1"):
        MetastableCallback(tmp_path, keep=-1)


def test_what_goes_wrong_with_the_record_does_not_stop_the_training(tmp_path, monkeypatch):
    from studies.kit.trl import MetastableCallback

    log = tmp_path / "output"
    (log / "completions").mkdir(parents=True)
    callback = MetastableCallback(tmp_path / "run")
    callback.on_train_begin(arguments(log), STATE, None)
    data = Path(make_trl.__file__).parent / "trl" / "search" / "completions" / "completions_00001.parquet"
    (log / "completions" / data.name).write_bytes(data.read_bytes())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(callback._live, "step", full)
    with pytest.warns(UserWarning, match=r"the record ends before step 1 .*No space left on device.*training goes on"):
        callback.on_step_begin(arguments(log), STATE, None)
    callback.on_step_begin(arguments(log), STATE, None)
    callback.on_train_end(arguments(log), STATE, None)


def rollout(text, *, sampled=None, reward=0.0, last="<|im_end|>"):
    """A rollout of the tokens of a text and its end."""
    from studies.kit.reading.trl_tap import Rollout

    words = make_trl.tokenizer()
    ids = words.encode(text + last)
    mask = [True] * len(ids) if sampled is None else sampled(words, ids)
    row = {"prompt": "q", "completion": text, "right": reward, "advantage": 0.0}
    return Rollout(row, ("right",), reward, words.encode("q"), ids, mask, mask, not last, 4, entropy=[0.5] * len(ids))


def made(one, step=6):
    from studies.kit.reading.formats import Source
    from studies.kit.reading.trl_episodes import Maker

    words, source = make_trl.tokenizer(), Source("trl", (), ("search",))
    return Maker(source, words, {words.eos_token_id})(one, step), source


def test_a_reply_that_the_policy_made_up_is_its_own_words_and_counted():
    """A text cannot tell; the mask does."""
    text = "<search>key</search><information>gold</information><answer>attic</answer>"
    episode, source = made(rollout(text))
    assert [(turn.action, turn.observed) for turn in episode.turns] == [("search", ""), ("answer", "")]
    assert source.counts["turns in which the policy wrote the tag of a reply"] == 1


def test_an_end_without_words_after_a_reply_is_no_turn():
    def mask(words, ids):
        place = ids.index(words.convert_tokens_to_ids("<information>"))
        return [k < place or k == len(ids) - 1 for k in range(len(ids))]

    episode, _ = made(rollout("<search>key</search><information>gold</information>", sampled=mask))
    (turn,) = episode.turns
    assert turn.action == "search"
    assert turn.tokens.sampled.tolist() == [False, *mask(make_trl.tokenizer(), turn.tokens.id.tolist()[1:])]
    assert turn.generated_tokens == int(turn.tokens.sampled.sum())
    assert "".join(turn.pieces) == "q<search>key</search><information>gold</information><|im_end|>"
    assert turn.entropy == 0.5


def test_an_end_alone_is_a_turn_without_an_action():
    episode, _ = made(rollout(""))
    assert [(turn.action, turn.generated, turn.generated_tokens) for turn in episode.turns] == [("none", "", 1)]


def test_what_was_cut_off_is_truncated_unless_it_was_solved():
    text = "<answer>attic</answer>"
    assert made(rollout(text, last=""))[0].outcome is Outcome.TRUNCATED
    assert made(rollout(text, last="", reward=1.0))[0].outcome is Outcome.SOLVED
    episode = made(rollout(text))[0]
    assert episode.outcome is Outcome.WRONG
    assert (episode.version_oldest, episode.take_version) == (4, 5)
