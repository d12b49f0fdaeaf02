"""The suites that ship: they are what the studies did, they fit their time, and `profiler suites` lists them all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from runs import Profiler, on_console

from engines.catalog import Device
from exporters.single_layers import LAYERS
from profiler import listings, nvml
from profiler.errors import ConfigError
from profiler.job import plan as planning
from profiler.job.case import Case
from profiler.job.config import load_config
from profiler.job.plan import estimate_seconds, make_plan
from profiler.nvml import Gpu
from profiler.published import references, tables
from profiler.published.studies import STUDIES
from profiler.tables.writers import print_table

FOLDER = Path(__file__).resolve().parents[3] / "suites"
FILES = sorted(path.name for path in FOLDER.glob("*.yaml"))
SUITES = ("cloud-gpus", "cnn-benchmarks", "convnet-benchmarks", "convnet-layers", "gpu-study", "minibatch-efficiency")


def plan(name: str, device: Device) -> list[Case]:
    return make_plan(load_config(FOLDER / f"{name}.yaml", device), device, hardware="9.0")


@pytest.fixture
def as_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan three processes of each base, as a run has them."""
    monkeypatch.setattr(planning, "BASE_PROCESSES", 3)


def trained(name: str) -> list[Case]:
    """On a GPU, eager in fp32, with or without the search for cuDNN's algorithms: what the study itself measured."""
    return [c for c in plan(name, "cuda") if is_plain(c) and c.pass_ == "training"]


def is_plain(case: Case) -> bool:
    return case.variant in ("eager", "eager-benchmark") and case.precision == "fp32"


def test_every_study_has_its_suites() -> None:
    assert [f"{name}.yaml" for name in SUITES] == FILES
    assert {load_config(FOLDER / file).published for file in FILES} == set(STUDIES)


@pytest.mark.parametrize("study", ["cnn-benchmarks", "cloud-gpus", "convnet-benchmarks"])
def test_the_published_networks_train_at_the_published_batch_size(study: str) -> None:
    published = references.networks(study).select("network", "batch_size").unique()
    assert {(case.model, case.batch_size) for case in trained(study)} == set(published.rows())
    assert {(case.training.head, case.training.optimizer, case.training.dropout) for case in trained(study)} == {
        ("logits", "none", False)
    }


