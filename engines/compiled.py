"""Run a module through torch.compile, compiled before the session is returned."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics, graph_break_reasons

from engines.base import BuiltAhead, Job, Layer, Mark, Phase, Proof, Unsupported, Warning, ignore
from engines.eager import EagerSession
from engines.eager import deploy as deploy
from engines.layers import median_layers, record
from engines.options import CompiledOptions
from engines.training import LayerStep
from exporters.errors import place_in

_RUNS_UNTIL_REPLAY = 3
"""Compile, record, replay: torch's CUDA-graph trees need a call for each."""
_OVERWRITTEN = "tensor output of CUDAGraphs that has been overwritten"
"""Part of the error of torch's graph trees (torch 2.11)."""
_KEPT = "the model keeps a tensor of an earlier call, which CUDA graphs overwrite"
_EXPLAINED = re.compile(r"(?:Explanation|Hint): (.*)")


def build(job: Job[CompiledOptions]) -> BuiltAhead:
    """Compile into torch's own cache with TORCHINDUCTOR_COMPILE_THREADS threads. Raises the session's errors."""
    torch._inductor.config.compile_threads = int(os.environ["TORCHINDUCTOR_COMPILE_THREADS"])
    CompiledSession(job).close()
    return BuiltAhead(cached=False)


class CompiledSession(EagerSession):
    """An eager session whose module torch.compile has compiled. Raises Unsupported if that compiles nothing."""

    def __init__(self, job: Job[CompiledOptions]) -> None:
        self.keeps_tensor = False
        """True if the module keeps a tensor of its first call, which therefore runs in eager."""
        super().__init__(job)
        self.mode = job.options.mode
        self._compile()
        job.phase(Phase.LOAD)

    def run(self, mark: Mark) -> None:
        self.step(mark)

    def proof(self) -> Proof:
        """Report the compiler's counters, and the types of the operators that it had to compile."""
        breaks = _graph_breaks()
        types, _ = self.operators_seen()
        return replace(
            self.facts(
                types,
                mode=self.mode,
                compiled_graphs=counters["stats"]["unique_graphs"],
                compiled_before=counters["aot_autograd"]["autograd_cache_hit"]
                + counters["inductor"]["fxgraph_cache_hit"],
            ),
            warnings=[Warning("eager-first", _KEPT)] if self.keeps_tensor else None,
            graph_breaks=len(breaks),
            graph_break_reasons=breaks,
            recompilations=_recompilations(),
            cuda_graph_wanted=self._wants_graph,
            cuda_graph=self._wants_graph and _recorded_graphs() > 0,
            cuda_graph_skips=counters["inductor"]["cudagraph_skips"] if self._wants_graph else 0,
        )

    def layers(self) -> list[Layer]:
        """List kernels in running order, including those in replayed graphs; none on the CPU."""
        if self.job.device == "cpu":
            return []
        iterations = record(lambda: self.run(ignore), "cuda").iterations
        return median_layers([[Layer(k.name, "kernel", (), k.ms) for k in i.kernels] for i in iterations])

    @property
    def _wants_graph(self) -> bool:
        return self.job.device == "cuda" and self.mode in ("reduce-overhead", "max-autotune")

    def _compile(self) -> None:
        self.job.phase(Phase.BUILD)
        _forget_compiled()
        compiled: Callable[..., Any] = torch.compile(self.model, mode=self.mode, dynamic=False)

        def next_step(*positional: Any, **keywords: Any) -> Any:
            # Lets the CUDA-graph trees know that the last iteration's outputs may be overwritten.
            torch.compiler.cudagraph_mark_step_begin()
            return compiled(*positional, **keywords)

        self.call = next_step if self._wants_graph else compiled
        if isinstance(self.training, LayerStep):
            self.training.compile_gradients(lambda part: torch.compile(part, mode=self.mode, dynamic=False))
        if self._kept_is_overwritten():
            if self.keeps_tensor or self.job.pass_ == "training":
                raise RuntimeError(
                    f"{_KEPT}: clone it where it is kept, or compile without graphs ({{name: compiled, mode: default}})"
                )
            self._begin_in_eager()
            return
        if counters["stats"]["unique_graphs"] == 0:
            raise Unsupported(f"torch.compile compiled nothing, the model ran in eager: {_why_nothing()}")
        if self.job.device == "cuda":
            torch.cuda.synchronize()

    def _kept_is_overwritten(self) -> bool:
        """Run until the graph is replayed; return True if that overwrites a tensor that the module keeps."""
        try:
            for _ in range(_RUNS_UNTIL_REPLAY):
                self.run(ignore)
        except RuntimeError as error:
            if _OVERWRITTEN not in str(error):
                raise
            return True
        return False

    def _begin_in_eager(self) -> None:
        """Run a fresh module once in eager, then compile it: the tensor that it keeps then lies in no graph."""
        self.keeps_tensor = True
        _forget_compiled()
        self.result = None
        self.inputs.clear()
        del self.model, self.call
        torch.cuda.empty_cache()  # Else the first try's memory would count as slack.
        self._open()
        self._infer(ignore)
        self._compile()


open_session = CompiledSession


def _forget_compiled() -> None:
    """Drop this process's compiled code: torch compiles a function at most eight times."""
    torch._dynamo.reset()
    counters.clear()
    clear_compilation_metrics()


def _graph_breaks() -> tuple[str, ...]:
    """List why torch.compile left the graph; its counters omit branches on a value (torch 2.13)."""
    words = {"generic_jump TensorVariable()": "a branch on a computed value"}
    reasons = [(graph_break.reason.partition("\n")[0], graph_break.user_stack) for graph_break in graph_break_reasons]
    return tuple(dict.fromkeys(f"{words.get(reason, reason)}{place_in(stack)}" for reason, stack in reasons))


def _why_nothing() -> str:
    breaks = [*counters["unimplemented"], *counters["graph_break"]]
    why = (" ".join(_EXPLAINED.findall(reason)[:2]) or reason.partition("\n")[0] for reason in breaks)
    return "; ".join(dict.fromkeys(why)) or "it has no operator to compile"


def _recompilations() -> tuple[str, ...]:
    """List the guards that failed, each like "`self.calls == 0` no longer held"."""
    failed = [metrics.recompile_reason for metrics in get_compilation_metrics() if metrics.recompile_reason]
    return tuple(f"`{reason.partition(': ')[2].partition('  #')[0].strip()}` no longer held" for reason in failed)


def _recorded_graphs() -> int:
    from torch._inductor.cudagraph_trees import get_container

    manager = get_container(torch.cuda.current_device()).tree_manager
    return 0 if manager is None else sum(len(nodes) for nodes in manager.roots.values())
