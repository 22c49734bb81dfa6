"""Which backend a call gets: the one it names, or with "auto" the fastest that is known to be right on this card.

On a CPU that is the chunked backend. On CUDA it is the fused one once a record unlocks it
(:mod:`fullscale.kernels.unlocking`), and the chunked one until then. Nothing falls back in silence: a backend named that
cannot do a problem is an error, and "auto" says once what it went without, and why.
"""

import difflib
import functools
import importlib
import logging

import torch

from fullscale.kernels.problem import Backend, Problem
from fullscale.kernels.unlocking import Decision, decide, folders, read_all, source_hash, triton_version

__all__ = ["NAMES", "named", "select"]

_log = logging.getLogger(__name__)

_CLASSES = {
    "reference": ("fullscale.kernels.reference", "Reference"),
    "chunked": ("fullscale.kernels.chunked", "Chunked"),
    "triton": ("fullscale.kernels.fused.backend", "Fused"),
}
"""Module and class of each backend; imported when first asked for, since Triton may be absent."""
NAMES = ("auto", *_CLASSES)
"""What may be asked for."""
UNLOCK = (
    "`python -m fullscale.validate_gpu` checks it on this card, in nine minutes at most, and unlocks it if it is right"
)


@functools.cache
def named(name: str) -> Backend:
    """Return a backend by name, whether or not it is unlocked.

    Raises
    ------
    ValueError
        For a name that is none of a backend.
    ImportError
        When what the backend needs is not installed.
    """
    if name not in _CLASSES:
        raise ValueError(f"no backend {name!r}{_near(name)}")
    module, kind = _CLASSES[name]
    made: Backend = getattr(importlib.import_module(module), kind)()
    return made


def select(name: str | Backend, problem: Problem, *, strict: bool) -> Backend:
    """Return the backend for a problem.

    Parameters
    ----------
    name
        One of :data:`NAMES`, or a backend itself.
    strict
        Whether a row's bits may depend on nothing but the row and the head.

    Raises
    ------
    ValueError
        For an unknown name, and for a backend that cannot do the problem, with its reason.
    """
    if name == "auto":
        return _unasked(problem, strict)
    return _able(named(name) if isinstance(name, str) else name, problem, strict)


def _able(backend: Backend, problem: Problem, strict: bool) -> Backend:
    if (reason := backend.refusal(problem, strict=strict)) is not None:
        raise ValueError(f"backend {backend.name!r} cannot do this: {reason}")
    return backend


def _unasked(problem: Problem, strict: bool) -> Backend:
    """Return the fused backend where it is unlocked and able, else the chunked one."""
    device = problem.head.hidden.device
    if device.type == "cuda":
        card = _card(device.index)
        decision = _decision("triton", card)
        if not decision.unlocked:
            _say_once(
                f"the fused kernel is locked on {card}, the chunked backend computes instead: {decision.reason}; {UNLOCK}"
            )
        elif (reason := named("triton").refusal(problem, strict=strict)) is not None:
            _say_once(f"the chunked backend computes what the fused kernel cannot: {reason}")
        else:
            return named("triton")
    return _able(named("chunked"), problem, strict)


@functools.cache
def _card(index: int | None) -> str:
    return torch.cuda.get_device_name(index)


@functools.cache
def _decision(backend: str, card: str) -> Decision:
    """Return the decision of this process; a record that comes later counts for the next one."""
    records, damaged = read_all(folders())
    for problem in damaged:
        _say_once(f"{problem}; it unlocks nothing")
    return decide(backend, card, triton_version(), source_hash(backend), records)


@functools.cache
def _say_once(text: str) -> None:
    """Log a warning, once per process and text.

    The log and not `warnings`: a slower backend is no fault of the numbers, and under ``-W error`` a warning would end a
    run in its first step. Without any set-up, Python writes it to stderr.
    """
    _log.warning(text)


def _near(name: str) -> str:
    """As `sim.records.config.near_misses`, which needs pydantic."""
    close = difflib.get_close_matches(name, NAMES, n=3, cutoff=0.5)
    return f"; did you mean {', '.join(close)}?" if close else f"; known: {', '.join(NAMES)}"