@pytest.mark.parametrize("study", SUITES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_image_has_a_gradient_where_the_study_computed_it(study: str, device: Device) -> None:
    published = load_config(FOLDER / f"{study}.yaml").published
    assert published is not None
    for case in plan(study, device):
        own = case.pass_ == "training" and case.model in STUDIES[published].input_gradient
        assert case.training.input_gradient == own, case.id
        assert str(case.id).endswith("/input_gradient=on") == own


def test_the_layers_are_the_published_ones_at_the_published_batch_size() -> None:
    shapes = references.read("convnet-layer-shapes").select("layer", "batch_size")
    assert {(case.model, case.batch_size) for case in trained("convnet-layers")} == set(shapes.rows())


@pytest.mark.parametrize("name", ["gpu-study", "minibatch-efficiency"])
def test_the_gpu_study_measures_its_networks_forward_and_both_ways(name: str) -> None:
    study = "frameworks" if name == "gpu-study" else "minibatch"
    rows = references.read("studies").filter(source="gpu-study", study=study)
    networks = set(rows["networks"][0].split("; "))
    for pass_ in ("inference", "training"):
        cases = [c for c in plan(name, "cuda") if is_plain(c) and c.pass_ == pass_]
        assert {case.model for case in cases} == networks
        batches = {case.batch_size for case in cases}
        assert batches == ({64} if name == "gpu-study" else {2**n for n in range(10)})


def test_the_published_cpu_rows_stand_beside_ours() -> None:
    published = references.networks("cnn-benchmarks").filter(device="cpu")
    both = {(case.model, case.batch_size) for case in plan("cnn-benchmarks", "cpu")}
    assert len(both & set(published.select("network", "batch_size").rows())) >= 4


@pytest.mark.parametrize("name", SUITES)
def test_on_a_cpu_everything_can_run_within_seven_minutes(name: str, as_a_run: None) -> None:
    cases = plan(name, "cpu")
    lacking = {case.engine for case in cases if case.unsupported}
    assert lacking <= {"jax"}, "all others are always installed"
    budget = load_config(FOLDER / f"{name}.yaml", "cpu").budget
    assert sum(estimate_seconds(case, budget) for case in cases) < 420


def test_the_largest_batch_is_searched_for_a_few_alone() -> None:
    limits = load_config(FOLDER / "minibatch-efficiency.yaml", "cuda").largest_batch
    assert limits is not None
    assert limits.covers("resnet50", "training")
    assert not limits.covers("resnet50", "inference")
    assert not limits.covers("vgg16", "training")


@pytest.mark.parametrize("name", ["cnn-benchmarks", "cloud-gpus", "convnet-benchmarks"])
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_what_stands_for_the_published_library_is_measured_on_every_network(name: str, device: str) -> None:
    cases = [case for case in plan(name, device) if case.pass_ == "training"]
    variant = STUDIES[name].counterpart[0] if device == "cuda" else "eager"
    measured = {case.model for case in cases if (case.variant, case.precision) == (variant, "fp32")}
    assert measured == {case.model for case in cases}


def test_what_stands_for_the_published_library_is_measured_on_every_layer() -> None:
    variant = tables.COUNTERPART[0]
    cases = [case for case in plan("convnet-layers", "cuda") if case.pass_ == "training"]
    assert {case.model for case in cases if case.variant == variant} == set(LAYERS)


def test_on_a_gpu_each_has_few_enough_cases_for_twenty_minutes(as_a_run: None) -> None:
    assert sum(len(plan(name, "cuda")) for name in SUITES) < 470
    budgets = {name: load_config(FOLDER / f"{name}.yaml", "cuda").budget for name in SUITES}
    assert max(sum(estimate_seconds(c, budgets[name]) for c in plan(name, "cuda")) for name in SUITES) < 1000
    # Compiling a deep network's training takes minutes: one suite does.
    trained = {name for name in SUITES for c in plan(name, "cuda") if (c.engine, c.model) == ("compiled", "resnet152")}
    assert trained == {"gpu-study"}


def test_the_gpu_study_compares_frameworks_on_all_seven_networks_in_the_published_precision() -> None:
    ran = Counter((c.engine, c.pass_) for c in plan("gpu-study", "cuda") if c.precision == "fp32")
    assert ran == {
        **{(engine, pass_): 7 for engine in ("eager", "compiled", "jax") for pass_ in ("inference", "training")},
        ("ort", "inference"): 7,
    }


@pytest.mark.parametrize("name", SUITES)
def test_a_suite_teaches_what_it_is_and_how_to_run_it(name: str) -> None:
    text = (FOLDER / f"{name}.yaml").read_text()
    assert f"python -m profiler suites/{name}.yaml" in text
    assert max(map(len, text.splitlines())) <= 120


def listed(device: str, width: int = 120) -> str:
    return on_console(print_table, listings.suites_table(device), width=width)


@pytest.mark.parametrize("width", [120, 80])
def test_the_listing_names_every_suite_its_source_cases_and_time(width: int) -> None:
    text = listed("cpu", width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    for name in SUITES:
        assert f" {name} " in words
    assert "python -m profiler" in words
    assert words.count("Based on") == len(SUITES)
    cases = len(plan("gpu-study", "cpu"))
    (line,) = [line for line in text.splitlines() if "gpu-study " in line]
    assert str(cases) in line.split()


def test_the_listing_is_for_the_device_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "visible_gpus", lambda: [Gpu(0, "GPU-1", "A card", 81_920.0, "580.95", "9.0")])
    assert "Suites on cuda (A card)" in listed("auto")
    monkeypatch.setattr(nvml, "visible_gpus", list)
    assert "Suites on cpu;" in listed("auto")


def test_a_device_that_is_none_and_a_folder_without_suites_are_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="--device gpu: valid: auto, cpu, cuda"):
        listings.suites_table("gpu")
    monkeypatch.setattr(listings, "SUITES", tmp_path)
    with pytest.raises(ConfigError, match="has no suites"):
        listings.read_suites("cpu")


JOB = """
kind: layers
published: convnet-benchmarks
layers: [L4, L5]
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
    assert (folder / "tables" / "conclusions.md").read_text().startswith("# convnet-benchmarks: conclusions")
    page = (folder / "tables" / "published.md").read_text()
    assert page.count("| ▸ mine |") >= 4, "a row in each pass"
    assert "| **63** | 252 | 98 | 11 | 21 | 445 |" in page, "cuda-convnet2's forward, the best in L1"
    assert done.stdout.index("L1 to L5, by pass") < done.stdout.index("Results: ")
    assert "L5, batch 1" not in done.stdout, "its own table would say the same again"
    again = profiler("published", str(folder), "--study", "convnet-benchmarks", "--into", "copy", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "copy" / "published.md").read_text() == page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["published", "nowhere", "--study", "cnn-benchmarks"], "nowhere: there is no such folder"),
        (["published", "nowhere", "--study", "cnn"], "--study: unknown 'cnn'; valid: cnn-benchmarks, "),
        (["job.yaml", "--machine", "lable=H200"], "--machine: unknown key 'lable'; did you mean 'label'?"),
        (["suites", "--device", "gpu"], "--device gpu: valid: auto, cpu, cuda"),
    ],
)
def test_what_cannot_be_used_gives_2_and_one_message(
    profiler: Profiler, tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    done = profiler(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
