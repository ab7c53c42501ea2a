"""Tables 1 to 3, their formats and the README's block, with no, some and all cells measured."""

import csv
import io
import re
import subprocess
import sys
from dataclasses import replace
from statistics import fmean, stdev

import measurements
import pytest
from pages import readme

from snapens.errors import ArgumentError
from snapens.lab.paper import cells as paper
from snapens.report import formats
from snapens.report.tables import table

PAPER = "densenet40-cifar100-snapshot-0.2"
SOME = [paper.find(f"wrn32-cifar10-{method}") for method in ("single", "nocycle", "snapshot-0.2")]
ALL_ERRORS = ("snapshot_percent", "last_percent", "first_percent")


def ledger(**percent_by_cell):
    """Cells and what each seed of their run shall have for an error; names with _ for - and without their dots."""
    entries = {}
    for cell in paper.cells():
        for seed, percent in enumerate(percent_by_cell.get(re.sub(r"[-.]", "_", cell.name), ())):
            one = measurements.entry(replace(cell.recipe, seed=seed))
            entries[one.name] = replace(one, **dict.fromkeys(ALL_ERRORS, (percent,) * cell.recipe.method.cycles))
    return entries


def value_of(name, entries, number=1):
    return next(value for value in table(number, entries).values if value.cell.name == name)


def test_table_1_has_the_papers_groups_methods_and_columns():
    found = table(1, {})
    assert found.columns == ("C10", "C100", "SVHN", "Tiny ImageNet")
    assert [group.network for group in found.groups] == ["ResNet-110", "Wide-ResNet-32", "DenseNet-40", "DenseNet-100"]
    methods = [
        "Single model",
        "Dropout",
        "NoCycle Snapshot Ensemble",
        "SingleCycle Ensembles",
        "Snapshot Ensemble (α₀ = 0.1)",
        "Snapshot Ensemble (α₀ = 0.2)",
    ]
    assert [row.method for row in found.groups[0].rows] == [method for method in methods if method != "Dropout"]
    for group in found.groups[1:]:
        assert [row.method for row in group.rows] == methods
    assert [value.cell.published if value else None for value in found.groups[2].rows[1].values] == [
        *("6.08", "25.79", "1.79*", "39.68")
    ]
    assert [value and value.cell.published for value in found.groups[3].rows[5].values] == ["3.44", "17.41", None, None]


def test_tables_2_and_3_have_the_papers_rows():
    (imagenet,) = table(2, {}).groups
    assert [(row.method, row.values[0].cell.published) for row in imagenet.rows] == [
        ("Single model", "24.01"),
        ("Snapshot Ensemble (M = 2)", "23.33"),
        ("Snapshot Ensemble (M = 3)", "23.96"),
    ]
    (cycles,) = table(3, {}).groups
    published = [row.values[0].cell.published for row in cycles.rows]
    assert published == ["22.92", "22.07", "21.93", "21.89", "22.16"]
    with pytest.raises(ArgumentError, match="number must be 1, 2 or 3, the tables of the paper, got 4"):
        table(4, {})


def test_the_best_published_values_are_those_in_bold_in_the_paper():
    bold = {value.cell.name for number in (1, 2, 3) for value in table(number, {}).values if value.published_is_best}
    in_the_paper = {
        "resnet110": {"cifar10": "0.2", "cifar100": "0.2", "svhn": "0.1", "tinyimagenet": "0.2"},
        "wrn32": {"cifar10": "0.1", "cifar100": "0.1", "svhn": "0.2", "tinyimagenet": "0.2"},
        "densenet40": {"cifar10": "0.2", "cifar100": "0.2", "svhn": "0.1", "tinyimagenet": "0.2"},
        "densenet100": {"cifar10": "0.2", "cifar100": "0.2"},
    }
    assert bold == {
        *(f"{net}-{data}-snapshot-{lr}" for net, column in in_the_paper.items() for data, lr in column.items()),
        "resnet50-imagenet-m2",
        "densenet40-cifar100-m8",
    }


def test_blue_rows_are_the_papers_method():
    found = {
        row.method
        for number in (1, 2, 3)
        for group in table(number, {}).groups
        for row in group.rows
        if row.is_the_papers
    }
    assert found == {
        f"Snapshot Ensemble ({what})" for what in ("α₀ = 0.1", "α₀ = 0.2", *(f"M = {m}" for m in (2, 3, 4, 6, 8, 10)))
    }


def test_ours_has_a_mean_n_spread_and_difference():
    seeds = (21.5, 22.25, 21.0)
    value = value_of(PAPER, ledger(densenet40_cifar100_snapshot_0_2=seeds))
    assert value.ours.values == seeds
    assert (value.ours.n, value.ours.mean, value.ours.deviation) == (3, fmean(seeds), stdev(seeds))
    assert value.difference == pytest.approx(fmean(seeds) - 21.93)
    one = value_of(PAPER, ledger(densenet40_cifar100_snapshot_0_2=(21.5,)))
    assert (one.ours.n, one.ours.mean, one.ours.deviation) == (1, 21.5, None)
    none = value_of(PAPER, {})
    assert (none.ours.n, none.ours.mean, none.ours.deviation, none.difference) == (0, None, None, None)


