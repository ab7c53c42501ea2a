"""Regenerates what the documentation shows of the ledger in results/: pages, tables, sentences and figures.

`make results` runs it; a test fails when any of them does not match the ledger.
"""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from pages import budgets, labels, qualities, quality_tables, readme
from pages.prose import CONFIDENCE, Change, Group, check, rendered, series, signed, span

from snapens.lab.paper import cells as paper
from snapens.lab.paper import ledger
from snapens.lab.paper.entry import Entry
from snapens.lab.recipe import Recipe
from snapens.report import charts, figures, formats, names, style
from snapens.report.tables import Table, Value, table

ROOT = Path(__file__).parent.parent
PAGE_STYLE = ROOT / "src/snapens/report/page.css"
TEMPLATES = tuple(ROOT / f"docs/{page}.md.jinja" for page in ("results", "start/demo", "understand/when-it-pays"))
BUDGETS = {name: ROOT / f"results/budgets/{name}.json" for name in ("glyphs", "cifar10", "fashion")}
FIGURES = (("3", "wrn32"), ("5", "densenet40"), ("5", "wrn32"), ("6", "wrn32"), ("S", "wrn32"))


RATES = {"snapshot-0.1": "Snapshot 0.1", "snapshot-0.2": "Snapshot 0.2"}
OTHERS = {"single": "the single model", "dropout": "Dropout", "nocycle": "NoCycle", "singlecycle": "SingleCycle"}
RUNS = {"nocycle": "Single, NoCycle", "dropout": "Dropout", "singlecycle": "SingleCycle", **RATES}
CHOICES = ("all but harmful early ones", "weights by NLL")  # of bench/choices.py
PEAKS = """{{ peaks({
    "ResNet-110, CIFAR-100": measured("resnet110", "cifar100"),
    "Wide-ResNet-32, CIFAR-100": measured("wrn32", "cifar100"),
    "Wide-ResNet-32, CIFAR-10": measured("wrn32", "cifar10"),
}) }}"""


def texts() -> dict[Path, str]:
    """The generated pages, and the files that have a generated block, with the block regenerated."""
    entries = ledger.entries(ROOT / "results")
    folder = ROOT / "results"
    spent = qualities.read(folder / "quality").among(dataset="cifar100")
    updated: dict[Path, str] = {}
    chosen = choices()
    for page, name, block in (
        ("README.md", "results", readme.results(entries)),
        ("README.md", "modern", readme.modern(spent.of(readme.MODERN), lowest_published("cifar100"))),
        ("docs/how-to/predict-and-deploy.md", "results", predictions(folder / "prediction")),
        ("docs/how-to/choose-and-calibrate.md", "held-out", combinations(folder, entries, chosen["choice_gains"])),
        ("docs/how-to/one-network.md", "one-network", one_network(folder, entries)),
        ("docs/how-to/choose-t-m-and-the-rate.md", "rates", rendered(PEAKS, folder, peaks=peaks)),
    ):
        path = ROOT / page
        updated[path] = readme.update(updated.get(path) or path.read_text(), block, name)
    whole = table(1, entries)
    tables = {"table_1": unbroken(formats.markdown(measured_part(whole)).strip()), "table_1_cells": len(whole.values)}
    words = {"overview": summary, "comparison": comparison, "runs": runs, "costs_and_gains": costs_and_gains, **tables}
    words |= {"kept": kept(folder, entries), "time_ratio": time_ratio, **spending(spent), **chosen}
    words |= {name: budgets.read(path) for name, path in BUDGETS.items()}
    pages = {template.with_suffix(""): rendered(template.read_text(), folder, **words) for template in TEMPLATES}
    return {**updated, **pages}


