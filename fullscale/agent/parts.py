"""What a run is made of, put together from its config: network, start, world, words, engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fullscale.agent.policy import LanguagePolicy
from fullscale.agent.scoring import ScoringModel
from fullscale.agent.setup import Data, Model, Training
from fullscale.dialogue.prompt import Dialogue
from fullscale.engine.protocol import Settings
from fullscale.environment import Environment
from fullscale.model.network import DTYPES, adapted, checkpointed, loaded
from fullscale.start.demonstrations import demonstrate
from fullscale.start.kept import restore, started
from fullscale.tools.toolbox import Toolbox
from fullscale.world.geography import geography
from fullscale.world.jsonl import DataError
from fullscale.world.passages import Passage, read_passages, wikipedia
from fullscale.world.questions import Question, read_questions, search_r1_questions, split
from fullscale.world.retrieval_server import RetrievalServer
from fullscale.world.retriever import BM25, Retriever
from sim.records.config import canonical_json, to_dict

__all__ = ["Parts", "World", "assembled", "policy_of", "world_of"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class World:
    """What is asked and searched."""

    train: tuple[Question, ...]
    """Questions to train on."""
    held_out: tuple[Question, ...]
    """Questions kept for evaluation; none of their facts is trained on."""
    retriever: Retriever
    """The search."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Everything a run computes with."""

    world: World
    """Questions and search."""
    environment: Environment
    """Plays episodes."""
    dialogue: Dialogue
    """Encodes them."""
    settings: Settings
    """How they are written."""
    policy: LanguagePolicy
    """What is trained, as it starts."""
    began: Mapping[str, Any]
    """How the supervised start went; empty where there is none."""


def world_of(data: Data) -> World:
    """Return questions and search.

    Raises
    ------
    DataError
        When packaged questions are asked of a corpus that is not at hand, or a split leaves nothing to train on.
    """
    passages: list[Passage] | None = None
    if not data.corpus.startswith(("http://", "https://")):
        passages = wikipedia() if data.corpus == "wikipedia" else read_passages(Path(data.corpus))
    retriever: Retriever = RetrievalServer(data.corpus) if passages is None else BM25(passages)
    if data.questions == "geography":
        if passages is None:
            raise DataError(f"questions = 'geography' are made for passages at hand, and {data.corpus} is a server")
        questions = geography(passages)
    else:
        read = search_r1_questions if data.layout == "search_r1" else read_questions
        questions = read(Path(data.questions))
    train, held_out = split(questions, data.held_out, seed=data.seed)
    if not train:
        raise DataError(f"held_out = {data.held_out} leaves nothing to train on of {len(questions)} questions")
    return World(tuple(train), tuple(held_out), retriever)


def _check_enough(config: Training, world: World) -> None:
    """Refuse a run that asks more questions at once than there are, before anything is loaded or taught."""
    asked = 0 if config.evaluation is None else config.evaluation.prompts
    for name, wanted, there, way in (
        ("prompts", config.prompts, len(world.train), "bring more questions"),
        ("evaluation.prompts", asked, len(world.held_out), "raise data.held_out, or set evaluation=None"),
    ):
        if wanted > there:
            kind = "to train on" if name == "prompts" else "held out"
            raise DataError(f"{name} = {wanted} of {there} questions {kind}; ask for fewer, or {way}")


def policy_of(model: Model, temperature: float, device: str = "cpu", seed: int = 0) -> tuple[LanguagePolicy, Any]:
    """Return a policy and its tokenizer; `seed` draws an adapter's first weights."""
    network, tokenizer = loaded(model.source, DTYPES[model.dtype])
    if model.checkpointing:
        network = checkpointed(network)
    if model.adapter is not None:
        network = adapted(network, model.adapter.rank, model.adapter.alpha, model.adapter.targets, seed)
    scoring = ScoringModel(
        network.to(device),
        model.backend,
        keep=model.keep,
        autocast=None if model.products == model.dtype else DTYPES[model.products],
    )
    return LanguagePolicy(scoring, temperature), tokenizer


def assembled(
    config: Training, seed: int, starts: Path, *, device: str = "cpu", progress: Progress | None = None
) -> Parts:
    """Return the parts of a run; a supervised start is made once and kept in `starts`."""
    world = world_of(config.data)
    _check_enough(config, world)
    policy, tokenizer = policy_of(config.model, config.temperature, device, seed)
    ends = config.monitor is not None and config.monitor.ends
    environment = Environment(config.task, world.retriever, Toolbox(config.patience), ends_on_guess=ends)
    dialogue = Dialogue(tokenizer, config.task.world, config.style)
    settings = Settings(config.temperature, config.sampler.turn_tokens, config.sampler.context_tokens, environment.stop)
    began: Mapping[str, Any] = {}
    if config.start is not None:
        shown = demonstrate(environment, dialogue, world.train, config.start, settings, seed)
        name = canonical_json({"model": to_dict(config.model), "temperature": config.temperature})
        place = started(name, lambda: policy, shown, config.start, seed, starts, progress)
        began = restore(policy, place)
    return Parts(world, environment, dialogue, settings, policy, began)
