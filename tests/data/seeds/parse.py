"""What enters: the table lines and figures that extract.py took from the four published documents. What leaves: the
rows that each file of references/ must hold, parsed anew, without a look at those files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

EXTRACTED = Path(__file__).parent
Row = dict[str, str]
FIGURES = "figures: "
CLAIM = "claim: "
NETWORKS = {
    "AlexNet": "alexnet",
    "Inception-V1": "googlenet-torch",
    "VGG-16": "vgg16",
    "VGG-19": "vgg19",
    **{f"ResNet-{depth}": f"resnet{depth}" for depth in (18, 34, 50, 101, 152, 200)},
    "AlexNet (One Weird Trick paper)": "alexnet-owt",
    "Overfeat [fast]": "overfeat",
    "OxfordNet [Model-A]": "vgg11",
    "Overfeat": "overfeat",
    "Oxford VGG": "vgg16",
    "VGG": "vgg16",
    "GoogLeNet": "googlenet",
    "GoogleNet": "googlenet",
    "ResNet-52": "resnet152",
}
LIBRARIES = {"NVidia CuDNN": "cudnn", "Torch-7": "torch", "Theano": "theano", "Caffe": "caffe"}
GPUS = {"Titan-X Maxwell": "Maxwell Titan X", "Titan-X Pascal": "Pascal Titan X", "Quadro M40000": "Quadro M4000"} | {
    "Titan X Maxwell": "Maxwell Titan X",
    "Titan X Pascal": "Pascal Titan X",
    "M4000": "Quadro M4000",
    "K520": "GRID K520",
}
"""The name elsewhere of a GPU that a document calls otherwise."""
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
PASSES = ("forward", "backward", "total")
LAYERS = ("L1", "L2", "L3", "L4", "L5")


def extracted(name: str) -> list[str]:
    """Its lines without the first, which names the source."""
    first, *lines = (EXTRACTED / name).read_text(encoding="utf-8").split("\n")[:-1]
    assert first.startswith("source: ")
    return lines


def figures(lines: Iterable[str]) -> list[list[str]]:
    """What was kept of each sentence."""
    return [line.removeprefix(FIGURES).split(" | ") for line in lines if line.startswith(FIGURES)]


def digits(text: str) -> str:
    """The first number in the text, as it stands there."""
    found = re.search(r"\d+(\.\d+)*", text)
    assert found, text
    return found[0]


def joined(parts: Iterable[str]) -> str:
    """Each of the parts once, in their order."""
    return "; ".join(dict.fromkeys(parts))


def iso_month(text: str) -> str:
    """`August 2016` and `Aug 2016` as 2016-08."""
    name, year = text.split(" ")
    return f"{year}-{MONTHS.index(name[:3]) + 1:02}"


# Documents 000 and 001: ten networks on GPUs of one's own and on rented ones.


def two_decimals(text: str) -> list[str]:
    """`41.2386.91128.14` as its figures, each of which has two digits after its point."""
    found = []
    while text:
        end = text.index(".") + 3
        found.append(text[:end])
        text = text[end:]
    return found


def cells_000(line: str, gpus: list[str]) -> list[str]:
    """GPU, cuDNN, forward, backward, total of a line whose cells stand without anything between them."""
    gpu = max((name for name in gpus if line.startswith(name)), key=len)
    rest = line[len(gpu) :]
    length = len("None") if rest.startswith("None") else len("5.1.05")
    return [gpu, rest[:length], *two_decimals(rest[length:])]


def gpus_000(lines: list[str]) -> list[str]:
    """The GPUs' names, from the sentences on the machines."""
    machines = [parts for parts in figures(lines) if parts[-1].startswith("CUDA")]
    return [part for parts in machines for part in parts if "Titan X" in part or "GTX" in part]


def tables_000() -> Iterator[tuple[str, list[list[str]]]]:
    """Each network's name and the cells of its rows."""
    lines = extracted("000-cnn-benchmarks.txt")
    gpus = [*gpus_000(lines), "CPU: Dual Xeon E5-2630 v3"]
    starts = [index - 1 for index, line in enumerate(lines) if line.startswith("(input ")]
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        assert lines[start + 1] == "(input 16 x 3 x 224 x 224)"
        header = lines.index("GPUcuDNNForward (ms)Backward (ms)Total (ms)", start, stop)
        yield lines[start], [cells_000(line, gpus) for line in lines[header + 1 : stop]]