def measured_part(whole: Table) -> Table:
    """A table of the paper without the columns and groups of which nothing was measured."""

    def measured(values: Iterable[Value | None]) -> bool:
        return any(value is not None and value.ours.n for value in values)

    groups = [group for group in whole.groups if measured(value for row in group.rows for value in row.values)]
    kept = [k for k in range(len(whole.columns)) if measured(row.values[k] for group in groups for row in group.rows)]
    columns = tuple(whole.columns[k] for k in kept)
    absent = set(whole.columns) - set(columns)
    # the title has a sentence about one of the columns
    title = ". ".join(part for part in whole.title.split(". ") if part.split()[0] not in absent)
    groups = [
        replace(group, rows=tuple(replace(row, values=tuple(row.values[k] for k in kept)) for row in group.rows))
        for group in groups
    ]
    return replace(whole, title=title, columns=columns, groups=tuple(groups))


def summary(groups: dict[str, Group]) -> str:
    """The errors of the single models and of the Snapshot Ensembles, and their differences."""
    rows = []
    for name, group in groups.items():
        if "single" not in group:
            continue
        row = {"network and data set": name, "single model, %": group["single"].error}
        row |= {f"{words}, %": group[rate].error if rate in group else "–" for rate, words in RATES.items()}
        for rate, words in RATES.items():
            change = group[rate] - group["single"] if rate in group else None
            row[f"{words} minus single, points (paper)"] = beside_paper(change) if change else "–"
        rows.append(row)
    return markdown(rows)


def costs_and_gains(groups: dict[str, Group], rate: str) -> str:
    """What the snapshots of one run give together, beside a single model with the same budget."""
    rows = []
    for name, group in groups.items():
        if not {"single", rate} <= group.keys():
            continue
        single, every = group["single"], group[rate]
        row = {"network and data set": name, "single model, %": single.error, "all snapshots, %": every.error}
        row |= {"difference, points": str(every - single), "NLL, single and all": f"{single.nll}, {every.nll}"}
        rows.append(row)
    return markdown(rows)


def peaks(groups: dict[str, Group]) -> str:
    """The errors of Snapshot Ensembles with the paper's two peak rates, and how much their snapshots differ."""
    rows = []
    for name, group in groups.items():
        low, high = (group[rate] for rate in RATES)
        check(
            (high - low).unclear, min(high.neighbours) > min(low.neighbours), max(high.neighbours) > max(low.neighbours)
        )
        row = {"network and data set": name}
        for peak, found in (("0.1", low), ("0.2", high)):
            row[f"peak {peak}: last, all, %"] = f"{found.last.error}, {found.error}"
        row |= {"all: 0.2 minus 0.1, points": str(high - low)}
        row |= {"neighbours differ, %: 0.1; 0.2": f"{span(low.neighbours, 1)}; {span(high.neighbours, 1)}"}
        rows.append(row)
    device = low.entry.origin.device
    origin = (
        f"Test errors of the last snapshot and of all snapshots; one {device}, one seed (n = 1) per run. ± is the "
        "paired standard error over the test images; no difference is larger than two standard errors. With the higher "
        "peak, neighbouring snapshots predict different classes for more of the test images."
    )
    return f"{markdown(rows)}\n\n{origin}"


def comparison(group: Group) -> str:
    """The paired differences between the Snapshot Ensembles of a network and its other runs."""
    if not (used := [rate for rate in RATES if rate in group]):
        return ""
    changes = {
        f"the ensemble minus {name} ({group[other].error} %)": [group[rate] - group[other] for rate in used]
        for other, name in OTHERS.items()
        if other in group
    }
    changes["the ensemble minus its last snapshot"] = [group[rate].minus_last for rate in used]
    if "single" in group:
        changes["its last snapshot minus the single model"] = [group[rate].last - group["single"] for rate in used]
    rows = []
    for name, found in changes.items():
        row = {"difference of errors, points": name}
        for rate, change in zip(used, found, strict=True):
            row[f"{RATES[rate]} (paper)"] = beside_paper(change)
        rows.append(row)
    return markdown(rows)


