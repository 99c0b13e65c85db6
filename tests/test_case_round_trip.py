"""Graphs of real models and odd operators, kept by one process and taken up again by another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import corpus

SCRIPT = Path(__file__).with_name("round_trip.py")

# Two processes for each group; starting them costs more than most programs.
GROUPS = (
    "bert bert_training gpt2",
    "gpt2_training_dynamic llama_dynamic llama_training",
    "t5_training mamba_training",
    " ".join(name for name in corpus.PROGRAMS if not name.startswith(("bert", "gpt2", "llama", "t5", "mamba"))),
)


def rows_of(folder: Path, names: str, after: str = "aot") -> list[dict[str, Any]]:
    """What the fresh process found, a row for each case."""
    for command in (["write", str(folder), after, *names.split()], ["read", str(folder)]):
        ran = subprocess.run([sys.executable, str(SCRIPT), *command], capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-3000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def test_the_groups_are_the_whole_corpus() -> None:
    assert sorted(" ".join(GROUPS).split()) == sorted(corpus.PROGRAMS)
    assert len(corpus.PROGRAMS) >= 40


@pytest.mark.inductor
@pytest.mark.parametrize("names", GROUPS, ids=[group.split()[0] for group in GROUPS])
def test_a_fresh_process_computes_the_same_bits_and_inductor_generates_the_same_code(
    names: str, tmp_path: Path
) -> None:
    """Covers: S10, S21, U1, U4, U9, U30. Nothing is re-traced: the code is the same, byte for byte."""
    rows = rows_of(tmp_path, names)
    assert len(rows) >= len(names.split())
    assert [row for row in rows if not (row.get("bitwise") and row.get("code") and row.get("canonical"))] == []
    assert {row["name"] for row in rows if not row["lines"]} <= {"map_that_inductor_refuses-inference"}


@pytest.mark.parametrize("names", GROUPS[1:], ids=[group.split()[0] for group in GROUPS[1:]])
def test_dynamos_graphs_compute_the_same_bits_in_a_fresh_process(names: str, tmp_path: Path) -> None:
    """Covers: S21, U1, U4"""
    rows = rows_of(tmp_path, names, after="dynamo")
    assert len(rows) >= len(names.split())
    assert [row for row in rows if not (row.get("bitwise") and row.get("canonical"))] == []
