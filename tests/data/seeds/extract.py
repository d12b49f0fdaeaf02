"""What enters: a folder with the four published documents. What leaves: beside this file, one text for each, with the
document's table lines as they are and, after `figures:`, the figures of its sentences without the sentences; after
`claim:` the words of a statement that has no figure.

    python tests/data/seeds/extract.py FOLDER

FOLDER may also hold cnn-benchmarks' own README.md, whose general conclusions the first document lacks.

The documents are not part of this repository; what tests/test_references.py needs of them is.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
FIGURES = "figures: "
CLAIM = "claim: "
SENTENCE_END = re.compile(r"(?<=\.)\s+")
NAME = re.compile(r"GTX 1080(?: Ti)?|Tesla K40")
"""A name whose digits are no figure."""
NUMBER = re.compile(r"\d|twice|five")


@dataclass(frozen=True)
class Document:
    file: str
    into: str
    source: str
    table_line: re.Pattern[str]
    """A line that is kept whole: a table's header or row, or the heading above a table."""
    figure: re.Pattern[str]
    """What is kept of a sentence."""
    claim: re.Pattern[str]
    """What is kept of a sentence that states something without a figure."""
    until: str | None = None
    """Where to stop reading, if not at the end."""


DOCUMENTS = (
    Document(
        "000_4b885758046c175b.txt",
        "000-cnn-benchmarks.txt",
        "cnn-benchmarks, https://github.com/jcjohnson/cnn-benchmarks (address as document 001 gives it)",
        re.compile(
            r"cnn-benchmarks$|(AlexNet|Inception-V\d|VGG-\d+|ResNet-\d+)$|\(input .*\)$"
            r"|(GPU|Network)[A-Zc].*(Total \(ms\)|Release Date|Citation)$"
            r"|.*\.\d\d\[\d\]$|.*\dGB GDDR.*\d{4}$|.*(None|\d\.\d\.\d\d)(\d+\.\d\d){3}$"
        ),
        re.compile(
            r"(?:Pascal|Maxwell) Titan X|(?:8GB )?GTX 1080(?: Ti)?|dual Intel Xeon [\w-]+ v\d|Intel Core [\w-]+"
            r"|\d+ cores each|\d+ threads|\d+GB RAM|Ubuntu [\d.]+|CUDA [\d.]+ (?:Release Candidate|release)|in Torch"
            r"|(?:minibatch|batch) size of \d+|image size of \d+ x \d+|all but the ResNet-\d+|has only \d+GB"
            r"|cuDNN \d\.\d|not have enough memory"
        ),
        re.compile(r"only benchmark AlexNet using cuDNN"),
    ),
    Document(
        "001_16244cafcd7a0e5e.txt",
        "001-cloud-gpus.txt",
        "GPU in the Cloud | cnn-benchmarks, based on https://github.com/jcjohnson/cnn-benchmarks",
        re.compile(r"\||# |## (?!Citations)|\(input .*\)$"),
        re.compile(
            r"\*\*[^*]+\*\*|twice more memory|less memory|cuDNN\d[\d.]+\d|\b5\.\d\.\d\d\b"
            r"|8GB GTX 1080(?:, M4000 and K520)?|\[ResNet-\d+\]|out of memory|(?:batch|minibatch) size of \d+"
            r"|not have enough memory|in Torch|Ubuntu [\d.]+\d|CUDA [\d.]+ Release Candidate"
        ),
        re.compile(
            r"roughly sorted by performance|previous cuDNN versions run the model|benchmark AlexNet using cuDNN"
        ),
    ),
    Document(
        "002_b635c6aa44b91398.txt",
        "002-convnet-benchmarks.txt",
        "convnet-benchmarks, https://github.com/soumith/convnet-benchmarks",
        re.compile(r"\||Machine: |convnet-benchmarks$|#+ ?(Layer-wise|Spatial|forward|backward|grad)|.* - Input[ :]"),
        re.compile(r"over \d+ runs"),
        re.compile(r"uses a lot of memory|used FFT to calculate|best-performing library for each layer"),
    ),
    Document(
        "003_b8bff5b13a31bdd4.txt",
        "003-gpu-study.txt",
        "study of GPUs, frameworks and networks by Addfor, for a benchmark of NVIDIA's DGX-1 (no address given)",
        re.compile(
            r"GPU vs Framework vs Network$|Minibatch Efficiency for TensorFlow$"
            r"|\s*(AlexNet|GoogleNet|ResNet-50)\s{9,}\S+\s*$"
            r"|(Tesla K40|Titan X \w+|GTX 1080|VGG Network|Residual Network):$"
            r"|(Caffe: commit|Torch7: commit|Nervana Neon:|TensorFlow:) [\w.]+$"
        ),
        re.compile(
            r"\([A-Z][^()]*,[^()]*\)|cuDNN [\d.]+ except for Neon|\d+ samples per minibatch|over \d+ runs|\d+ runs"
            r"|TensorFlow [\d.]+\d|[\d.]+ ms|almost \d+ms more than twice|\d+-sample minibatch|\d+ samples|VGG network"
            r"|Tesla K40|Titan X Pascal|GTX 1080|minibatch size \d+|concave-\w+|all networks|AlexNet and Overfeat"
            r"|\d+ cuda cores|\d+MHz|\d+ ?GB of GDDR\w+|[\d.]+GB/s|(?:Kepler|Maxwell|Pascal) architecture"
            r"|same compute capability|compute capability of [\d.]+\d"
            r"|(?:original price tag of|less than|currently priced at) US\$[\d,.]+\d"
            r"|In 20\d\d|ILSVRC-20\d\d|five convolutional and three fully-connected|from \d+ to \d+ layers|\d+-layer"
            r"|second best|previous edition|[\d.]+%|Overfeat network|VGG Net\b|GoogLeNet|ImageNet test set"
        ),
        re.compile(
            r"Neon(?= offered)|almost always|best results|both Titans and the GTX 1080|worst for the K40"
            r"|Torch(?= consistently)|good results|except when used on modern GPUs and deeper models"
            r"|TensorFlow(?= was the only)|only framework capable of training all networks"
            r"|larger minibatches|less processing time per sample|not always true"
            r"|this particular value of minibatch size|more evident"
            r"|Titan X \w+(?= was considered| maintained)|best (?:cost-effective|consumer grade)"
            r"|\d+-layer(?= CNN| one)|similar accuracy"
        ),
    ),
)
README = Document(
    "README.md",
    "000-readme.txt",
    "README.md of https://github.com/jcjohnson/cnn-benchmarks at 83d441f852134f4a98aa3e665499d9369b6141c9",
    re.compile("# cnn-benchmarks$"),
    re.compile(
        r"\*\*[^*]+\*\*|[Tt]he (?:(?:Pascal|Maxwell) Titan X|GTX 1080)|dual Xeon [\w-]+ v\d|[\d.]+ vs [\d.]+\d"
        r"|ResNet-\d+ is (?:faster than|about the same speed as) VGG-\d+|more accurate than VGG-\d+"
    ),
    re.compile("(?!)"),
    until="All benchmarks were run",
)
"""The README that the first document is a copy of; of it only the general conclusions, which the copy lacks."""


def extract(document: Document, text: str) -> str:
    """The document's table lines and figures, in its order, under a line that names the source."""
    kept = [f"source: {document.source}"]
    for line in (text.split(document.until)[0] if document.until else text).splitlines():
        if document.table_line.match(line):
            kept.append(line)
            continue
        for sentence in SENTENCE_END.split(line):
            found = document.figure.findall(sentence)
            if any(NUMBER.search(NAME.sub("", part)) for part in found):
                kept.append(FIGURES + " | ".join(found))
            if words := document.claim.findall(sentence):
                kept.append(CLAIM + " | ".join(words))
    return "\n".join(kept) + "\n"


def main() -> None:
    folder = Path(sys.argv[1])
    for document in (*DOCUMENTS, README):
        if document is README and not (folder / document.file).is_file():
            continue
        text = (folder / document.file).read_text(encoding="utf-8")
        (HERE / document.into).write_text(extract(document, text), encoding="utf-8")


if __name__ == "__main__":
    main()
