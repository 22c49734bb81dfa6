"""A GRPO step against that of TRL's GRPOTrainer, at the same size, in the same process, step by step in turn.

Alike in both: 117,568 (TRL) or 119,360 parameters, two layers of width 64 with four heads, 144 words, float32, one thread;
prompts of 4 tokens, the same 256 questions; groups of 8; 32 sampled tokens an episode, always all of them; temperature 1;
the objective of GRPO (clip 0.2, means over sequences, groups standardised) with k3 of a reference that is another forward;
one update a batch, on the whole of it; gradients clipped at norm 1; fused AdamW; a reward that a line of Python reads from
the tokens; the clip fractions, the KL, entropy, reward and gradient norm that TRL logs.

What differs:

- The network. TRL trains what transformers offers, here a Qwen2: rotary positions, RMS norms, a gated feedforward of width
  171 and biases on queries, keys and values. Ours has learned positions, layer norms and GELU at width 256.
- TRL reads prompts as text and turns completions into text for its reward; ours are ids from end to end. Ours plays a
  turn of a task (29 thinking tokens, decision, two arguments) in an environment.
- TRL computes the entropy of the distributions in the learner's forward, ours in the sampler.
- TRL takes log pi_old from the learner's own forward, as one update a batch allows; ours from the sampler.

TRL is set up as fast as it was found to go here: no gradient checkpointing and no bfloat16 (both on by default), generation
with a cache, nothing reported, saved or printed, no ratio on the KL, and the end-of-text token outside of what the network
can write, so that no filter need hold it back. Attention written out instead of ``sdpa``, a static cache, an unfused
optimiser and ``torch_compile`` were tried: none was faster by more than 2 %, some slower. Beginning and end of its
``train`` are not counted.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from minimodel.agent import run as running
from minimodel.agent import watch
from minimodel.agent.collect import Draws, choose, collect
from minimodel.agent.engine import LocalEngine
from minimodel.agent.learner import Minibatch, backward, rule_batch, score
from minimodel.agent.optimiser import AdamW
from minimodel.agent.policy import TinyPolicy
from minimodel.agent.setup import Training
from minimodel.model.compiled import why_not
from minimodel.model.transformer import Size, Transformer
from minimodel.tasks.environment import Environment
from minimodel.tasks.facts import Facts, draw_facts
from minimodel.tasks.task import Task
from sim.learning.family import grpo
from sim.mdp.worlds import World
from tests.measuring import F64, at_least, cpu_seconds

pytestmark = pytest.mark.filterwarnings("ignore")  # TRL's own stack warns of its own settings

GROUP, TOKENS, BETA, RATE = 8, 32, 0.001, 2e-4
WARM = 3
"""Rounds that are not counted: caches, allocators, what is imported late."""
TASK = Task(world=World(turns=1), thinking=TOKENS - 3)
TARGET = {32: 2.2, 256: 1.4}
"""Times as fast as TRL, by episodes a step."""
AIM = {32: 3.0, 256: 2.0}
"""The same with compiled decoding."""


def reward_of(ids: Any) -> float:
    """The reward of an episode, in both: as good as a coin, so that every group has signal."""
    return float(sum(ids) % 2)


class Step:
    """Our step, from parts of the agent."""

    def __init__(self, episodes: int, *, compiled: bool) -> None:
        self.groups, self.step = episodes // GROUP, 0
        self.facts = facts()
        self.environment = Environment(TASK, self.facts)
        self.now = TinyPolicy(network())
        self.reference = self.now.frozen()
        self.engine, self.rule = LocalEngine(compiled=compiled), grpo(kl=BETA)
        self.optimiser = AdamW(RATE).build(self.now.parameters())
        self.log: dict[str, float] = {}

    def __call__(self) -> None:
        draws, layout = Draws(0, "bench"), TASK.layout
        question = choose(draws, self.step, self.facts.train, self.groups)
        versions = np.full((self.groups, GROUP, 1), self.step)
        publish: Callable[[int], None] = lambda v: self.engine.publish(v, self.now)  # noqa: E731
        batch = collect(self.engine, self.environment, question, GROUP, versions, publish, draws, self.step)
        assert batch.sampled.sum((1, 2)).tolist() == [GROUP * TOKENS] * self.groups
        written = batch.ids[..., -TOKENS:].tolist()
        reward = np.array([[reward_of(ids) for ids in group] for group in written])
        ids, taken = torch.from_numpy(batch.ids), torch.from_numpy(batch.taken)
        with torch.no_grad():
            scored = score(self.reference, layout, ids, taken, frozenset({"logp"}))
        there = scored.whole("logp", torch.zeros(ids.shape))
        given = rule_batch(batch, reward, self.rule, layout, reference=there)
        self.optimiser.zero_grad(set_to_none=True)
        seen = backward(self.now, layout, self.rule, Minibatch.of(self.rule, batch, given, slice(None)))
        assert seen.signal
        assert bool(seen.scored.all())
        norm = torch.nn.utils.clip_grad_norm_(self.now.parameters(), 1.0)
        self.optimiser.step()
        gap = torch.where(given.mask, there - seen.logp, torch.zeros(()))
        self.log = watch.updates([seen], [float(norm)], torch.zeros(ids.shape[-1], dtype=torch.bool)) | {
            "kl": float((torch.expm1(gap) - gap).sum() / given.mask.sum()),
            "entropy": float(batch.entropy.sum() / batch.sampled.sum()),
            "reward": float(reward.mean()),
            "reward_std": float(reward.std()),
        }
        self.step += 1


def facts() -> Facts:
    return draw_facts(TASK.world, TASK.vocabulary, TASK.held_out, 0)


def network() -> Transformer:
    made = Transformer(Size(), TASK.vocabulary.size, TASK.layout.length(), generator=torch.Generator().manual_seed(0))
    assert made.parameter_count == 119_360
    return made


def whole_run(episodes: int, monkeypatch: pytest.MonkeyPatch, folder: Any) -> running.Run:
    """A run with all of its watching, on an untrained network: nothing is taught here."""
    monkeypatch.setattr(running, "obtain", lambda *_, **__: (network(), None, facts()))
    config = Training(
        task=TASK, rule=grpo(kl=BETA), optimiser=AdamW(RATE), prompts=episodes // GROUP, group=GROUP, minibatches=1,
        evaluation=None,
    )  # fmt: skip
    return running.Run(config, 0, "bench", folder)


def peer_in_turn(works: Mapping[str, Callable[[], object]], episodes: int, rounds: int, folder: Any) -> dict[str, F64]:
    """Return the CPU times of TRL's steps ("peer") and of `works`, each called once between two of them, s, [rounds]."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    V = TASK.vocabulary.size
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(V)} | {"<pad>": V, "<eos>": V + 1}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    shape = Qwen2Config(
        vocab_size=V, hidden_size=64, intermediate_size=171, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=64, tie_word_embeddings=False, bos_token_id=None,
        eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(shape).save_pretrained(folder)  # the reference is read from where the model was
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert model.num_parameters() == 117_568
    found = facts()
    prompts = Environment(TASK, found).prompts(found.train).tolist()
    data = Dataset.from_dict({"prompt": [" ".join(f"w{i}" for i in prompt) for prompt in prompts]})

    def reward(completion_ids: list[list[int]], **_: object) -> list[float]:
        assert {len(ids) for ids in completion_ids} == {TOKENS}
        return [reward_of(ids) for ids in completion_ids]

    times: dict[str, list[float]] = {name: [] for name in ("peer", *works)}

    class InTurn(TrainerCallback):
        began = float("nan")

        def on_step_end(self, *_: Any, **__: Any) -> None:
            times["peer"].append(time.process_time() - self.began)  # from one step's end to the next one's
            for name, work in works.items():
                times[name].append(cpu_seconds(work))
            self.began = time.process_time()

    settings = GRPOConfig(
        output_dir=str(folder), max_steps=rounds + WARM, per_device_train_batch_size=episodes, num_generations=GROUP,
        max_completion_length=TOKENS, beta=BETA, loss_type="grpo", epsilon=0.2, use_bias_correction_kl=False,
        learning_rate=RATE, lr_scheduler_type="constant", optim="adamw_torch_fused", adam_beta1=0.9, adam_beta2=0.99,
        weight_decay=0.0, max_grad_norm=1.0, gradient_checkpointing=False, bf16=False, use_cpu=True, logging_strategy="no",
        report_to="none", save_strategy="no", disable_tqdm=True, logging_nan_inf_filter=False,
    )  # fmt: skip
    GRPOTrainer(model, reward, settings, data, processing_class=tokenizer, callbacks=[InTurn()]).train()
    return {name: np.array(seconds)[WARM:] for name, seconds in times.items()}


@pytest.fixture(scope="module")
def trl() -> Iterator[Any]:
    """TRL, which is to ask no server for anything."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}.items():
            patch.setenv(name, value)
        yield pytest.importorskip("trl", reason="`make bench` installs it")


@dataclass(frozen=True)
class Measured:
    """What was measured in turn."""

    episodes: int
    """Episodes a step."""
    works: dict[str, Callable[[], object]]
    """Our steps, by name."""
    seconds: dict[str, F64]
    """CPU times of them and of the "peer", s, [rounds]."""
    peer: str
    """Name and version of the peer."""

    def times_as_fast(self, name: str) -> float:
        return float(np.median(self.seconds["peer"] / self.seconds[name]))

    def store(self, benchmark: Any, name: str, target: float | None, **more: object) -> None:
        ms = {key: round(1e3 * float(np.median(self.seconds[key])), 1) for key in (name, "peer")}
        benchmark.extra_info |= at_least(
            target, 1 / self.times_as_fast(name), self.peer, cpu_ms=ms[name], peer_cpu_ms=ms["peer"], **more
        )
        benchmark.pedantic(self.works[name], rounds=1)


@pytest.fixture(scope="module", params=[32, 256])
def measured(request, trl, tmp_path_factory):
    episodes, folder = request.param, tmp_path_factory.mktemp("trl")
    works: dict[str, Callable[[], object]] = {"torch": Step(episodes, compiled=False)}
    if not why_not():
        works["compiled"] = Step(episodes, compiled=True)
    with pytest.MonkeyPatch.context() as patch:
        works["run"] = whole_run(episodes, patch, folder).advance
    seconds = peer_in_turn(works, episodes, rounds=30 if episodes == 32 else 15, folder=folder)
    return Measured(episodes, works, seconds, f"TRL {trl.__version__} GRPOTrainer, torch {torch.__version__}")


def bench_step(benchmark, measured):
    """Decoding with PyTorch alone."""
    measured.store(benchmark, "torch", TARGET[measured.episodes])


def bench_step_compiled(benchmark, measured):
    """Decoding in compiled code."""
    if why_not():
        pytest.skip(why_not())
    aim = AIM[measured.episodes]
    aims = {"aim_times_as_fast": aim, "aim_met": measured.times_as_fast("compiled") >= aim}
    measured.store(benchmark, "compiled", TARGET[measured.episodes], **aims)


def bench_step_of_a_run(benchmark, measured):
    """All that a run does in a step: exact KL, entropies and shares by turn, ratios. TRL has none of it, so no target."""
    measured.store(benchmark, "run", None)
