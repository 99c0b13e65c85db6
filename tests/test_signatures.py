"""Outcomes as signatures, and when two of them are of the same failure."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import torch
from hypothesis import given, strategies as st

from torchsleuth.case.failures import frames_of, links, raised as failure, root_words, type_names
from torchsleuth.case.normalising import decisive, normalised
from torchsleuth.case.schema import Signature
from torchsleuth.case.signatures import ANY, EXACT, ORIGIN, Match, exit_code_of, operator_name, wrecked
from torchsleuth.errors import ConfigError
from torchsleuth.outcome import (
    Broken,
    Crashed,
    Mismatched,
    OutOfMemory,
    Passed,
    Raised,
    Stage,
    Symptom,
    TimedOut,
    Unrunnable,
    from_data,
    to_data,
)
from torchsleuth.run.checking.isolating import TOGETHER
from torchsleuth.run.observing.raising import is_out_of_memory, raised
from torchsleuth.run.observing.signatures import failure_of, said, signature_of
from torchsleuth.run.observing.stacks import frames_of_dump

RECORDED: Final = Path(__file__).parent / "data" / "signatures.json"


class Row(msgspec.Struct, frozen=True):
    bug: str
    size: int
    signature: Signature


def recorded() -> list[Row]:
    return msgspec.json.decode(RECORDED.read_bytes(), type=list[Row])


# ---- the table -------------------------------------------------------------------------------------------


def test_the_table_of_ten_and_more_bugs_in_three_sizes_is_block_diagonal() -> None:
    """Covers: U5"""
    rows = recorded()
    assert len({row.bug for row in rows}) >= 10
    assert all(sum(row.bug == other.bug for other in rows) == 3 for row in rows)
    wrong = [
        (one.bug, one.size, other.bug, other.size)
        for one, other in product(rows, rows)
        if one.signature.matches(other.signature) != (one.bug == other.bug)
    ]
    assert wrong == []


@pytest.mark.inductor
@pytest.mark.parametrize("name", ["cumsum_0dim", "relu_compile_error", "patmatch_take"])
def test_a_bug_that_is_met_now_has_the_signature_that_was_recorded(name: str) -> None:
    """Covers: U5"""
    from torch._inductor import config

    from bug_samples import BUGS

    bug = BUGS[name]
    function, arguments = bug.make(1)
    with config.patch({**bug.options, "compile_threads": 1}), torch.no_grad(), pytest.raises(Exception) as caught:  # noqa: PT011
        torch.compile(function, backend=bug.backend)(*arguments)
    torch.compiler.reset()
    seen = signature_of(raised(caught.value, Stage.COMPILE))
    assert seen is not None
    assert {row.bug for row in recorded() if row.signature.matches(seen)} == {name}


# ---- exceptions ------------------------------------------------------------------------------------------


class Silent(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no words")


class Slotted(RuntimeError):
    __slots__ = ()

    def __getattribute__(self, name: str) -> Any:
        if name == "__dict__":
            raise AttributeError(name)
        return super().__getattribute__(name)


def thrown(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def tail_biter() -> BaseException:
    one, other = RuntimeError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    return one


def with_notes(notes: object) -> BaseException:
    error = RuntimeError("noted")
    error.__notes__ = notes  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    "error",
    [
        Silent(),
        Slotted("x"),
        tail_biter(),
        with_notes(7),
        with_notes([object(), "\ud800"]),
        RuntimeError("x" * 10_000_000),
        RuntimeError("a\n" * 2_000_000 + "C++ compile error"),
        RuntimeError("/a" * 200_000 + "0x" * 50_000 + "[" * 100_000),
        RuntimeError(lambda: None, "\ud800\x00"),
        KeyboardInterrupt(),
    ],
    ids=lambda error: f"{type(error).__name__}",
)
def test_any_exception_is_an_outcome_of_bounded_size(error: BaseException) -> None:
    """Covers: U19"""
    outcome = raised(thrown(error), Stage.RUN)
    assert outcome.type_chain
    assert outcome.stage is Stage.RUN
    assert len(outcome.message) + len(outcome.traceback) + len(outcome.cause) < 500_000
    assert from_data(to_data(outcome)) == outcome
    signature = signature_of(outcome)
    assert signature is not None
    assert len(signature.message) <= 500
    assert msgspec.json.decode(msgspec.json.encode(failure_of(outcome)), type=type(failure_of(outcome)))
    assert not is_out_of_memory(error)


class Wrapper(RuntimeError):
    """As torch's own: keeps the first exception, and is raised `from None`."""

    def __init__(self, inner_exception: BaseException) -> None:
        super().__init__(f"backend raised:\n{type(inner_exception).__name__}: {inner_exception}")
        self.inner_exception = inner_exception


