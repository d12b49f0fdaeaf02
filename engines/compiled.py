"""What enters: a Job. What leaves: a session of torch.compile, compiled before it is returned."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.utils import counters

from engines.base import Job, Mark
from engines.eager import EagerSession

_RUNS_UNTIL_REPLAY = 3
"""Compile and warm up, record, replay: torch's CUDA-graph trees need one call for each."""


def open_session(job: Job) -> CompiledSession:
    """Compile `job`'s model with torch.compile. Raises what the compiler raises."""
    return CompiledSession(job)


class CompiledSession(EagerSession):
    """An eager session whose module goes through torch.compile; compiled before `open_session` returns."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.mode = str(job.options.get("mode", "reduce-overhead"))
        job.phase("build")
        self.call = torch.compile(self.model, mode=self.mode, dynamic=False)
        for _ in range(_RUNS_UNTIL_REPLAY):
            self.run(lambda name: None)
        if job.device == "cuda":
            torch.cuda.synchronize()
        job.phase("load")

    def run(self, mark: Mark) -> None:
        # Tells the CUDA-graph trees that the last iteration's outputs may be overwritten.
        torch.compiler.cudagraph_mark_step_begin()
        self.step(mark)

    def proof(self) -> dict[str, Any]:
        """The compiler's own counters: operators inside a compiled graph cannot be seen by a dispatch mode."""
        if counters["stats"]["unique_graphs"] == 0:
            raise RuntimeError("torch.compile compiled nothing: the model ran in eager")
        wants_graph = self.job.device == "cuda" and self.mode in ("reduce-overhead", "max-autotune")
        return self.facts() | {
            "mode": self.mode,
            "compute_types": self.facts()["weight_types"],
            "compiled_graphs": counters["stats"]["unique_graphs"],
            "graph_breaks": sum(counters["graph_break"].values()),
            "cuda_graph_wanted": wants_graph,
            "cuda_graph": wants_graph and _recorded_graphs() > 0,
            "cuda_graph_skips": counters["inductor"]["cudagraph_skips"] if wants_graph else 0,
        }


def _recorded_graphs() -> int:
    """How many CUDA graphs torch's graph trees hold on the current device."""
    from torch._inductor.cudagraph_trees import get_container

    manager = get_container(torch.cuda.current_device()).tree_manager
    return 0 if manager is None else sum(len(nodes) for nodes in manager.roots.values())
