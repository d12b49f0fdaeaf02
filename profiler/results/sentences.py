"""Say in sentences what results show: of each group which configuration is fastest, and what a batch sweep found."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from engines.base import Warning
from profiler.job.case import Budget, Role, setting_words
from profiler.results import batch_sweeps
from profiler.results.batch_sweeps import DOWN, FAMILY, KNEE_SHARE, UP
from profiler.results.reading import Frame
from profiler.results.replicates import OK, OUT_OF_MEMORY, measured, without_probes
from profiler.results.warning_kinds import (
    KINDS,
    disturbances,
    disturbed,
    is_remeasured,
    kinds_first_taken,
    was_disturbed,
    without_factor,
)
from profiler.stats.ratios import Verdict, outlook
from profiler.tables import numbers
from profiler.tables.numbers import compact, count, counted, decimals, listed, percent, products, significant, times

Row = Mapping[str, Any]
Repeated = tuple[Collection[str], str]
"""The ids of the cases that a run measured again, and why others were not; empty where it did not begin."""
NOT_REPEATED: Repeated = ((), "")
ROUGH_SECONDS = 0.3
"""Sampling for so long, as with --quick, gives rough figures."""
_RESERVE = 1.5
"""How many times more samples to aim at than are needed: another run may be slower."""
_MOST_FAILURES = 4
_REASON_CHARACTERS = 140
WITHIN_PROCESS = "Intervals cover noise within one process only; `replicates: 3` covers run-to-run noise."
RANKED = "A row whose latency and items/s contradict each other (inconsistent) is ranked by the slower of the two."
"""Where a row is called the fastest, or rows are in that order."""
FIRST_CALL = (
    "First call: what the first request of a new shape waits for, in a process that has served the smaller ones; one "
    "sample. The smallest shape has none: its first call is part of the set-up."
)
"""Below tables with the column `first_call_ms`."""


def title(key: Row) -> str:
    """A group's, like "resnet50, training, batch 16, optimizer sgd", or "mine (resnet50), inference, batch 1, against
    theirs" of a network by another name that has a reference."""
    network = "" if key["network"] in (None, key["model"]) else f" ({key['network']})"
    against = [f"against {key['reference_model']}"] if key["reference_model"] else []
    words = [key["model"] + network, key["pass"], f"batch {key['batch_size']}", *setting_words(key["setting"])]
    return ", ".join([*words, *against])


def rough(sampling_seconds: Iterable[float | None]) -> str | None:
    """That figures are rough, of runs whose cases were sampled for so long, as far as that is known; else None."""
    short = [seconds for seconds in sampling_seconds if seconds is not None and seconds <= ROUGH_SECONDS]
    if not short:
        return None
    how = f"cases were sampled for {compact(max(short))} s (`budget.seconds`)"
    return f"Rough figures: {how}. Before you decide, measure for longer."


def sampling(sampled: float | None, needs: Sequence[tuple[float, int]] = ()) -> str:
    """The options of a longer run than one of so many seconds a case, where some had fewer samples than they need."""
    before = sampled or Budget().seconds
    factors = [need / had for had, need in needs if had]
    seconds = math.ceil(max(Budget().seconds, before, *(_RESERVE * before * factor for factor in factors)))
    return f"--seconds {seconds}{f' --min-samples {max(need for _, need in needs)}' if needs else ''}"


def doubtful_roofs(disturbances: Mapping[str, str | None]) -> str | None:
    """What lowered the machine's measured roofs, by run or machine, and what follows; None where nothing is known to.

    Like "The measured peak and bandwidth may be too low, so no share of the peak is given: while they were measured,
    other processes took 70 % of 2 processors."
    """
    found = {label: what for label, what in disturbances.items() if what}
    if not found:
        return None
    why = "; ".join(f"{what} ({label})" if len(disturbances) > 1 else what for label, what in found.items())
    doubt = "The measured peak and bandwidth may be too low, so no share of the peak is given"
    return f"{doubt}: while they were measured, {why}."


