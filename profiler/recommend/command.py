"""Recommend what to deploy: print answers, and export the winner ready to run; every run ends with a short answer."""

from __future__ import annotations

import contextlib
import json
import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.text import Text

from engines.catalog import PRESETS, engine_row, unsupported
from engines.options import PASSES
from exporters.inputs import how_to_give
from profiler.bundled import suites
from profiler.cluster.command import execute as run_on_cluster
from profiler.errors import PROGRAM, WHEN_IDLE, ConfigError, check_choice, resuming
from profiler.job.case import parse_only
from profiler.machine.target import on_cores
from profiler.options import Explain, Run, RunSuite
from profiler.options import Recommend as Options
from profiler.recommend.answer import OBJECTIVES, Request, as_data, cells_of, decide
from profiler.recommend.artifact import NO_EXPORT, NotExported, check_folder, export
from profiler.results.cells import Row
from profiler.results.choice import DEFAULT_LIMIT, ENOUGH, HIGHER, MAX_ERROR, TIES, Choice, Limit, Loser, surpasses
from profiler.results.columns import FIGURES, LIMITED_BY
from profiler.results.overview import overview
from profiler.results.reading import Runs, check_only, chosen, read_runs
from profiler.results.reasons import Reason, amount, bound, noun
from profiler.results.result import JUDGED, RANGED, ends_of
from profiler.results.warning_kinds import DISTURBED, footnotes
from profiler.run.command import BASE, LABELS, refuse_unscored
from profiler.run.command import execute as run_job
from profiler.run.gate import execute as compare_in_turn
from profiler.run.model_job import usual_engines
from profiler.tables.numbers import UNITS, error, grouped, is_busy, listed, ranges, seconds, times
from profiler.tables.table import Section, Table, figure, of_rows, prose, words
from profiler.tables.writers import print_section, print_table, say

FORMATS = ("text", "json")
NOTHING_FITS, UNDECIDED = 3, 4
_MOST_NAMES = 4
_MOST_SENTENCES = 2
"""Print more answers than this as one table."""
_AIMS = {"throughput": "highest throughput", "energy": "lowest energy per item"}
"""Objectives without an entry are "lowest" and their name."""
_STYLES = {"deploy": "green", "tie": "green", "undecided": "yellow", "nothing": "red"}
_IS_USUAL = (pl.col("setting") == "") | ~(pl.col("setting") == "").any().over("pass", "model")
"""Select a model's plain setting; if it has none, all of its settings."""
Answer = tuple[Request, Choice]


def execute(options: Options, console: Console) -> int:
    """Print what to deploy, and export it if asked.

    Return 0; 1 if the export failed; 3 if nothing meets the limits; 4 if nothing is recommended yet.

    Raises ConfigError.
    """
    check_choice("--format", options.format, FORMATS)
    if options.export is not None:
        check_folder(options.export)
    runs = read_runs(options.runs)
    for note in runs.notes:
        print(note, file=sys.stderr)
    results = runs.results.collect()
    questions = requests(options, results)
    if options.export is not None and (len(questions) > 1 or questions[0].pass_ != "inference"):
        subjects = "; ".join(request.subject for request in questions)
        raise ConfigError(f"--export takes one model's inference; choose by --model, --setting or --pass: {subjects}")
    cells = cells_of(results)
    answers = [(request, decide(cells, request)) for request in questions]
    if options.format == "json":
        dumps = [as_data(*answer, settling(answer[1], _folder(answer[1], runs))) for answer in answers]
        print(json.dumps(dumps if len(dumps) > 1 else dumps[0], indent=2, ensure_ascii=False))
    elif len(answers) > 1:
        print_briefly(console, answers, options.runs, runs)
    else:
        print_answer(console, *answers[0], [] if options.export else options.runs, _folder(answers[0][1], runs))
    if options.export is not None:
        return _export(options.export, answers[0][1], runs, options)
    statuses = {choice.status for _, choice in answers}
    return NOTHING_FITS if "nothing" in statuses else UNDECIDED if "undecided" in statuses else 0