def test_a_run_fills_every_cell_that_reads_it():
    entries = ledger(densenet40_cifar100_snapshot_0_2=(21.5,))
    assert value_of("densenet40-cifar100-m6", entries, number=3).ours.mean == 21.5
    entries = measurements.of_cells([paper.find("wrn32-cifar10-single")])
    assert value_of("wrn32-cifar10-nocycle", entries).ours.mean < value_of("wrn32-cifar10-single", entries).ours.mean


def test_the_best_of_ours_needs_another_to_be_better_than():
    alone = ledger(wrn32_cifar10_dropout=(5.0,))
    assert not value_of("wrn32-cifar10-dropout", alone).ours_is_best
    two = ledger(wrn32_cifar10_dropout=(5.0,), wrn32_cifar10_snapshot_0_2=(4.996,), wrn32_cifar10_snapshot_0_1=(5.1,))
    best = {value.cell.name for value in table(1, two).values if value.ours_is_best}
    assert best == {"wrn32-cifar10-dropout", "wrn32-cifar10-snapshot-0.2"}  # both are printed as 5.00


def test_the_terminal_shows_aligned_columns_and_says_what_is_not_measured():
    text = formats.terminal(table(1, ledger(wrn32_cifar10_dropout=(5.0, 5.2), wrn32_cifar10_snapshot_0_2=(4.5,))))
    lines = text.splitlines()
    dropout = next(line for line in lines if line.strip().startswith("Dropout"))
    assert re.search(r"Dropout +4\.68 +5\.10 ± 0\.14 \(n = 2, \+0\.42\) +22\.82 +– ", dropout)
    best = next(line for line in lines if "[4.50] (n = 1, -0.23)" in line)
    assert "4.73" in best
    heads = lines[3]
    for line in lines[5:9]:
        assert line.index("–") == heads.index("ours")
    assert "[5.32]" in text
    assert "5.24*" in text
    assert all(len(line) < 200 for line in lines)


def test_a_narrow_terminal_has_the_columns_below_each_other():
    shown = table(1, measurements.everything(2))
    wide, narrow, narrowest = (formats.terminal(shown, most) for most in (1000, 130, 20))
    assert [text.count("ResNet-110 ") for text in (wide, narrow, narrowest)] == [1, 2, 4]
    assert max(map(len, narrow.splitlines())) <= 130
    for line in formats.csv(shown).splitlines()[1:]:
        assert f"{float(line.split(',')[8]):.2f}" in narrowest
    blocks = [block.splitlines() for block in narrow.split("\n\n")]
    assert [block[0].split() for block in blocks[1:]] == [["C10", "C100"], ["SVHN", "Tiny", "ImageNet"]]


def test_markdown_has_as_many_cells_in_every_row_and_bold_where_it_is_best():
    for number in (1, 2, 3):
        for entries in ({}, measurements.of_cells(SOME, 2), measurements.everything(2)):
            text = formats.markdown(table(number, entries))
            rows = [line for line in text.splitlines() if line.startswith("|")]
            assert {row.count("|") for row in rows} == {3 + 2 * len(table(number, entries).columns)}
    text = formats.markdown(table(1, ledger(wrn32_cifar10_dropout=(5.0, 5.2), wrn32_cifar10_snapshot_0_2=(4.5,))))
    assert "| 4.73 | **4.50** (n = 1, -0.23) |" in text
    assert "| 5.24\\* | – | 24.42\\* | – |" in text


def test_csv_has_a_line_for_each_published_number():
    entries = ledger(densenet40_cifar100_snapshot_0_2=(21.5, 22.25))
    rows = {
        row["cell"]: row
        for number in (1, 2, 3)
        for row in csv.DictReader(io.StringIO(formats.csv(table(number, entries))))
    }
    assert len(rows) == 88
    assert rows[PAPER] == {
        "table": "1",
        "cell": PAPER,
        "network": "DenseNet-40",
        "dataset": "CIFAR-100",
        "method": "Snapshot Ensemble (α₀ = 0.2)",
        "paper_percent": "21.93",
        "starred": "0",
        "paper_is_best": "1",
        "ours_percent": "21.8750",
        "n": "2",
        "spread_points": "0.5303",
        "difference_points": "-0.0550",
        "ours_is_best": "0",
    }
    assert rows["densenet40-cifar10-single"]["starred"] == "1"
    assert rows["wrn32-svhn-dropout"]["ours_percent"] == ""