def test_the_root_of_a_chain_is_what_a_signature_is_about() -> None:
    """Covers: U5"""
    plain = thrown(IndexError("tuple index 3 out of range"))
    outer = thrown(Wrapper(plain))
    assert type_names(outer)[1:] == type_names(plain) == ("builtins.IndexError",)
    assert failure(outer).signature.matches(failure(plain).signature)
    assert root_words(outer) == "tuple index 3 out of range"
    signature = signature_of(raised(outer, Stage.LOWERING))
    assert signature is not None
    assert signature.message == "tuple index … out of range"


def test_what_was_merely_being_handled_is_no_part_of_a_signature() -> None:
    def lookup() -> None:
        try:
            {}["x"]
        except KeyError:
            raise RuntimeError("no lowering")  # noqa: B904 - that is the point

    with pytest.raises(RuntimeError) as caught:
        lookup()
    assert type_names(caught.value) == ("builtins.RuntimeError",)
    assert links(caught.value) == [caught.value]


REMOTE: Final = """An exception occurred in a subprocess:

Name=cpp_fused_relu_0
Traceback (most recent call last):
  File "/x/torch/_inductor/compile_worker/subproc_pool.py", line 420, in do_job
    result = job()
             ^^^^^
  File "/x/torch/_inductor/runtime/compile_tasks.py", line 60, in _worker_compile_triton
    raise ValueError("odd")
ValueError: odd block size 12
"""


def test_an_exception_of_another_process_is_told_by_its_text() -> None:
    kind = type("SubprocException", (Exception,), {"__module__": "torch._inductor.compile_worker.subproc_pool"})
    error = thrown(kind(REMOTE))
    assert type_names(error)[-1] == "ValueError"
    assert normalised(root_words(error)) == "odd block size …"
    assert frames_of(error) == ("torch._inductor.runtime.compile_tasks:_worker_compile_triton",)


def test_frames_are_torch_s_own_and_end_where_the_stage_begins() -> None:
    code = compile("def call(): raise ValueError('odd')", "/tmp/ab/cabcdefghijklmnopqrstuvwxyz.py", "exec")
    space: dict[str, Any] = {}
    exec(code, space)
    with pytest.raises(ValueError, match="odd") as caught:
        space["call"]()
    assert frames_of(caught.value) == ("<generated>:call",)
    with pytest.raises(RuntimeError) as caught_too:
        torch.nn.functional.layer_norm(torch.ones(2), (3,))
    assert frames_of(caught_too.value) == ("torch.nn.functional:layer_norm",)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"
        ),
        RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("C++ compile error\n\nOutput:\ncc1plus: out of memory allocating 65536 bytes after a total of 9"),
        OSError(12, "Cannot allocate memory"),
        Wrapper(MemoryError("std::bad_alloc")),
    ],
)
def test_whoever_says_that_memory_is_out_is_understood(error: BaseException) -> None:
    """Covers: U19"""
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("a view cannot share memory with 12 bytes"))


def test_torch_s_own_allocator_is_understood() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


# ---- dumps -----------------------------------------------------------------------------------------------

