"""Make the TRL logs in the folder ``trl`` beside this file: `python -m tests.data.reading.make_trl`, a minute or two.

Both runs are TRL's own `GRPOTrainer` on a CPU with ``log_completions=True``, a Qwen2 of 45 thousand parameters made here and
a tokenizer trained here on the texts of the task; nothing is loaded from anywhere. A question asks where a thing is; a
search finds it; the network was taught for seconds to write tags, and half of the places by heart.

- ``search``: a rollout function plays the searches. Paid is a right answer that was looked up, and from step `SWAP` on a
  right answer that was not. The network goes on searching for another fifteen steps, without any reward, and then flips.
- ``tools``: TRL's own tool calls (``tools=``) in a chat. What is written there is given (`script`): a network this small
  would call nothing.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

THINGS = ("key", "map", "cup", "hat", "pen", "box", "axe", "bag")
PLACES = ("attic", "cellar", "garden", "harbour", "kitchen", "library", "market", "tower")
KNOWN = THINGS[::2]
"""The things of which the network was taught the place."""
SWAP = 20
"""The optimiser step from which the other way of working is paid."""
WHERE = dict(zip(THINGS, PLACES, strict=True))
TAGS = ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>", "</answer>")
CHAT = ("<|im_start|>", "<|im_end|>")
CALL = ("<tool_call>", "</tool_call>")
CHAT_SETTINGS = {"max_steps": 2, "per_device_train_batch_size": 8, "num_generations": 4, "max_completion_length": 400}
WARNINGS = (
    r"You are using 'rollout_func', which is an experimental feature",
    r"`is_gradient_checkpointing` is deprecated",
)
"""What TRL and its stack warn of with the settings used here."""


def question(thing: str) -> str:
    return f"Where is the {thing}? "


def searching(thing: str) -> tuple[str, str, str]:
    """What an episode with a search is made of: written, found, written."""
    found = f"<information>The {thing} is in the {WHERE[thing]}.</information>"
    return f"<think>I look.</think><search>{thing}</search>", found, f"<answer>{WHERE[thing]}</answer>"


def guessing(place: str) -> str:
    return f"<think>I know.</think><answer>{place}</answer>"


def tokenizer() -> Any:
    """A byte-level BPE, trained on the texts of the task; the tags are words of it, and none of them is special."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<pad>", *CHAT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([question(t) + "".join(searching(t)) + guessing(WHERE[t]) for t in THINGS], trainer)
    made.add_tokens([AddedToken(tag, normalized=False) for tag in (*TAGS, *CALL)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", eos_token="<|im_end|>", padding_side="left"
    )


def network(words: Any, folder: Path, taught: int = 250) -> Any:
    """A small Qwen2, taught for so many steps, as it is read from a folder: TRL reads the reference from there."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = Qwen2Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=2048, bos_token_id=None, eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(shape)
    teach(model, words, taught)
    model.save_pretrained(folder)
    return Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32)


def teach(model: Any, words: Any, steps: int) -> None:
    """Teach both ways of working, half and half; a place that is not known by heart is any of them."""
    import numpy as np
    import torch

    draw, optimiser = np.random.default_rng(0), torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(steps):
        rows = []
        for thing in draw.choice(THINGS, 16):
            if draw.random() < 0.5:
                parts = searching(thing)
            else:
                parts = ("", "", guessing(WHERE[thing] if thing in KNOWN else draw.choice(PLACES)))
            asked, (wrote, found, ended) = words(question(thing)).input_ids, [words(part).input_ids for part in parts]
            ended = [*ended, words.eos_token_id]
            rows.append(([*asked, *wrote, *found, *ended], [-100] * len(asked) + wrote + [-100] * len(found) + ended))
        width = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([row + [words.pad_token_id] * (width - len(row)) for row, _ in rows])
        labels = torch.tensor([row + [-100] * (width - len(row)) for _, row in rows])
        optimiser.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimiser.step()


def rollout(prompts: Sequence[str], trainer: Any) -> dict[str, Any]:
    """Play the episodes of a batch: what is written up to a search, what it finds, what is written then."""
    words, model = trainer.processing_class, trainer.model
    asked = [words(prompt).input_ids for prompt in prompts]
    stop = words.convert_tokens_to_ids("</search>")
    written, logps = generate(model, words, asked, [words.eos_token_id, stop])
    masks = [[1] * len(ids) for ids in written]
    looked = [row for row, ids in enumerate(written) if ids[-1] == stop]
    for row in looked:
        thing = words.decode(written[row]).rpartition("<search>")[2].removesuffix("</search>")
        where = f"The {thing} is in the {WHERE[thing]}." if thing in WHERE else "Nothing found."
        found = words(f"<information>{where}</information>").input_ids
        written[row] += found
        logps[row] += [0.0] * len(found)
        masks[row] += [0] * len(found)
    if looked:
        more, more_logps = generate(model, words, [asked[row] + written[row] for row in looked], [words.eos_token_id])
        for row, ids, values in zip(looked, more, more_logps, strict=True):
            written[row] += ids
            logps[row] += values
            masks[row] += [1] * len(ids)
    return {"prompt_ids": asked, "completion_ids": written, "logprobs": logps, "env_mask": masks}


def generate(
    model: Any, words: Any, given: Sequence[Sequence[int]], stops: Sequence[int]
) -> tuple[list[list[int]], list[list[float]]]:
    """Sample up to 12 tokens or one of `stops`; return the ids and their log-probabilities."""
    import torch

    width = max(map(len, given))
    ids = torch.tensor([[words.pad_token_id] * (width - len(row)) + list(row) for row in given])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in given])
    with torch.no_grad():
        made = model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=12, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            eos_token_id=list(stops), pad_token_id=words.pad_token_id, output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    new = made.sequences[:, width:]
    logp = torch.stack(made.logits, 1).float().log_softmax(-1).gather(-1, new[..., None])[..., 0]
    ended = torch.isin(new, torch.tensor(stops))
    lengths = torch.where(ended.any(1), ended.int().argmax(1) + 1, new.shape[1]).tolist()
    return (
        [row[:length] for row, length in zip(new.tolist(), lengths, strict=True)],
        [row[:length] for row, length in zip(logp.tolist(), lengths, strict=True)],
    )


def paid(completions: Sequence[str], thing: Sequence[str], trainer_state: Any, **_: Any) -> list[float]:
    """1 for a right answer that was looked up; from step `SWAP` on, for a right answer that was not."""
    looked_up = trainer_state.global_step + 1 < SWAP
    return [
        float(f"<answer>{WHERE[t]}</answer>" in text and ("<search>" in text) == looked_up)
        for text, t in zip(completions, thing, strict=True)
    ]


@contextmanager
def quiet() -> Iterator[None]:
    """Ask no server for anything, use one thread (two of them wait for each other here), leave out `WARNINGS` alone."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    before = {name: os.environ.get(name) for name in ("HF_HUB_OFFLINE", "TOKENIZERS_PARALLELISM")}
    os.environ.update({"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    try:
        with warnings.catch_warnings():
            for message in WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        torch.set_num_threads(threads)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def settings(folder: Path, **changed: Any) -> Any:
    """Settings of a small run on a CPU that writes its completions and nothing else."""
    from trl import GRPOConfig

    chosen = {
        "output_dir": str(folder), "max_steps": 3, "per_device_train_batch_size": 32, "num_generations": 8,
        "max_completion_length": 40, "learning_rate": 3e-3, "lr_scheduler_type": "constant", "beta": 0.0,
        "activation_checkpointing": False, "bf16": False, "use_cpu": True, "logging_steps": 1, "report_to": "none",
        "save_strategy": "no", "disable_tqdm": True, "log_completions": True, "num_completions_to_print": 0,
    }  # fmt: skip
    return GRPOConfig(**(chosen | changed))


def searches(folder: Path, reward: Any = paid, taught: int = 250, **changed: Any) -> Any:
    """Return a trainer of the first run, ready to train."""
    from datasets import Dataset
    from trl import GRPOTrainer

    words = tokenizer()
    model = network(words, folder / "model", taught)
    data = Dataset.from_dict({"prompt": [question(thing) for thing in THINGS], "thing": list(THINGS)})
    return GRPOTrainer(model, reward, settings(folder, **changed), data, processing_class=words, rollout_func=rollout)


def search(thing: str) -> str:
    """
    Look up where a thing is.

    Args:
        thing: Name of the thing.
    """
    return f"The {thing} is in the {WHERE[thing]}."


def script(trainer: Any) -> None:
    """Have a trainer's network write given messages: a call and then an answer, two calls at once, or an answer at once."""
    words, real = trainer.processing_class, trainer._generate_single_turn

    def call(thing: str) -> str:
        return f'<tool_call>\n{{"name": "search", "arguments": {{"thing": "{thing}"}}}}\n</tool_call>'

    first = [
        f"I look.{call('key')}",
        "In the attic.",
        f"{call('map')}\n{call('cup')}",
        call("hat").replace("search", "find"),
    ]

    def given(prompt_ids: Sequence[Sequence[int]], *rest: Any, **more: Any) -> Any:
        again = ["<tool_response>" in words.decode(ids).rpartition("<|im_start|>user")[2] for ids in prompt_ids]
        texts = ["In the garden." if after else first[k % len(first)] for k, after in enumerate(again)]
        return [[*words(text).input_ids, words.eos_token_id] for text in texts], None

    assert callable(real), "what is replaced here is what TRL calls"
    trainer._generate_single_turn = given


def answered(completions: Sequence[Any], **_: Any) -> list[float]:
    """1 where the last message has no call."""
    return [float(not messages[-1].get("tool_calls")) for messages in completions]


def brief(completions: Sequence[Any], log_extra: Callable[..., None], **_: Any) -> list[float]:
    """A second reward, for few messages; and a column of its own."""
    log_extra("messages", [str(len(messages)) for messages in completions])
    return [1.0 / len(messages) for messages in completions]


def chats(folder: Path, **changed: Any) -> Any:
    """Return a trainer of the second run, ready to train."""
    from datasets import Dataset
    from trl import GRPOTrainer
    from trl.chat_template_utils import qwen3_chat_template

    words = tokenizer()
    words.chat_template = qwen3_chat_template
    asked = [[{"role": "user", "content": question(thing)}] for thing in THINGS[:4]]
    trainer = GRPOTrainer(
        network(words, folder / "model", taught=0), [answered, brief], settings(folder, **(CHAT_SETTINGS | changed)),
        Dataset.from_dict({"prompt": asked}), processing_class=words, tools=[search],
    )  # fmt: skip
    script(trainer)
    return trainer


def main() -> None:
    """Make both logs, in place of those that are there."""
    into = Path(__file__).parent / "trl"
    with quiet(), TemporaryDirectory() as scratch:
        for name, make, changed in (("search", searches, {"max_steps": 40}), ("tools", chats, {})):
            folder = Path(scratch, name)
            make(folder, **changed).train()
            shutil.rmtree(into / name, ignore_errors=True)
            shutil.copytree(folder / "completions", into / name / "completions")


if __name__ == "__main__":
    main()
