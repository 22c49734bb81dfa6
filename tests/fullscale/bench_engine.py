"""The in-process engine against transformers' generate, the very same episodes, step by step in one process.

Alike in both: a Llama as wide as SmolLM2-135M with its vocabulary and its attention, random weights, a fifth of its layers
(so that a benchmark is minutes; reading is then a smaller share, which favours generate), float32, one thread; 32 episodes
of uneven length in 4 groups of 8, prompts of 90 to 140 tokens, a turn of 25 tokens on average and 80 at most;
observations of 60 to 150 tokens between turns.

What differs: generate is called for a turn of all episodes that are still under way, on all that was said so far padded on
the left, as its users do; it is told which tokens to take by a logits processor (it neither samples nor notes log-probs and
entropies, which ours does) and when a row is done by a stopping criterion.
"""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, LogitsProcessorList, StoppingCriteria
from transformers import StoppingCriteriaList as Criteria

from fullscale.engine.local import LocalEngine
from fullscale.engine.protocol import Reply, Settings, Spoken, Turn
from sim.records.rng import uniforms as block
from tests.measuring import at_least, cpu_ratio

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers warns of its own settings

EPISODES, GROUP, VOCABULARY = 32, 8, 49_152
SETTINGS = Settings(temperature=1.0, turn_tokens=80, context_tokens=2000)
ENDS = range(VOCABULARY // 25)
"""All tokens are about as likely, so a turn ends with one of these after 25 on average."""
TARGET = 1.5


class Forced(LogitsProcessor):
    """Leaves each row the token that was sampled in it."""

    def __init__(self, turns: list[Turn], start: int) -> None:
        self.turns, self.start = turns, start

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        i = ids.shape[1] - self.start
        wanted = torch.tensor([turn.ids[min(i, len(turn.ids) - 1)] for turn in self.turns])
        return torch.full_like(scores, -torch.inf).scatter_(1, wanted[:, None], 0.0)


class Planned(StoppingCriteria):
    """Stops each row where its turn ended."""

    def __init__(self, turns: list[Turn], start: int) -> None:
        self.lengths, self.start = torch.tensor([len(turn.ids) for turn in turns]), start

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor, **more: Any) -> torch.Tensor:
        return ids.shape[1] - self.start >= self.lengths


class Episodes:
    """Prompts, how many turns each episode has, and what is read after each."""

    def __init__(self, most_turns: int) -> None:
        rng = np.random.default_rng(0)
        prompts = [rng.integers(5000, VOCABULARY, n).tolist() for n in (90, 120, 100, 140)]
        self.prompts = [prompt for prompt in prompts for _ in range(GROUP)]
        self.turns = rng.integers(1, most_turns + 1, EPISODES)
        self.seen = [
            [rng.integers(5000, VOCABULARY, rng.integers(60, 151)).tolist() for _ in range(n)] for n in self.turns
        ]
        self.luck = block(0, "bench/engine", 0, (EPISODES, most_turns * SETTINGS.turn_tokens))
        torch.manual_seed(0)
        shape = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
        self.model = LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCABULARY, num_hidden_layers=6, head_dim=64, tie_word_embeddings=True, **shape)
        ).eval()

    def ours(self) -> list[Spoken]:
        """Played by the engine, all from the beginning."""
        engine, said = LocalEngine(lambda ids: "", ENDS), [0] * EPISODES
        engine.publish(0, self.model)

        def reply(rows: Any, turns: Any) -> list[Reply]:
            found = []
            for row in rows:
                k, said[row] = said[row], said[row] + 1
                found.append(Reply(tuple(self.seen[row][k]) if k + 1 < self.turns[row] else None))
            return found

        return engine.play(self.prompts, reply, SETTINGS, lambda row, place: float(self.luck[row, place]))

    @torch.no_grad()
    def generated(self, spoken: list[Spoken]) -> list[list[int]]:
        """The same ids by generate, turn by turn."""
        ids, live, k = [list(prompt) for prompt in self.prompts], list(range(EPISODES)), 0
        while live:
            width, turns = max(len(ids[row]) for row in live), [spoken[row].turns[k] for row in live]
            given = torch.tensor([[0] * (width - len(ids[row])) + ids[row] for row in live])
            mask = torch.tensor([[0] * (width - len(ids[row])) + [1] * len(ids[row]) for row in live])
            found = self.model.generate(
                given,
                attention_mask=mask,
                max_new_tokens=max(len(turn.ids) for turn in turns),
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                logits_processor=LogitsProcessorList([Forced(turns, width)]),
                stopping_criteria=Criteria([Planned(turns, width)]),
            )
            for i, row in enumerate(live):
                ids[row] += found[i, width : width + len(turns[i].ids)].tolist()
            live = [row for row in live if k + 1 < self.turns[row]]
            for row in live:
                ids[row] += self.seen[row][k]
            k += 1
        return ids


@pytest.mark.parametrize("most_turns", [4, 1], ids=["four turns at most", "one turn"])
def bench_episodes(benchmark: Any, most_turns: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        episodes = Episodes(most_turns)
        spoken = episodes.ours()
        assert episodes.generated(spoken) == [s.ids.tolist() for s in spoken]
        ratio, seconds, peer = cpu_ratio(episodes.ours, lambda: episodes.generated(spoken), rounds=3)
        sampled = sum(int(s.sampled.sum()) for s in spoken)
        benchmark.extra_info |= at_least(
            TARGET, ratio, f"transformers {transformers.__version__}, generate for each turn",
            cpu_s=round(seconds, 2), peer_cpu_s=round(peer, 2), sampled_tokens=sampled,
            read_tokens=sum(len(s.ids) for s in spoken) - sampled, tokens_per_cpu_s=round(sampled / seconds, 1),
        )  # fmt: skip
        benchmark.pedantic(episodes.ours, rounds=1)
    finally:
        torch.set_num_threads(threads)