def _folder(choice: Choice, runs: Runs) -> str:
    """Return the folder of the run that measured the best, or that skipped its rivals."""
    is_skipped = choice.doubt is not None and choice.doubt.code == "skipped"
    cells = [cell for cell in choice.cells if cell["beaten_by"]] if is_skipped else [choice.best or choice.nearest]
    run_ids = cells[0]["run_ids"] if cells and cells[0] else []
    return next((run.address for run in runs.runs if {*run_ids} & {*run.run_ids}), runs.runs[0].address)


def settling(choice: Choice, folder: str, alike: Sequence[Choice] = ()) -> str | None:
    """Return the command that may settle the doubt of the choice, and of those alike; `folder` is the run's."""
    match choice.doubt:
        case Reason(code="unknown", figure="usd_per_million_items"):
            return f"{resuming(Path(folder))} --machine usd_per_hour=PRICE"
        case None | Reason(code="unknown" | "too-wide" | "no-base" | "only-left"):
            return None  # The reason says what to do.
        case Reason(code="only-base", value=0):
            return _measuring_others(choice.cells[0])
        case Reason(code="skipped"):
            return f"{resuming(Path(folder))} --all"
        case Reason(code="unmeasured" | "only-base"):
            is_disturbed = any(DISTURBED in cell["footnotes"] for cell in choice.cells)
            return f"{resuming(Path(folder))}{f' --retry {WHEN_IDLE}' * is_disturbed}"
        case Reason(code="open" | "one-process"):
            contested = [_contested(doubted) for doubted in (choice, *alike)]
            fewest = max(min(cell["measured"] for cell in cells) for cells in contested)
            processes = ENOUGH if fewest < ENOUGH else 2 * fewest
            again = f" --retry {WHEN_IDLE}" * ((choice.doubt.have or 0) > 1)
            only = shlex.quote(_only([cell for cells in contested for cell in cells]))
            return f"{resuming(Path(folder))} --replicates {processes} --only {only}{again}"
    return f"{resuming(Path(folder))} --retry {WHEN_IDLE}"


def _measuring_others(base: Row) -> str:
    """Return the command that measures all installed engines; if the base is alone, the one that lists others."""
    place = base["pass"], base["device"], base["precision"], base["model_kind"]
    names = usual_engines(base["device"], lambda name: unsupported(engine_row(PRESETS[name].engine), *place) is None)
    is_alone = {PRESETS[name].engine for name in names} <= {base["engine"]}
    of_training = " --pass training" * (base["pass"] == "training")
    return f"{PROGRAM} engines" if is_alone else f"{PROGRAM} MODEL --engine {','.join(names)}{of_training}"


def _contested(choice: Choice) -> list[Row]:
    """Return the best, and the cells named like the doubt's rival; by default its base, else the runner-up."""
    (best, *others), rival = choice.cells, choice.doubt.rival if choice.doubt else ""
    bases = [cell for cell in others if cell["is_base"] and cell["batch_size"] == best["batch_size"]]
    rivals = [cell for cell in others if cell["name"] == rival] if rival else bases
    return [best, *(rivals or ([choice.runner_up] if choice.runner_up else []))]


def _only(cells: Sequence[Row]) -> str:
    """Return the conditions of `--only` for the cells."""
    keys = ("model", "pass", "batch_size", "shape", "optimizer", "variant", "precision")
    values = {key: dict.fromkeys(cell[key] for cell in cells if cell[key]) for key in keys}
    return ",".join(f"{key}={','.join(map(str, words))}" for key, words in values.items() if words)


def execute_run(options: Run, console: Console) -> int:
    """Run a job, end with what to deploy or how it compares, and return the exit code. Raises ConfigError."""
    limits = read_limits(options)
    with on_cores(options.threads):
        if options.against is not None:
            return compare_in_turn(options, console)
        return (run_job if options.ray is None else run_on_cluster)(options, console, partial(conclude, limits=limits))


def execute_suite(options: RunSuite, console: Console) -> int:
    """Run a published benchmark's suite, and return the exit code. Raises ConfigError."""
    check_choice("suites run", str(options.config), suites())
    return execute_run(replace(options, config=suites()[str(options.config)]), console)


