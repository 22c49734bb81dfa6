"""Prompts kept by version and ids, within a bound."""

import torch

from fullscale.engine.prefixes import Prefixes


def kept(floats: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.ones(1, floats, 1), torch.ones(1, floats, 1))]  # 8 bytes a float


def test_found_by_version_and_ids_alone() -> None:
    prefixes, mine = Prefixes(1000), kept(2)
    prefixes.add(3, (1, 2), mine)
    assert prefixes.get(3, (1, 2)) is mine
    assert prefixes.get(4, (1, 2)) is None
    assert prefixes.get(3, (1,)) is None


def test_what_was_not_used_for_longest_goes_first() -> None:
    prefixes = Prefixes(32)
    for name in (1, 2):
        prefixes.add(0, (name,), kept(2))
    assert prefixes.bytes == 32
    prefixes.get(0, (1,))
    prefixes.add(0, (3,), kept(2))
    assert [prefixes.get(0, (name,)) is not None for name in (1, 2, 3)] == [True, False, True]
    assert (prefixes.bytes, len(prefixes)) == (32, 2)
    prefixes.add(0, (3,), kept(2))  # there already: not counted twice
    assert prefixes.bytes == 32
    prefixes.add(0, (4,), kept(5))  # larger than the bound
    assert (prefixes.get(0, (4,)), len(prefixes)) == (None, 2)
    prefixes.clear()
    assert (prefixes.bytes, len(prefixes)) == (0, 0)