def pipes(line: str) -> list[str]:
    """The cells of a Markdown row."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def tables_001() -> Iterator[tuple[str, list[list[str]]]]:
    text = "\n".join(extracted("001-cloud-gpus.txt"))
    for section in text.split("\n## ")[1:]:
        network, *lines = section.split("\n")
        assert lines[0] == "(input 16 x 3 x 224 x 224)"
        rows = [pipes(line) for line in lines if line.startswith("|")]
        assert rows[0] == ["GPU", "cuDNN", "Forward (ms)", "Backward (ms)", "Total (ms)"]
        yield network, rows[2:]


def network_times(source: str, tables: Iterable[tuple[str, list[list[str]]]]) -> Iterator[Row]:
    for network, rows in tables:
        for rank, (gpu, cudnn, *times) in enumerate(rows, start=1):
            for pass_, milliseconds in zip(PASSES, times, strict=True):
                yield {
                    "source": source,
                    "network": NETWORKS[network],
                    "published_network": network,
                    "rank": str(rank),
                    "gpu": gpu,
                    "device": "cpu" if gpu[:3] == "CPU" else "cuda",
                    "library": "nn" if cudnn == "None" else "cudnn",
                    "library_version": cudnn.replace("None", ""),
                    "batch_size": "16",
                    "input_shape": "3x224x224",
                    "pass": pass_,
                    "milliseconds": milliseconds,
                }


# Document 002: three networks and five layers in many libraries.


def cell_002(text: str) -> tuple[str, str]:
    """What a cell says, and how it is set."""
    text = text.strip()
    for mark, emphasis in (("**", "bold"), ("_", "italic")):
        inner = text.removeprefix(mark).removesuffix(mark)
        if len(text) - len(inner) == 2 * len(mark):
            return inner, emphasis
    return text, ""


def library_002(library: str, implementation: str) -> Row:
    published = library.strip().replace("_", "")
    name = published.rstrip("* ")
    version = ""
    if name.endswith(")"):
        name, version = name[:-1].split(" (")
    link, url = implementation.strip().strip("_"), ""
    if link.startswith("["):
        link, url = link[1:-1].split("](")
    full = "nn." + link if link == "SpatialConvolutionMM" else link.removesuffix(r"\<Dtype>")
    return {
        "library": LIBRARIES.get(name, name),
        "library_version": version,
        "published_library": published,
        "implementation": full,
        "published_implementation": link,
        "url": url,
    }


def tables_002() -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The heading, the columns, and the cells of each row, missing ones empty; cells are not stripped."""
    heading, columns, rows = "", [], []
    for line in [*extracted("002-convnet-benchmarks.txt"), "end"]:
        if not line.startswith("|"):
            if rows:
                yield heading, columns, rows
            heading, columns, rows = line, [], []
        elif not columns:
            columns = pipes(line)
        elif not line.startswith("|:"):
            cells = line.strip()[1:-1].split("|")
            rows.append(cells + [""] * (len(columns) - len(cells)))


TIME_COLUMNS = {
    "Total Time (ms)": ("total", "total"),
    "Total forward time (ms)": ("total", "forward"),
    "Total backward time (ms)": ("total", "backward"),
}
LAYER_TABLES = {
    "##### forward + backprop (wrt input and weights)": "summary",
    "###### forward": "forward",
    "###### backward (gradInput + gradWeight)": "backward",
    "###### gradInput": "gradInput",
    "###### gradWeights": "gradWeight",
}
TITAN_BLACK = {"gpu": "Titan Black", "device": "cuda"}


def rows_002() -> Iterator[tuple[str, Row, str, str]]:
    """The table's heading, what its row is about, the column and the cell, for each cell with a figure or none."""
    for heading, columns, rows in tables_002():
        assert columns[:2] == ["Original Library", "Class/Function Benchmarked"]
        for rank, (library, implementation, *cells) in enumerate(rows, start=1):
            about = {"source": "convnet-benchmarks", "rank": str(rank), **TITAN_BLACK}
            for column, cell in zip(columns[2:], cells, strict=True):
                yield heading, about | library_002(library, implementation), column, cell


