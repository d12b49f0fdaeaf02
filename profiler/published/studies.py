"""List the published benchmarks: what each is called, which tables it has, and what they show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from engines.catalog import Pass

_COLUMNS = {
    "machine": "GPU",
    "library": "Library",
    "forward_ms": "Forward (ms)",
    "backward_ms": "Backward (ms)",
    "total_ms": "Total (ms)",
}


@dataclass(frozen=True)
class Study:
    """A published benchmark, whose figures are in references/<name>.csv.

    `library`, `called` and `setup` are templates over that file's columns; the first one counts whose columns are all
    there. `{cpu}` is `{gpu}` in the rows of a CPU.
    """

    title: str
    address: str = ""
    """Empty where the source gives none of its own."""
    tables: tuple[str, ...] = ("networks",)
    """Names of profiler.published.tables.TABLES; every study also has its machines and what the images cost."""
    speed_of: str = ""
    """Whose times its overview's column of speeds has."""
    columns: Mapping[str, str] = field(default_factory=lambda: _COLUMNS)
    """Headings of its tables' first columns. `implementation`, where it is one, names the variant, not `library`."""
    passes: tuple[Pass, ...] = ("training",)
    """Training is a forward and a backward pass, inference the forward pass only."""
    batch_size: int | None = None
    """Of all networks; None where each network has that of its published rows."""
    library: tuple[str, ...] = ("{library} {library_version}", "{library}")
    """What a table calls the library."""
    called: tuple[str, ...] = ()
    """What a sentence calls it, if it is not the same."""
    setup: tuple[str, ...] = ()
    """What a sentence calls a machine with its library, if it is not "machine with library"."""
    by_release: bool = False
    """Whether machines are compared each with the newest release that ran a network, not with the fastest library."""
    input_gradient: tuple[str, ...] = ()
    """Networks whose backward pass went on to the gradient of the image."""
    releases_of: str = ""
    """Another study, whose rows the comparison of libraries needs too."""
    counterpart: tuple[str, ...] = ("eager",)
    """The variant of ours, in fp32, that stands for the published library; the next one where a machine lacks it, such
    as a CPU, where there is no cuDNN to search with."""


_CNN_BENCHMARKS = Study(
    "cnn-benchmarks",
    "https://github.com/jcjohnson/cnn-benchmarks",
    columns={**_COLUMNS, "library": "cuDNN"},
    tables=("overview", "networks"),
    speed_of="a Pascal Titan X with cuDNN 5.1",
    library=("{library_version}", "None"),
    called=("cuDNN {library_version}", "Torch without cuDNN"),
    setup=("{gpu} with cuDNN {library_version}", "{cpu}", "{gpu} without cuDNN"),
    by_release=True,
    # Its cuDNN searched for the fastest algorithms: utils.lua of its repository sets cudnn.benchmark.
    counterpart=("eager-benchmark", "eager"),
    # model:backward of its cnn_benchmark.lua, which computes it for every model of which it was not switched off;
    # facebookarchive/fb.resnet.torch did that for its ResNets (models/resnet.lua: model:get(1).gradInput = nil).
    input_gradient=("alexnet", "googlenet-torch", "vgg16", "vgg19"),
)
STUDIES = {
    "cnn-benchmarks": _CNN_BENCHMARKS,
    "cloud-gpus": replace(
        _CNN_BENCHMARKS,
        title="GPU in the Cloud | cnn-benchmarks",
        address="",
        tables=("networks",),
        releases_of="cnn-benchmarks",  # It has no rows of cuDNN 5.0.05 itself.
    ),
    "convnet-benchmarks": Study(
        "convnet-benchmarks",
        "https://github.com/soumith/convnet-benchmarks",
        tables=("networks", "layers"),
        columns={
            "machine": "GPU",
            "library": "Library",
            "implementation": "Class/Function",
            "total_ms": "Time (ms)",
            "forward_ms": "forward (ms)",
            "backward_ms": "backward (ms)",
        },
        library=("{published_library}",),
        # In 2015 Torch's cuDNN had no switch for such a search.
        # updateGradInput of its benchmark.lua; the networks switched it off only in August 2015 (commit d2455f3).
        input_gradient=("alexnet-owt", "overfeat", "vgg11"),
    ),
    "gpu-study": Study(
        "GPU vs Framework vs Network, and Minibatch Efficiency for TensorFlow (Addfor)",
        tables=("frameworks", "minibatch", "overview"),
        columns={"machine": "GPU", "library": "Framework"},
        passes=("training", "inference"),
        batch_size=64,
        library=("TensorFlow {framework_version}, cuDNN {library_version}",),
        # TensorFlow searches unless told otherwise: TF_CUDNN_USE_AUTOTUNE in its tensorflow/core/util/use_cudnn.cc.
        counterpart=("eager-benchmark", "eager"),
    ),
}
"""By the name that a config's `published` and the column `source` have."""
PASSES = {"training": "forward and backward", "inference": "forward"}
"""What the sources call our passes."""
