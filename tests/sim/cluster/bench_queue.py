"""M/M/1 in our engines and in Ciw, a simulator of open queueing networks; both draw their numbers within the time."""

import numpy as np
import pytest

from sim.cluster.run import simulate
from sim.cluster.scheduling import Arrivals
from sim.cluster.spec import Cluster, Engines, Learner, Sync
from sim.cluster.workload import Chain, Workload
from sim.mdp.latency import Exponential
from tests.measuring import at_least, cpu_ratio
from tests.sim.cluster.peers.compiled import compiled_or_skip

CUSTOMERS, LOAD = 20_000, 0.5
TARGET = {"simpy": None, "compiled": 3.0}


@pytest.fixture
def ciw():
    return pytest.importorskip("ciw", reason="Ciw is not installed")


def queue() -> Cluster:
    """One engine that serves one sequence at a time, a token a second; arrivals and lengths exponential."""
    return Cluster(
        workload=Workload(task=Chain(turns=1), group=1, tokens=(("answer", Exponential(1.0)),)),
        engines=Engines(count=1, base_s=1.0, max_sequences=1),
        admission=Arrivals(Exponential(1 / LOAD)),
        learner=Learner(batch=CUSTOMERS),
        sync=Sync("in_place", 0.0),
        steps=1,
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("engine", ["simpy", "compiled"])
def bench_single_server_queue(benchmark, ciw, engine):
    if engine == "compiled":
        compiled_or_skip()
    stays = {}

    def ours():
        rollouts = simulate(queue(), engine=engine).books.rollouts
        stays["ours"] = np.mean((rollouts.end_s - rollouts.start_s)[:CUSTOMERS])

    def theirs():
        ciw.seed(0)
        law = ciw.dists.Exponential
        network = ciw.create_network(
            arrival_distributions=[law(LOAD)], service_distributions=[law(1.0)], number_of_servers=[1]
        )
        simulation = ciw.Simulation(network)
        simulation.simulate_until_max_customers(CUSTOMERS, method="Finish")
        stays["peer"] = np.mean([r.exit_date - r.arrival_date for r in simulation.get_all_records()])

    ratio, cpu, peer = cpu_ratio(ours, theirs, rounds=3)
    stay = 1 / (1 - LOAD)  # M/M/1: 1 / (mu - lambda)
    assert stays == {name: pytest.approx(stay, rel=0.1) for name in ("ours", "peer")}
    benchmark.extra_info |= at_least(
        TARGET[engine], ratio, f"Ciw {ciw.__version__}", customers=CUSTOMERS,
        cpu_us_per_customer=round(1e6 * cpu / CUSTOMERS, 2), peer_cpu_us_per_customer=round(1e6 * peer / CUSTOMERS, 2),
    )  # fmt: skip
    benchmark.pedantic(ours, rounds=1)