def convnet_networks() -> Iterator[Row]:
    for heading, about, column, cell in rows_002():
        if heading not in LAYER_TABLES:
            network, shape = heading.split(" - Input ")
            batch_size, input_shape = shape.split("x", 1)
            milliseconds, emphasis = cell_002(cell)
            yield about | {
                "network": NETWORKS[network],
                "published_network": network,
                "batch_size": batch_size,
                "input_shape": input_shape,
                "pass": TIME_COLUMNS[column][1],
                "milliseconds": milliseconds,
                "emphasis": emphasis,
            }


def convnet_layers() -> Iterator[Row]:
    for heading, about, column, cell in rows_002():
        if heading not in LAYER_TABLES:
            continue
        if column in ("Peak Memory Formula", "Limitations"):
            assert cell.strip() == ""
            continue
        table = LAYER_TABLES[heading]
        layer, pass_ = TIME_COLUMNS.get(column, (column.replace("Total", "total"), table))
        text, emphasis = cell_002(cell)
        is_number = text.isdigit()
        yield about | {
            "table": table,
            "layer": layer,
            "batch_size": "128",
            "pass": pass_,
            "emphasis": emphasis,
            "milliseconds": text if is_number else "",
            "remark": "" if is_number else text,
            "peak_memory": "",
        }


def layer_shapes() -> Iterator[Row]:
    columns = (
        *("input_height", "input_width", "batch_size", "in_channels", "out_channels"),
        *("kernel_height", "kernel_width", "stride_height", "stride_width"),
    )
    for line in extracted("002-convnet-benchmarks.txt"):
        if line.startswith("* L"):
            numbers = re.findall(r"\d+", line.split(" - ")[1])
            yield {"source": "convnet-benchmarks", "layer": line[2:4]} | dict(zip(columns, numbers, strict=True))


# Document 003, whose figures stand in its sentences.


def section_003(start: str, stop: str | None = None) -> list[list[str]]:
    lines = extracted("003-gpu-study.txt")
    return figures(lines[lines.index(start) : lines.index(stop) if stop else None])


def study_times() -> Iterator[Row]:
    lines = section_003("Minibatch Efficiency for TensorFlow", "Tesla K40:")
    ((gpu, first_time, first_batch, network), (second_time, second_batch)) = (
        parts for parts in lines if any(part.endswith(" ms") for part in parts)
    )
    published = network.removesuffix(" network")
    for batch, milliseconds in ((first_batch, first_time), (second_batch, second_time)):
        yield {
            "source": "gpu-study",
            "study": "minibatch",
            "gpu": gpu,
            "published_gpu": gpu,
            "device": "cuda",
            "framework": "tensorflow",
            "framework_version": digits(lines[0][0]),
            "library": "cudnn",
            "library_version": cudnn_003(),
            "network": NETWORKS[published],
            "published_network": published,
            "batch_size": digits(batch),
            "runs": digits(lines[1][0]),
            "pass": "total",
            "milliseconds": digits(milliseconds),
        }


def cudnn_003() -> str:
    lists = section_003("GPU vs Framework vs Network")[0]
    assert lists[3].endswith(" except for Neon")
    return digits(lists[3])


def release(text: str) -> Row:
    return {"release_month": iso_month(text), "published_release_date": text}


def hardware() -> Iterator[Row]:
    lines = extracted("000-cnn-benchmarks.txt")
    start = lines.index("GPUMemoryArchitectureCUDA CoresFP32 TFLOPSRelease Date")
    for line in lines[start + 1 : start + 5]:
        gpu = max((name for name in gpus_000(lines) if line.startswith(name)), key=len)
        memory, rest = line[len(gpu) :].split("GB ")
        cut = min(rest.index(word) for word in ("Pascal", "Maxwell") if word in rest)
        architecture = re.match("[A-Za-z]+", rest[cut:])[0]
        numbers, month, year = re.fullmatch(r"([\d.]+)(\w+) (\d+)", rest[cut + len(architecture) :]).groups()
        yield {
            "source": "cnn-benchmarks",
            "gpu": gpu,
            "published_gpu": gpu,
            "memory_gb": memory,
            "memory_type": rest[:cut],
            "architecture": architecture,
            "cuda_cores": numbers[:4],
            "fp32_tflops": numbers[4:],
            **release(f"{month} {year}"),
        }
    rows = [pipes(line) for line in extracted("001-cloud-gpus.txt") if line.startswith("|")][:7]
    header = ("GPU", "Cloud", "Instance Name", "Memory", "Architecture", "CUDA Cores", "FP32 TFLOPS", "Release Date")
    assert tuple(rows[0]) == header
    for link, cloud, instance, memory, architecture, cores, tflops, date in rows[2:]:
        gpu, url = link[1:-1].split("](")
        gigabytes, kind = memory.split("GB ")
        yield {
            "source": "cloud-gpus",
            "gpu": gpu,
            "published_gpu": gpu,
            "url": url,
            "cloud": re.sub(r"\[(.+?)\]\(.+?\)", r"\1", cloud),
            "cloud_url": " ".join(re.findall(r"\]\((.+?)\)", cloud)),
            "instance": instance,
            "memory_gb": gigabytes,
            "memory_type": kind,
            "architecture": architecture,
            "cuda_cores": cores,
            "fp32_tflops": tflops,
            **release(date),
        }
    for gpu in ("Tesla K40", "Titan X Maxwell", "GTX 1080", "Titan X Pascal"):
        yield {"source": "gpu-study", "gpu": GPUS.get(gpu, gpu), "published_gpu": gpu, **gpu_003(gpu)}


