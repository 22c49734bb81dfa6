"""What a model answers without looking anything up."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fullscale.dialogue.prompt import Dialogue
from fullscale.engine.protocol import Engine, Reply, Settings, Turn
from fullscale.world.exact_match import exact_match
from fullscale.world.questions import Question

__all__ = ["closed_book"]

_OPENS, _CLOSES = "<answer>", "</answer>"


def closed_book(
    engine: Engine, dialogue: Dialogue, questions: Sequence[Question], answer_tokens: int = 32
) -> NDArray[np.float64]:
    """Return 1 for each question answered right with the likeliest tokens when no tool may be used, 0 for others, [Q].

    NaN where the engine failed.

    The assistant's first turn is begun for it with the answer's opening tag, so nothing is left but to answer.
    """
    opened = dialogue.tokenizer.encode(_OPENS, add_special_tokens=False)
    prompts = [dialogue.prompt(question) + opened for question in questions]
    room = max(map(len, prompts)) + answer_tokens + 1

    def over(rows: Sequence[int], turns: Sequence[Turn]) -> list[Reply]:  # noqa: ARG001  the engine's protocol
        return [Reply(None) for _ in rows]

    settings = Settings(1.0, answer_tokens, room, (_CLOSES,))
    spoken = engine.play(prompts, over, settings, None)
    said = [each.turns[0].text.partition(_CLOSES)[0] if each.turns else "" for each in spoken]
    right = np.array([exact_match(text, q.answers) for text, q in zip(said, questions, strict=True)], np.float64)
    return np.where([each.ended == "failed" for each in spoken], np.nan, right)
