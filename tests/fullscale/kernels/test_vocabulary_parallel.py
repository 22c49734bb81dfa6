"""A vocabulary split over real processes has the bits of one that is not."""

import multiprocessing
from dataclasses import fields, replace

import pytest
import torch
import torch.distributed as dist

from fullscale.kernels.chunked import Chunked
from fullscale.kernels.contract import shard, strips
from fullscale.kernels.head_loss import head_loss
from fullscale.kernels.linear_logprob import linear_logprob
from fullscale.kernels.problem import Coefficients, Partials, Wanted
from fullscale.kernels.vocabulary_parallel import gather
from tests.fullscale.kernels.small import POLICY, SCALARS, leaves_of, relative, same_bits, small, total, upstream_of

RANKS = 4
ALL = Wanted(entropy=True, reference=True, kl=True)
CASES = {
    "eight divides": small(1024, 20),
    "eight does not": small(5003, 33, dtype=torch.bfloat16, softcap=8.0),
    "some rows": replace(small(1003, 300), rows=torch.tensor([4, 299, 0, 70, 12])),
    "double": small(1003, 20, dtype=torch.float64),
    "a strip of one column each": small(9, 20),
    "columns for one rank alone": small(1, 5),
    "columns for three of four": small(3, 5),
    "no rows": replace(small(1003, 20), rows=torch.zeros(0, dtype=torch.int64)),
}


def upstream(case):
    """Coefficients, some rows without any."""
    made = upstream_of(case)
    for c in made.values():
        c[1::4] = 0
    return made


def held(case, group):
    """What this rank is given, its leaves, and its problem's options."""
    V = len(case.weight)
    mine = shard(V, dist.get_rank(group), dist.get_world_size(group)) if group is not None else shard(V)
    here = slice(mine.start, mine.stop)
    theirs = replace(case.reference, weight=case.reference.weight[here].clone(), bias=case.reference.bias[here].clone())
    part = replace(case, weight=case.weight[here].clone(), bias=case.bias[here].clone(), reference=theirs)
    return part, leaves_of(part), part.options() | {"group": group, "vocabulary": V}


def results(case, group=None):
    """Everything that a rank gets: its strips, all strips, scalars and gradients of both functions."""
    part, leaves, options = held(case, group)
    options |= {"bias": leaves["bias"], "need_entropy": True, "need_kl": True, "strict": case.strict()}
    found, coefficients = {}, upstream(case)
    out = linear_logprob(leaves["hidden"], leaves["weight"], case.targets, **options)
    total(out, coefficients).backward()
    found |= {f"scalar {name}": getattr(out, name).detach() for name in SCALARS}
    found |= {f"d_{name}": x.grad.clone() for name, x in leaves.items()}
    for x in leaves.values():
        x.grad = None

    if case is CASES["double"]:
        shares = {"kept": {"keep": 1.0}, "reference": {"backend": "reference", "strict": False}}
        for label, extra in shares.items():
            out = linear_logprob(leaves["hidden"], leaves["weight"], case.targets, **options | extra)
            total(out, coefficients).backward()
            found |= {f"{label} {name}": getattr(out, name).detach() for name in SCALARS}
            found |= {f"{label} d_hidden": leaves["hidden"].grad.clone()}
            for x in leaves.values():
                x.grad = None

    def given(s):
        return Coefficients(*(coefficients[name][s.rows] for name in POLICY))

    made = head_loss(leaves["hidden"], leaves["weight"], case.targets, given, chunk_rows=8, **options)
    made.loss.backward()
    found |= {"loss": made.loss.detach()} | {f"loss d_{name}": x.grad for name, x in leaves.items()}
    found |= {f"loss {name}": getattr(made.scalars, name) for name in SCALARS if name != "lse"}
    rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    problem = replace(case.problem(), strips=strips(len(case.weight), rank, ranks))
    heads = [
        replace(h, weight=p.weight, bias=p.bias) for h, p in ((problem.head, part), (problem.reference, part.reference))
    ]
    problem = replace(problem, head=heads[0], reference=heads[1])
    partials, _ = Chunked().partials(problem, ALL, strict=case.strict())
    whole = partials if group is None else gather(partials, len(case.weight), group)
    return found | {f"strips {f.name}": getattr(whole, f.name) for f in fields(Partials)}


