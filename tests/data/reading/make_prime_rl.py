"""Make the fixtures of prime-rl: records that the verifiers package writes, and token exports of prime-rl's layout.

    python tests/data/reading/make_prime_rl.py FOLDER      with verifiers 0.4.0 installed (not a dependency of this project)

The traces are built by the package's own message graph (`prepare_turn`, `commit`) and written as prime-rl's file monitor
does: `Episode.to_record()` a line. Times and ids are set, so that the files are the same each time. The token exports need
torch and the trainer; they are written here with the fields of its exporter (schema 1).
"""

import json
import sys
from pathlib import Path

import verifiers
from verifiers.v1 import graph
from verifiers.v1.configs.agent import AgentConfig
from verifiers.v1.episode import EnvInfo, Episode, GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo
from verifiers.v1.errors import ProviderError
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, Error, ModelCall, TimeSpan, Timing, Trace, TraceTask, VersionInfo
from verifiers.v1.types import (
    AssistantMessage,
    Response,
    SystemMessage,
    ToolCall,
    ToolMessage,
    TurnTokens,
    Usage,
    UserMessage,
)

AT = 1_780_000_000.0  # every time in the files
WORDS = {}  # word to id, in order of appearance


def ids(text):
    return [WORDS.setdefault(word, len(WORDS) + 1) for word in text.split()]


def call(name, query, number=0):
    return ToolCall(id=f"call_{number}", name=name, arguments=json.dumps({"query": query}))


def said(message):
    calls = " ".join(f"{each.name} {each.arguments}" for each in getattr(message, "tool_calls", None) or [])
    return f"{getattr(message, 'reasoning_content', None) or ''} {message.content or ''} {calls}"


def commit(trace, prompt, reply, *, tokens=True, finish="stop", logp=-0.25):
    """Add a model's reply to the graph, as the package does after a call."""
    spans, prompt_ids = [], []
    for message in prompt:
        start = len(prompt_ids)
        prompt_ids += [*ids(f"<{message.role}>"), *ids(said(message)), *ids("<end>")]
        spans.append((start, len(prompt_ids)))
    prompt_ids += ids("<assistant>")
    written = [*ids(said(reply)), *ids("<end>")]
    held = TurnTokens(
        prompt_ids=prompt_ids,
        completion_ids=written,
        completion_logprobs=[logp - 0.001 * k for k in range(len(written))],
        message_spans=spans,
    )
    usage = Usage(prompt_tokens=len(prompt_ids), completion_tokens=len(written))
    turn = graph.prepare_turn(trace, prompt)
    node = turn.commit(
        Response(
            id="response",
            created=int(AT),
            model="policy",
            message=reply,
            finish_reason=finish,
            usage=usage,
            tokens=held if tokens else None,
        )
    )
    trace.calls.append(ModelCall(node=node, finish_reason=finish, usage=usage, time=TimeSpan(start=AT, end=AT + 1)))
    return node


def task(number):
    data = TaskData(idx=number, prompt=f"Who wrote book {number} ?")
    return TraceTask(type="Trivia", data=data, key=f"trivia-{number}")


def trace(number, name, agent="agent", trainable=True):
    return Trace(
        id=name,
        verifiers=VersionInfo(version=verifiers.__version__),
        task=task(number),
        agent=AgentInfo(config=AgentConfig(model="policy"), name=agent, trainable=trainable),
        timing=Timing(start=AT),
    )


def start(number):
    return [SystemMessage(content="Use the tools."), UserMessage(content=f"Who wrote book {number} ?")]


def searching(number, name, rounds, answer, right, **how):
    """Search so many times, then answer."""
    made, prompt = trace(number, name), start(number)
    for k in range(rounds):
        reply = AssistantMessage(
            content="", reasoning_content="I have to look it up .", tool_calls=[call("search", f"book {number}", k)]
        )
        commit(made, prompt, reply, finish="tool_calls", **how)
        prompt = [*prompt, reply, ToolMessage(tool_call_id=f"call_{k}", content=f"Book {number} : author {k} .")]
    commit(made, prompt, AssistantMessage(content=f"It was {answer} ."), **how)
    return scored(made, right)


def scored(made, right, stop="agent_completed"):
    made.record_reward("correct", right)
    made.record_reward("brief", 0.5, weight=0.0)
    made.record_metric("searches", sum(bool(m.tool_calls) for m in made.assistant_messages))
    made.stop(stop)
    made.ok = True
    return made