def runs(group: Group) -> str:
    """The measurements of each run of a network."""
    rows = []
    for method, name in RUNS.items():
        if found := group.get(method):
            last, every, early, entry = found.last, found.ensemble, found.early, found.entry
            row = {"run": name, "last m = 1 … M, %": found.sizes, "NLL, last and all": f"{last.nll}, {every.nll}"}
            row |= {"ECE, last and all, %": f"{last.ece}, {every.ece}"}
            row |= {"neighbours differ, %": span(found.neighbours, 1)}
            row |= {f"members and error at {CONFIDENCE}": f"{early.mean_members:.1f}, {early.error_percent:.2f} %"}
            row |= {"rise between, points": series(found.rises, 1)}
            row |= {"minutes (runs)": f"{entry.seconds / 60:.0f} ({entry.pack})"}
            rows.append(row)
    return markdown(rows)


def lowest_published(dataset: str) -> float:
    """The paper's lowest error on a data set, in percent."""
    return min(cell.published_percent for cell in paper.cells() if cell.dataset == dataset and cell.published_percent)


def spending(spent: qualities.Qualities) -> dict[str, object]:
    """What a template may use about runs on CIFAR-100 that spend the same epochs in different ways."""
    peak = json.loads((ROOT / "results/speed/h200.json").read_text())

    def peak_share(run: qualities.Quality) -> float:
        """The training speed in percent of the speed of matrix products."""
        operations = peak["operations_per_image"][run.recipe.network.name] * run.images_per_second
        return 100 * operations / peak["bfloat16_operations_per_second"]

    return {
        "spent": spent,
        "spent_errors": unbroken(quality_tables.errors(spent)),
        "spent_details": unbroken(quality_tables.details(spent)),
        "timeline": quality_tables.timeline(spent.of(readme.MODERN).runs[0], lowest_published("cifar100")),
        "peak_share": peak_share,
    }


def choices() -> dict[str, object]:
    """What a template may use about members and weights that are chosen on held-out images."""
    found = [json.loads(path.read_text()) for path in sorted((ROOT / "results/choices").glob("*.json"))]

    def gain(values: dict[str, dict[str, float]], name: str, factor: int = 1, decimals: int = 3) -> str:
        mean, error = (factor * values[f"{name}_gain"][key] for key in ("mean", "standard_error"))
        return f"{signed(mean, decimals)} ± {error:.{decimals}f}"

    rows, recipes = [], [Recipe.of(run["recipe"]) for run in found]
    for run, recipe in zip(found, recipes, strict=True):
        dropped, weighted = (run["choices"][name] for name in CHOICES)
        kept = [str(member) for member in dropped["members"]]
        label = f"{names.NETWORKS[recipe.network.name]}, {recipe.budget.epochs} epochs: {labels.words(recipe)}"
        rows.append(
            {
                "run": f"{label}, seed {recipe.seed}" if recipe.seed else label,
                "members kept after dropping": "all" if len(kept) == run["members"] else ", ".join(kept),
                "held-out NLL gain of dropping": gain(dropped, "held_out_nll"),
                "test NLL gain of dropping": gain(dropped, "test_nll"),
                "weights, oldest first": ", ".join(f"{weight:.2f}" for weight in weighted["weights"]),
                "held-out NLL gain of weights": gain(weighted, "held_out_nll"),
                "test NLL gain of weights": gain(weighted, "test_nll"),
                "test error gain of weights, points": gain(weighted, "test_error", 100, 2),
            }
        )

    def gains(
        choice: str, name: str, part: str = "mean", network: str | None = None, epochs: int | None = None
    ) -> list[float]:
        """The gains of a choice, or their `standard_error`, in all runs, or in those of a network or a budget."""
        chosen = [
            run
            for run, recipe in zip(found, recipes, strict=True)
            if network in (None, recipe.network.name) and epochs in (None, recipe.budget.epochs)
        ]
        return [run["choices"][choice][f"{name}_gain"][part] for run in chosen]

    return {"chosen_table": markdown(rows), "choice_gains": gains}