def conclude(run: Path, results: pl.DataFrame, console: Console, limits: tuple[Limit, ...] = ()) -> None:
    """Print what to deploy within the limits: for latency, and with several batch sizes also for throughput."""
    questions = list[Request]()
    rows = results.filter(_IS_USUAL) if "ok" in results["status"] else results.clear()
    for (pass_, model, setting), group in rows.group_by("pass", "model", "setting", maintain_order=True):
        has_sizes = group.filter(status="ok")["batch_size"].n_unique() > 1
        objectives = ["latency", "throughput"] if has_sizes else ["latency"]
        questions += [Request(model, pass_, setting, "", limits, objective) for objective in objectives]
    if questions:
        cells = cells_of(results)
        print_briefly(console, [(request, decide(cells, request)) for request in questions], [str(run)])


def requests(options: Options, results: pl.DataFrame) -> list[Request]:
    """Return a request for each model and setting; `_IS_USUAL` selects settings unless the options do.

    Raises ConfigError for options that match nothing in `results`, which have one row a case.
    """
    check_choice("--objective", options.objective, OBJECTIVES)
    pass_ = options.pass_ or ("inference" if "inference" in results["pass"] else "training")
    check_choice("--pass", pass_, PASSES)
    limits, only = read_limits(options), parse_only(options.only)
    rows = results.filter(pl.col("pass") == pass_)
    if only is not None:
        if "replicate" in only.conditions:
            raise ConfigError("--only replicate: an answer is of all replicates; leave it out")
        check_only(only, results.lazy())
        rows = rows.filter(chosen(only))
    models = rows["model"].unique(maintain_order=True).to_list()
    if not models:
        raise ConfigError(f"--pass {pass_}{' and --only' * (only is not None)}: no row of these runs has it")
    if options.model is not None:
        check_choice(f"--model, {pass_}", options.model, models)
        rows, models = rows.filter(model=options.model), [options.model]
    check_scored(limits, results, models)
    if options.setting is not None:
        settings = rows["setting"].unique(maintain_order=True)
        check_choice("--setting", options.setting, [setting or "plain" for setting in settings])
        rows = rows.filter(setting=options.setting.replace("plain", ""))
    places = rows.filter(_IS_USUAL).select("model", "setting").unique(maintain_order=True).rows()
    common = (str(only or ""), limits, options.objective, options.allow_uncalibrated)
    return [Request(model, pass_, setting, *common) for model, setting in places]


def read_limits(options: Options | Run | Explain) -> tuple[Limit, ...]:
    """Parse limits such as "2" or "p99=2". Raises ConfigError."""
    limits = []
    for option, figures in grouped((option, column) for column, option in LIMITED_BY.items()).items():
        by_prefix = {f"p{FIGURES[name].percentile}" if FIGURES[name].percentile else "": name for name in figures}
        sign, scale, highest = ("%", 100, 1) if FIGURES[figures[0]].unit == "points" else ("", 1, math.inf)
        for word in getattr(options, option.removeprefix("--").replace("-", "_"), ()):
            prefix, _, number = word.rpartition("=")
            value = math.nan
            with contextlib.suppress(ValueError):
                value = float(number.removesuffix(sign)) / scale
            if prefix not in by_prefix or not number.endswith(sign) or not 0 < value < highest:
                forms = "".join(f", or {prefix}=2" for prefix in by_prefix if prefix)
                form = "a percentage with its sign, from 0% to 100%" if sign else f"a number greater than 0{forms}"
                raise ConfigError(f"{option}: '{word}' is no limit; give {form}")
            limits.append(Limit(by_prefix[prefix], value))
    return tuple(limits)


def check_scored(limits: Sequence[Limit], results: pl.DataFrame, models: list[str], needs_base: bool = True) -> None:
    """Raise ConfigError for a limit of the accuracy loss if one of the models has no labels, or no base."""
    if any(limit.figure == "accuracy_loss" for limit in limits):
        rows = results.filter(pl.col("model").is_in(models), status="ok").group_by("model", maintain_order=True)
        lacks = rows.agg(pl.col("accuracy", "accuracy_loss").is_null().all())
        others = lacks.filter(~pl.col("accuracy_loss"))["model"]
        advice = f"; choose others by --model {others[0]}" if len(others) else ""
        refuse_unscored(lacks.filter("accuracy")["model"], LABELS, f"; their rows' warnings may say why{advice}")
        if needs_base:
            refuse_unscored(lacks.filter("accuracy_loss")["model"], BASE, advice)


