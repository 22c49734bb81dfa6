r"""Search over a retrieval server that speaks Search-R1's protocol: one that holds a corpus too large for this process.

A request is ``{"queries": [query], "topk": k, "return_scores": true}``; the reply's ``result`` holds a list for each query,
of ``{"document": {"contents": '"Title"\ntext'}, "score": x}``, or of such documents themselves.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from fullscale.world.passages import Passage

__all__ = ["RetrievalServer"]

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Opens without a proxy, whatever the environment says: a cluster's would not know the address."""


class RetrievalServer:
    """A retriever of another process; safe in several threads.

    Parameters
    ----------
    address
        Where it listens, such as ``http://127.0.0.1:8000/retrieve``.
    timeout_s
        Time a request may take, s.
    """

    def __init__(self, address: str, timeout_s: float = 20.0) -> None:
        if not address.startswith(("http://", "https://")):
            raise ValueError(f"address = {address!r} must begin with http:// or https://")
        self.address, self.timeout_s = address, timeout_s

    def search(self, query: str, k: int) -> list[Passage]:
        """Return at most `k` passages, best first.

        Raises
        ------
        OSError
            When the server does not answer, or with an error.
        ValueError
            When its reply is another than the protocol's.
        """
        if k < 1:
            raise ValueError(f"k = {k}; ask for at least 1 passage")
        body = json.dumps({"queries": [query], "topk": k, "return_scores": True}).encode()
        request = urllib.request.Request(self.address, body, {"Content-Type": "application/json"})
        try:
            with _DIRECT.open(request, timeout=self.timeout_s) as reply:
                said = json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                raise OSError(f"{self.address} replied with status {error.code}: {error.reason}") from None
        try:
            (found,) = said["result"]
            return [_passage(each, i) for i, each in enumerate(found[:k])]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{self.address} replied {str(said)[:200]!r}, not Search-R1's layout ({error!r})"
            ) from None


def _passage(each: Mapping[str, Any], place: int) -> Passage:
    document = each.get("document", each)
    title, _, text = document["contents"].partition("\n")
    if len(title) > 1 and title[0] == title[-1] == '"':
        title = title[1:-1]
    return Passage(str(document.get("id", place)), title, text)