def gpu_003(name: str) -> Row:
    lines = extracted("003-gpu-study.txt")
    start = lines.index(f"{name}:")
    text = "\n".join(lines[start : start + 4]).partition(f"{name}:")[2]
    text = re.split(r"\n[^|]*:\n", text)[0]
    price = re.search(r"(original|less than|currently).* US\$([\d,.]+)", text)
    architecture = re.search(r"(\w+) architecture", text)
    if "same compute capability | GTX 1080" in text:
        capability = gpu_003("GTX 1080")["compute_capability"]
    else:
        capability = re.search(r"compute capability of ([\d.]+)", text)[1]
    memory = re.search(r"(\d+) ?GB of (\w+)", text)
    return {
        "architecture": architecture[1] if architecture else name.split()[-1],
        "compute_capability": capability,
        "memory_gb": memory[1],
        "memory_type": memory[2],
        "cuda_cores": re.search(r"(\d+) cuda cores", text)[1],
        "base_clock_mhz": re.search(r"(\d+)MHz", text)[1],
        "memory_bandwidth_gb_per_s": re.search(r"([\d.]+)GB/s", text)[1],
        "price_usd": price[2].replace(",", "") if price else "",
        "price_kind": price[1].replace("currently", "current") if price else "",
    }


def machines() -> Iterator[Row]:
    for parts in figures(extracted("000-cnn-benchmarks.txt")):
        if not parts[-1].startswith("CUDA"):
            continue
        host = {"source": "cnn-benchmarks"}
        for part in parts:
            if "Intel" in part:
                host |= {"cpu": part.removeprefix("dual "), "cpus": "2" if part.startswith("dual ") else ""}
            elif "cores each" in part:
                host["cores_per_cpu"] = digits(part)
            elif "threads" in part:
                host["threads"] = digits(part)
            elif "RAM" in part:
                host["memory_gb"] = digits(part)
            elif "Ubuntu" in part:
                host["os"] = part
            elif "CUDA" in part:
                host["cuda"] = part.removeprefix("CUDA ")
        for gpu in parts:
            if "GTX" in gpu or "Titan" in gpu:
                yield host | {"gpu": gpu}
    (system,) = (parts for parts in figures(extracted("001-cloud-gpus.txt")) if parts[0] == "in Torch")
    yield {"source": "cloud-gpus", "os": system[1], "cuda": system[2].removeprefix("CUDA ")}
    (line,) = (line for line in extracted("002-convnet-benchmarks.txt") if line.startswith("Machine: "))
    cpu, gpu, system = re.findall("`(.+?)`", line)
    cores, name, clock = re.fullmatch(r"(\d+)-core (.+) @ ([\d.]+)GHz", cpu).groups()
    yield {
        "source": "convnet-benchmarks",
        "gpu": gpu.removeprefix("NVIDIA "),
        "cpu": name,
        "cores_per_cpu": cores,
        "clock_ghz": clock,
        "os": system,
    }


