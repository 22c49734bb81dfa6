"""What a call gets: the backend it names or an error, and unasked only what a record shows to be right."""

import logging
import warnings
from types import SimpleNamespace

import pytest
import torch

from fullscale.kernels import selection, unlocking
from fullscale.kernels.contract import strips
from fullscale.kernels.problem import Head, Problem
from tests.fullscale.validate_gpu import made


def problem(device: str = "cpu") -> Problem:
    whole = Problem(
        Head(torch.zeros(2, 3), torch.zeros(5, 3)), torch.zeros(2, dtype=torch.int64), torch.ones(2), strips(5)
    )
    if device == "cpu":
        return whole
    head = SimpleNamespace(hidden=SimpleNamespace(device=torch.device(device, 0)))
    return SimpleNamespace(head=head)


class Backend:
    def __init__(self, name: str, refuses: str | None = None) -> None:
        self.name, self._refuses = name, refuses

    def refusal(self, problem, *, strict):
        return self._refuses


@pytest.fixture
def card(monkeypatch, tmp_path):
    """A process on a card, with stand-ins for the backends and an empty cache; returns where records are kept."""
    backends = {"triton": Backend("triton"), "chunked": Backend("chunked")}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(selection, "named", lambda name: backends[name])
    monkeypatch.setattr(selection, "_card", lambda index: made.CARD)
    monkeypatch.setattr(selection, "source_hash", lambda backend: made.SOURCE)
    monkeypatch.setattr(selection, "triton_version", lambda: made.TRITON)
    for cached in (selection._decision, selection._say_once):
        cached.cache_clear()
    yield SimpleNamespace(backends=backends, records=tmp_path / "metastable" / "kernels")
    for cached in (selection._decision, selection._say_once):
        cached.cache_clear()


# --- by name ----------------------------------------------------------------------------------------------------------


def test_a_backend_that_is_named_is_what_one_gets():
    assert selection.select("chunked", problem(), strict=True).name == "chunked"
    assert selection.select("reference", problem(), strict=False).name == "reference"
    own = Backend("mine")
    assert selection.select(own, problem(), strict=True) is own


def test_an_unknown_name_is_told_its_neighbours():
    with pytest.raises(ValueError, match="no backend 'trition'; did you mean triton"):
        selection.select("trition", problem(), strict=True)
    with pytest.raises(ValueError, match="known: auto, reference, chunked, triton"):
        selection.select("zzz", problem(), strict=True)


def test_a_backend_that_refuses_is_an_error_with_its_reason():
    with pytest.raises(ValueError, match=r"backend 'reference' cannot do this: .*strict=False"):
        selection.select("reference", problem(), strict=True)
    with pytest.raises(ValueError, match="backend 'mine' cannot do this: too wide"):
        selection.select(Backend("mine", "too wide"), problem(), strict=True)


def test_the_fused_kernel_is_had_by_name_without_a_record(card):
    assert selection.select("triton", problem("cuda"), strict=True).name == "triton"


# --- unasked ----------------------------------------------------------------------------------------------------------


def test_on_a_processor_it_is_the_chunked_one_and_nothing_is_said(caplog):
    with caplog.at_level(logging.DEBUG):
        assert selection.select("auto", problem(), strict=True).name == "chunked"
    assert caplog.records == []


def test_on_a_processor_triton_is_not_even_imported(fresh_python):
    program = """
import sys, torch
from fullscale.kernels.linear_logprob import linear_logprob
print(float(linear_logprob(torch.zeros(1, 8), torch.zeros(4, 8), torch.tensor([2])).logp))
print("triton" in sys.modules)
"""
    logp, triton = fresh_python(program).split()
    assert float(logp) == pytest.approx(-1.3862944)
    assert triton == "False"


def test_a_locked_kernel_is_said_once_with_the_way_out_and_is_no_warning(card, caplog):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # as pytest's -W error: a slower backend must not end a run
        found = [selection.select("auto", problem("cuda"), strict=True).name for _ in range(3)]
    assert found == ["chunked"] * 3
    (told,) = caplog.messages
    assert "python -m fullscale.validate_gpu" in told
    assert f"no record of triton on {made.CARD}" in told


def test_a_record_in_the_cache_unlocks(card, caplog):
    made.record(card.records)
    assert selection.select("auto", problem("cuda"), strict=True).name == "triton"
    assert caplog.messages == []


def test_what_an_unlocked_kernel_refuses_is_computed_elsewhere_and_said(card, caplog):
    made.record(card.records)
    card.backends["triton"] = Backend("triton", "hidden must be a multiple of 8")
    assert [selection.select("auto", problem("cuda"), strict=True).name for _ in range(2)] == ["chunked"] * 2
    assert caplog.messages == [
        "the chunked backend computes what the fused kernel cannot: hidden must be a multiple of 8"
    ]


def test_where_no_backend_can_it_is_an_error(card, caplog):
    card.backends["chunked"] = Backend("chunked", "float32 is not full here")
    with pytest.raises(ValueError, match="'chunked' cannot do this: float32 is not full"):
        selection.select("auto", problem("cuda"), strict=True)


def test_a_damaged_record_unlocks_nothing_and_is_named(card, caplog):
    whole = made.record(card.records)
    text = whole.path.read_text()
    whole.path.write_text(text.replace('"seconds": 0.1', '"seconds": 0.2', 1))
    assert selection.select("auto", problem("cuda"), strict=True).name == "chunked"
    damaged, locked = caplog.messages
    assert str(whole.path) in damaged
    assert "is damaged" in damaged
    assert "no record of triton" in locked


def test_a_user_without_a_home_has_the_committed_records(monkeypatch):
    monkeypatch.setattr(unlocking, "cache_folder", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    (only,) = unlocking.folders()
    assert only.parts[-2:] == ("fullscale", "records")
