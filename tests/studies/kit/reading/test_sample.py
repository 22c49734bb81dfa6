from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studies.kit.episodes import Turn, workflow
from studies.kit.reading.sample import Sample, priority
from tests.studies.kit.reading.hand import episode


def way(made):
    return workflow(turn.action for turn in made.turns)


def sampled(episodes, most):
    sample = Sample(most)
    for each in episodes:
        sample.add(each, way(each))
    return sample


def strata(episodes):
    return Counter((each.step, way(each)) for each in episodes)


def hashes(episodes):
    return sorted((each.step, priority(each)) for each in episodes)


def test_rare_ways_are_kept_whole_and_common_ones_share_the_rest():
    common = [episode("search answer", task=i) for i in range(500)]
    rare = [episode("answer", task=i) for i in range(3)]
    other = [episode("search answer", task=i, step=1) for i in range(500)]
    kept = sampled([*common, *rare, *other], 23).episodes()
    assert strata(kept) == {(0, "search-answer"): 10, (0, "guess"): 3, (1, "search-answer"): 10}


def test_all_are_kept_where_there_is_room():
    episodes = [episode(task=i, step=i % 3) for i in range(20)]
    assert hashes(sampled(episodes, 20).episodes()) == hashes(episodes)
    assert len(sampled(episodes, 19).episodes()) == 19
    assert sampled(episodes, 0).episodes() == ()


MANY = st.lists(
    st.builds(
        episode, st.sampled_from(["answer", "search answer", "search"]), step=st.integers(0, 2), task=st.integers(0, 9)
    ),
    max_size=60,
)


@given(MANY, st.integers(0, 30))
def test_it_is_the_first_by_place_in_the_stratum_and_hash(episodes, most):
    """The definition, computed with everything in memory."""
    ranked = []
    for stratum in strata(episodes):
        own = sorted((priority(each), i) for i, each in enumerate(episodes) if (each.step, way(each)) == stratum)
        ranked += [(place, number, i) for place, (number, i) in enumerate(own)]
    expected = [episodes[i] for _, _, i in sorted(ranked)[:most]]
    assert hashes(sampled(episodes, most).episodes()) == hashes(expected)


@given(MANY, st.integers(1, 30))
def test_no_stratum_has_two_more_than_one_that_left_some_out(episodes, most):
    sample = sampled(episodes, most)
    kept = strata(sample.episodes())
    assert sum(kept.values()) == min(most, len(episodes))
    for stratum, seen in sample.seen.items():
        if kept[stratum] < seen:
            assert max(kept.values()) <= kept[stratum] + 1


def test_of_equal_rank_the_smaller_hash_stays_whatever_came_between():
    """Many arrivals after the limit is reached, so that the heap is cleared of what no longer holds."""
    episodes = [episode("search answer", task=i, step=i % 7) for i in range(2000)]
    forward, backward = sampled(episodes, 40), sampled(episodes[::-1], 40)
    assert forward.episodes() == backward.episodes()
    assert len(forward._last) <= 4 * 7 + 65


def test_a_hash_is_of_what_the_episode_says():
    one = episode(turns=(Turn("search", "find it", "found"), Turn("answer", "it")))
    assert priority(one) == priority(replace(one, step=9))
    assert len({priority(one), *(priority(each) for each in (
        replace(one, reward=0.5), replace(one, task=1), replace(one, prompt="p"), replace(one, turns=one.turns[:1]),
        replace(one, turns=(Turn("search", "find", "found"), one.turns[1])),
    ))}) == 6  # fmt: skip
    assert priority(episode(prompt="\ud800")) >= 0  # a half of a pair, as JSON may hold it


def test_a_negative_limit_is_refused():
    with pytest.raises(ValueError, match="sample of -1"):
        Sample(-1)
