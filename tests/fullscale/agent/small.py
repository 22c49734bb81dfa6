"""A world of three passages, a tiny model, and whoever plays in it."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fullscale.agent import parts
from fullscale.agent.handed import Layout, Scorable, given
from fullscale.agent.marked import MarkedPolicy
from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.ranks import Ranks, ShardedScorer
from fullscale.agent.rollouts import Played, play
from fullscale.agent.run import Run
from fullscale.agent.scoring import ScoringModel
from fullscale.agent.setup import Model, Sampler, Training
from fullscale.dialogue.prompt import Dialogue
from fullscale.engine.local import LocalEngine, decoder, turn_ends
from fullscale.engine.protocol import Settings
from fullscale.environment import Environment, Task
from fullscale.model.tiny import tiny_config, tiny_model, tiny_tokenizer
from fullscale.world.passages import Passage
from fullscale.world.questions import Question
from minimodel.agent.checkpoint import Checkpoint
from minimodel.agent.collect import Draws
from minimodel.agent.learner import Minibatch, backward
from minimodel.agent.optimiser import AdamW
from sim.learning.family import grpo
from sim.learning.rule import Rule
from sim.mdp.worlds import World

PASSAGES = (
    Passage("p", "Paris", "Paris is the capital of France."),
    Passage("m", "Madrid", "Madrid is the capital of Spain. It has museums."),
    Passage("o", "Oslo", "Oslo is the capital of Norway."),
)
QUESTIONS = (
    Question("f", "What is the capital of France?", ("Paris",)),
    Question("s", "What is the capital of Spain?", ("Madrid",)),
)


class Words:
    """A retriever: passages with the most words in common come first."""

    def search(self, query: str, k: int) -> list[Passage]:
        words = set(query.lower().split())
        return sorted(PASSAGES, key=lambda p: -len(words & set(p.text.lower().strip(".").split())))[:k]


@cache
def tokenizer() -> Any:
    return tiny_tokenizer()


def model(*, seed: int = 0, tied: bool = True, **more: Any) -> Any:
    return tiny_model(tiny_config(vocabulary=len(tokenizer()), layers=2, tied=tied), seed=seed, **more)


def environment(**world: Any) -> Environment:
    return Environment(Task(World(**({"turns": 3} | world)), documents=1, chunk_words=20), Words())


def dialogue(of: Environment) -> Dialogue:
    return Dialogue(tokenizer(), of.task.world)


def engine(version: int = 0, of: Any = None) -> LocalEngine:
    found = LocalEngine(decoder(tokenizer()), turn_ends(tokenizer()))
    found.publish(version, model() if of is None else of)
    return found


def settings(of: Environment, **more: Any) -> Settings:
    given = {"temperature": 0.9, "turn_tokens": 12, "context_tokens": 900, "stop": of.stop} | more
    return Settings(**given)


# A policy that half knows how to play ----------------------------------------------------------------------------------

PLACES = ("France", "Spain", "Norway")
ANSWERS = {"France": "Paris", "Spain": "Madrid", "Norway": "Oslo"}
ASKED = tuple(
    Question(f"{ask.partition(' ')[0].lower()} {place}", ask.format(place), (ANSWERS[place],))
    for ask in ("What is the capital of {}?", "Name the capital of {}.", "Which city is the capital of {}?")
    for place in PLACES
)
"""Nine questions."""


def encode(text: str) -> list[int]:
    found: list[int] = tokenizer().encode(text, add_special_tokens=False)
    return found


def _scripts(of: Environment) -> Iterator[tuple[list[int], list[bool]]]:
    """Ids and marks of episodes of one, two and three turns, good and bad ones."""
    talk = dialogue(of)
    for question in ASKED[:2]:
        place, good = question.text.split()[-1].strip("?"), question.answers[0]
        for turns in (
            (f"<search>{place}</search>", f"<answer>{good}</answer>"),
            (f"<search>{place}</search>", "<answer>Oslo</answer>", f"<answer>{good}</answer>"),
            (f"<answer>{good}</answer>",),
            ("So <search>Norway</search>", f"<search>{place}</search>", f"<answer>{good}</answer>"),
        ):
            episode, ids = of.begin(question), talk.prompt(question)
            marks = [False] * len(ids)
            for text in turns:
                (played,) = of.act([episode], [text])
                read = [] if played.done else talk.observation(played.observation)
                wrote = encode(text)
                ids, marks = ids + wrote + read, marks + [True] * len(wrote) + [False] * len(read)
                if played.done:
                    break
            yield ids, marks


@cache
def _taught(steps: int) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    shown = list(_scripts(environment()))
    T = max(len(ids) for ids, _ in shown)
    ids, where = (torch.tensor([list(x) + [0] * (T - len(x)) for x in column]) for column in zip(*shown, strict=True))
    network = model(scale=2.0)
    policy, optimiser = LanguagePolicy(ScoringModel(network)), torch.optim.AdamW(network.parameters(), 5e-3)
    for _ in range(steps):
        loss = -policy.scalars(ids, {"logp"}, None, where.bool())["logp"].sum() / where.sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    optimiser.zero_grad()
    torch.set_num_threads(before)
    return network


def taught(steps: int = 35) -> Any:
    """A copy of the tiny model after a moment of supervised steps: it searches, answers, errs, writes what is no action."""
    return copy.deepcopy(_taught(steps))


def moved(network: Any, amount: float = 0.05, seed: int = 1) -> Any:
    """A copy a little further on: every weight moved by a share of its matrix's spread."""
    twin, generator = copy.deepcopy(network), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in twin.parameters():
            if p.ndim == 2:
                p.add_(amount * p.std() * torch.randn(p.shape, generator=generator))
    return twin