def not_in_the_choice(results: Frame) -> str | None:
    """Which configurations failed, so that nothing was chosen from them, and why in short; None where none did.

    Like "Not in the choice: compiled fp16 at batch 1 and 16 (crashed: ended by SIGSEGV while loading the model)".
    What is unsupported, and what was measured in another process, is left out.
    """
    cells = without_probes(results).lazy()
    cell = ["run_id", "model", "variant", "pass", "precision", "batch_size", "extra"]
    lost = cells.filter(~OK, pl.col("status") != "unsupported").join(
        cells.filter(OK), cell, "anti", nulls_equal=True, maintain_order="left"
    )
    found = lost.select(*cell, "status", "reason").collect()
    if found.is_empty():
        return None
    several = cells.select(pl.col("model").n_unique() > 1).collect().item()
    by = ["model", "status", "reason"]
    parts: list[str] = []
    for (model, status, reason), rows in found.group_by(by, maintain_order=True):
        configurations = zip(rows["variant"] + " " + rows["precision"], rows["batch_size"], strict=True)
        where = ", ".join(f"{listed(names)} at batch {listed(sizes)}" for names, sizes in products(configurations))
        why = OUT_OF_MEMORY if status == "oom" else f"{status}: {_in_short(str(reason or 'no reason was given'))}"
        parts.append(f"{f'{model}, ' if several else ''}{where} ({why})")
    if (rest := len(parts) - _MOST_FAILURES) > 0:
        parts[_MOST_FAILURES:] = [counted(rest, "more failure")]
    return f"Not in the choice: {'; '.join(parts)}."


def _in_short(reason: str) -> str:
    """What a reason begins with, without the model that it is of."""
    text = re.sub(r"^model '[^']*': ", "", " ".join(reason.split())).partition("; ")[0]
    return text if len(text) <= _REASON_CHARACTERS else f"{text[:_REASON_CHARACTERS].rstrip()} …"


def group_sentence(key: Row, lines: Sequence[Row], everywhere: Collection[str] = ()) -> str | None:
    """What a group says, like "resnet50, batch 16: ort-tuned fp16 is 5.8× fp32 eager (5.7–5.9), error 4e-4".

    With replicates a verdict follows: "; on device time 5.7× (5.6–5.8): faster". Where the line's or the base's figures
    moved, " (drift: measure again)" ends it; where other work had the machine, there is no factor. A slower line from
    which others took it may be the fastest. Kinds in `everywhere`, which all rows carry, are left out.
    """
    best = lines[0]
    if best["speedup"] is None or (best["is_base"] and len(lines) < 2):
        return None
    model = f"{key['model']}{' training' if key['pass'] == 'training' else ''}"
    what = ", ".join([model, f"batch {key['batch_size']}", *setting_words(best["setting"])])
    base, tied = best["base"], best["indistinguishable_from"]
    carried = {*best["warnings"], *(best["base_warnings"] or [])}
    if without_factor(carried):
        looks = f"nothing looks faster than {base}" if best["is_base"] else f"{_name(best)} looks fastest"
        if best["by_throughput_ms"]:
            looks += f" ({significant(best['latency_ms'])} ms{unlike(best['by_throughput_ms'])})"
        return f"{what}: {looks}; {_doubts(best)}, so {'that is not certain' if best['is_base'] else 'no factor'}"
    moved = ", ".join(kind.kind for kind in KINDS.values() if kind.unsteady and kind.kind in carried - {*everywhere})
    doubt = (f" ({moved}: measure again)" if moved else "") + _maybe_faster(
        [line for line in lines if line is not best and not line["is_base"]]
    )
    if best["is_base"]:
        return f"{what}: nothing was faster than {base}{f', {_tie(best)}' if tied else ''}{doubt}"
    ratio = times(best["speedup"], best["speedup_low"], best["speedup_high"], f"× {base}")
    error = f", error {numbers.error(best['rel_l2_error'], 1)}" if best["rel_l2_error"] is not None else ""
    if "calibration" in best["warnings"]:
        error = ", error on your data unknown (calibrated on seeded data)"
    low = best["speedup_low"]
    includes_1 = low is not None and low <= 1 <= best["speedup_high"]
    unclear = includes_1 if best["verdict"] is None else not Verdict(best["verdict"]).differs
    clear = "no clear winner; " if unclear else ""
    return f"{what}: {clear}{_name(best)} is {ratio}{error}{_judgement(best, lines)}{doubt}"


def unlike(by_throughput_ms: float | None) -> str:
    """What a latency that is named as the choice's is not without, like ", but 5.95 ms by its throughput"."""
    return f", but {significant(by_throughput_ms)} ms by its throughput" if by_throughput_ms else ""


def _doubts(best: Row) -> str:
    """Whose row forbids a factor, and why, like "it was disturbed" or "the base, fp32 eager, was inconsistent"."""
    sides = {"it": best["warnings"]}
    if not best["is_base"]:
        sides[f"the base, {best['base']},"] = best["base_warnings"] or []
    return disturbed((who, warnings) for who, warnings in sides.items() if without_factor(warnings))