DUMP: Final = """Fatal Python error: Segmentation fault

Current thread 0x00007f0000000001 (most recent call first):
  {current}

Thread 0x00007f0000000003 (most recent call first):
  File "/x/torch/_inductor/compile_worker/subproc_pool.py", line 190 in _read_thread
  File "/x/threading.py", line 1002 in _bootstrap

Thread 0x00007f0000000002 (most recent call first):
  File "/x/sympy/core/expr.py", line 9 in subs
  File "/x/torch/_inductor/ir.py", line 99 in loader
  File "/x/torch/_inductor/lowering.py", line 786 in inner_fn
  File "/x/torch/_inductor/lowering.py", line 786 in inner_fn
  File "/x/torch/_inductor/graph.py", line 12 in run_node
  File "/x/torch/_dynamo/convert_frame.py", line 777 in __call__
  File "train.py", line 3 in <module>
"""


def test_frames_of_a_dump_are_those_of_the_thread_that_failed() -> None:
    """Covers: U19"""
    line = 'File "/x/torch/fx/node.py", line 3 in all_input_nodes'
    assert frames_of_dump(DUMP.format(current=line)) == ("torch.fx.node:all_input_nodes",)
    working = ("torch._inductor.ir:loader", "torch._inductor.lowering:inner_fn", "torch._inductor.graph:run_node")
    assert frames_of_dump(DUMP.format(current="<no Python frame>")) == working
    assert frames_of_dump("") == frames_of_dump("Killed\n") == ()


# ---- normalising -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("buf12 is not in buf3_1", "buf1 is not in buf0"),
        ("primals_7: expected s77*s22 + 1", "primals_12: expected 2*s0"),
        ("shape torch.Size([4, 32]) of arg0_1", "shape torch.Size([]) of arg12_1"),
        ("sizes (3, 4) and (5,) at 0x7f01", "sizes (12,) and () at 0xdead00"),
        ("add_12 of cpp_fused_add_mul_3", "add of cpp_fused_relu_0"),
        ("in /tmp/torchinductor_me/ab/cab.py:12:3 x", "in /home/you/x.py:1 x"),
        ("tried to allocate 17179869184 bytes", "tried to allocate 16 bytes"),
        ("FloorDiv(s77, 2) is not 4", "s3//2 is not 12"),
        ("u0 >= 2, got -1.5e-3", "u12 >= 7, got 3"),
        ("‘tmp12’ was not declared", "‘tmp3’ was not declared"),
        ("‘auto at_Half_tmp_acc1_vec’ conflicts", "‘auto at_Half_tmp_acc12_vec’ conflicts"),
        ("buf12 is not in {'buf0', 'buf1'}", "buf3 is not in {'buf0'}"),
        ("args (buf1, buf2) of ('add_1', 'add')", "args (buf1,) of ('add',)"),
        ("cannot be multiplied (s0x3 and 4xs77)", "cannot be multiplied (2x3 and 4x5)"),
        ("expected s8 + 1, got [u16, 3]", "expected s77 + 1, got [7]"),
    ],
)
def test_what_a_graph_s_size_decides_is_gone(one: str, other: str) -> None:
    """Covers: U5"""
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("expected float16", "expected float32"),
        ("aten.log1p is wrong", "aten.log is wrong"),
        ("conv2d", "conv3d"),
        ("missing 'slice_shape'", "missing 'start'"),
        ("uint8 is not int8", "int8 is not int8"),
        ("Expected u8 but got s8", "Expected s8 but got u8"),
        ("dtypes u8 and 's8'", "dtypes u8 and 's32'"),
        ("unsupported type i1", "unsupported type i4"),
        ("No\n  Explanation: `print` is not known\n  Hint: x", "No\n  Explanation: `open` is not known\n  Hint: x"),
    ],
)
def test_what_tells_two_bugs_apart_stays(one: str, other: str) -> None:
    """Covers: U5"""
    assert normalised(one) != normalised(other)


def test_of_a_compiler_s_output_the_first_error_counts() -> None:
    output = (
        "/t/x.cpp:1:2: warning: error-prone\n/t/cab.main.cpp:22:33: error: ‘tmp3’ was not declared\n/t/y:9: error: z"
    )
    said_by_torch = f"C++ compile error\n\nCommand:\ng++ -o 12 --error: x\n\nOutput:\n{output}"
    assert normalised(said_by_torch) == "‘tmp’ was not declared"
    assert (
        normalised("C++ compile error\n\nOutput:\nld: x.o: undefined reference to `f'") == "undefined reference to `f'"
    )
    assert decisive("C++ compile error\n\nCommand:\ng++") == "C++ compile error"