def batch(
    networks: Any = None,
    *,
    questions: Sequence[Question] = ASKED[:4],
    group: int = 4,
    world: Mapping[str, Any] | None = None,
    versions: Any = None,
    playing: LocalEngine | None = None,
    seed: int = 3,
    how: Mapping[str, Any] | None = None,
    **options: Any,
) -> Played:
    """Episodes of the taught model, or of the versions in a mapping; `options` are of the settings, `how` of `play`."""
    by_version = networks if isinstance(networks, Mapping) else {0: taught() if networks is None else networks}
    of, serving = (
        environment(**(world or {})),
        engine(of=next(iter(by_version.values()))) if playing is None else playing,
    )
    return play(
        serving,
        of,
        dialogue(of),
        questions,
        group,
        settings(of, **({"temperature": 1.0, "turn_tokens": 16} | options)),
        Draws(seed, "test"),
        0,
        versions=versions,
        publish=None if versions is None else lambda v: serving.publish(v, by_version[v]),
        **(how or {}),
    )


class Noted:
    """An engine that plays with another and keeps what it said."""

    def __init__(self, of: LocalEngine) -> None:
        self.of, self.said = of, []

    def publish(self, version: int, network: Any) -> None:
        self.of.publish(version, network)

    def play(self, *given: Any) -> Any:
        self.said.append(self.of.play(*given))
        return self.said[-1]


# The learner ------------------------------------------------------------------------------------------------------------


def policy_of(
    network: Any, temperature: float = 1.0, backend: str = "auto", *, scoring: Any = None, ranks: Ranks | None = None
) -> MarkedPolicy:
    """What a run's learner is: rows by segment, scored together with the other ranks."""
    scoring = ScoringModel(network, backend) if scoring is None else scoring
    return MarkedPolicy(ShardedScorer(LanguagePolicy(scoring, temperature), ranks or Ranks()))


def learners_logp(policy: MarkedPolicy, played: Played, scalar: Any = "logp", reference: Any = None) -> Any:
    """A scalar of every sampled token of a batch as the learner scores it, [Q, G, T]."""
    ids = torch.from_numpy(Scorable.of(played).ids.reshape(-1, played.ids.shape[-1]))
    with torch.no_grad():
        return policy.scalars(ids, {scalar}, reference)[scalar].numpy().reshape(played.ids.shape)