def of_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    groups = {4: dist.group.WORLD, 2: dist.new_group([0, 1]), 1: dist.new_group([0])}
    found = {n: {k: results(c, group) for k, c in CASES.items()} for n, group in groups.items() if rank < n}
    torch.save(found, folder / f"{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def by_rank(folder):
    """Four processes started once: every case by all, by a pair, and by one alone in its group."""
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=of_rank, args=(rank, folder)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0] * RANKS
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def compare(one, ranks, case):
    """Names of what is not as it should be."""
    wrong = []
    for found in ranks:
        exact = [name for name in one if name.startswith(("scalar", "kept", "strips", "loss")) and " d_" not in name]
        wrong += [name for name in exact if not same_bits(found[name], one[name])]
        close = 1e-11 if case.hidden.dtype == torch.float64 else 5e-3 if case.hidden.element_size() == 2 else 2e-6
        for name in [name for name in one if name.endswith("d_hidden") or name.startswith("reference")]:
            wrong += [name] if relative(found[name], one[name]) > close else []
            wrong += [name] if not same_bits(found[name], ranks[0][name]) else []  # the same on every rank
    for name in ("d_weight", "d_bias", "loss d_weight", "loss d_bias"):
        mine = torch.cat([found[name] for found in ranks])
        wrong += [name] if mine.shape != one[name].shape or not same_bits(mine, one[name]) else []
    return wrong


def test_a_split_vocabulary_has_the_bits_of_a_whole_one(tmp_path):
    """Scalars, strips and the weight's gradient bit for bit; that of the hidden states is a sum over ranks."""
    found = by_rank(tmp_path)
    for name, case in CASES.items():
        one = results(case)
        assert one["strips mass"].shape == (case.n, len(strips(len(case.weight))))
        for n in (1, 2, 4):
            assert compare(one, [of_one[n][name] for of_one in found[:n]], case) == [], (name, n)
    last = found[3][4]["eight does not"]  # none of these was nothing
    assert last["d_weight"].shape == (len(shard(5003, 3, 4)), 32)
    assert min(last["scalar kl"].min(), last["d_hidden"].norm(), last["d_weight"].norm()) > 0.1
    assert found[0][4]["columns for three of four"]["d_weight"].shape == (0, 32)


@pytest.fixture
def as_rank(monkeypatch):
    """Be a rank of a group that does not exist: what is refused is refused before anything is sent."""

    def be(rank, ranks):
        monkeypatch.setattr(dist, "get_rank", lambda group: rank)
        monkeypatch.setattr(dist, "get_world_size", lambda group: ranks)
        return object()

    return be


@pytest.mark.parametrize(("rank", "columns"), [(0, "0 .. 2500"), (1, "2501 .. 5002")])
def test_a_shard_that_is_another_ranks_is_named(as_rank, rank, columns):
    case = small(5003, 4)
    with pytest.raises(ValueError) as raised:
        linear_logprob(case.hidden, case.weight[:1250], case.targets, group=as_rank(rank, 2), vocabulary=5003)
    for part in ("weight has 1250 rows", f"rank {rank} of 2", f"columns {columns}", "5003", "contract.shard"):
        assert part in str(raised.value)


def test_the_whole_size_must_be_said(as_rank):
    case = small(5003, 4)
    with pytest.raises(ValueError, match=r"vocabulary= must say how many columns the whole has"):
        linear_logprob(case.hidden, case.weight, case.targets, group=as_rank(0, 2))


@pytest.mark.parametrize("ranks", [3, 5, 16])
def test_ranks_that_the_vocabulary_cannot_be_dealt_to(as_rank, ranks):
    case = small(5003, 4)
    with pytest.raises(ValueError, match=f"ranks = {ranks} must be one of 1, 2, 4, 8"):
        linear_logprob(case.hidden, case.weight, case.targets, group=as_rank(0, ranks), vocabulary=5003)


def test_a_rank_outside_the_group_is_named(as_rank):
    """torch gives it rank -1."""
    case = small(5003, 4)
    with pytest.raises(ValueError, match="rank = -1"):
        linear_logprob(case.hidden, case.weight[:2501], case.targets, group=as_rank(-1, 2), vocabulary=5003)


def test_targets_are_of_the_whole_vocabulary(as_rank):
    """A rank sees every target, also those that other ranks' columns are."""
    case = small(5003, 4)
    targets = torch.tensor([0, 5002, 5003, 1])
    with pytest.raises(ValueError, match=r"targets\[2\] = 5003 is not in the vocabulary, 0 \.\. 5002"):
        linear_logprob(case.hidden, case.weight[:2501], targets, group=as_rank(0, 2), vocabulary=5003)