def test_a_compiler_that_speaks_another_language_is_understood() -> None:
    """Covers: U5"""
    output = "/t/a.cpp: In Funktion »f«:\n/t/a.cpp:5:9: Warnung: unbenutzt [-Wunused]\n/t/a.cpp:5:3: {}: »tmp3« fehlt\n"
    for word in ("Fehler", "schwerwiegender Fehler", "erreur ", "错误"):
        assert normalised(f"C++ compile error\n\nOutput:\n{output.format(word)}") == "»tmp« fehlt"


def test_the_listing_of_an_operator_s_arguments_is_dropped() -> None:
    text = "AssertionError: \n  target: aten.cumsum.default\n  args[0]: TensorBox(StorageBox(...))"
    assert normalised(text) == "AssertionError:"
    assert normalised("outer says:\nthe inner thing\nand more") == "outer says: the inner thing"


_NAMES = st.sampled_from(["buf{}", "arg{}_1", "tmp{}", "primals_{}", "s{}", "u{}", "0x7f{}", "{}", "[{}, 4]", "add_{}"])
_WORDS = st.lists(
    st.one_of(_NAMES, st.sampled_from(["is", "not", "float16", "the size", "of", "aten.add"])), min_size=1
)


@given(_WORDS, st.lists(st.integers(0, 10**6), min_size=1), st.lists(st.integers(0, 10**6), min_size=1))
def test_other_numbers_do_not_change_a_message(words: list[str], ours: list[int], theirs: list[int]) -> None:
    """Covers: U5"""
    one, other = (
        " ".join(word.format(numbers[place % len(numbers)]) for place, word in enumerate(words))
        for numbers in (ours, theirs)
    )
    assert normalised(one) == normalised(other)


_ODD = st.text(alphabet="ab_x0s1[](),… /.:-+*\n=’<>'BMi")


@given(st.one_of(st.text(), _ODD, st.lists(st.one_of(_NAMES, _ODD)).map("".join)))
def test_what_is_normal_stays_as_it_is(text: str) -> None:
    assert normalised(normalised(text)) == normalised(text)


# ---- matching --------------------------------------------------------------------------------------------

_TEXT = st.sampled_from(
    ["", "tuple index … out of range", "no lowering", "the output differs", "left with exit code 3"]
)
_FRAME = st.sampled_from(["torch._inductor.graph:run_node", "torch._inductor.ir:loader", "<generated>:call", "torch:x"])
_SIGNATURES = st.builds(
    Signature,
    kind=st.sampled_from(["raised", "mismatched", "crashed", "timed out", "out of memory"]),
    stage=st.sampled_from(Stage),
    types=st.lists(st.sampled_from(["A", "B"]), max_size=2).map(tuple),
    message=_TEXT,
    symptom=st.sampled_from([None, Symptom.VALUE, Symptom.NAN]),
    signal=st.sampled_from([None, 0, 6, 11]),
    op=st.sampled_from([None, "aten.relu.default", "relu", "aten.add.Tensor"]),
    frames=st.lists(_FRAME, max_size=4, unique=True).map(tuple),
)


@given(_SIGNATURES, _SIGNATURES)
def test_matching_is_reflexive_and_symmetric(one: Signature, other: Signature) -> None:
    """Covers: U5"""
    for match in (ORIGIN, EXACT, ANY):
        assert match(one, one)
        assert match(one, other) == match(other, one)
    assert one.matches(other) == ORIGIN(one, other)
    assert not EXACT(one, other) or ORIGIN(one, other)


def signature(**fields: Any) -> Signature:
    base = Signature(
        "raised", Stage.LOWERING, ("I", "IndexError"), "x", op="aten.relu.default", frames=("a", "b", "c", "d")
    )
    return msgspec.structs.replace(base, **fields)


