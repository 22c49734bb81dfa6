import pytest

from studies.kit.words import near

NAMES = [f"{kind}-flips-{n}" for kind in ("noise", "drive", "length") for n in range(6)]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("noise-flip-1", "did you mean 'noise-flips-1'"),
        ("rive", "did you mean 'drive-flips-0' or 'drive-flips-1' or 'drive-flips-2'?"),  # part of a name
        ("zzz", "none of the 18 is close"),
    ],
)
def test_many_names_are_not_listed(word, said):
    assert near(word, NAMES).startswith(said)


def test_few_are():
    assert near("zzz", ["b", "a"]) == "known: a, b"
    assert near("zzz", []) == "there are none"
