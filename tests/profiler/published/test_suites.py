"""The suites measure what the published benchmarks did, each beside what a machine of today adds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from runs import Profiler, on_console

from engines.options import Device
from exporters.catalog import LAYERS
from profiler.commands import listings
from profiler.job.case import Case
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.machine import nvml
from profiler.machine.nvml import Gpu
from profiler.published import references
from profiler.published.studies import STUDIES
from profiler.published.times import SEARCHING

FOLDER = Path(__file__).resolve().parents[3] / "suites"
SUITES = ("cloud-gpus", "cnn-benchmarks", "convnet-benchmarks", "convnet-layers", "gpu-study", "minibatch-efficiency")
NETWORKS = SUITES[:3]


def plan(name: str, device: Device) -> list[Case]:
    return make_plan(load_config(FOLDER / f"{name}.yaml", device), device, hardware="9.0")


def plain(name: str, pass_: str = "training") -> set[tuple[str, int]]:
    """Return models and batch sizes of eager in fp32 on a GPU, with or without the search for algorithms."""
    return {
        (case.model, case.batch_size)
        for case in plan(name, "cuda")
        if case.variant in ("eager", "eager-benchmark") and case.precision == "fp32" and case.pass_ == pass_
    }


def test_every_study_has_its_suites() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(SUITES)
    assert {load_config(FOLDER / f"{name}.yaml").published for name in SUITES} == set(STUDIES)
    assert set(references.read("studies")["source"]) == set(STUDIES)


def test_the_published_networks_and_layers_are_measured_at_the_published_batch_sizes() -> None:
    for name in NETWORKS:
        assert plain(name) == set(references.networks(name).select("network", "batch_size").unique().rows())
        trained = [case.training for case in plan(name, "cuda") if case.pass_ == "training"]
        assert {(each.head, each.optimizer, each.dropout) for each in trained} == {("logits", "none", False)}
    shapes = references.read("convnet-layer-shapes").select("layer", "batch_size")
    assert plain("convnet-layers") == set(shapes.rows())
    rows = references.read("studies").filter(source="gpu-study")
    for name, study in (("gpu-study", "frameworks"), ("minibatch-efficiency", "minibatch")):
        networks = rows.filter(study=study)["networks"][0].split("; ")
        sizes = [64] if name == "gpu-study" else [2**n for n in range(10)]
        for pass_ in ("inference", "training"):
            assert plain(name, pass_) == {(network, size) for network in networks for size in sizes}
    on_cpu = set(references.networks("cnn-benchmarks").filter(device="cpu").select("network", "batch_size").rows())
    assert len({(case.model, case.batch_size) for case in plan("cnn-benchmarks", "cpu")} & on_cpu) >= 4


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SUITES)
def test_the_image_has_a_gradient_where_the_study_computed_it(name: str, device: Device) -> None:
    published = load_config(FOLDER / f"{name}.yaml").published
    assert published is not None
    for case in plan(name, device):
        own = case.pass_ == "training" and case.model in STUDIES[published].input_gradient
        assert case.training.input_gradient == own, case.id


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", [*NETWORKS, "convnet-layers"])
def test_what_stands_for_the_published_library_is_measured_everywhere(name: str, device: Device) -> None:
    trained = [case for case in plan(name, device) if case.pass_ == "training"]
    variants = STUDIES[name].counterpart if name in STUDIES else SEARCHING
    variant = variants[0] if device == "cuda" else "eager"
    assert {case.model for case in trained if (case.variant, case.precision) == (variant, "fp32")} == {
        case.model for case in trained
    }
    assert name != "convnet-layers" or {case.model for case in trained} == set(LAYERS)


def test_the_gpu_study_compares_frameworks_on_all_seven_networks() -> None:
    ran = Counter((case.engine, case.pass_) for case in plan("gpu-study", "cuda") if case.precision == "fp32")
    both = {(engine, pass_): 7 for engine in ("eager", "compiled") for pass_ in ("inference", "training")}
    assert ran == {**both, ("ort", "inference"): 7, ("trt", "inference"): 7}
    lacking = {case.engine for name in SUITES for case in plan(name, "cpu") if case.unsupported}
    assert lacking <= {"openvino"}, "all others are always installed"


def test_the_listing_names_every_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(width: int = 120) -> str:
        return on_console(lambda console: listings.list_suites(listings.Suites(), console), width=width)

    monkeypatch.setattr(nvml, "visible_gpus", list)
    for width in (120, 80):
        text = listed(width)
        assert max(map(len, text.splitlines())) <= width
        assert all(f" {name} " in " ".join(text.split()) for name in SUITES)
    monkeypatch.setattr(nvml, "visible_gpus", lambda: [Gpu(0, "GPU-1", "A card", 81_920.0, "580.95", "9.0")])
    assert "A card" in listed()


JOB = """
published: convnet-benchmarks
layers: [L5]
engines: [eager]
passes: [training]
batch_sizes: [1]
device: cpu
machine: {label: mine}
budget: {seconds: 0.05, min_samples: 3}
"""


def test_a_run_with_a_study_ends_with_its_tables(profiler: Profiler, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = profiler("job.yaml", cwd=tmp_path, PROFILER_CACHE=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr
    (folder,) = (tmp_path / "results").iterdir()
    page = (folder / "tables" / "published.md").read_text()
    assert page.count("| ▸ mine |") >= 4, "a row in each pass"
    assert "| **63** | 252 | 98 | 11 | 21 | 445 |" in page, "cuda-convnet2's forward, the best in L1"
    assert done.stdout.index("L1 to L5, by pass") < done.stdout.index("Results: ")
    again = profiler("suites", "show", str(folder), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "L1 to L5, by pass" in again.stdout
    wrong = profiler("suites", "run", "cnn", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