@pytest.mark.parametrize(
    ("fields", "is_same"),
    [
        ({"types": ("IndexError",)}, True),
        ({"types": ("IndexError", "KeyError")}, False),
        ({"message": "y"}, False),
        ({"stage": Stage.POST_GRAD}, False),
        ({"stage": Stage.COMPILE}, True),
        ({"stage": Stage.UNKNOWN}, True),
        ({"stage": Stage.RUN}, False),
        ({"frames": ()}, True),
        ({"frames": ("a", "b", "c", "z")}, True),
        ({"frames": ("a", "z")}, False),
        ({"op": None}, True),
        ({"op": "relu_"}, True),
        ({"op": "aten.add.Tensor"}, False),
        ({"kind": "crashed"}, False),
    ],
)
def test_what_counts_for_two_exceptions(fields: dict[str, Any], is_same: bool) -> None:
    """Covers: U5"""
    assert signature().matches(signature(**fields)) is is_same


def test_what_grows_beyond_all_bounds_is_one_hang_whenever_it_is_stopped() -> None:
    """Covers: U5, U19. These are one graph and parts of it, stopped after 20 s: the loops of `pytorch#148073`."""
    innards = "lowering:inner_fn", "ir:inner_fn_opcount"
    seen = [
        Signature("timed out", stage, frames=tuple(f"torch._inductor.{name}" for name in names))
        for stage, names in (
            (Stage.LOWERING, ("virtualized:_default", *innards, "ir:should_realize_on_reuse", "graph:run_node")),
            (Stage.LOWERING, (*innards, "ir:get_read_names", "graph:register", "graph:register_users_of")),
            (Stage.SCHEDULING, ("lowering:inner_fn", "ir:store_output", "loop_body:__init__", "scheduler:_init")),
            (Stage.CODEGEN, ("codegen.common:_default", "loop_body:run", "scheduler:codegen")),
        )
    ]
    assert all(one.matches(other) for one in seen for other in seen)
    for stage in (Stage.RUN, Stage.CPP_COMPILE, Stage.POST_GRAD, Stage.AOT):
        assert not any(Signature("timed out", stage, frames=one.frames).matches(one) for one in seen)


def test_what_counts_for_crashes_hangs_and_mismatches() -> None:
    """Covers: U5"""

    def of(outcome: Any) -> Signature:
        found = signature_of(outcome)
        assert found is not None
        return found

    abort = of(Crashed(Stage.RUN, signal=6, frames=("a",)))
    assert abort.matches(of(Crashed(Stage.COMPARE, signal=6, frames=("b",))))
    assert abort.matches(Signature("crashed", Stage.RUN, message="the process died while it ran the graph"))
    assert not abort.matches(of(Crashed(Stage.RUN, signal=11)))
    assert not abort.matches(of(Crashed(Stage.RUN, exit_code=3)))
    assert [exit_code_of(one) for one in (abort, of(Crashed(exit_code=0)), of(Crashed()))] == [None, 0, None]
    assert of(Crashed(Stage.RUN, exit_code=3)).matches(of(Crashed(Stage.RUN, exit_code=3)))
    assert not of(Crashed(Stage.RUN, exit_code=3)).matches(of(Crashed(Stage.RUN, exit_code=4)))
    assert not of(Crashed(Stage.CODEGEN, signal=6, frames=("a",))).matches(
        of(Crashed(Stage.CODEGEN, signal=6, frames=("b",)))
    )
    corrupt = of(Crashed(Stage.RUN, signal=6, stderr="free(): invalid pointer\nFatal Python error: Aborted"))
    assert corrupt.matches(abort)
    assert corrupt.matches(of(Crashed(Stage.RUN, signal=8, frames=("a",))))
    assert not corrupt.matches(of(Crashed(Stage.RUN, signal=15)))
    assert wrecked(abort, of(Crashed(Stage.RUN, signal=11))).matches(of(Crashed(Stage.RUN, signal=11)))
    for other in (Crashed(Stage.RUN, signal=6), Crashed(Stage.RUN, signal=15), Crashed(Stage.CODEGEN, signal=11)):
        assert wrecked(abort, of(other)) == abort
    hang = of(TimedOut(Stage.POST_GRAD, frames=("x", "y", "loop", "pass", "run")))
    assert hang.matches(of(TimedOut(Stage.POST_GRAD, deadline=9.0, frames=("z", "loop", "pass", "run"))))
    assert not hang.matches(of(TimedOut(Stage.POST_GRAD, frames=("x", "y", "loop", "another pass", "run"))))
    assert not hang.matches(of(TimedOut(Stage.JOINT_GRAPH, frames=hang.frames)))
    assert not hang.matches(of(TimedOut(Stage.LOWERING, frames=hang.frames)))
    wrong = of(Mismatched(Stage.COMPARE, symptom=Symptom.VALUE, path="output[0]", op="aten.relu.default"))
    assert wrong.matches(of(Mismatched(Stage.COMPARE, symptom=Symptom.VALUE, path="output[3]['x']")))
    assert not wrong.matches(of(Mismatched(Stage.COMPARE, symptom=Symptom.NAN, path="output[0]")))
    assert not wrong.matches(of(Mismatched(Stage.COMPARE, symptom=Symptom.VALUE, path="inputs[0]")))
    assert not wrong.matches(
        of(Mismatched(Stage.COMPARE, symptom=Symptom.VALUE, path="output[0]", op="aten.log1p.default"))
    )
    assert not wrong.matches(of(Mismatched(Stage.COMPARE, path="output[0]", op=TOGETHER)))
    assert of(OutOfMemory(Stage.RUN, limit_bytes=9)).matches(of(OutOfMemory(Stage.RUN, message="x")))


