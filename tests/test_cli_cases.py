"""The commands on cases: what they print, as words and as data, and how they end."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from rich.console import Console

from torchsleuth.case import schema
from torchsleuth.case.schema import (
    Case,
    Code,
    Compiler,
    Config,
    Entry,
    Failure,
    Fake,
    Frame,
    Graph,
    Meta,
    Node,
    Noticed,
    Origin,
    Ref,
    Signature,
    State,
    Storage,
    Stored,
    Symbol,
    Symbols,
    Tensor,
)
from torchsleuth.case.stores import archive
from torchsleuth.case.stores.store import Store
from torchsleuth.cli import cases
from torchsleuth.cli.answers import Answer, after, give
from torchsleuth.config import After
from torchsleuth.errors import BadCase, BadValue, CannotHold, NotFound, SleuthError, StoreError
from torchsleuth.outcome import Stage, Symptom

EVIL = "\x1b[2J\x1b]0;owned\x07 [bold]not markup[/bold] \u202e"
TRACE = '  File "/home/me/model.py", line 12, in forward\n    y = F.relu(x)\n'


def make_case(store: Store, *, message: str = "size mismatch", nodes: int = 1) -> Case:
    """A case with everything that `show` has a section for."""
    values = torch.arange(12, dtype=torch.float32)
    digest = store.blobs.put(values.untyped_storage())
    meta = Meta(val=Fake("float32", ("s77", 4), (4, 1)), stack_trace=TRACE)
    calls = tuple(
        Node(f"relu_{i}", "call_function", "torch.ops.aten.relu.default", (Ref("x"),), meta=meta) for i in range(nodes)
    )
    signature = Signature("raised", Stage.LOWERING, ("torch.exc.InductorError",), op="torch.ops.aten.relu.default")
    return Case(
        Graph((Node("x", "placeholder", "x"), *calls, Node("output", "output", "output", (Ref("relu_0"),)))),
        Compiler(After.AOT, "inductor", options=(Entry("max_autotune", True),)),
        Origin(
            "2.13.0",
            "3.11.7",
            "0.1.0",
            graph="forward graph 0",
            phase="forward",
            frames=(Frame("/home/me/model.py", 12, "forward", "y = F.relu(x)"),),
            created="2026-11-16T03:31:00+00:00",
        ),
        inputs=(Tensor("float32", (3, 4), (4, 1), storage=0),),
        storages=(Storage(48, Stored(digest)),),
        symbols=Symbols((Symbol("s77", hint=3, lower=2, upper=64, source="L['x'].size()[0]"),)),
        state=State(
            grad=False,
            config=(
                Config("torch._inductor.config", "disabled_passes", "it's"),
                Config("torch._inductor.config", "post_grad_custom_post_pass", Noticed("function", "no word for it")),
            ),
            environment=(("TORCHINDUCTOR_FREEZING", "1"),),
        ),
        failure=Failure(signature, message, "\n".join(f"line {i}" for i in range(40))),
        code=(Code("python op", "mylib::foo", module="mylib"),),
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


def run(*args: str | Path, **environ: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "torchsleuth", *map(str, args)],
        env={**{k: v for k, v in os.environ.items() if k != "COLUMNS"}, **environ},
        capture_output=True,
        check=False,
    )


def shown(answer: Answer, width: int = 100, **options: Any) -> str:
    """What a person sees."""
    console = Console(file=io.StringIO(), width=width, **options)
    assert give(console, lambda: answer, as_json=False) == answer.code
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def as_data(answer: Answer, capsys: pytest.CaptureFixture[str]) -> Any:
    """What a program sees: one JSON value on stdout."""
    give(Console(), lambda: answer, as_json=True)
    return json.loads(capsys.readouterr().out)


def where(store: Store) -> str:
    return store.files.root


def show(store: Store, name: str, **options: Any) -> Answer:
    return cases.show(name, where(store), **{"width": 100, "whole": False, "traceback": False, **options})


# ---- list ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 20, 40, 72, 80, 300])
def test_a_list_has_every_case_with_its_label_and_failure_at_any_width(store: Store, width: int) -> None:
    first = store.save(make_case(store))
    second = store.save(make_case(store, message="something else"), "bert-backward")
    answer = cases.list_cases(where(store), width=width)
    told = shown(answer, width)
    assert answer.code == 0
    for part in (first.id, second.id, "bert-backward", "something"):
        assert part in told
    assert told.endswith(f"\nNext: {answer.next}\n")
    assert "\nbert" not in told  # a label at the margin would read as one more case
    assert answer.next in (f"sleuth show {name} --store {where(store)}" for name in (first.id, "bert-backward"))


@pytest.mark.parametrize("place", ["nowhere/at/all", "memory://nothing-here"])
def test_a_store_that_is_not_there_is_an_empty_one_and_is_not_made(place: str, tmp_path: Path, capsys: Any) -> None:
    place = place if "://" in place else str(tmp_path / place)
    answer = cases.list_cases(place, width=80)
    assert answer.code == 0
    assert "There is no case in" in shown(answer)
    assert as_data(answer, capsys)["cases"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_broken_case_does_not_hide_the_others(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    whole = store.save(make_case(store))
    broken = store.save(make_case(store, message="another"))
    Path(broken.path, "case.json").write_bytes(b'{"format": "torchsleuth.case"')
    answer = cases.list_cases(where(store), width=100)
    told = shown(answer)
    assert answer.code == 1
    assert "broken:" in told
    assert f"Next: sleuth show {whole.id}" in told
    by_id = {case["id"]: case for case in as_data(answer, capsys)["cases"]}
    assert by_id[whole.id]["error"] is None
    assert "cause" in by_id[broken.id]["error"]


def test_if_every_case_is_broken_the_next_command_says_how(store: Store) -> None:
    entry = store.save(make_case(store))
    Path(entry.path, "case.json").write_bytes(b"")
    assert f"Next: sleuth check-file {entry.path}" in shown(cases.list_cases(where(store), width=200), 200)


# ---- show ------------------------------------------------------------------------------------------------


def test_show_has_the_graph_the_inputs_the_failure_and_the_circumstances(store: Store) -> None:
    """Covers: U14, U23, U29"""
    entry = store.save(make_case(store), "relu")
    told = shown(show(store, "relu"))
    for part in (
        f"case {entry.id}  relu   RAISED ",
        "forward graph 0 · inductor (after aot) · torch 2.13.0 · Python 3.11.7 · 2026-11-16 03:31",
        "failure, stage: lowering",
        "torch.exc.InductorError, in aten.relu.default",
        "size mismatch",
        "line 39",
        "model.py:12 in forward: y = F.relu(x)",
        "relu_0: f32[s77, 4] = aten.relu.default(x)",
        "stored, 48 B",
        "L['x'].size()[0]",
        "gradients",
        '"it\'s"',
        "$TORCHINDUCTOR_FREEZING",
        "import mylib",
        "no word for it",
        "Next: sleuth export relu -o repro.py",
    ):
        assert part in told
    assert "line 3\n" not in told


def test_all_of_the_traceback_is_there_for_the_asking(store: Store) -> None:
    store.save(make_case(store), "relu")
    assert "line 0\n" not in shown(show(store, "relu"))
    assert "line 0\n" in shown(show(store, "relu", traceback=True))


def test_of_a_long_graph_the_middle_is_left_out_unless_asked_for(store: Store) -> None:
    store.save(make_case(store, nodes=1000), "long")
    told = shown(show(store, "long"))
    assert "lines more (--all)" in told
    assert told.count("relu_") < 400
    assert "relu_0:" in told
    assert "relu_999:" in told
    assert shown(show(store, "long", whole=True)).count("relu_") > 1000


def test_a_case_is_found_by_id_beginning_label_folder_file_and_archive(store: Store, tmp_path: Path) -> None:
    """Covers: U30"""
    entry = store.save(make_case(store), "relu")
    packed = archive.pack(store, "relu", tmp_path / "x.sleuth.zip")
    for name in (entry.id, entry.id[:4], "relu", entry.path, f"{entry.path}/case.json", str(packed)):
        assert "aten.relu.default" in shown(show(store, name))
    with pytest.raises(NotFound):
        show(store, "no-such-case")
    with pytest.raises(NotFound):
        show(store, "\0")


def test_show_as_data_has_what_a_program_wants(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    entry = store.save(make_case(store), "relu")
    data = as_data(show(store, "relu"), capsys)
    assert data["id"] == entry.id
    assert data["failure"]["signature"]["stage"] == "lowering"
    assert "relu_0: f32[s77, 4] = aten.relu.default(x)" in data["graph"]
    assert data["inputs"][0]["content"] == "stored, 48 B"
    assert data["missing"][0]["reason"] == "no word for it"
    assert data["state"]["config"][0]["value"] == "it's"


def test_infinities_in_a_case_are_still_json(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    case = make_case(store)
    storage = Storage(48, schema.Generated("uniform", "float32", -1e308, 1e308))
    store.save(msgspec.structs.replace(case, storages=(storage,)), "inf")
    assert "1e+308" in as_data(show(store, "inf"), capsys)["inputs"][0]["content"]
    give(Console(), lambda: Answer({"x": [float("inf"), float("nan")]}, [], ""), as_json=True)
    assert json.loads(capsys.readouterr().out) == {"x": ["inf", "nan"]}


def test_nothing_in_a_case_is_markup_or_acts_on_the_terminal(store: Store) -> None:
    case = make_case(store, message=EVIL)
    case = msgspec.structs.replace(
        case,
        failure=Failure(Signature("mismatched", symptom=Symptom.NAN, types=(EVIL,), op="torch.relu"), EVIL, EVIL, EVIL),
        origin=msgspec.structs.replace(case.origin, graph=EVIL, frames=(Frame(EVIL, 1, EVIL, EVIL),), platform=EVIL),
        code=(Code("triton kernel", EVIL, file=EVIL, source=EVIL),),
        compiler=Compiler(After.DYNAMO, EVIL, mode=EVIL, options=(Entry(EVIL, EVIL),)),
    )
    store.save(case, "evil")
    told = shown(show(store, "evil")) + shown(cases.list_cases(where(store), width=100))
    assert not {"\x1b", "\x07", "\u202e"} & set(told)
    assert "[bold]not markup[/bold]" in told


def test_every_kind_of_failure_can_be_shown(store: Store) -> None:
    for kind in ("raised", "mismatched", "crashed", "timed out", "out of memory"):
        case = msgspec.structs.replace(make_case(store), failure=Failure(Signature(kind, signal=11)))  # type: ignore[arg-type]
        name = store.save(case).id
        told = shown(show(store, name))
        assert f" {kind.upper()} " in told
        assert "signal 11 (SIGSEGV)" in told
    plain = Case(
        Graph((Node("output", "output", "output", (None,)),)),
        Compiler(After.AOT, "eager"),
        Origin("2.13", "3.11", "0.1"),
    )
    assert "graph of 1 nodes" in shown(show(store, store.save(plain).id))


@pytest.mark.parametrize("width", [1, 30, 72, 200])
def test_a_case_can_be_shown_at_any_width_and_with_colours(store: Store, width: int) -> None:
    store.save(make_case(store), "relu")
    answer = show(store, "relu", width=width)
    assert "\x1b[" in shown(answer, width, force_terminal=True, color_system="truecolor")


# ---- pack, unpack, check-file, remove, gc ----------------------------------------------------------------


def test_a_case_is_packed_and_unpacked_into_another_store(store: Store, tmp_path: Path) -> None:
    """Covers: U30"""
    entry = store.save(make_case(store), "relu")
    packed = cases.pack("relu", where(store), tmp_path / "mail.zip")
    assert f"Next: sleuth check-file {tmp_path / 'mail.zip'}" in shown(packed, 300)
    other = str(tmp_path / "other")
    answer = cases.unpack(tmp_path / "mail.zip", other, "from-a-friend")
    assert answer.data["id"] == entry.id
    assert "Next: sleuth show from-a-friend" in shown(answer)
    assert cases.check_files([Path(other, "cases", entry.id)]).code == 0


def test_a_case_is_packed_from_the_store_that_a_path_leads_into(store: Store, tmp_path: Path) -> None:
    entry = store.save(make_case(store))
    for path in (entry.path, f"{entry.path}/case.json"):
        answer = cases.pack(path, str(tmp_path / "empty"), tmp_path / "x.zip")
        assert Path(answer.data["path"]).stat().st_size == answer.data["bytes"]
    with pytest.raises(Exception, match="archive already"):
        cases.pack(str(tmp_path / "x.zip"), str(tmp_path / "empty"), None)


def test_check_file_tells_good_from_bad(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: U9"""
    entry = store.save(make_case(store))
    packed = archive.pack(store, entry.id, tmp_path / "x.sleuth.zip")
    truncated = tmp_path / "t.sleuth.zip"
    truncated.write_bytes(packed.read_bytes()[:-10])
    good = [Path(entry.path), Path(entry.path, "case.json"), packed]
    answer = cases.check_files([*good, truncated, tmp_path / "nothing", tmp_path])
    results = as_data(answer, capsys)["files"]
    assert [result["ok"] for result in results] == [True, True, True, False, False, False]
    assert [result["tensor_bytes"] for result in results[:3]] == [48, 48, 48]
    assert all(result["error"]["file"] for result in results[3:])
    told = shown(answer, 300)
    assert (told.count("whole  "), told.count("bad    "), told.count("good  ")) == (3, 3, 0)
    assert answer.code == 1
    assert cases.check_files(good).code == 0


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "tiny", "lengthen", "header", "long header", "remove"])
def test_check_file_finds_damage_in_a_tensor(store: Store, damage: str) -> None:
    """Covers: U9"""
    entry = store.save(make_case(store))
    (tensor,) = Path(where(store), "tensors").glob("*.safetensors")
    data = bytearray(tensor.read_bytes())
    if damage == "remove":
        tensor.unlink()
    else:
        flipped = bytes(data[:-1]) + bytes([data[-1] ^ 1])
        damaged = {
            "flip": flipped,
            "truncate": data[:-4],
            "empty": b"",
            "tiny": b"123",
            "lengthen": data + b"x",
            "header": bytes(data).replace(b'"data"', b'"atad"'),
            "long header": b"\xff" * 8 + data[8:],
        }
        tensor.write_bytes(damaged[damage])
    answer = cases.check_files([Path(entry.path)])
    assert answer.code == 1
    assert answer.data["files"][0]["error"]["field"] == "storages[0]"