def _maybe_faster(lines: Sequence[Row]) -> str:
    """That some of the lines were disturbed, so that nobody knows whether one of them is the fastest."""
    names = [_name(line) for line in lines if without_factor(line["warnings"])]
    if not names:
        return ""
    who = listed(names) if len(names) < 3 else f"{len(names)} others"
    return f"; {who} {'was' if len(names) == 1 else 'were'} disturbed and may be faster"


def sweep_sentences(results: pl.DataFrame) -> list[str]:
    """What batch sweeps show, a sentence a finding, family by family within each kind of finding.

    What rests on times says which batches of its family were disturbed, and how many are host-bound.
    """
    results = results.filter(pl.col("role") != Role.CELL)
    if results.is_empty():
        return []
    several = results["machine"].n_unique() > 1
    again = results["run_id"].n_unique() > results["machine"].n_unique()
    bends = batch_sweeps.curvature(results).partition_by(FAMILY, maintain_order=True)
    timed = [
        *((row, _knee(row)) for row in batch_sweeps.knees(results).to_dicts()),
        *((rows[0], _shapes(rows)) for rows in map(pl.DataFrame.to_dicts, bends)),
        *((row, _excess(row)) for row in batch_sweeps.more_than_twice(results).to_dicts()),
    ]
    ends = _endings(batch_sweeps.efficiency(results))
    findings = [(row, text + ends[tuple(row[key] for key in FAMILY)]) for row, text in timed if text]
    findings += [(row, _largest(row)) for row in batch_sweeps.largest(results).to_dicts()]
    return [f"{_family(row, several, again)}: {finding}." for row, finding in findings]


def _endings(points: pl.DataFrame) -> dict[tuple[Any, ...], str]:
    """By family how many of its batches the host limits, and which were disturbed.

    Like "; 3 of 9 batches are host-bound: by the device's own time; batch 8 was inconsistent".
    """
    found = {}
    for family, every in points.group_by(FAMILY, maintain_order=True):
        rows = every.drop_nulls("latency_ms")
        held_up, unknown = rows["host_bound"].sum(), rows.filter(pl.col("judged_ms").is_null())["batch_size"]
        how = ["by the device's own time"] if rows["on_device"].any() else []
        how += [f"without {listed(unknown)}"] if len(unknown) else []
        are = f"{held_up} of {len(rows)} batches {'is' if held_up == 1 else 'are'}"
        ends = [f"{are} host-bound: {', '.join(how)}"] if held_up else []
        noisy = every.drop_nulls("disturbed").select("warnings", "batch_size").iter_rows()
        doubts = [
            f"batch {sizes[0]} {what}" if len(sizes) == 1 else f"batches {listed(sizes)} were {what[4:]}"
            for what, sizes in numbers.grouped((was_disturbed(kinds), size) for kinds, size in noisy).items()
        ]
        ends += [listed(doubts)] if doubts else []
        found[family] = "".join(f"; {text}" for text in ends)
    return found


def disturbance_sentence(results: pl.DataFrame, repeated: Repeated) -> str | None:
    """How many measured cases were disturbed, how many of those came right and how many remain; None where none was.

    Like "3 of 34 cases were disturbed or inconsistent: 2 came right when measured again, 1 remains." It names the kinds
    of warnings that these rows carry or carried. Measuring again leaves no mark on a row where the first measurement
    stays: `repeated` knows of those, and why others were not measured again.
    """
    cases = measured(results).select("case_id", pl.col("warnings").fill_null([]))
    rows = {case_id: list(map(Warning.parse, texts)) for case_id, texts in cases.iter_rows()}
    remain = [row for row in rows.values() if disturbances(row)]
    recovered = [row for row in rows.values() if is_remeasured(row) and not disturbances(row)]
    if not remain and not recovered:
        return None
    found = {warning.kind for row in remain for warning in disturbances(row)}.union(*map(kinds_first_taken, recovered))
    kinds = " or ".join(sorted(found))
    number = len(remain) + len(recovered)
    what = f"{number} of {counted(len(rows), 'case')} {'was' if number == 1 else 'were'} {kinds}"
    ids, why = repeated
    left = sum(bool(disturbances(row)) and id_ not in ids and not is_remeasured(row) for id_, row in rows.items())
    why = f"measured again this time{f' ({why})' if why else ''}."
    if left == number:
        return f"{what}; {'it was not' if number == 1 else 'none of them was'} {why}"
    what += f": {len(recovered)} came right when measured again, {len(remain)} remain{'s' if len(remain) == 1 else ''}"
    return f"{what}; {left} of {number} {'was' if left == 1 else 'were'} not {why}" if left else f"{what}."