def parallel(number, name):
    """Two calls in one message, whose results come back in the other order."""
    made, prompt = trace(number, name), start(number)
    calls = [call("search", "book", 0), call("verify", "author", 1)]
    reply = AssistantMessage(content="Both at once .", tool_calls=calls)
    commit(made, prompt, reply, finish="tool_calls")
    results = [ToolMessage(tool_call_id=f"call_{k}", content=f"result {k}") for k in (1, 0)]
    commit(made, [*prompt, reply, *results], AssistantMessage(content="It was Austen ."))
    return scored(made, 1.0)


def compacted(number, name):
    """A conversation that goes on from a summary of itself: a second root."""
    made = searching(number, name, 1, "unclear", 0.0)
    commit(made, [UserMessage(content="Summary : nothing found .")], AssistantMessage(content="It was Eliot ."))
    return made


def annotated(made, reference=-0.5, entropy=0.75, credit=1.0):
    """Add what a trainer's and a reference model's forward add."""
    for node in made.nodes:
        if node.sampled:
            wrote = sum(node.mask)
            node.reference_logprobs, node.entropies = [reference] * wrote, [entropy] * wrote
            node.advantages = [credit] * wrote
    return made


def episode(number, name, traces, step, ok=True, errors=()):
    made = Episode(
        id=f"episode-{name}",
        env=EnvInfo(id="trivia", name="trivia"),
        task=task(number),
        group=GroupInfo(id=f"group-{step}-{number}"),
        ok=ok,
        errors=list(errors),
        traces=traces,
    )
    made.record_run(
        TrainRunInfo(id="run", work=TrainWorkInfo(step=step, policy=PolicySpan(start=step - 2, end=step - 1)))
    )
    return made


def failed(number, name):
    made = searching(number, name, 1, "nobody", 0.0)
    made.rewards = {"correct": None}
    made.record_error(ProviderError("upstream went away", status_code=503))
    return made


def cut(number, name):
    made = trace(number, name)
    commit(made, start(number), AssistantMessage(content="<think> It could be"), finish="length", tokens=False)
    return scored(made, 0.0)


def limited(number, name):
    made = trace(number, name)
    commit(made, start(number), AssistantMessage(content="", tool_calls=[call("search", "book")]), tokens=False)
    return scored(made, 0.0, stop="max_turns")


def steps():
    yield (
        9,
        "all",
        [
            episode(1, "a", [annotated(searching(1, "a", 2, "Austen", 1.0))], 9),
            episode(1, "b", [annotated(searching(1, "b", 0, "Eliot", 0.0), credit=-1.0)], 9),
            episode(2, "c", [parallel(2, "c")], 9),
            episode(2, "d", [failed(2, "d")], 9, ok=False),
            episode(3, "e", [], 9, ok=False, errors=[Error(type="EnvError", message="no agent was run")]),
        ],
    )
    yield (
        10,
        "all",
        [
            episode(1, "f", [compacted(1, "f")], 10),
            episode(2, "g", [cut(2, "g")], 10),
            episode(2, "h", [limited(2, "h")], 10),
            episode(3, "i", [searching(3, "i", 1, "Woolf", 1.0), trace(3, "j", agent="judge", trainable=False)], 10),
        ],
    )
    yield 10, "effective", [episode(3, "i", [searching(3, "i", 1, "Woolf", 1.0)], 10)]


def export(step, place):
    """A sequence as the trainer's exporter writes it."""
    columns = {
        "token_ids": [5, 6, 7, 8, 9, 10 + place],
        "position_ids": [0, 1, 2, 3, 4, 5],
        "loss_mask": [False, False, True, True, False, True],
        "advantages": [0.5] * 6,
        "inference_logprobs": [0.0, 0.0, -0.1, -0.2, 0.0, -0.3],
        "trainer_logprobs": [-1.0, -1.0, -0.1, -0.25, -1.0, -0.3],
        "entropy": [1.0, 1.0, 0.5, 0.25, 1.0, 0.75],
        "mismatch_kl": [None] * 6,
    }
    numbers = {"rank": 0, "micro_step": 0, "micro_sequence_idx": place, "export_sequence_idx": place}
    return {"schema_version": 1, "step": step, **numbers, "env_name": "trivia", **columns}


def main(folder):
    for step, subset, episodes in steps():
        for node in (node for each in episodes for trace in each.traces for node in trace.nodes):
            node.timestamp = AT
        path = folder / "rollouts" / f"step_{step}" / "train" / subset / "traces.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            json.dumps(each.to_record(), default=str, separators=(",", ":"), ensure_ascii=False) for each in episodes
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for step in (9, 10):
        path = folder / "token_exports" / f"step_{step}" / "rank_0.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(export(step, k), separators=(",", ":")) + "\n" for k in range(2)))
        if step == 9:
            (path.parent / "STABLE").touch()
    sys.stdout.write(f"verifiers {verifiers.__version__}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
