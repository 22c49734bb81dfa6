"""The world: the one record that every compiled function takes."""

from __future__ import annotations

import numpy as np

__all__ = ["WORLD"]

_TABLES = {
    "rows that grow with the run": "trajs turns groups ready complete again tail taken",
    "the log": "log_t log_kind log_entity log_traj log_turn log_version log_value",
    "the calendar": "calendar",
    "engines, the heap and the batch of each, and the rollouts assigned to it": "engines heap batch load",
    "pools, who waits for one that serves the oldest group first, and since when its servers are idle": "pools ordered idle",
    "rollouts that move together: within a handler, and from one handler to the next": "scratch done",
    "versions": "steps",
    "draws of rollouts, those of their turns, who is done with them; of laws of their own": "drawn draws shelves series"
    " series_values",
    "the task": "initial context outcome target observed reward token_scale token_shape token_cap pool_of wait_s",
    "policies, and which of them a version has": "thresholds policy",
}
"""Addresses of tables, as :class:`~sim.cluster.compiled.tables.Tables` fills them."""

_REALS = {
    "time": "now horizon_s",
    "engines": "base_s each_s kv admit_below prefill",
    "scheduling and workload; chunk_cap: tokens a rollout may write a round": "eta least_valid over chunk_cap prompt_tokens",
    "controller": "interval_s grow trim_at trim hard_at hard",
    "learner; took_s: of the mini-batch that is trained on": "train_s rollout_s token_s sync_s asked_s took_s",
}

_INTS = {
    "capacities of tables": "traj_cap group_cap live_cap row_cap ordered_cap calendar_cap log_cap",
    "what a handler may append beside what grows with the rollouts alive": "room",
    "lengths of tables": "traj_n group_n calendar_n log_n done_n done_i complete_first complete_n ready_n again_first"
    " again_n tail_first tail_n taken_n held_first held_last engine_n",
    "rollouts alive, and engines that have lost one": "live unsettled",
    "counters": "sequence serial published",
    "engines": "most kv_limited cache",
    "the task": "states turn_limit actions contexts outcomes nodes",
    "draws: numbers a turn, where its latencies and failures begin": "draw_width draw_latency draw_failure tool_shapes",
    "the block and the prompt at hand": "block block_row block_shelf again_prompt again_play again_row again_shelf",
    "scheduling": "rule batch_size width least most_width slots members group needed prompts window by_completion head"
    " running incomplete accepted unconsumed buffered fresh completed",
    "age": "drop bound by_newest drop_running requeue",
    "rounds": "rounds ahead late whatever capped open started settled surplus to_launch to_complete long",
    "learner": "minibatches step_n version step part collecting need part_first wake draining stage colocated sync_mode",
    "what follows before the calendar goes on, for whom, and whose draws are missing": "admitting then who missing",
    "what the caller wants": "learns tells record",
    "beginning and end": "begun starting stopping has_horizon has_controller has_arrivals has_failures",
}


def _fields(sections: dict[str, str], kind: type) -> list[tuple[str, type]]:
    return [(name, kind) for names in sections.values() for name in names.split()]


WORLD = np.dtype([*_fields(_TABLES, np.int64), *_fields(_REALS, np.float64), *_fields(_INTS, np.int64)])
"""Counters, settings and addresses of tables; those that the model's objects have bear the same names."""
