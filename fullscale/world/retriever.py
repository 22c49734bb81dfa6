"""Search: BM25 over passages, with its index kept on disk."""

import hashlib
import importlib
import json
import re
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fullscale.world.passages import Passage
from fullscale.world.words import fold
from minimodel.model.compiling import cache_folder

__all__ = ["BM25", "Retriever", "corpus_key"]

_WORD = re.compile(r"\w+")


class Retriever(Protocol):
    """Something that finds passages; called from several threads at once."""

    def search(self, query: str, k: int) -> Sequence[Passage]:
        """Return at most `k` passages, best first."""
        ...


def corpus_key(passages: Sequence[Passage]) -> str:
    """Return a hash of what the passages say, in their order."""
    whole = hashlib.blake2b(digest_size=16)
    for passage in passages:
        whole.update(json.dumps([passage.id, passage.title, passage.text]).encode())
    return whole.hexdigest()


class BM25:
    """BM25 over titles and texts, by ``bm25s`` (Lucene's variant, k1 = 1.5, b = 0.75).

    Words are compared without case and accents, English stop words are dropped, and with `stem` an English Snowball stemmer
    is applied. Safe in several threads.

    Parameters
    ----------
    passages
        The corpus.
    stem
        Whether to stem (needs ``PyStemmer``).
    folder
        Where indexes are kept, each under a hash of its corpus; default: the user's cache folder.

    Raises
    ------
    ValueError
        When there are no passages, or they hold no word.
    ModuleNotFoundError
        Without ``bm25s``, or ``PyStemmer`` where it is asked for.
    """

    def __init__(self, passages: Sequence[Passage], *, stem: bool = False, folder: Path | None = None) -> None:
        if not passages:
            raise ValueError("there are no passages to search; give at least one")
        self.passages = passages
        self._bm25s = _module("bm25s", "bm25s", "full")
        self._stopwords = frozenset(map(fold, self._bm25s.stopwords.STOPWORDS_EN))
        self._stemmer = _module("Stemmer", "PyStemmer", "full").Stemmer("english") if stem else None
        self._stemming = threading.Lock()  # a stemmer is not safe in several threads
        self._index = self._kept((cache_folder() if folder is None else folder) / "bm25")

    def search(self, query: str, k: int) -> list[Passage]:
        """Return at most `k` passages that share a word with `query`, best first; of equals, the earlier.

        Raises
        ------
        ValueError
            When `k` is less than 1.
        """
        if k < 1:
            raise ValueError(f"k = {k}; ask for at least 1 passage")
        score = self.scores(query)
        hits = np.flatnonzero(score > 0)
        best = hits[np.argsort(-score[hits], kind="stable")[:k]]
        return [self.passages[i] for i in best]

    def scores(self, query: str) -> NDArray[np.float32]:
        """Return the score of every passage, [N]; 0 for those that share no word with `query`."""
        known = [word for word in self._words(query) if word in self._index.vocab_dict]
        if not known:
            return np.zeros(len(self.passages), np.float32)
        score: NDArray[np.float32] = self._index.get_scores(known)
        return score

    def _words(self, text: str) -> list[str]:
        words = [word for word in _WORD.findall(fold(text)) if word not in self._stopwords]
        if self._stemmer is None:
            return words
        with self._stemming:
            stems: list[str] = self._stemmer.stemWords(words)
        return stems

    def _kept(self, folder: Path) -> Any:
        """Return the index, from `folder` where it is there; a half-written one never is."""
        about = (
            corpus_key(self.passages),
            self._bm25s.__version__,
            self._stemmer is not None,
            1,
        )  # 1: how words are cut
        kept = folder / hashlib.blake2b(repr(about).encode(), digest_size=12).hexdigest()
        if not kept.exists():
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.TemporaryDirectory(prefix="building-", dir=folder) as scratch:
                built = Path(scratch) / "index"
                self._built().save(built, show_progress=False)
                try:
                    built.replace(kept)
                except OSError:
                    if not kept.exists():  # else another process was first, with the same
                        raise
        try:
            return self._bm25s.BM25.load(kept, show_progress=False)
        except Exception as error:
            raise RuntimeError(f"the search index in {kept} cannot be read ({error}); delete that folder") from error

    def _built(self) -> Any:
        words = [self._words(f"{passage.title} {passage.text}") for passage in self.passages]
        if not any(words):
            raise ValueError(f"the {len(words)} passages hold no word that can be searched for")
        index = self._bm25s.BM25(method="lucene", k1=1.5, b=0.75, backend="numpy")
        index.index(words, show_progress=False)
        return index


def _module(name: str, distribution: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"{distribution} is not installed; pip install {distribution} (the extra `{extra}`)"
        ) from None
