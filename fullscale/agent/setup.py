"""What a training run of a language model consists of, as one strict config."""

from collections.abc import Mapping
from typing import Any

from fullscale.agent.compaction import Compaction
from fullscale.agent.schedules import Asynchronous
from fullscale.dialogue.prompt import Style
from fullscale.engine.servers import Server
from fullscale.environment import Task
from fullscale.model.network import SMOLLM2
from fullscale.monitors.rewards import Judged
from fullscale.start.start import Start
from fullscale.tools.toolbox import Patience
from minimodel.agent.monitor import EvidenceFirst
from minimodel.agent.optimiser import AdamW, Optimiser
from minimodel.agent.schedule import Completion, Lag, Schedule
from sim.learning.rule import Rule
from sim.learning.setup import Evaluation
from sim.records.config import config

__all__ = ["Adapter", "Data", "Model", "Sampler", "Training"]


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name} = {value!r} must be one of {', '.join(map(repr, allowed))}")


@config
class Adapter:
    """Low-rank adaptation (LoRA, through peft): these alone are trained, and the reference is the model without them."""

    rank: int = 16
    """Rank of each update (r)."""
    alpha: int = 32
    """Scale: an update counts alpha / rank."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    """Names of the layers that are adapted; never the head."""

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha < 1:
            raise ValueError(f"rank = {self.rank} must be at least 1 and alpha = {self.alpha} too")
        if not self.targets or "lm_head" in self.targets:
            raise ValueError(f"targets = {self.targets}: name at least one layer, and leave the head out")


@config
class Model:
    """Which language model, and how it is computed."""

    source: str = SMOLLM2
    """``"smollm2"`` (from its package), ``"tiny"`` (random weights), or what ``from_pretrained`` takes: a folder, a hub's
    name."""
    shape: Mapping[str, Any] | None = None
    """The Hugging Face config's own fields, ``model_type`` among them: what it is without loading it. None to ask the
    source."""
    dtype: str = "float32"
    """Of the weights that are trained: ``"float32"`` or ``"bfloat16"``."""
    products: str = "float32"
    """Of the body's matrix products: ``"float32"`` or ``"bfloat16"``. The head's sums are float32 whichever it is."""
    checkpointing: bool = False
    """Whether a layer keeps only its input for the backward and is run again there."""
    adapter: Adapter | None = None
    """Train an adapter instead of the weights."""
    backend: str = "auto"
    """Of the head, as in :func:`fullscale.kernels.linear_logprob`."""
    keep: float = 0.0
    """Share of the logits kept for the backward, as there."""

    def __post_init__(self) -> None:
        for name in ("dtype", "products"):
            _one_of(name, getattr(self, name), ("float32", "bfloat16"))
        if self.dtype == "bfloat16" and self.products == "float32":
            raise ValueError(
                "products = 'float32' of weights in bfloat16: use float32 weights, or products in bfloat16 as well"
            )
        _one_of("backend", self.backend, ("auto", "chunked", "triton"))
        if not 0 <= self.keep <= 1:
            raise ValueError(f"keep = {self.keep} must lie in [0, 1]")
        if self.shape is not None and "model_type" not in self.shape:
            raise ValueError("shape names no 'model_type', such as 'qwen2'")


@config
class Data:
    """Questions, and what is searched."""

    questions: str = "geography"
    """``"geography"`` (made from packaged facts) or a file of the user's: JSONL, or Search-R1's layout."""
    corpus: str = "wikipedia"
    """``"wikipedia"`` (a packaged subset), a JSONL file, or the address of a retrieval server (Search-R1's protocol)."""
    layout: str = "plain"
    """Of a file of questions: ``"plain"`` or ``"search_r1"``."""
    held_out: float = 1 / 3
    """Share of the questions that are kept for evaluation."""
    seed: int = 0
    """Names the split."""

    def __post_init__(self) -> None:
        _one_of("layout", self.layout, ("plain", "search_r1"))
        if not 0 <= self.held_out < 1:
            raise ValueError(f"held_out = {self.held_out} must lie in [0, 1)")


@config
class Sampler:
    """How episodes are written."""

    turn_tokens: int = 96
    """Most tokens a turn."""
    context_tokens: int = 1024
    """Most tokens a context."""
    rows: int = 64
    """Episodes at a time, in-process."""
    chunk_tokens: int = 2048
    """Most tokens read in one forward, in-process."""
    server: Server | None = None
    """An inference server instead of the in-process engine."""
    compaction: Compaction | None = None
    """When a context is replaced by a shorter one."""

    def __post_init__(self) -> None:
        for name in ("turn_tokens", "context_tokens", "rows", "chunk_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.compaction is not None and self.compaction.at_tokens >= self.context_tokens:
            raise ValueError(
                f"compaction.at_tokens = {self.compaction.at_tokens} must be below context_tokens = "
                f"{self.context_tokens}; else the context is full before it is replaced"
            )


@config
class Training:
    """A complete training run; a variant is ``replace(base, {...})``."""

    task: Task = Task()
    """World, documents, chunks."""
    model: Model = Model()
    """The network."""
    data: Data = Data()
    """Questions and corpus."""
    style: Style = Style()
    """How a prompt is worded."""
    sampler: Sampler = Sampler()
    """How episodes are written."""
    patience: Patience = Patience()
    """How long a tool is waited for."""
    start: Start | None = None
    """The supervised start; None to begin with the model as it is."""
    rule: Rule = Rule()
    """The objective."""
    optimiser: Optimiser = AdamW(rate=1e-6)
    """What turns gradients into steps."""
    schedule: Schedule | Asynchronous = Lag()
    """Which versions write a batch: laid down beforehand, or by what is done when, in real time."""
    prompts: int = 8
    """Questions a batch (Q)."""
    group: int = 8
    """Episodes for each (G)."""
    steps: int = 100
    """Batches."""
    minibatches: int = 1
    """Updates a batch is cut into, along questions."""
    epochs: int = 1
    """Passes over the batch."""
    micro: int = 1
    """Pieces an update is computed in; it changes memory, not the gradient."""
    bucket_tokens: int = 64
    """Lengths are rounded up to a multiple of it; episodes of one length are scored together."""
    temperature: float = 1.0
    """Of sampler and learner alike."""
    proximal: str = "sampler"
    """pi_old: ``"sampler"`` (the log-probs a token was sampled with) or ``"learner"`` (recomputed when the batch begins).

    A rule that asks for the sign of a log-ratio, as LLDS does, needs the learner's: the sampler's differ by rounding."""
    monitor: EvidenceFirst | None = None
    """The rule monitor, as reward and, where it says so, as early stop."""
    judge: Judged | None = None
    """A language model as judge, as a term of the reward."""
    evaluation: Evaluation | None = Evaluation(every=10, prompts=32, group=1)
    """Held-out evaluation."""
    watched: int = 1
    """Episodes of each group on which exact KL, entropy, ratios and mismatch are computed."""
    on_zero_signal: str = "step"
    """What an update does when every coefficient is 0: ``"step"`` (momentum goes on) or ``"skip"``."""
    save_every: int = 10
    """Steps between checkpoints."""
    keep_rollouts: int | None = None
    """A step whose episodes are kept with the run; None for none."""

    def __post_init__(self) -> None:
        for name, least in (
            ("prompts", 1), ("group", 2), ("steps", 0), ("minibatches", 1), ("epochs", 1), ("micro", 1), ("watched", 1),
            ("bucket_tokens", 1), ("save_every", 1),
        ):  # fmt: skip
            if getattr(self, name) < least:
                raise ValueError(f"{name} = {getattr(self, name)} must be at least {least}")
        if self.minibatches * self.micro > self.prompts:
            raise ValueError(
                f"{self.prompts} questions do not fill {self.minibatches} minibatches of {self.micro} pieces; ask for more"
            )
        if self.watched > self.group:
            raise ValueError(f"watched = {self.watched} of a group of {self.group}; at most the group")
        if self.temperature <= 0:
            raise ValueError(f"temperature = {self.temperature} must be positive")
        _one_of("proximal", self.proximal, ("sampler", "learner"))
        _one_of("on_zero_signal", self.on_zero_signal, ("step", "skip"))
        if self.keep_rollouts is not None and not 0 <= self.keep_rollouts < self.steps:
            raise ValueError(f"keep_rollouts = {self.keep_rollouts} must be a step of the run, 0 to {self.steps - 1}")
        _check_rule(self)
        workers = self.schedule.workers if isinstance(self.schedule, Asynchronous) else 1
        if workers > 1 and self.sampler.server is None:
            raise ValueError(
                f"schedule.workers = {workers} without sampler.server: the engine in this process is one; use "
                "workers=1, or a server"
            )

    @property
    def live(self) -> bool:
        """Return whether an engine here may sample with the learner's own weights: they stay, and compute alike."""
        return self.reach == 0 and self.model.products == self.model.dtype

    @property
    def pieces(self) -> int:
        """Return the pieces in which a whole batch is scored."""
        return self.minibatches * self.micro

    @property
    def reach(self) -> int:
        """Return the most steps a version may be behind."""
        return self.schedule.reach


def _check_rule(c: Training) -> None:
    """Refuse what language-model episodes or the schedule do not have."""
    if "process_reward" in c.rule.reads:
        raise ValueError("this rule reads 'process_reward', judgements of single steps, which these episodes have not")
    if (
        isinstance(c.schedule, Completion)
        and c.schedule.over == "all"
        and (c.rule.credit.per == "token" or c.rule.shaping)
    ):
        raise ValueError(
            "Completion(over='all') knows the rewards of rollouts that did not arrive but not their tokens, which this "
            "rule's credit or shaping reads; use over='arrived'"
        )