def _judgement(best: Row, lines: Sequence[Row]) -> str:
    """How the best of `lines` compares with the base and with the runner-up; empty without replicates."""
    tied, other = _tie(best), best["indistinguishable_from"]
    if other in [_name(line) for line in lines if line["is_base"]]:
        tied = ""  # The verdict on the base says it already.
    if best["verdict"] is None:
        return f"; {tied}" if tied else ""
    verdict = Verdict(best["verdict"])
    text = str(verdict) if verdict.differs else _relation(verdict, best["base"], best["replicates_to_settle"])
    if tied:
        alike = verdict == best["runner_up_verdict"] and verdict.ties
        text += f", but {tied}" if verdict.differs else f" and {other if alike else tied}"
    if best["clock"] == "host":
        return f": {text}"
    ratio = times(*(best[f"device_speedup{end}"] for end in ("", "_low", "_high")))
    return f"; on device time {ratio}: {text}"


def _tie(best: Row) -> str:
    """Like "equivalent to ort fp32", the runner-up; empty where the two are told apart."""
    verdict = best["runner_up_verdict"]
    if not verdict:
        return ""
    return _relation(Verdict(verdict), best["indistinguishable_from"], best["runner_up_replicates"])


def _relation(verdict: Verdict, other: str, replicates: int | None) -> str:
    """Like "not clearly different from fp32 eager (about 12 replicates would settle it)"."""
    more = f" ({outlook(replicates)})" if verdict is Verdict.UNCLEAR else ""
    return f"{verdict.relation} {other}{more}"


def _name(line: Row) -> str:
    return f"{line['variant']} {line['precision']}"


def _family(row: Row, with_machine: bool, with_run: bool) -> str:
    """A family in words, like "vgg16 training, eager fp32"."""
    model = f"{row['model']} training" if row["pass"] == "training" else row["model"]
    machine = [f"on {row['machine']}"] if with_machine else []
    run = [f"run {row['run_id']}"] if with_run else []
    return ", ".join([model, f"{row['variant']} {row['precision']}", *setting_words(row["settings"]), *machine, *run])


def _knee(row: Row) -> str:
    best = f"the best, {significant(row['best_throughput'])} items/s at batch {row['best_batch']}"
    more = ", where the sweep ends" if row["open_ended"] else ""
    if row["knee"] == row["best_batch"]:
        return f"no smaller batch reaches {percent(KNEE_SHARE)} % of {best}{more}"
    share = row["knee_throughput"] / row["best_throughput"]
    return f"a batch of {row['knee']} has {percent(share)} % of the throughput of {best}{more}"


def _shapes(rows: Sequence[Row]) -> str:
    """Where the curve is concave-down, which is what surprises; empty where it only flattens."""
    sizes = {shape: [row["batch_size"] for row in rows if row["shape"] == shape] for shape in (DOWN, UP)}
    if not sizes[DOWN]:
        return ""
    shapes = ", ".join(f"{shape} at {listed(found)}" for shape, found in sizes.items() if found)
    turns = [row["batch_size"] for row in rows if row["changes"]]
    return f"time per item against minibatch size is {shapes}" + (f"; it turns at {listed(turns)}" if turns else "")


def _excess(row: Row) -> str:
    return (
        f"a batch of {row['batch_size']} takes {decimals(row['ms'], 2)} ms, {decimals(row['excess_ms'], 2)} ms "
        f"more than twice the {decimals(row['half_ms'], 2)} ms of {row['half']}"
    )


def _largest(row: Row) -> str:
    status, reason = row["refused_status"], row["refused_reason"] or ""
    why = reason if reason.startswith("not tried") else OUT_OF_MEMORY if status == "oom" else f"{status}: {reason}"
    if row["largest"] is None:
        tried = "probe" if row["searched"] and row["refused"] > 1 else "batch"
        return f"no {tried} fits, {row['refused']} does not ({why})"
    memory = "" if row["peak_memory_mib"] is None else f" ({count(row['peak_memory_mib'])} MiB)"
    text = f"the largest batch {'' if row['searched'] else 'of the sweep '}that fits is {row['largest']}{memory}"
    return text + ("; none above it was tried" if row["refused"] is None else f"; {row['refused']} does not ({why})")