def networks() -> Iterator[Row]:
    lines = extracted("000-cnn-benchmarks.txt")
    start = lines.index("NetworkLayersTop-1 errorTop-5 errorSpeed (ms)Citation")
    for name, line in zip((name for name, _ in tables_000()), lines[start + 1 : start + 11], strict=True):
        assert line.startswith(name)
        rest, citation = line[len(name) :].removesuffix("]").split("[")
        if "-" in rest:
            layers, rest = rest.split("-")
            top1, (top5, milliseconds) = "", two_decimals(rest)
        else:
            first, top5, milliseconds = two_decimals(rest)
            layers, top1 = first[:-5], first[-5:]
        yield {
            "source": "cnn-benchmarks",
            "network": NETWORKS[name],
            "published_network": name,
            "layers": layers,
            "top1_error_percent": top1,
            "top5_error_percent": top5,
            "milliseconds": milliseconds,
            "citation": citation,
        }
    section = section_003("Titan X Pascal:")[2:]
    parts, ilsvrc, overfeat, vgg, _, vgg_error, inception, inception_error, residual, resnet = section
    words = {"five": 5, "three": 3}
    layers = sum(number for word, number in words.items() if word in parts[1])
    for name, year, error, depths in (
        ("AlexNet", parts[0], ilsvrc[0], [str(layers)]),
        (ilsvrc[1], parts[0], ilsvrc[2], []),
        (ilsvrc[3], "", ilsvrc[4], []),
        (overfeat[1].removesuffix(" network"), overfeat[0], overfeat[2], []),
        (*vgg_error, re.findall(r"\d+", vgg[0])),
        (inception[1], inception[0], inception_error[0], [digits(inception[2])]),
        ("ResNet", residual[0], resnet[0], [digits(resnet[2])]),
    ):
        shallowest, deepest = (*depths, "", "")[:2]
        yield {
            "source": "gpu-study",
            "network": NETWORKS.get(name, ""),
            "published_network": name,
            "year": digits(year) if year else "",
            "layers": shallowest,
            "layers_up_to": deepest,
            "top5_error_percent": error.removesuffix("%"),
        }


def studies() -> Iterator[Row]:
    for source, file, tables in (
        ("cnn-benchmarks", "000-cnn-benchmarks.txt", list(tables_000())),
        ("cloud-gpus", "001-cloud-gpus.txt", list(tables_001())),
    ):
        batches = {digits(line) for line in extracted(file) if line.startswith("(input ")}
        yield {
            "source": source,
            "study": "networks",
            "framework": "torch",
            "batch_size": joined(batches),
            "gpus": joined(cells[0] for _, rows in tables for cells in rows),
            "networks": joined(NETWORKS[name] for name, _ in tables),
            "published_networks": joined(name for name, _ in tables),
        }
    lines = extracted("002-convnet-benchmarks.txt")
    names = [heading.split(" - Input ")[0] for heading, _, _ in tables_002() if " - Input " in heading]
    common = {"source": "convnet-benchmarks", "gpus": "Titan Black"}
    yield common | {
        "study": "networks",
        "networks": joined(NETWORKS[name] for name in names),
        "published_networks": joined(names),
        "runs": digits(figures(lines)[0][0]),
    }
    batches = {row["batch_size"] for row in layer_shapes()}
    yield common | {
        "study": "layers",
        "networks": joined(LAYERS),
        "published_networks": joined(LAYERS),
        "batch_size": joined(batches),
    }
    yield from studies_003()


def studies_003() -> Iterator[Row]:
    (gpus, names, frameworks, _), (batch, runs) = (
        [re.split(r",\s+and |,\s+| and ", part.strip("()")) for part in parts]
        for parts in section_003("GPU vs Framework vs Network")[:2]
    )
    lines = extracted("003-gpu-study.txt")
    released = dict(re.split(": (?:commit )?", line) for line in lines if re.search(r": (commit \w+|[\d.]+)$", line))
    common = {"source": "gpu-study", "gpus": joined(GPUS.get(name, name) for name in gpus), "runs": digits(runs[0])}
    cudnn = {"library": "cudnn", "library_version": cudnn_003()}
    for name in ("Torch", "Caffe", "TensorFlow", "Neon"):
        assert name in frameworks
        (version,) = (released[key] for key in released if name.lower() in key.lower())
        yield common | {
            "study": "frameworks",
            "framework": name.lower(),
            "framework_version": version,
            **({} if name == "Neon" else cudnn),
            "networks": joined(NETWORKS[name] for name in names),
            "published_networks": joined(names),
            "batch_size": digits(batch[0]),
        }
    drawn = [name for line in plots_003() for name in line.split()]
    sweep = section_003("Minibatch Efficiency for TensorFlow")
    yield (
        common
        | cudnn
        | {
            "study": "minibatch",
            "framework": "tensorflow",
            "framework_version": digits(sweep[0][0]),
            "networks": joined(NETWORKS[name] for name in drawn),
            "published_networks": joined(drawn),
            "runs": digits(sweep[1][0]),
        }
    )


