"""From text to tokens: the prompt of a question, through the tokenizer's chat template, and what is read in between.

A policy's tokens are carried as they were sampled and never encoded again; what is encoded here is only ever appended.
Control tokens (the end of a turn, the beginning of another role) come from the chat template alone: a question or a passage
that holds their text is encoded as text.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from fullscale.dialogue.tags import INFORMATION, neutral, stops
from fullscale.world.questions import Question
from sim.mdp.worlds import World
from sim.records.config import config

__all__ = ["Dialogue", "Style", "instructions"]

_TOOLS = {
    "search": "<search>words to look for</search> looks up documents.",
    "read": "<read></read> reads on in the first document of the last search.",
    "verify": "<verify>a candidate</verify> checks an answer before you give it; you can do this once.",
    "answer": "<answer>the answer</answer> gives the answer, as short as possible.",
}
_PLACE = ("first question", "first turn", "second question")
"""Stand-ins by which the template's own text between two turns is found."""


@config
class Style:
    """How a prompt is worded for a model."""

    system_role: bool = True
    """Whether the instructions are a system message; else they stand before the question (templates without that role)."""
    thinking: bool | None = None
    """``enable_thinking`` of templates that have it; None leaves it to the template."""
    opening: str = ""
    """Text the assistant's first turn begins with; part of the prompt."""


def instructions(world: World) -> str:
    """Return what the agent is told about the tools that exist in this world and about its rules."""
    tools = " ".join(_TOOLS[name] for name in world.graph().actions)
    guess = "" if world.may_guess else "Search before you answer. "
    final = "Your first answer is final." if world.wrong_answer_ends else "After a wrong answer you may go on."
    return (
        "Answer the question. You may think first; end each turn with exactly one action, written in its tags. "
        f"{tools} What comes back stands between <information> and </information>. "
        f"{guess}You have {world.turns} turns. {final}"
    )


class Dialogue:
    """Encodes prompts and observations for one tokenizer and one world.

    Parameters
    ----------
    tokenizer
        A Hugging Face tokenizer with a chat template.
    world
        Its tools and rules are what the agent is told.
    style
        How.

    Raises
    ------
    ValueError
        When the tokenizer has no chat template.
    """

    def __init__(self, tokenizer: Any, world: World, style: Style | None = None) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ValueError("this tokenizer has no chat template; set tokenizer.chat_template to one")
        self.tokenizer, self.world, self.style = tokenizer, world, Style() if style is None else style
        self.stop = stops(world.graph().actions)
        """Texts at which a turn is over."""
        tokens = {i: str(token) for i, token in tokenizer.added_tokens_decoder.items()}
        own = {f"<{INFORMATION}>", f"</{INFORMATION}>"}
        self._control = {i: text for i, text in tokens.items() if text.strip() and text not in own}

    def prompt(self, question: Question) -> list[int]:
        """Return the ids of a question's prompt, up to where the assistant begins.

        Raises
        ------
        ValueError
            When the question's text would become a control token.
        """
        ids = self._ids(self._rendered((self._plain(neutral(question.text)),)))
        if self._controls(ids) != self._frame:
            more = [self._control[i] for i in (self._controls(ids) - self._frame)]
            raise ValueError(f"question {question.id!r} writes control tokens {more}; reword it")
        return ids + self._ids(self.style.opening)

    def observation(self, text: str, ended: int | None = None) -> list[int]:
        """Return the ids of what an agent reads.

        Parameters
        ----------
        text
            What came back, from the environment.
        ended
            Id of the token with which the agent ended its turn by itself, if it did. Then the observation is a turn of the
            user's, as the template writes one, and another turn of the assistant's begins; else it stands where it is.

        Raises
        ------
        ValueError
            When the text would become a control token.
        """
        text = self._plain(text if ended is None else text.strip())
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)
        if found := self._controls(ids):
            raise ValueError(f"an observation writes control tokens {[self._control[i] for i in found]}: {text[:80]!r}")
        if ended is None:
            return ids
        before, after = self._between
        return [*(before[1:] if before[:1] == [ended] else before), *ids, *after]

    @cached_property
    def _between(self) -> tuple[list[int], list[int]]:
        """The template's own ids between a turn of the assistant's and the user's text, and from there to the next."""
        rendered = self._rendered(_PLACE)
        if any(rendered.count(each) != 1 for each in _PLACE):
            raise ValueError(
                "the chat template does not show every turn once; an ended turn cannot be followed by another"
            )
        tail = rendered.partition(_PLACE[1])[2]
        before, _, after = tail.partition(_PLACE[2])
        return self._ids(before), self._ids(after)

    @cached_property
    def _frame(self) -> Counter[int]:
        """Control tokens of a prompt that are the template's."""
        return self._controls(self._ids(self._rendered(("?",))))

    def _rendered(self, said: Sequence[str]) -> str:
        """Return the template's text when user and assistant said this in turn, the user last."""
        first, *later = said
        told = instructions(self.world)
        messages = [{"role": "system", "content": told}] if self.style.system_role else []
        messages.append({"role": "user", "content": first if self.style.system_role else f"{told}\n\n{first}"})
        messages += [{"role": ("assistant", "user")[i % 2], "content": each} for i, each in enumerate(later)]
        options = {} if self.style.thinking is None else {"enable_thinking": self.style.thinking}
        text: str = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def _controls(self, ids: Sequence[int]) -> Counter[int]:
        return Counter(i for i in ids if i in self._control)

    def _plain(self, text: str) -> str:
        """Return `text` with the control tokens of this tokenizer parted; tags of the protocol are left as they are."""
        for token in self._control.values():
            if len(token) > 1 and token in text:
                text = text.replace(token, f"{token[0]} {token[1:]}")
        return text