def alone(network: Any, ids: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """log p of every next token given those before it, by the network's own forward on this row alone, [T - 1, V]."""
    with torch.no_grad():
        logits = network(input_ids=torch.tensor([list(ids)])).logits[0, :-1]
    return torch.log_softmax(logits.double() / temperature, -1)


def minibatch(played: Played, rule: Rule, reward: Any = None, bucket_tokens: int = 64, **more: Any) -> Minibatch:
    """A batch as one update."""
    scorable = Scorable.of(played, bucket_tokens)
    more.setdefault("arrived", np.ones(played.reward.shape, np.bool_))
    made = given(played, scorable, played.reward if reward is None else reward, rule, **more)
    return Minibatch.of(rule, scorable, made, slice(None))


def update(policy: MarkedPolicy, cut: Minibatch, rule: Rule, reference: Any = None, micro: int = 1) -> Any:
    """Gradient of one update, as one vector, and what it saw."""
    for p in policy.parameters():
        p.grad = None
    seen = backward(policy, Layout(np.zeros(0)), rule, cut, reference, micro)
    return gradient(policy), seen


def gradient(policy: MarkedPolicy) -> torch.Tensor:
    """All gradients as one vector, 0 where there is none."""
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.parameters()]
    return torch.cat([(g.full_tensor() if hasattr(g, "full_tensor") else g).flatten() for g in found])


def relative_gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Distance of two vectors, relative to the expected one."""
    return float((found - expected).norm() / expected.norm())


# Runs -------------------------------------------------------------------------------------------------------------------

MEASURED = ("train/latency_s",)
"""Columns that are what a clock said."""


def training(**changes: Any) -> Training:
    """A short run on the small world."""
    base: dict[str, Any] = {
        "task": Task(World(turns=3), documents=1, chunk_words=20),
        "model": Model(source="tiny"),
        "sampler": Sampler(turn_tokens=16, context_tokens=700),
        "rule": grpo(kl=0.0),
        "optimiser": AdamW(rate=1e-3),
        "prompts": 4,
        "group": 4,
        "steps": 3,
        "evaluation": None,
        "save_every": 1,
    }
    return Training(**(base | changes))


@contextmanager
def small_world(network: Any = None, retriever: Any = None) -> Iterator[None]:
    """Runs begin with the taught model, or `network`, in the world of three passages: nothing is loaded."""
    world = parts.World(ASKED, QUESTIONS, Words() if retriever is None else retriever)
    with pytest.MonkeyPatch.context() as given_to:
        given_to.setattr(parts, "world_of", lambda data: world)
        given_to.setattr(
            parts,
            "loaded",
            lambda source, dtype: (taught() if network is None else copy.deepcopy(network), tokenizer()),
        )
        yield


class Small(Run):
    """A run that stays in the small world, where it loads its network again."""

    def __init__(self, *given: Any, network: Any = None, retriever: Any = None) -> None:
        self.inside = {"network": network, "retriever": retriever}
        with small_world(**self.inside):
            super().__init__(*given)

    def go(self, *given: Any) -> Any:
        with small_world(**self.inside):
            return super().go(*given)

    def keep_version(self, u: int) -> None:
        with small_world(**self.inside):
            super().keep_version(u)


def begin(config: Training, folder: Path | None = None, seed: int = 0, **how: Any) -> Small:
    """A run in the small world; with a folder, one that saves there."""
    checkpoint = None if folder is None else Checkpoint(folder / "run.pt", "tests")
    return Small(config, seed, "tests", Path("nowhere"), checkpoint, **how)


def parameters(run: Run) -> torch.Tensor:
    """All weights of a run's network, those that are not trained among them."""
    found = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in run.policy.scoring.parameters()]
    return torch.cat([p.detach().flatten() for p in found])


def differing(a: Mapping[str, np.ndarray], b: Mapping[str, np.ndarray]) -> list[str]:
    """Columns that two runs did not both write to the bit (NaN is NaN), save those that a clock wrote."""
    names = sorted({*a, *b} - {*MEASURED})
    return [name for name in names if name not in a or name not in b or a[name].tobytes() != b[name].tobytes()]