def test_check_file_of_a_whole_store_says_what_to_give_instead(store: Store) -> None:
    store.save(make_case(store))
    assert "one by one" in shown(cases.check_files([Path(where(store))]), 300)


def test_removed_cases_leave_garbage_that_is_collected(store: Store) -> None:
    entry = store.save(make_case(store), "relu")
    assert cases.remove(["relu", entry.id], where(store)).data == {"removed": [entry.id]}
    tensors = Path(where(store), "tensors")
    would = cases.collect_garbage(where(store), dry_run=True, older_than=0.0)
    assert would.data["tensors"] == 1
    assert "Next: sleuth gc" in shown(would)
    assert len(list(tensors.glob("*.safetensors"))) == 1
    did = cases.collect_garbage(where(store), dry_run=False, older_than=0.0)
    assert {**did.data, "dry_run": True} == would.data
    assert list(tensors.glob("*.safetensors")) == []
    assert "Next: sleuth list" in shown(did)


def test_garbage_that_is_young_is_left_alone(store: Store) -> None:
    store.remove(store.save(make_case(store)).id)
    for dry_run in (True, False):
        answer = cases.collect_garbage(where(store), dry_run=dry_run, older_than=3600.0)
        assert (answer.data["tensors"], answer.data["young"]) == (0, 1)
        assert "1 tensor that no case refers to" in shown(answer, 300)
        assert "left alone for 3600 seconds" in shown(answer, 300)
        assert answer.next == f"sleuth gc --older-than 0 --store {where(store)}"
    assert cases.collect_garbage(where(store), dry_run=False, older_than=0.0).data["tensors"] == 1


