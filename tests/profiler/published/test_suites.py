"""The suites measure what the published benchmarks did, each beside what a machine of today adds."""

from __future__ import annotations

from pathlib import Path

from runs import finish

from engines.options import Device
from profiler.job.case import Case
from profiler.job.config import load_config
from profiler.job.plan import make_plan
from profiler.published import references
from profiler.published.studies import STUDIES

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


def test_every_study_has_its_suites():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(SUITES)
    assert {load_config(FOLDER / f"{name}.yaml").published for name in SUITES} == set(STUDIES)
    assert set(references.read("studies")["source"]) == set(STUDIES)


def test_the_published_networks_and_layers_are_measured_at_the_published_batch_sizes():
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


def test_a_run_with_a_study_ends_with_its_tables(profiler, tmp_path):
    run = finish(profiler, tmp_path, JOB, PROFILER_CACHE=str(tmp_path / "cache"))
    folder, done = run.folder, run.done
    page = (folder / "tables" / "published.md").read_text()
    assert page.count("| ▸ mine |") >= 4, "a row in each pass"
    assert "| **63** | 252 | 98 | 11 | 21 | 445 |" in page, "cuda-convnet2's forward, the best in L1"
    assert done.stdout.index("L1 to L5, by pass") < done.stdout.index("Results: ")
    again = profiler("suites", "show", str(folder), cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "L1 to L5, by pass" in again.stdout
    wrong = profiler("suites", "run", "cnn", cwd=tmp_path)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
