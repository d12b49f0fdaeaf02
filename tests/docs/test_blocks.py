"""Every code block of README and docs is run: jobs are read here, Python of other pages in the tests that are named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from exporters.dataset import item_order, with_dataset
from exporters.inputs import dimensions_of, input_specs, stored
from exporters.source import ModelSource, TensorSpec
from profiler.job.config import Config, config_of

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
ELSEWHERE = {
    ("README.md", "python"): "tests/profiler/test_measure.py",
    ("api.md", "py"): "tests/profiler/test_measure.py",
    ("api.md", "python"): "tests/docs/test_examples.py",
    ("api.md", "text"): "tests/docs/test_examples.py",
    ("config.md", "python"): "tests/docs/test_blocks.py",
    ("extending.md", "python"): "tests/engines/test_new_engine.py",
}
"""Tests of blocks by page and language."""
BLOCKS = [(page.name, language, code) for page in PAGES for language, code in BLOCK.findall(page.read_text())]
JOBS = [(page, code) for page, language, code in BLOCKS if language == "yaml"]
FILE = re.compile(r"[\w.]+\.(?:npz|onnx|pt|safetensors)")


def test_each_block_is_run_by_a_test():
    left = {(page, language) for page, language, _ in BLOCKS if language != "yaml"} - {("config.md", "py")}
    assert left == ELSEWHERE.keys()
    for (page, _), test in ELSEWHERE.items():
        assert page in (ROOT / test).read_text()


@pytest.mark.parametrize(("page", "code"), JOBS, ids=[page for page, _ in JOBS])
def test_a_job_of_a_page_is_one(page, code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in FILE.findall(code):
        Path(name).touch()
    for folder in re.findall(r"(?:calibration|data): (\w+)/", code):
        Path(folder).mkdir()
        np.save(Path(folder, "0.npy"), np.zeros(1))
    own: dict[str, Any] = yaml.safe_load(code)
    usual = {"engines": ["eager"], **({} if "layers" in own else {"models": ["resnet18"]})}
    config = config_of({**usual, **own})
    assert isinstance(config, Config)
    assert own.keys() <= config.model_fields_set


def test_the_workflow_gives_the_action_what_it_needs():
    (job,) = yaml.safe_load((ROOT / "examples/gate.yml").read_text())["jobs"].values()
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (place,) = (place for place, step in enumerate(job["steps"]) if step["uses"].startswith("./"))
    step = job["steps"][place]
    assert step["with"].keys() <= action["inputs"].keys()
    assert step["uses"][2:] in {step["with"].get("path") for step in job["steps"][:place]}, "it is checked out"
    assert step["with"]["model"] + " --against" in (ROOT / "README.md").read_text(), "it needs no --input"


def test_the_factory_of_the_page_has_its_inputs(tmp_path, monkeypatch):
    (code,) = (code for page, language, code in BLOCKS if (page, language) == ("config.md", "py"))
    head = "import torch\n\nclass Encoder(torch.nn.Module):\n    def forward(self, ids, mask): return ids\n\n"
    (tmp_path / "page_factory.py").write_text(head + code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PROFILER_CACHE", str(tmp_path / "cache"))
    source = ModelSource("encoder", factory="page_factory:encoder")
    assert dimensions_of(source) == ["sequence"]
    assert [(spec.name, spec.at(2)) for spec in input_specs(source)] == [("ids", (2, 128)), ("mask", (2, 128))]


def test_the_tokens_of_the_page_are_data(tmp_path, monkeypatch):
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    (code,) = (code for page, language, code in BLOCKS if (page, language) == ("config.md", "python"))
    monkeypatch.chdir(tmp_path)
    words = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "good": 2}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]")
    exec(code, {"np": np, "tokenizer": tokenizer, "texts": ["a good film", "long"], "labels": [1, 0]})
    specs = [TensorSpec(name, ("batch", 128), "int64") for name in ("input_ids", "attention_mask")]
    (ids, mask), labels = with_dataset(ModelSource("mine", data="reviews.npz"), specs)
    order = item_order(2)
    assert stored(ids.data)[order.argsort()][:, :4].tolist() == [[1, 2, 1, 0], [1, 0, 0, 0]]
    assert stored(mask.data).sum() == 4 and stored(labels)[order.argsort()].tolist() == [1, 0]
