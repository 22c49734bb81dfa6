"""A disassembly's instructions and loops, as far as names and branches tell."""

import re
from collections import Counter

import networkx as nx

__all__ = ["counts", "loops"]

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?P<guard>@!?U?P\w+\s+)?(?P<name>[A-Z0-9_]+)(?P<rest>[^;]*)")
_LABEL = re.compile(r"^(\.L\w+):")
_TARGET = re.compile(r"`\((\.L\w+)\)")
_LAST = ("BRA", "EXIT", "RET")


def counts(code: str) -> Counter[str]:
    """Return how often each instruction occurs, by its name without what follows a dot."""
    return Counter(found["name"] for found in _INSTRUCTION.finditer(code))


def loops(code: str, holding: str) -> list[Counter[str]]:
    """Return what the innermost loops hold, among those that hold an instruction.

    A loop is a natural one: an edge of the flow graph back to a block that dominates it, with all blocks that reach the edge
    without passing there. So a block that waits, set aside by the compiler and branching back into the code it came from, is
    no loop for that.

    Parameters
    ----------
    code
        As `nvdisasm -c` prints one kernel.
    holding
        The instruction's name.
    """
    blocks, graph = _flow(code)
    dominator = nx.immediate_dominators(graph, 0)
    bodies: list[set[int]] = []
    for tail, head in graph.edges:
        if tail in dominator and _dominates(head, tail, dominator):
            before = graph.reverse()
            before.remove_node(head)
            inside = {tail} | nx.descendants(before, tail) if tail != head else set()
            bodies.append({head} | inside)
    found = [body for body in bodies if any(blocks[b][holding] for b in body)]
    return [sum((blocks[b] for b in body), Counter()) for body in found if not any(x < body for x in found)]


def _flow(code: str) -> tuple[list[Counter[str]], "nx.DiGraph[int]"]:
    """Return the instructions of each basic block, and which may follow which; the first block is 0."""
    blocks: list[Counter[str]] = [Counter()]
    labels: dict[str, int] = {}
    leaves: list[list[tuple[str | None, bool]]] = [[]]  # of each block: where its branch goes, and whether always
    for line in code.splitlines():
        if leaves[-1] or _LABEL.match(line):
            blocks.append(Counter())
            leaves.append([])
        if (label := _LABEL.match(line)) is not None:
            labels[label[1]] = len(blocks) - 1
        elif (found := _INSTRUCTION.search(line)) is not None:
            blocks[-1][found["name"]] += 1
            if found["name"] in _LAST:
                target = _TARGET.search(found["rest"])
                conditional = found["guard"] is not None or "P" in found["rest"].partition("`")[0]
                leaves[-1].append((target and target[1], not conditional))
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(blocks)))
    for i, leaving in enumerate(leaves):
        for place, _ in leaving:
            if place is not None:
                graph.add_edge(i, labels[place])
        if i + 1 < len(blocks) and not any(always for _, always in leaving):
            graph.add_edge(i, i + 1)
    return blocks, graph


def _dominates(head: int, block: int, dominator: dict[int, int]) -> bool:
    while block != head:
        above = dominator.get(block)
        if above is None or above == block:
            return False
        block = above
    return True