def test_latex_is_balanced_and_free_of_characters_that_it_does_not_know():
    for number in (1, 2, 3):
        for entries in ({}, measurements.of_cells(SOME, 2), measurements.everything(2)):
            text = formats.latex(table(number, entries))
            assert text.isascii()
            assert text.count("{") == text.count("}")
            assert text.count("$") % 2 == 0
            assert not re.search(r"(?<!\\)%(?! needs)", text)
            rows = [line for line in text.splitlines() if line.endswith("\\\\")]
            columns = 2 + 2 * len(table(number, entries).columns)
            body = rows[1:]  # the first has cells that span two columns
            assert {line.count("&") for line in body} == {columns - 1}
    text = formats.latex(table(1, ledger(densenet40_cifar100_snapshot_0_2=(21.5, 22.0))))
    assert "Snapshot Ensemble ($\\alpha_0=0.2$)" in text
    assert "\\textcolor{blue}{\\textbf{21.93}} & \\textcolor{blue}{21.75 $\\pm$ 0.35 ($n=2$, $-0.18$)}" in text
    assert "5.24$^*$" in text
    assert "\\multirow{6}{*}{DenseNet-40}" in text
    assert text.index("\\begin{adjustbox}{max width=\\textwidth}") < text.index("\\begin{tabular}")


@pytest.mark.parametrize("form", formats.FORMATS.values())
def test_formats_give_the_same_text_for_the_same_ledger(form):
    for number in (1, 2, 3):
        entries = measurements.everything(2)
        backwards = dict(reversed(entries.items()))
        assert form(table(number, entries)) == form(table(number, backwards))


def test_the_readmes_block_has_each_network_with_both_runs():
    assert readme.results({}) == "Nothing has been measured yet."
    entries = ledger(
        wrn32_cifar100_single=(24.0,),
        wrn32_cifar100_snapshot_0_2=(21.0, 21.2),
        densenet40_cifar100_single=(25.0,),
        densenet40_cifar100_snapshot_0_2=(22.0,),
        resnet110_cifar100_single=(27.0,),  # its ensemble is missing
    )
    lines = readme.results(entries).splitlines()
    assert lines[2:] == [
        "| Wide-ResNet-32 | CIFAR-100 | 23.55 | 24.00 | 21.56 | 21.10 ± 0.14 | 1, 2 | NVIDIA H200 |",
        "| DenseNet-40 | CIFAR-100 | 24.42\\* | 25.00 | 21.93 | 22.00 | 1 | NVIDIA H200 |",
        "",
        "Test errors in %, with a peak rate of 0.2 for the ensembles; n is the number of seeds. "
        "\\* Copied from the DenseNet paper.",
    ]
    assert "\\*" not in readme.results({name: one for name, one in entries.items() if "dense" not in name})
    assert len(readme.results(measurements.everything()).splitlines()) == 3 + 2 + 2


def test_words_in_the_readme_cannot_break_its_table():
    device = "GPU | x --> <script>alert(1)</script> `a` **b** [c](https://d) \\"
    origin = replace(measurements.ORIGIN, device=device)
    cells = [paper.find(f"wrn32-cifar100-{method}") for method in ("single", "snapshot-0.2")]
    text = readme.results(measurements.of_cells(cells, origin=origin))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {9}
    assert "-->" not in text
    for mark in ("<script", "`", "**", "](", "https:"):
        assert mark not in text.replace("\\*", "")


def test_a_readme_is_updated_between_its_markers_and_a_stale_one_is_seen():
    text = f"# Title\n\n{readme.BEGIN}\nold\n{readme.END}\n\nThe end.\n"
    updated = readme.update(text, "new")
    assert updated == f"# Title\n\n{readme.BEGIN}\n\nnew\n\n{readme.END}\n\nThe end.\n"
    assert readme.update(updated, "new") == updated
    both = f"{updated}<!-- other: begin (made from the ledger; do not edit) -->\n<!-- other: end -->\n"
    assert readme.update(both, "more", "other") == both.replace("-->\n<!-- other", "-->\n\nmore\n\n<!-- other")


@pytest.mark.parametrize(
    "text",
    [
        "no markers",
        readme.BEGIN,
        f"{readme.END}\n{readme.BEGIN}",
        f"{readme.BEGIN}\n{readme.BEGIN}\n{readme.END}",
        f"{readme.BEGIN}\n{readme.END}\n{readme.END}",
    ],
)
def test_a_readme_without_its_two_markers_is_rejected(text):
    with pytest.raises(
        ArgumentError, match=r"text must have the lines <!-- results: begin .* once each and in this order: add them"
    ):
        readme.update(text, "new")


def test_tables_are_made_without_torch_or_matplotlib():
    code = (
        "import sys; from snapens.report import formats, tables\n"
        "formats.terminal(tables.table(1, {}))\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
