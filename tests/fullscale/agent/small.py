"""A world of three passages, a tiny model, and whoever plays in it."""

from functools import cache
from typing import Any

from fullscale.dialogue.prompt import Dialogue
from fullscale.engine.local import LocalEngine, decoder, turn_ends
from fullscale.engine.protocol import Settings
from fullscale.environment import Environment, Task
from fullscale.model.tiny import tiny_config, tiny_model, tiny_tokenizer
from fullscale.world.passages import Passage
from fullscale.world.questions import Question
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
