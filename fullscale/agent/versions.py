"""Networks with the weights of versions: what engines sample with, and what a probe compares them to.

Where nothing moves the learner's own network while the engine samples with it, and both compute alike, a version is that
network and nothing is copied. Else it is a copy, in the dtype of the products. For a server the first rank alone has one,
in its CPU's memory.
"""

from typing import Any

import torch

from fullscale.agent import sharding
from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.ranks import Ranks
from fullscale.agent.schedules import Asynchronous
from fullscale.agent.scoring import ScoringModel
from fullscale.agent.setup import Training
from fullscale.model.network import DTYPES, adapted, shaped

__all__ = ["Versions", "spread"]


class Versions:
    """The networks of the versions that somebody may still ask for.

    Parameters
    ----------
    policy
        What is trained.
    """

    def __init__(self, config: Training, ranks: Ranks, device: str, policy: LanguagePolicy) -> None:
        self.config, self.ranks, self.device, self.policy = config, ranks, device, policy
        self._held: dict[int, Any] = {}
        self._spare: list[Any] = []  # networks of versions that are forgotten

    def __getitem__(self, version: int) -> Any:
        """Return the network of a version; None on a rank that needs none."""
        return self._held[version]

    def keep(self, version: int) -> None:
        """Keep the weights as they are, under this version, and forget those that no schedule will ask for."""
        for old in [v for v in self._held if v < version - self.config.reach]:
            self._spare.append(self._held.pop(old))
        self._held[version] = self._snapshot()

    def scorer(self, version: int) -> LanguagePolicy | None:
        """Return a policy with these weights, on the first rank; None where they are gone, or not where policies compute."""
        there, m = self._held.get(version), self.config.model
        away = self.config.sampler.server is not None and self.device != "cpu"  # a CPU would take longer than a step
        if there is None or away or self.ranks.rank:
            return None
        return LanguagePolicy(ScoringModel(there, m.backend, keep=m.keep), self.config.temperature)

    def state(self) -> dict[int, dict[str, torch.Tensor]]:
        """Return the parameters of each version, by name, in a CPU's memory; nothing where a version is the policy."""
        if self.config.live:
            return {}
        models = {v: model for v, model in self._held.items() if model is not None}
        return {v: {name: p.detach().cpu() for name, p in m.named_parameters()} for v, m in models.items()}

    def restore(self, versions: list[int], state: dict[int, dict[str, torch.Tensor]]) -> None:
        """Go on from what :meth:`state` returned on the first rank. To be called on all ranks."""
        everywhere = self.ranks.world > 1 and self.config.sampler.server is None
        for version in versions:
            self._held[version] = past = self._snapshot()
            if past is not None:
                sharding.spread(past, state.get(version, {}), everywhere)

    def _snapshot(self) -> Any:
        """Return a network with the weights of now; None where this rank needs none."""
        if self.config.live and self.ranks.world == 1:
            return self.policy.model
        # Beside an asynchronous engine somebody may still sample with a network whose version is forgotten.
        again = bool(self._spare) and not isinstance(self.config.schedule, Asynchronous)
        found = self._spare.pop() if again else None
        self._spare.clear()
        if not again:
            served = self.config.sampler.server is not None
            if not served or self.ranks.rank == 0:
                found = _alike(self.config, self.policy, self.config.model.products, "cpu" if served else self.device)
        sharding.copied(self.policy.scoring, found)
        return found


def spread(config: Training, ranks: Ranks, device: str, policy: LanguagePolicy) -> LanguagePolicy:
    """Spread a policy over the ranks, and return its reference, spread as well; one of them is whole at a time."""
    scoring, m = policy.scoring, config.model
    products = scoring.autocast
    sharding.shard(scoring, ranks, device)
    if m.adapter is not None:
        return policy.frozen()
    network = _alike(config, policy, m.dtype, device)
    sharding.copied(scoring, network)
    twin = ScoringModel(network, m.backend, keep=m.keep, autocast=products)
    sharding.shard(twin, ranks, device)
    return LanguagePolicy(twin, config.temperature)


def _alike(config: Training, policy: LanguagePolicy, dtype: str, device: str) -> Any:
    """Return a network of the policy's shape, of random weights that want no gradient."""
    m, whole = config.model, policy.model
    base: Any = whole.get_base_model() if m.adapter is not None else whole  # type: ignore[operator]
    with torch.device(device):
        found = shaped(base.config, DTYPES[dtype])
        if m.adapter is not None:
            found = adapted(found, m.adapter.rank, m.adapter.alpha, m.adapter.targets)
    return found.requires_grad_(False).eval()