# What the documents state.


def claims(lines: Iterable[str]) -> list[list[str]]:
    """What was kept of each statement without a figure."""
    return [line.removeprefix(CLAIM).split(" | ") for line in lines if line.startswith(CLAIM)]


def than(source: str, kind: str, slower: str, what: str, relation: str, limits: Iterable[str] = (), **more: str) -> Row:
    """A statement that `what` is so related to `slower`."""
    low, high = (*limits, "", "")[:2]
    return {
        "source": source,
        "kind": kind,
        "from": GPUS.get(slower, slower),
        "to": GPUS.get(what, what),
        "relation": relation,
        "low": low,
        "high": high,
        "published_from": slower,
        "published_to": what,
        **more,
    }


def fit(source: str, relation: str, networks: Iterable[str], gpu: str, **more: str) -> Row:
    return {
        "source": source,
        "kind": "fit",
        "relation": relation,
        "gpu": GPUS.get(gpu, gpu),
        "published_gpu": gpu,
        "networks": joined(NETWORKS[network] for network in networks),
        "batch_size": "16",
        **more,
    }


def headed(lines: list[str], index: int) -> str:
    """The network under whose heading the line stands."""
    heading = max(number for number, other in enumerate(lines[:index]) if other.startswith("(input ")) - 1
    return lines[heading].removeprefix("## ")


def headed_figures(lines: list[str], failure: str) -> Iterator[tuple[str, list[str]]]:
    """The network under whose heading the document says that memory did not suffice, and what it says."""
    for index, line in enumerate(lines):
        if line.startswith(FIGURES) and line.endswith(failure):
            yield headed(lines, index), figures([line])[0]


def only_with_cudnn(source: str, lines: list[str]) -> Row:
    ((index, network),) = (
        (index, re.search(r"benchmark (\w+) using cuDNN", line)[1])
        for index, line in enumerate(lines)
        if line.endswith("using cuDNN")
    )
    assert headed(lines, index) == network
    return {
        "source": source,
        "kind": "support",
        "relation": "only",
        "networks": NETWORKS[network],
        "library": "cudnn",
    }


def numbers(text: str) -> list[str]:
    return re.findall(r"\d+(?:\.\d+)?", text)


def conclusions() -> Iterator[Row]:
    yield from conclusions_readme()
    yield from conclusions_000()
    yield from conclusions_001()
    yield from conclusions_002()
    yield from conclusions_003()


def conclusions_readme() -> Iterator[Row]:
    """What the README says whose copy document 000 is: the copy has only the heading of its conclusions."""
    titan, gtx, networks, library, cpu = figures(extracted("000-readme.txt"))
    source = "cnn-benchmarks"
    for what, *pairs in (titan[1:], gtx[1:]):
        for limits, other in zip(pairs[::2], pairs[1::2], strict=True):
            yield than(source, "speed", other[4:], what[4:], "faster", numbers(limits))
    relations = {"faster than": "faster", "about the same speed as": "equal"}
    for speed, accuracy, errors in (networks[1:4], networks[4:7]):
        what, relation, other = re.fullmatch(r"(.+) is (.+) (VGG-\d+)", speed).groups()
        yield between_networks(source, "network_speed", other, what, relations[relation])
        low, high = errors.split(" vs ")
        yield between_networks(source, "accuracy", accuracy.split()[-1], what, "more", (low, high))
    for gpu, limits in zip(library[1::2], library[2::2], strict=True):
        more = {"gpu": gpu[4:], "published_gpu": gpu[4:]}
        yield than(source, "speed", "nn", "cudnn", "faster", numbers(limits), **more)
    name = cpu[3].removeprefix("dual ")
    yield than(source, "speed", name, cpu[1][4:], "faster", numbers(cpu[2])) | {"from": f"CPU: Dual {name}"}


def between_networks(source: str, kind: str, other: str, what: str, relation: str, limits: Iterable[str] = ()) -> Row:
    return than(source, kind, other, what, relation, limits) | {"from": NETWORKS[other], "to": NETWORKS[what]}