def beside_paper(change: Change) -> str:
    """A difference, and that of the paper in parentheses, if it has one."""
    return str(change) if change.published == "–" else f"{change} ({change.published})"


def markdown(rows: list[dict[str, str]]) -> str:
    """Rows with the same keys, the heads of the columns, as a Markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return unbroken("\n".join(map(formats.markdown_row, lines)))


def unbroken(table: str) -> str:
    """The same table, where no line breaks inside parentheses or at a ±: narrow columns stay readable."""
    return re.sub(r"\([^()|]*\)| ± ", lambda found: found[0].replace(" ", "\N{NO-BREAK SPACE}"), table)


def combinations(folder: Path, entries: ledger.Entries, gains: Callable[..., list[float]]) -> str:
    """The results of `snapens combine --format json`: a sentence per run of the ledger, and one about all choices."""
    sentences = []
    for path in sorted((folder / "combination").glob("*.json")):
        fitted, entry = json.loads(path.read_text()), entries[path.stem]
        held_out, gain = fitted["examples"], fitted["gains"][0]["nll_gain"]
        threshold = round(fitted["combination"]["exit_threshold"], 2)
        early = next(one for one in entry.early_exit if one.threshold == threshold)
        cell = entry.recipe
        sentences.append(
            f"- Our {names.NETWORKS[cell.network.name]} on {names.DATASETS[cell.dataset.name]} ({paper.images(cell):,} "
            f"training and {held_out:,} held-out images, one {entry.origin.device}, n = 1): the temperature "
            "lowers the held-out NLL by "
            f"{gain['mean']:.3f} ± {gain['standard_error']:.3f}; with early exit at a confidence of {threshold}, "
            f"{early.mean_members:.2f} of {cell.method.cycles} members are evaluated per test image, and the test "
            f"error is {early.error_percent:.2f} % instead of {entry.last_percent[-1]:.2f} % with all of them."
        )
    dropped, weighted = (gains(choice, "test_nll") for choice in CHOICES)
    check(min(weighted) > 0, min(dropped) < 0)
    sentences += [
        "",
        "[Our results](../results.md#should-early-members-be-dropped-or-members-be-weighted) compare ways to choose "
        f"members and weights. `--weights simplex` raised the test NLL in none of the {len(weighted)} runs; dropping "
        f"early members raised it in {sum(gain < 0 for gain in dropped)} of them.",
    ]
    return "\n".join(sentences)


def one_network(folder: Path, entries: ledger.Entries) -> str:
    """What a run with held-out images gives at which cost: its snapshots, their combination, a soup, a student."""
    (path,) = (folder / "one-network").glob("*.json")
    found = json.loads(path.read_text())
    run, student, control = (entries[found[name]] for name in ("run", "student", "control"))
    network, epochs, more = run.recipe.network.name, run.recipe.budget.epochs, student.recipe.budget.epochs
    threshold = json.loads((folder / f"combination/{found['run']}.json").read_text())["combination"]["exit_threshold"]
    early = next(one for one in run.early_exit if one.threshold == round(threshold, 2))
    measured = json.loads((folder / f"prediction/{network}.json").read_text())["networks"][network]
    ratios = {one["what"]: f"{one['ratio']:.2f} ×" for one in measured["timings"] if one["batch"] == 256}
    soup = found["soups"]["greedy"]
    last, ensemble = run.last_percent[0], run.last_percent[-1]
    members = run.recipe.method.cycles
    rows = [
        ("the last snapshot", f"{epochs}", last, 1, "1.00 ×"),
        (f"all {members} snapshots", f"{epochs}", ensemble, members, ratios[f"Predictor of {members}"]),
        (
            f"with early exit at a confidence of {threshold:.2f}",
            f"{epochs}",
            early.error_percent,
            early.mean_members,
            ratios["Predictor with early exit"],
        ),
        (f"a greedy soup of {soup['members']} snapshots", f"{epochs}", 100 * soup["test_error"], 1, "1.00 ×"),
        (f"a student of all {members} snapshots", f"{epochs} + {more}", student.last_percent[0], 1, "1.00 ×"),
        (f"trained without a teacher: one cosine of {more} epochs", f"{more}", control.last_percent[0], 1, "1.00 ×"),
    ]
    head = ["prediction", "training, epochs", "test error, %", "share of the gain, %", "networks per image", "time"]
    lines = [head, ["---", *["---:"] * 5]]
    for name, budget, error, used, time in rows:
        share = f"{kept_percent(error, run):.0f}" if error <= last else "–"
        lines.append([name, budget, f"{error:.2f}", share, f"{used:.3g}", time])
    origin = (
        f"One {names.NETWORKS[network]} on {names.DATASETS[run.recipe.dataset.name]} with {found['examples']:,} "
        f"held-out images, one {found['device']}, n = 1. "
        "The time is that of a batch of 256, relative to one network in eager mode. The ensemble is timed with "
        "`Predictor`, which would make one network faster, too; that was not measured."
    )
    return "\n".join([*map(formats.markdown_row, lines), "", origin])


def kept_percent(error: float, run: Entry) -> float:
    """The share of a run's gain, from its last snapshot to all snapshots, that a predictor with this error keeps."""
    last, ensemble = run.last_percent[0], run.last_percent[-1]
    return 100 * (last - error) / (last - ensemble)