def _export(folder: Path, choice: Choice, runs: Runs, options: Options) -> int:
    """Export the winner, or the best of `--only` even if in doubt; report on stderr, since stdout may be JSON."""
    winner = choice.best if options.only else choice.winner
    if winner is None:
        why = choice.doubt or "there is nothing to deploy"
        print(f"--export {folder}: nothing was written: {why}", file=sys.stderr)
        return UNDECIDED if choice.doubt else NOTHING_FITS
    run = next(run for run in runs.runs if winner["run_ids"][0] in run.run_ids)
    try:
        sizes = export(winner, run, folder, Console(stderr=True), options.trust_code)
    except NotExported as error:
        print(f"--export {folder}: nothing was written: {error}", file=sys.stderr)
        return 1
    if choice.doubt is not None:
        print(f"It is not proven best: {choice.doubt}", file=sys.stderr)
    print(f"It takes {sizes}.", file=sys.stderr)
    print(f"Exported: {winner['name']} to {folder}; its README.txt says how to run it", file=sys.stderr)
    return 0


def print_answer(console: Console, request: Request, choice: Choice, runs: Sequence[str], folder: str = "") -> None:
    """Print one answer in full, and the command that exports it from `runs`."""
    machines = listed(dict.fromkeys(cell["machine"] for cell in choice.cells if cell["machine"]))
    limits = listed(bound(limit.figure, limit.value) for limit in choice.limits)
    place = f" on {machines}" if machines else ""
    console.print(Text(f"{request.subject}{place}: {_aim(request)}{f' with {limits}' if limits else ''}\n"))
    _print_headline(console, choice)
    _print_next(console, [(choice, folder)])
    for section in _sections(choice):
        print_section(console, section)
    console.print()
    compared = [(cell["name"], cell["footnotes"]) for cell in (choice.best, choice.runner_up) if cell]
    for line in footnotes(compared):
        console.print(Text(line, style="dim"))
    if runs:
        _print_export(console, request, choice, runs)


def print_briefly(console: Console, answers: Sequence[Answer], runs: Sequence[str], read: Runs | None = None) -> None:
    """Print what to deploy for each request; more than two make one table."""
    if len(answers) > _MOST_SENTENCES:
        _print_overview(console, answers, runs, read)
    else:
        for request, choice in answers:
            _print_headline(console, choice, f"\n{request.subject}, {_aim(request)}: ")
            _print_next(console, [(choice, _folder(choice, read) if read else runs[0])])
            _print_export(console, request, choice, runs)
    request = next((request for request, choice in answers if choice.best or choice.nearest), answers[0][0])
    again = f"{PROGRAM} recommend {shlex.join([*runs, *request.words()])}"
    say(console, f"\nWhy not the others: {again}", "dim")


def _print_overview(console: Console, answers: Sequence[Answer], runs: Sequence[str], read: Runs | None) -> None:
    """Print all answers as a table, each doubt once, and the command that exports the first winner."""
    # Two objectives with the same answer share a row.
    rows = {(_subject(*a), str(a[1].best and a[1].best["case_ids"]), a[1].status): a[1] for a in answers}
    console.print()
    print_table(console, overview([(subject, {}, choice) for (subject, *_), choice in rows.items()]))
    lost = [(subject, choice) for (subject, *_), choice in rows.items() if choice.winner is None]
    kinds = grouped(((choice.doubt, choice.nearest is None), (subject, choice)) for subject, choice in lost)
    for (subject, choice), *others in kinds.values():
        rest = f" and {len(others)} more" if others else ""
        _print_headline(console, choice, f"{subject}{rest}: ")
    _print_next(console, [(choice, _folder(choice, read) if read else runs[0]) for _, choice in lost])
    if answer := next(filter(_can_export, answers), None):
        _print_export(console, *answer, runs)


def _subject(request: Request, choice: Choice) -> str:
    return f"{request.subject}, b{choice.best['batch_size']}" if choice.best else request.subject


def _print_headline(console: Console, choice: Choice, subject: str = "") -> None:
    """Print the headline, and compare the winner."""
    console.print(Text(f"{subject}{headline(choice)}", style=f"bold {_STYLES[choice.status]}"))
    for line in filter(None, (comparison(choice), kept_out(choice))):
        console.print(Text(line))


