"""Files that are no job, what is said of each, and what may be said of any."""

from __future__ import annotations

import json
import os
from pathlib import Path

from exporters.bounds import MOST_CASES
from profiler.job.config import Config
from profiler.job.plan import make_plan

HEAD = "models: [alexnet]\nengines: [eager]\n"
LONG = "n" * 300


def bomb(first: str, more: str, levels: int = 9) -> str:
    """Ten aliases of ten aliases of …; `first` is the innermost, `more` what holds the aliases of a level."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{n}: &a{n} {more.format(', '.join([f'*a{n - 1}'] * 10))}" for n in range(1, levels)]
    return "\n".join(lines) + "\n" + HEAD


def entry(keys: str) -> str:
    return f"engines: [eager]\nmodels: [{{{keys}}}]\n"


def model(keys: str) -> str:
    return entry(f"name: x, factory: 'a:b', {keys}")


def deep(levels: int, opens: str = "[", closes: str = "]") -> str:
    return HEAD + f"batch_sizes: {opens * levels}{closes * levels}\n"


ODD = {
    "alias bomb of lists": (bomb("[x, x]", "[{}]"), "aliases counted"),
    "alias bomb of batch sizes": (bomb("[1, 2]", "[{}]") + "batch_sizes: *a8\n", "aliases counted"),
    "alias bomb of merged keys": (bomb("{x: 1}", "{{<<: [{}]}}"), "aliases counted"),
    "a list in itself": (HEAD + "batch_sizes: &a [*a]\n", ":3: .*an alias in what it stands for"),
    "keys in themselves": (HEAD + "budget: &a {seconds: *a}\n", ":3: .*an alias in what it stands for"),
    "a merge of itself": (HEAD + "budget: &a {<<: *a}\n", ":3: .*an alias in what it stands for"),
    "a job in itself": ("&a\n" + HEAD + "suite: *a\n", "an alias in what it stands for"),
    "inputs in themselves": (model("inputs: &a {q: *a}"), "an alias in what it stands for"),
    "a block in itself": (HEAD + "cpu: &a {cpu: *a}\n", "an alias in what it stands for"),
    "3,000 lists": (deep(3000), "more than 50 levels"),
    "3,000 keys": (HEAD + "budget: " + "{a: " * 3000 + "1" + "}" * 3000 + "\n", "more than 50 levels"),
    "a million brackets": ("[" * 1_000_000, "more than 50 levels"),
    "100,000 dashes": ("- " * 100_000, "more than 50 levels"),
    "100,000 question marks": ("? " * 100_000, "more than 50 levels"),
    "100,000 batch sizes": (HEAD + f"batch_sizes: {list(range(1, 100_001))}\n", "more than 10,000 values"),
    "3,000 batch sizes": (HEAD + f"batch_sizes: {list(range(1, 3001))}\n", "batch_sizes: must have fewer"),
    "5,000 conditions": (HEAD + "exclude:\n" + "  - {batch_size: 1}\n" * 2500, "exclude: must have fewer"),
    "4,000 unknown keys": (HEAD + "".join(f"zz{n}: 1\n" for n in range(4000)), "\nand 3,990 more of them$"),
    "2 MB": (HEAD + "# " + "x" * 2_000_000, "larger than 1 MiB"),
    "a million replicates": (HEAD + "replicates: 1000000\n", ":3: replicates: must be less"),
    "a product of axes": (
        model("inputs: {a: {shape: [batch, s, t]}}, shapes: {s: %s, t: %s}" % ((list(range(1, 401)),) * 2)),
        f"160,000 cases, while a run has {MOST_CASES:,}",
    ),
    "rounds of a product": (HEAD + f"batch_sizes: {list(range(1, 1001))}\nreplicates: 101\n", "101,000 cases"),
    "a batch of 10^30": (HEAD + f"batch_sizes: [{10**30}]\n", r":3: .*is larger than 2\^64"),
    "a batch of 2^63": (HEAD + f"batch_sizes: [1, {2**63}]\n", r"batch_sizes\[1\]: must be less"),
    "a batch of 2^31": (HEAD + f"batch_sizes: [{2**31}]\n", "batch_sizes.0.: must be less"),
    "5,000 digits": (HEAD + f"batch_sizes: [1{'0' * 5000}]\n", ":3: '1000.* is no whole number"),
    "5,000 digits of base 16": (HEAD + f"batch_sizes: [0x{'f' * 5000}]\n", r":3: .*is larger than 2\^64"),
    "an infinite price": (HEAD + "machine: {usd_per_hour: .inf}\n", "':?.inf' must be finite"),
    "no number for a price": (HEAD + "machine: {usd_per_hour: .nan}\n", "must be finite"),
    "a price in words": (HEAD + "machine: {usd_per_hour: 'inf'}\n", "usd_per_hour: must be less"),
    "a price in other words": (HEAD + "machine: {usd_per_hour: 'nan'}\n", "usd_per_hour: must be"),
    "a price of 10^300": (HEAD + "machine: {usd_per_hour: 1.0e+300}\n", "usd_per_hour: must be less"),
    "endless seconds": (HEAD + "budget: {seconds: 'Infinity'}\n", "budget.seconds: must be less"),
    "an endless timeout": (HEAD + "budget: {build_timeout: 1e999}\n", "budget.build_timeout: must be less"),
    "endless repeats": (HEAD + "budget: {repeats: 1e999}\n", "budget.repeats: must be less"),
    "10^18 samples": (HEAD + f"budget: {{max_samples: {10**18}}}\n", "budget.max_samples: must be less"),
    "2^63 threads": (
        "models: [alexnet]\nengines: [{name: ort, label: l, threads: 9223372036854775808}]\n",
        "threads: must be from",
    ),
    "an input of 2^40": (model(f"input: [{2**40}]"), "input.0.: must be less"),
    "a size of 2^40": (model(f"inputs: {{a: {{shape: [batch, {2**40}]}}}}"), "must be sizes"),
    "a dimension of 2^40": (model(f"inputs: {{a: {{shape: [batch, s]}}}}, dimensions: {{s: {2**40}}}"), "must be less"),
    "a shape of 2^40": (model(f"inputs: {{a: {{shape: [batch, s]}}}}, shapes: {{s: [{2**40}]}}"), "must be less"),
    "a layer of 2^40": (
        "kind: layers\nengines: [eager]\nlayers: [{name: l, linear: {in_features: 1099511627776, out_features: 2}}]\n",
        "in_features: must be less",
    ),
    "a GPU of 5,000 digits": (HEAD + f"device: cuda:{'9' * 5000}\n", "is no device"),
    "a key of base 16": (HEAD + "0x10: 1\n", ":3: "),
    "keys of base 16 and 10": (model("input: [3], options: {a: {0x10: 1, 16: 2}}"), "'16' is given twice"),
    "a key of base 60": (HEAD + "1:30: 1\n", ":3: unknown key '1:30'"),
    "a batch of base 60": (HEAD + "batch_sizes: [1:30]\n", "must be a whole number, got '1:30'"),
    "a list as a key": (HEAD + "? [1]\n: 1\n", ":3: a key must be a text"),
    "a key that is nothing": (HEAD + "~: 1\n", ":3: a key must be a text"),
    "a key that is true": (model("input: [3], options: {on: 1}"), "a key must be a text"),
    "Python's objects": (HEAD + "suite: !!python/object/apply:os.system [id]\n", ":3: nothing in a job has the tag"),
    "a set": (HEAD + "batch_sizes: !!set {1, 2}\n", ":3: nothing in a job has the tag"),
    "bytes": (HEAD + "suite: !!binary aGk=\n", ":3: nothing in a job has the tag"),
    "a day that there is not": (HEAD + "suite: !!timestamp 2020-13-45\n", ":3: nothing in a job has the tag"),
    "a tag of one's own": (HEAD + "suite: !mine x\n", ":3: nothing in a job has the tag"),
    "no number": (HEAD + "batch_sizes: [!!int abc]\n", ":3: 'abc' is no whole number"),
    "an empty number": (HEAD + "batch_sizes: [!!int '']\n", ":3: '' is no whole number"),
    "neither true nor false": (HEAD + "energy: !!bool perhaps\n", ":3: 'perhaps' is no true or false"),
    "NUL in a name": (HEAD + 'suite: "a\\0b"\n', ":3: .*control character"),
    "a colour in a name": (HEAD + 'suite: "\\e[31m"\n', ":3: .*control character"),
    "half a pair in a name": (HEAD + 'suite: "\\ud800"\n', ":3: .*surrogate"),
    "NUL in a path": (HEAD + 'output: "a\\0b"\n', ":3: .*control character"),
    "a line break in a label": (HEAD + 'machine: {label: "a\\nb"}\n', "line break"),
    "a name of 300 bytes": (entry(f"name: {LONG}, network: alexnet"), "300 bytes long"),
    "a name of 150 letters": (entry(f"name: {'ü' * 150}, network: alexnet"), "300 bytes"),
    "a label of 300 bytes": (f"models: [alexnet]\nengines: [{{name: ort, label: {LONG}, threads: 1}}]\n", "300 bytes"),
    "a suite of 300 bytes": (HEAD + f"suite: {LONG}\n", "300 bytes"),
    "a folder of 300 bytes": (HEAD + f"output: {LONG}\n", ":3: output: .*too long"),
    "a path of 6,000 bytes": (HEAD + f"output: {'n/' * 3000}\n", ":3: output: .*too long"),
    "imports from a long folder": (HEAD + f"import_from: [{LONG}]\n", "too long"),
    "weights in a long file": (entry(f"name: alexnet, weights: {LONG}"), "too long"),
    "an ONNX file's long name": (entry(f"name: x, onnx: {LONG}"), "too long"),
    "an input's long file": (model(f"inputs: {{a: {{data: {LONG}}}}}"), "holds no arrays"),
    "a library's long folder": (entry(f"name: x, network: 'hf:{LONG}'"), "too long"),
    "imports from a loop": (HEAD + "import_from: [loop]\n", "loop"),
    "results into a loop": (HEAD + "output: loop\n", "loop"),
    "weights in a pipe": (entry("name: alexnet, weights: pipe"), "no file"),
    "inputs in a pipe": (model("inputs: {a: {data: pipe}}"), "no file"),
    "inputs from a device": (model("inputs: {a: {data: /dev/zero}}"), "no file"),
}


def odd_folder(folder: Path) -> Path:
    """The folder, with a link that leads to itself, a pipe, and a folder with a file's name."""
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    (folder / "folder.yaml").mkdir()
    return folder


def check(config: Config) -> None:
    """Do what a run does with its job, without the run: make ids, write it, read it."""
    for case in make_plan(config, "cpu"):
        assert len(os.fsencode(case.id.file_name)) <= 180, case.id
    json.dumps(config.model_dump(mode="json"), allow_nan=False)


def is_fit(text: str) -> bool:
    """Return True if a terminal can print it: a few lines of moderate length."""
    lines = text.split("\n")
    return len(lines) <= 11 and all(line.isprintable() and len(line) < 1500 for line in lines)
