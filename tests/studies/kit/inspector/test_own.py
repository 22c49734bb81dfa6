from dataclasses import replace as with_

import numpy as np
import pytest

from sim.learning.loop import train
from sim.learning.presets import drive
from sim.records.config import replace
from sim.records.store import Store
from studies.kit.inspect_cli import inspect_runs
from studies.kit.inspector.own import stored
from studies.kit.words import CommandError


@pytest.fixture(scope="module")
def record():
    config = replace(drive(), {"steps": 6, "keep_rollouts": 4, "prompts": 8})
    return train(config, (3,), study="inspected").records()[0]


def test_a_run_of_the_store_shows_the_step_it_kept(record):
    run = stored(record)
    assert run.steps == (0, 1, 2, 3, 4, 5)
    assert {episode.step for episode in run.episodes} == {4}
    assert len(run.episodes) == run.rollouts[4] == 64
    assert np.isnan(run.shares[[0, 1, 2, 3, 5]]).all()
    assert run.shares[4].sum() == pytest.approx(1)
    searches = np.mean([[turn.action for turn in episode.turns[1:2]] == ["search"] for episode in run.episodes])
    assert searches == pytest.approx(run.columns["behaviour/search_share/turn1"][4])  # the loop's own count
    assert 0 < searches < 1
    rewards = np.mean([episode.reward for episode in run.episodes])
    assert rewards == pytest.approx(run.columns["train/reward"][4])
    assert run.episodes[0].turns[0].context == "start"
    assert "words" in run.absent


def test_a_run_that_kept_none_is_refused(record):
    with pytest.raises(ValueError, match="keep_rollouts"):
        stored(with_(record, rollouts=None))


def test_the_command_writes_the_page(record, tmp_path, capsys):
    store = Store(tmp_path / "store")
    assert store.save(record)
    out = tmp_path / "page.html"
    assert inspect_runs((record.key[:6],), store.root, out) == 0
    assert str(out) in capsys.readouterr().out
    assert f"inspected, seed 3 ({record.key})" in out.read_text(encoding="utf-8")
    with pytest.raises(CommandError, match="no run 'zz' among the 1"):
        inspect_runs(("zz",), store.root, out)


def test_the_page_of_a_run_with_one_step_opens(show, record):
    page = show([stored(record)])
    page.get_by_text("step 4 · 64 rollouts", exact=True).wait_for()
    page.get_by_text("Its words were not kept.").first.wait_for()
    assert page.locator("section.pane .band").count() > 1