def _print_next(console: Console, choices: Sequence[tuple[Choice, str]]) -> None:
    """Print once each command that may settle doubts of one kind in a run; each choice has its run's folder."""
    kinds = grouped(((choice.doubt and choice.doubt.code, folder), choice) for choice, folder in choices)
    commands = (settling(choice, folder, alike) for (_, folder), (choice, *alike) in kinds.items())
    for command in dict.fromkeys(filter(None, commands)):
        say(console, f"Next: {command}")
    if {code for code, _ in kinds} & {"busy", "disturbed"}:
        say(console, "On a machine that is always busy, compare two engines as docs/first-run.md says.", "dim")


def _can_export(answer: Answer) -> bool:
    winner = answer[1].winner
    return bool(winner and winner["pass"] == "inference" and engine_row(winner["engine"]).deployment)


def _print_export(console: Console, request: Request, choice: Choice, runs: Sequence[str]) -> None:
    if _can_export((request, choice)):
        command = shlex.join([*runs, *request.words(), "--export", "deploy/"])
        say(console, f"Export: {PROGRAM} recommend {command}")
    elif choice.winner is not None and choice.winner["pass"] == "inference":
        console.print(Text(NO_EXPORT.format(choice.winner["engine"])))


def _aim(request: Request) -> str:
    return _AIMS.get(request.objective, f"lowest {request.objective}")


def headline(choice: Choice) -> str:
    """State the winner with its figures in one line, or the doubt, or what comes nearest to the limits."""
    losers = [loser for loser in choice.losers if choice.nearest in (None, loser.cell)]
    if choice.doubt is not None and (not choice.nearest or all(choice.doubt not in loser.reasons for loser in losers)):
        return f"No recommendation yet: {choice.doubt}"
    if (winner := choice.winner) is not None:
        batch = "" if ", batch " in winner["name"] else f", batch {winner['batch_size']}"
        return f"Deploy {choice.names}{batch}: {', '.join(_parts(choice, winner))}"
    loser = losers[0]
    is_missed = any(reason.code in ("over", "under") and not reason.is_busy for reason in loser.reasons)
    outcome = f"Nothing {'meets' if is_missed else 'is known to meet'} the limits; the nearest is"
    if choice.nearest is None:
        outcome = f"Nothing to deploy: no candidate has a figure for {noun(choice.figure)};"
    return f"{outcome} {loser.cell['name']}: {_why(loser)}{_input_hint(loser)}"


def _input_hint(loser: Loser) -> str:
    """Say how to give real inputs if the error on random ones misses its limit or is unknown."""
    names, kind = loser.cell["drawn"], loser.cell["model_kind"]
    if not names or all(reason.figure != "error" for reason in loser.reasons):
        return ""
    return f"; {how_to_give(names.split(', '), kind)}"


def comparison(choice: Choice) -> str:
    """Compare the winner with its ties or the runner-up; empty without a winner."""
    if choice.winner is None:
        return ""
    if choice.tied:
        cells = [choice.winner, *sorted(choice.tied, key=lambda cell: not cell["is_base"])]
        is_open = choice.figure in JUDGED and choice.winner["measured"] < ENOUGH
        advice = f"; --replicates {ENOUGH} may part them" * is_open
        tied, best = choice.tied[0][choice.figure], choice.winner[choice.figure]
        is_best = tied <= best if choice.figure in HIGHER else tied >= best
        return f"A tie of {len(cells)}: {_listed_names(cells)}; {'the best figure leads' if is_best else TIES}{advice}"
    if choice.runner_up is not None:
        return f"Runner-up: {choice.runner_up['name']}, {choice.margin}"
    is_alone = all(loser.cell["status"] != "ok" for loser in choice.losers)
    return f"The only candidate that {'could be measured' if is_alone else 'meets the limits'}"