def kept(folder: Path, entries: ledger.Entries) -> dict[str, str]:
    """The share of the gain that a soup and a student keep, in percent."""
    (path,) = (folder / "one-network").glob("*.json")
    found = json.loads(path.read_text())
    errors = {
        "soup": 100 * found["soups"]["greedy"]["test_error"],
        "student": entries[found["student"]].last_percent[0],
    }
    return {name: f"{kept_percent(error, entries[found['run']]):.0f}" for name, error in errors.items()}


def time_ratio(network: str, batch: int) -> str:
    """The time of a Predictor of all members, relative to one model in eager mode."""
    measured = json.loads((ROOT / f"results/prediction/{network}.json").read_text())["networks"][network]["timings"]
    found = [one for one in measured if one["batch"] == batch and re.fullmatch(r"Predictor of \d+", one["what"])]
    return f"{found[0]['ratio']:.2f}"


def predictions(folder: Path) -> str:
    """The results of `snapens bench predict`: one line per network and batch size, then the errors."""
    rows = [["network", "batch", "one model, ms", "Ensemble", "Predictor", "with early exit"], ["---", *["---:"] * 5]]
    errors: list[str] = []
    of_all: dict[int, list[float]] = {}  # ratios of the Predictor of all members, by batch size
    for path in sorted(folder.glob("*.json")):
        measured = json.loads(path.read_text())
        for network, found in measured["networks"].items():
            name = names.NETWORKS[network]
            for batch in dict.fromkeys(one["batch"] for one in found["timings"]):
                times = [one for one in found["timings"] if one["batch"] == batch]
                ratios = [f"{one['ratio']:.2f} ×" for one in times[1:]]
                of_all.setdefault(batch, []).extend(one["ratio"] for one in times if "Predictor of" in one["what"])
                rows.append([name, f"{batch:,}", f"{times[0]['median_ms']:.2f}", *ratios, *["–"] * (3 - len(ratios))])
            if qualities := found["qualities"]:
                every, early = qualities["all members"], qualities["early exit"]
                more, noise = signed(early["more_errors_percent"]), early["standard_error_percent"]
                errors.append(
                    f"- {name}: {every['error_percent']:.2f} % with all members, {early['error_percent']:.2f} % with "
                    f"early exit at {found['exit_threshold']:.2f} and {early['members_used']:.2f} members per image "
                    f"(difference {more} ± {noise:.2f} points)."
                )
    faster = [batch for batch, ratios in of_all.items() if max(ratios) < 1]
    check(bool(faster), faster == sorted(of_all)[: len(faster)])
    origin = (
        f"{measured['device']}, torch {measured['torch']}, n = 1. Up to a batch size of {faster[-1]}, `Predictor` "
        "evaluates all members faster than eager mode evaluates one model. Test errors of the predictors:"
    )
    return "\n".join([*map(formats.markdown_row, rows), "", origin, "", *errors])