def conclusions_000() -> Iterator[Row]:
    lines, source = extracted("000-cnn-benchmarks.txt"), "cnn-benchmarks"
    ((_, _, besides, gpu, _),) = (parts for parts in figures(lines) if parts[0].startswith("minibatch size"))
    names = [name for name, _ in tables_000() if name != besides.removeprefix("all but the ")]
    assert len(names) == 9
    yield fit(source, "fits", names, gpu)
    yield only_with_cudnn(source, lines)
    ((network, parts),) = headed_figures(lines, "not have enough memory")
    yield fit(source, "out of memory", [network], parts[1].removeprefix("8GB "))


def conclusions_001() -> Iterator[Row]:
    lines = extracted("001-cloud-gpus.txt")
    source, compared = "cloud-gpus", ("", "")
    assert claims(lines)[:2] == [["roughly sorted by performance"], ["previous cuDNN versions run the model"]]
    gpus = [row["gpu"] for row in hardware() if row["source"] == source]
    yield {"source": source, "kind": "order", "relation": "faster", "gpu": joined(gpus), "remark": "roughly"}
    for parts in figures(lines):
        title = re.fullmatch(r"\*\*(.+) (==|>) (.+)\*\*", parts[0])
        if title:
            compared = what, other = title[1], title[3]
            limits = numbers(parts[1]) if len(parts) > 1 else []
            yield than(source, "speed", other, what, "equal" if title[2] == "==" else "faster", limits)
            if "less memory" in parts:
                yield than(source, "memory", other, what, "less")
        elif parts == ["twice more memory"]:
            yield than(source, "memory", compared[1], compared[0], "more", ("2", "2"))
        elif parts[0] == "**Prefer latest cuDNN**":
            for newer, older in pairwise(parts[1:]):
                row = than(source, "speed", older, newer, "faster")
                yield row | {"from": f"cudnn {digits(older)}", "to": f"cudnn {digits(newer)}"}
        elif parts[-1].startswith("[ResNet"):
            cudnn, gpu, network = parts
            before = {"library": "cudnn", "library_version": f"before {digits(cudnn)}"}
            yield fit(source, "fits", [network.strip("[]")], gpu.removeprefix("8GB "), **before)
    for network, (cudnn, gpu, _) in headed_figures(lines, "out of memory"):
        version = {"library": "cudnn", "library_version": digits(cudnn)}
        yield fit(source, "out of memory", [network], gpu.removeprefix("8GB "), **version)
    for network, (_, gpus, _) in headed_figures(lines, "not have enough memory"):
        for gpu in re.split(", | and ", gpus.removeprefix("8GB ")):
            yield fit(source, "out of memory", [network], gpu)
    yield only_with_cudnn(source, lines)


LIBRARY = ("library", "library_version", "implementation")


def conclusions_002() -> Iterator[Row]:
    """Which library is bold in which tables, what the best of each layer add up to, and what one costs."""
    source, bold = "convnet-benchmarks", {}
    for row in (*convnet_networks(), *convnet_layers()):
        if row["emphasis"] == "bold":
            key = (row.get("network") or "all layers", *(row[name] for name in LIBRARY))
            bold.setdefault(key, []).append(row["pass"])
    for (of, *library), passes in bold.items():
        which = {"networks": of} if of in NETWORKS.values() else {"layer": "all"}
        named = dict(zip(LIBRARY, library, strict=True))
        yield {"source": source, "kind": "best", "relation": "best", "pass": joined(passes), **which, **named}
    (fft,), (memory,), _ = claims(extracted("002-convnet-benchmarks.txt"))
    assert (fft, memory) == ("used FFT to calculate", "uses a lot of memory")
    marked = next(row for row in convnet_layers() if row["published_library"].endswith(")***"))
    named = {name: marked[name] for name in LIBRARY}
    yield {"source": source, "kind": "memory_use", "relation": "more", "layer": "all", "remark": "a lot", **named}
    sums = {
        row["pass"]: row["milliseconds"]
        for row in convnet_layers()
        if row["library"] == "cherry-picking" and row["layer"] == "total"
    }
    for pass_, ms in sums.items():
        about = {"source": source, "kind": "best_per_layer", "relation": "sum", "layer": "all"}
        yield about | {"pass": pass_, "low": ms, "high": ms}