def kept_out(choice: Choice) -> str:
    """Name the best candidate that only its error bars and that is surely better, and the option that admits it.

    Names no candidate whose accuracy loss is surely above explain's default limit.
    """
    if choice.winner is None:
        return ""
    for loser in choice.losers:
        cell, codes = loser.cell, {(reason.code, reason.figure) for reason in loser.reasons}
        is_lossy = (cell["accuracy_loss_low"] or 0.0) > MAX_ERROR
        if codes == {("over", "error")} and not is_lossy and surpasses(cell, choice.winner, choice.figure):
            digit = 10.0 ** math.floor(math.log10(cell["error_high"]))
            figures = [amount(choice.figure, *_ends(cell, choice.figure)), *_accuracy(cell)]
            option = f"--max-error {math.ceil(cell['error_high'] / digit) * digit:.0e}".replace("e-0", "e-")
            # A limit of the loss replaces only the default limit of the error.
            if cell["accuracy_loss"] is not None and choice.limits[-1] is DEFAULT_LIMIT:
                option = f"--max-accuracy-loss {max(math.ceil(1000 * cell['accuracy_loss_high']) / 10, 0.1):g}%"
            place = f" (largest in {cell['worst']})" if cell["worst"] else ""
            why = f"Better but for its error bound of {error(cell['error_high'], 3)}{place}"
            return f"{why}: {cell['name']}, {', '.join(figures)}; {option} admits it"
    return ""


def _accuracy(cell: Row) -> list[str]:
    """Format the loss of accuracy; without the base's row the accuracy, and nothing without labels."""
    names = [name for name in ("accuracy_loss", "accuracy") if cell[name] is not None][:1]
    return [f"{noun(name)} {amount(name, *_ends(cell, name))}" for name in names]


def _parts(choice: Choice, cell: Row) -> list[str]:
    """Format the winner's figures: objective, latency and factor, limits, error, memory, start."""
    limited = [limit.figure for limit in choice.limits]
    parts = []
    figures = [choice.figure, "latency_ms", *limited, "accuracy_loss", "error", "peak_memory_mib", "start_s"]
    for name in dict.fromkeys(figures):
        if cell[name] is None:
            continue
        text = amount(name, *_ends(cell, name))
        if name == "latency_ms":
            parts.append(text.replace(" ms", " ms a call", 1))
            factor = (cell["factor"], cell["factor_low"], cell["factor_high"])
            is_shown = cell["factor"] and not cell["is_base"] and not is_busy(*factor[1:])
            parts += [times(*factor, sign=f"× {cell['base']}")] if is_shown else []
        elif name == "error":
            bounded = f" (bound {amount(name, cell['error_high'])})" if cell["error_high"] > cell["error"] else ""
            parts.append(f"error {text}{bounded}")
        elif name == "start_s":
            parts.append(f"starts in {seconds(cell[name])}")
        else:
            is_plain = name in (choice.figure, "throughput", "peak_memory_mib") and not FIGURES[name].percentile
            parts.append(text if is_plain else f"{noun(name)} {text}")
    return parts


def _ends(cell: Row, name: str) -> tuple[float, float | None, float | None]:
    low, high = (cell[end] for end in ends_of(name)) if name in (*JUDGED, *RANGED) else (None, None)
    return cell[name], low, high


def _listed_names(cells: Sequence[Row]) -> str:
    return listed((cell["name"].replace(", batch ", " b") for cell in cells), shown=_MOST_NAMES)


def _why(loser: Loser) -> str:
    accuracy = _accuracy(loser.cell) if any(reason.figure == "error" for reason in loser.reasons) else []
    return "; ".join([*map(str, loser.reasons), *accuracy])


def _sections(choice: Choice) -> list[Section]:
    column = FIGURES[choice.figure]
    losers = [loser for loser in choice.losers if loser.reasons[0].code != "not-measured"]
    values = [(loser.cell["name"], *_ends(loser.cell, choice.figure), _why(loser)) for loser in losers]
    frame = pl.DataFrame(values, ["name", "value", "low", "high", "why"], orient="row")
    ends = ("low", "high") if choice.figure in JUDGED else ()
    figures = figure(column.heading, ("value", *ends), ranges, unit=UNITS[column.unit][0])
    unmeasured = grouped((loser.reasons[0].text, loser.cell) for loser in choice.losers if loser not in losers)
    fields = [prose("Candidates", "names"), prose("Why", "why")]
    tables = {
        "Why not the others" if choice.best else "Why none": Table(
            "", "", frame, [words("Candidate", "name"), figures, prose("Why", "why")]
        ),
        "Not measured": of_rows("", fields, [(_listed_names(cells), text) for text, cells in unmeasured.items()]),
    }
    return [Section(heading, (), [table]) for heading, table in tables.items() if table.rows]