def pictures() -> dict[Path, bytes]:
    """Every figure."""
    entries = ledger.entries(ROOT / "results")
    drawn = {
        f"figure-{name}-{network}.svg": figures.figure(name, entries, network, measured_only=True, columns=2)
        for name, network in FIGURES
    }
    drawn |= {"picture.svg": overview(entries), "budgets.svg": budgets.read(BUDGETS["glyphs"]).chart()}
    return {ROOT / "docs" / name: with_dark_mode(style.saved(figure, "svg")) for name, figure in drawn.items()}


def with_dark_mode(svg: bytes) -> bytes:
    """A figure that takes the dark colours of the report page where its surroundings are dark.

    An SVG file in a page follows the `color-scheme` of the element around it, so the site's own switch works too.
    """
    _, dark = PAGE_STYLE.read_text().split("@media (prefers-color-scheme: dark)")
    colours = dict(re.findall(r"--(\w+): (#\w+)", dark.partition("}")[0]))
    rules = "".join(
        f'[style*="{place}: {light}"]{{{place}:{colours[name]}!important}}'
        for light, name in style.COLOURS.items()
        for place in ("fill", "stroke")
    )
    return svg.replace(b"</style>", f"@media (prefers-color-scheme: dark){{{rules}}}</style>".encode(), 1)


def overview(entries: ledger.Entries) -> object:
    """The learning rate and error of one run with cycles, and the error of one without."""
    cyclic, standard = (
        ledger.runs_of(paper.find(f"wrn32-cifar100-{method}"), entries)[0] for method in ("snapshot-0.2", "single")
    )
    schedule = cyclic.recipe.schedule(paper.images(cyclic.recipe))
    steps = sorted({*range(0, schedule.total_steps, 200), *(step - 1 for step in schedule.snapshot_steps)})
    with style.drawing():
        figure = style.figure(480, 330)
        rate, error = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2.4))
        epochs = [step * cyclic.recipe.budget.epochs / schedule.total_steps for step in steps]
        rate.plot(epochs, [cyclic.recipe.optimizer.lr * schedule(step) for step in steps], color=style.SINGLE)
        rate.set(ylabel="learning rate", ylim=(0, 1.05 * cyclic.recipe.optimizer.lr))
        single = standard.snapshot_percent[-1]
        words = f"single model, standard schedule: {single:.2f} %"
        error.axhline(single, color=style.BASELINE, linestyle=(0, (5, 3)), label=words)
        for percent, words, colour in (
            (cyclic.snapshot_percent, "each snapshot alone", style.SINGLE),
            (cyclic.first_percent, "ensemble of the snapshots so far", style.ENSEMBLE),
        ):
            error.plot(cyclic.snapshot_epochs, percent, "o-", color=colour, label=f"{words}: {percent[-1]:.2f} %")
        for axes in (rate, error):
            charts.mark(axes, cyclic.snapshot_epochs)
        error.set(xlabel="epoch (dotted: a snapshot is taken)", ylabel="CIFAR-100 test error, %", xlim=(0, 202))
        error.legend(loc="upper right", bbox_to_anchor=(0.985, 1))
    return figure


if __name__ == "__main__":
    for path, text in texts().items():
        path.write_text(text)
    for path, content in pictures().items():
        path.write_bytes(content)
