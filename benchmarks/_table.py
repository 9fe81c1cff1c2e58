"""Turn the JSON files of the benchmarks into the table of README.md.

It prints the table, or puts it into the README's Results section:

    python benchmarks/_table.py benchmarks/results/*.json
    python benchmarks/_table.py benchmarks/results/*.json --write
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

README = Path(__file__).with_name("README.md")
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def rows(report: dict[str, Any]) -> Iterable[str]:
    """One table row per measured quantity."""
    for r in report["results"]:
        sign = "≥" if r["at_least"] else "<"
        verdict = r["verdict"] if r["holds"] else f"**{r['verdict']}**"
        yield (
            f"| {report['question']} | {r['name']} | {r['median']:.3g} {r['unit']} "
            f"| {r['q1']:.3g}..{r['q3']:.3g} | {r['min']:.3g}..{r['max']:.3g} "
            f"| {sign} {r['target']:g} {r['unit']} | {verdict} |"
        )


def table(reports: list[dict[str, Any]]) -> str:
    """The table, and the conditions under which each file was measured."""
    lines = ["| question | quantity | median | quartiles | range | target | verdict |", "|---" * 7 + "|"]
    lines += [row for report in reports for row in rows(report)]
    return "\n".join([*lines, "", *dict.fromkeys(conditions(report) for report in reports)])


def conditions(report: dict[str, Any]) -> str:
    machine, versions = report["machine"], report["versions"]
    names = ", ".join(f"{name} {number}" for name, number in versions.items())
    return f"* {report['date']}, {report['pairs']} pairs, {machine['cpus']} CPUs {machine['arch']}, {names}"


def write(text: str) -> None:
    """Replace what stands between the two markers of the README."""
    before, _, rest = README.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    README.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--write", action="store_true", help="into README.md instead of the terminal")
    args = parser.parse_args()
    reports = [json.loads(path.read_text()) for path in args.files]
    if quick := [report["question"] for report in reports if report["quick"]]:
        raise SystemExit(f"made with --quick, which is no measurement: {', '.join(quick)}; run without it")
    text = table(reports)
    if args.write:
        write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