def conclusions_003() -> Iterator[Row]:
    source, stated = "gpu-study", claims(section_lines_003())
    neon, torch, tensorflow, larger, always, evident, *best, alike = stated
    gpus = [row for row in hardware() if row["source"] == source]
    everywhere = {"gpu": joined(row["gpu"] for row in gpus)}
    frameworks = {"source": source, "kind": "framework", "networks": "all"}
    newer = joined(row["gpu"] for row in gpus if row["gpu"].endswith("Titan X") or row["gpu"] == "GTX 1080")
    assert (neon[1:], torch[1]) == (
        ["almost always", "best results", "both Titans and the GTX 1080", "worst for the K40"],
        "good results",
    )
    yield frameworks | {"framework": neon[0].lower(), "relation": "best", "gpu": newer, "remark": neon[1]}
    yield frameworks | {"framework": neon[0].lower(), "relation": "worst", "gpu": gpus[0]["gpu"]}
    yield frameworks | {"framework": torch[0].lower(), "relation": "good", **everywhere, "remark": torch[2]}
    assert tensorflow[1] == "only framework capable of training all networks"
    yield frameworks | {"framework": tensorflow[0].lower(), "relation": "only fits", **everywhere, "pass": "total"}
    assert larger == ["larger minibatches", "less processing time per sample"]
    yield {"source": source, "kind": "time_per_sample", "relation": "less", "networks": "all", "remark": always[0]}
    yield from sweeps_003(evident)
    for (gpu, what), kind in zip(best, ("cost", "consumer"), strict=True):
        assert what == {"cost": "best cost-effective", "consumer": "best consumer grade"}[kind]
        row = {"source": source, "kind": "best_gpu", "relation": what.removeprefix("best ")}
        yield row | {"gpu": GPUS[gpu], "published_gpu": gpu}
    deep, similar, shallow = alike
    assert similar == "similar accuracy"
    names = [f"VGG-{digits(layers)}" for layers in (shallow, deep)]
    yield between_networks(source, "accuracy", *names, "equal") | {
        "published_from": shallow,
        "published_to": deep,
    }


def section_lines_003() -> list[str]:
    lines = extracted("003-gpu-study.txt")
    return lines[lines.index(plots_003()[-1]) :]


def sweeps_003(evident: list[str]) -> Iterator[Row]:
    first, second, excess, curves = section_003(plots_003()[-1], "Tesla K40:")
    source, excess_ms = "gpu-study", digits(excess[0])
    yield {
        "source": source,
        "kind": "ms_above_twice",
        "relation": "more",
        "low": excess_ms,
        "high": excess_ms,
        "from": f"batch {digits(first[2])}",
        "to": f"batch {digits(second[1])}",
        "published_from": first[2],
        "published_to": second[1],
        "gpu": first[0],
        "published_gpu": first[0],
        "networks": NETWORKS[first[3].removesuffix(" network")],
    }
    kepler, down, everything, batch, pascal, up, some = curves
    for gpu, curve, names in (
        (kepler, down, "all" if everything == "all networks" else ""),
        (pascal, up, joined(NETWORKS[name] for name in some.split(" and "))),
    ):
        yield {
            "source": source,
            "kind": "curvature",
            "relation": curve,
            "gpu": GPUS.get(gpu, gpu),
            "published_gpu": gpu,
            "networks": names,
            "batch_size": digits(batch),
        }
    assert evident == ["this particular value of minibatch size", "more evident"]
    yield {"source": source, "kind": "curvature", "relation": "most", "networks": "all", "batch_size": digits(batch)}


def plots_003() -> list[str]:
    """The lines with the names of the networks whose curves were drawn."""
    return [line for line in extracted("003-gpu-study.txt") if re.fullmatch(r"\s*[\w-]+\s{9,}[\w-]+", line)]


PARSED = {
    "cnn-benchmarks.csv": lambda: network_times("cnn-benchmarks", tables_000()),
    "cloud-gpus.csv": lambda: network_times("cloud-gpus", tables_001()),
    "convnet-benchmarks.csv": convnet_networks,
    "convnet-layers.csv": convnet_layers,
    "convnet-layer-shapes.csv": layer_shapes,
    "gpu-study.csv": study_times,
    "hardware.csv": hardware,
    "machines.csv": machines,
    "networks.csv": networks,
    "studies.csv": studies,
    "conclusions.csv": conclusions,
}
