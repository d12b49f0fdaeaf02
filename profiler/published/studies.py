"""List the published benchmarks: their names, tables, and how their figures were taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engines.options import Pass

SEARCHING = ("eager-benchmark", "eager")
"""Counterparts of a published library that searched for the fastest algorithms."""


@dataclass(frozen=True)
class Study:
    """A published benchmark, whose figures are in references/<name>.csv."""

    title: str
    address: str = ""
    """Empty if the source names no address."""
    tables: tuple[str, ...] = ("networks",)
    """Names of profiler.published.tables.TABLES."""
    titles: Mapping[str, str] = field(default_factory=dict)
    """Its title if a single table has rows of ours, by that table."""
    columns: Mapping[str, str] = field(kw_only=True)
    """Headings of its tables' first columns; `implementation`, if present, names the variant."""
    passes: tuple[Pass, ...] = ("training",)
    """Training is a forward and a backward pass, inference the forward pass alone."""
    forward_alone: bool = False
    """Show rows that only infer among the training passes, with a forward time."""
    batch_size: int | None = None
    """Batch size of all networks; None for the sizes of their published rows."""
    by_release: bool = False
    """Represent a machine by the newest release that ran a network, not by its fastest library."""
    input_gradient: tuple[str, ...] = ()
    """Networks whose backward pass went on to the gradient of the image."""
    counterpart: tuple[str, ...] = ("eager",)
    """Variants that stand for the published library in fp32; the first that a machine measured counts."""


_CNN_BENCHMARKS = Study(
    "cnn-benchmarks",
    "https://github.com/jcjohnson/cnn-benchmarks",
    tables=("overview", "networks"),
    columns={
        "machine": "GPU",
        "library": "Library",
        "forward_ms": "Forward (ms)",
        "backward_ms": "Backward (ms)",
        "total_ms": "Total (ms)",
    },
    by_release=True,
    # Its cuDNN searched: utils.lua of its repository sets cudnn.benchmark.
    counterpart=SEARCHING,
    # model:backward of its cnn_benchmark.lua computes it unless the model switches it off, as the ResNets of
    # facebookarchive/fb.resnet.torch do (models/resnet.lua: model:get(1).gradInput = nil).
    input_gradient=("alexnet", "googlenet-torch", "vgg16", "vgg19"),
)
STUDIES = {
    "cnn-benchmarks": _CNN_BENCHMARKS,
    "cloud-gpus": replace(
        _CNN_BENCHMARKS, title="GPU in the Cloud | cnn-benchmarks", address="", tables=("cost", "networks")
    ),
    "convnet-benchmarks": Study(
        "convnet-benchmarks",
        "https://github.com/soumith/convnet-benchmarks",
        tables=("networks", "layers"),
        titles={"layers": "convnet-benchmarks, layer by layer"},
        columns={
            "machine": "GPU",
            "library": "Library",
            "implementation": "Class/Function",
            "total_ms": "Time (ms)",
            "forward_ms": "forward (ms)",
            "backward_ms": "backward (ms)",
        },
        forward_alone=True,
        # No counterpart that searches: in 2015 Torch's cuDNN had no switch for that.
        # Its benchmark.lua calls updateGradInput; the networks switched it off only in August 2015 (commit d2455f3).
        input_gradient=("alexnet-owt", "overfeat", "vgg11"),
    ),
    "gpu-study": Study(
        "GPU vs Framework vs Network, and Minibatch Efficiency for TensorFlow (Addfor)",
        tables=("frameworks", "minibatch", "overview"),
        titles={
            "frameworks": "GPU vs Framework vs Network (Addfor)",
            "minibatch": "Minibatch Efficiency for TensorFlow (Addfor)",
        },
        columns={"machine": "GPU", "library": "Framework"},
        passes=("training", "inference"),
        batch_size=64,
        # TensorFlow searches unless told otherwise: TF_CUDNN_USE_AUTOTUNE in its tensorflow/core/util/use_cudnn.cc.
        counterpart=SEARCHING,
    ),
}