def test_removing_a_case_says_when_its_tensors_go(store: Store) -> None:
    entry = store.save(make_case(store))
    assert "`sleuth gc`, when they are an hour old" in shown(cases.remove([entry.id], where(store)), 300)


def test_of_cases_to_remove_all_or_none_are_removed(store: Store) -> None:
    entry = store.save(make_case(store))
    with pytest.raises(NotFound):
        cases.remove([entry.id, "nothing"], where(store))
    assert store.entry(entry.id).error is None


# ---- as a program ----------------------------------------------------------------------------------------


def test_list_show_and_check_file_do_not_import_torch(store: Store, tmp_path: Path) -> None:
    entry = store.save(make_case(store), "relu")
    packed = archive.pack(store, "relu", tmp_path / "x.sleuth.zip")
    program = (
        "import sys\n"
        "from torchsleuth.cli.main import app\n"
        "for args in eval(sys.argv[1]):\n"
        "    assert app(args, standalone_mode=False) in (0, None), args\n"
        "sys.exit('torch' in sys.modules)"
    )
    store_option = ["--store", where(store)]
    commands = [
        ["list", *store_option],
        ["list", "--json", *store_option],
        ["show", "relu", *store_option],
        ["show", entry.path],
        ["show", str(packed), "--json"],
        ["check-file", entry.path, str(packed)],
    ]
    done = subprocess.run([sys.executable, "-c", program, repr(commands)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_an_error_is_words_on_stderr_or_data_on_stdout_and_exit_code_2(tmp_path: Path) -> None:
    words = run("show", "nothing", "--store", tmp_path)
    assert words.returncode == 2
    assert words.stdout == b""
    assert b"remedy" in words.stderr
    assert words.stderr.endswith(b"\nNext: sleuth list\n")
    assert [line[:9] for line in words.stderr.splitlines()] == [
        b"error: th",
        b"  cause: ",
        b"  remedy:",
        b"",
        b"Next: sle",
    ]
    data = run("show", "nothing", "--store", tmp_path, "--json")
    assert data.returncode == 2
    assert data.stderr == b""
    assert set(json.loads(data.stdout)["error"]) == {"what", "cause", "remedy", "file", "field"}


@pytest.mark.parametrize(
    ("error", "following"),
    [
        (NotFound("w", cause="c", remedy="r"), "sleuth list"),
        (StoreError("w", cause="c", remedy="r", file="/a"), "sleuth doctor"),
        (BadValue("w", cause="c", remedy="r"), "sleuth doctor"),
        (BadCase("w", cause="c", remedy="r", file="a b/case.json"), "sleuth check-file 'a b/case.json'"),
        (CannotHold("w", cause="c", remedy="r"), "sleuth --help"),
    ],
)
def test_after_every_error_there_is_a_next_command(error: SleuthError, following: str) -> None:
    assert after(error) == following


def test_a_case_is_shown_by_the_beginning_of_its_id_which_has_four_digits(store: Store) -> None:
    entry = store.save(make_case(store))
    assert run("show", entry.id[:4], "--store", where(store)).returncode == 0
    short = run("show", entry.id[:1], "--store", where(store))
    assert short.returncode == 2
    assert b"at least 4 digits" in short.stderr


def test_a_disk_that_is_full_is_said_and_is_not_our_fault(tmp_path: Path) -> None:
    for extra in ([], ["--json"]):
        with open("/dev/full", "wb") as full:
            command = [sys.executable, "-m", "torchsleuth", "list", "--store", str(tmp_path), *extra]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
        assert done.returncode == 2
        assert b"cannot be written" in done.stderr


def test_output_that_nobody_reads_to_the_end_is_no_error(store: Store) -> None:
    store.save(make_case(store, nodes=2000), "long")
    for extra in ([], ["--json"]):
        command = [sys.executable, "-m", "torchsleuth", "show", "long", "--all", "--store", where(store), *extra]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == b""
        assert process.returncode == 0


@pytest.mark.parametrize(("encoding", "command"), [("ascii", "list"), ("ascii", "show"), ("latin-1", "show")])
def test_a_terminal_of_any_encoding_is_enough(store: Store, encoding: str, command: str) -> None:
    entry = store.save(make_case(store, message="日本 …"))
    names = [entry.id] if command == "show" else []
    done = run(command, *names, "--store", where(store), PYTHONIOENCODING=encoding, PYTHONUTF8="0", COLUMNS="79")
    assert done.returncode == 0, done.stderr
    assert "\\u65e5" in done.stdout.decode(encoding)


def test_a_fault_of_our_own_is_exit_code_3_and_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    def faulty() -> Answer:
        raise ZeroDivisionError("oops")

    with pytest.raises(ZeroDivisionError):
        give(Console(), faulty, as_json=True)
    assert "fault of torchsleuth" in json.loads(capsys.readouterr().out)["error"]["what"]


def test_a_warning_about_a_case_is_a_note(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """Covers: S26"""
    from torchsleuth.case.format import reading

    body = reading.unseal(reading.encode(make_case(store))).body
    path = Path(where(store), "newer.json")
    path.write_bytes(reading.seal(bytes(body), version=99))

    def command() -> Answer:
        return show(store, str(path))

    console = Console(file=io.StringIO(), width=200)
    give(console, command, as_json=False)
    assert isinstance(console.file, io.StringIO)
    assert "note: " in console.file.getvalue()
    assert "version 99" in console.file.getvalue()
    give(Console(), command, as_json=True)
    assert "version 99" in json.loads(capsys.readouterr().out)["warnings"][0]