@pytest.mark.parametrize("outcome", [Passed(), Unrunnable(), Broken()])
def test_what_is_no_failure_has_no_signature(outcome: Any) -> None:
    assert signature_of(outcome) is None
    with pytest.raises(ValueError, match="no failure"):
        failure_of(outcome)


def test_a_user_says_how_alike_failures_have_to_be() -> None:
    """Covers: U5"""
    assert (Match.parse("origin"), Match.parse(" exact"), Match.parse("any")) == (ORIGIN, EXACT, ANY)
    one, other = signature(), signature(types=("builtins.ValueError",), message="y")
    assert not ORIGIN(one, other)
    assert ANY(one, other)
    by_type, by_words = Match.parse("regex:Value"), Match.parse("regex:index 3: out")
    assert by_type(one, other)
    assert not by_type(other, one)
    assert str(by_words) == "regex:index 3: out"
    outcome = Raised(Stage.RUN, type_chain=("E",), message="first\nat index 3: out of range")
    assert not by_words(one, other)
    assert by_words(one, other, said(outcome))


@pytest.mark.parametrize(
    "text", ["", "same", "regex", "regex:", "regex:(", "exact:x", "regex:a{99999999999}", "Origin"]
)
def test_what_is_no_way_to_match_is_refused_in_words(text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape("failures cannot be matched by")) as caught:
        Match.parse(text)
    assert "regex:" in caught.value.remedy


def test_an_operator_has_one_name() -> None:
    names = ["aten.relu.default", "torch.ops.aten.relu_.default", "aten.relu", "relu", "torch.relu", "relu_"]
    assert {operator_name(name) for name in names} == {"relu"}
    assert operator_name("__and__") == "__and__"


def test_a_wrong_result_whose_operator_was_looked_for_is_exactly_the_one_that_was_recorded() -> None:
    recorded = Signature("mismatched", Stage.COMPARE, message="the output differs", symptom=Symptom.VALUE)
    seen = msgspec.structs.replace(recorded, op="aten.relu.default")
    assert EXACT(recorded, seen)
    assert EXACT(seen, recorded)
    assert not EXACT(seen, msgspec.structs.replace(recorded, op="aten.log1p.default"))
    assert not EXACT(recorded, msgspec.structs.replace(seen, symptom=Symptom.NAN))
