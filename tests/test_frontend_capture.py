"""`capture`: graphs, breaks, guards, caches, backends, threads, and what it leaves alone."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import pickle
import random
import sys
import threading
import traceback
import warnings
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from torchsleuth import torch_compat
from torchsleuth.errors import SleuthError, UnsupportedPython
from torchsleuth.frontend import Captured, capture, segments
from torchsleuth.frontend.outside import Outside
from torchsleuth.frontend.segments import BackendMisbehaved

pytestmark = pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="the front end reads the bytecode of Python 3.11"
)


def quietly(fn, *args):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        return fn(*args), printed.getvalue()


def targets(graph) -> list[str]:
    return [node.target if isinstance(node.target, str) else node.target.__name__ for node in graph.graph.nodes][:-1]


class Counting:
    """A backend that counts what it is given, and runs it."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []
        self.runs = 0

    def __call__(self, gm, example_inputs):
        self.graphs.append(gm)

        def run(*args):
            self.runs += 1
            return gm.forward(*args)

        return run


# ---- graphs and breaks ------------------------------------------------------------------------------------


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = torch.relu(self.first(x))
        print("half-way", tuple(x.shape))
        return self.second(x)


def test_a_print_in_the_middle_makes_two_graphs_and_is_reported_at_its_line() -> None:
    """Covers: F4, F12"""
    model, x = Broken(), torch.randn(3, 4)
    fast = capture(model)
    for _ in range(3):
        (ours, said), (eager, wanted) = quietly(fast, x), quietly(model, x)
        assert torch.equal(ours, eager)
        assert said == wanted
    assert len(fast.graphs) == 2
    assert (fast.recordings, fast.hits) == (2, 2)
    (found,) = fast.breaks
    assert found.reason == "print"
    assert found.place.source == 'print("half-way", tuple(x.shape))'
    assert [place.function for place in found.stack] == ["Broken.forward"]
    assert found.advice


def test_a_print_in_one_turn_of_a_loop_makes_two_graphs() -> None:
    """Covers: F4"""

    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                x = layer(x)
                if number == 3:
                    print("half-way")
            return x

    model, x = Layers(), torch.ones(1, 4)
    fast = capture(model)
    for _ in range(4):
        (ours, said), (eager, wanted) = quietly(fast, x), quietly(model, x)
        assert torch.equal(ours, eager)
        assert said == wanted
    assert (len(fast.graphs), [each.reason for each in fast.breaks], fast.hits) == (2, ["print"], 2)


@pytest.mark.inductor
def test_two_graphs_are_right_under_inductor() -> None:
    """Covers: F4, F9"""
    model, x = Broken(), torch.randn(3, 4)
    fast = capture(model, "inductor")
    for _ in range(3):
        torch.testing.assert_close(quietly(fast, x)[0], quietly(model, x)[0])
    assert fast.hits == 2


def test_user_functions_are_inlined_into_one_graph() -> None:
    """Covers: F3"""

    def scaled(x, by):
        return x * by

    class Box:
        def __init__(self, size):
            self.size = size

        def __call__(self, x):
            return scaled(x, self.size)

    def fn(x):
        return sum([Box(n)(x) for n in (1, 2, 3)], start=x)

    fast, x = capture(fn), torch.ones(2)
    assert torch.equal(fast(x), fn(x))
    assert torch.equal(fast(x + 1), fn(x + 1))
    assert (len(fast.graphs), fast.breaks, fast.hits) == (1, [], 1)


def test_a_wrong_number_of_arguments_names_the_function_its_line_and_the_types_given() -> None:
    """Covers: F3"""

    def two(a, b):
        return a + b

    fast = capture(lambda x: two(x))
    with pytest.raises(TypeError, match=r"two\(\) missing 1 required positional argument: 'b'") as raised:
        fast(torch.ones(1))
    (note,) = raised.value.__notes__
    assert f"{__file__}:{two.__code__.co_firstlineno}" in note
    assert "(Tensor)" in note


def test_a_function_on_the_skip_list_is_a_break_and_no_error() -> None:
    """Covers: F3"""

    def helper(x):
        return x * 2

    fast = capture(lambda x: helper(x + 1) + 1, skip=[helper])
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 5.0))
    assert len(fast.graphs) == 2
    assert "helper" in fast.breaks[0].reason
    assert "natively" in fast.breaks[0].reason


BREAKS_INSIDE = {
    "an inlined call": lambda x, say: _say(x + 1, say) * 2,
    "a loop": lambda x, say: [_say(x + n, say) for n in range(3)],
    "a with": lambda x, say: _in_with(x, say),
    "a try": lambda x, say: _in_try(x, say),
    "a handler": lambda x, say: _in_handler(x, say),
    "a generator": lambda x, say: list(_generated(x, say)),
}


def _say(x, say):
    say(float(x.sum()))
    return x * 2


def _in_with(x, say):
    with torch.no_grad():
        y = _say(x, say)
        return y + 1, torch.is_grad_enabled()


def _in_try(x, say):
    try:
        _say(x, say)
        raise KeyError("k")
    except KeyError as error:
        return x + len(error.args)
    finally:
        say("finally")


def _in_handler(x, say):
    try:
        raise ValueError("v")
    except ValueError as error:
        say("handling")
        y = x + 1
        try:
            raise
        except ValueError as again:
            return y, again is error


def _generated(x, say):
    for n in range(2):
        say(n)
        yield x + n
    say("end")


@pytest.mark.parametrize("where", BREAKS_INSIDE)
def test_execution_goes_on_behind_a_break(where: str) -> None:
    """In an inlined call, in a loop, in `with`, in `try`, while an exception is handled, in a generator.

    Covers: F4
    """
    fn = BREAKS_INSIDE[where]
    fast = capture(fn)
    for number in range(4):
        x = torch.full((2,), float(number))
        (ours, said), (eager, wanted) = quietly(fast, x, print), quietly(fn, x, print)
        assert str(ours) == str(eager)
        assert said == wanted
    assert "print" in {each.reason for each in fast.breaks}
    assert not fast.crashes


def test_an_exception_has_the_traceback_of_the_users_lines_at_each_call() -> None:
    """Covers: F6"""

    def inner(x):
        y = x + 1
        raise ValueError(tuple(y.shape))

    def fn(x):
        return inner(x) * 2

    fast = capture(fn)
    for _ in range(3):
        with pytest.raises(ValueError, match="2,") as raised:
            fast(torch.ones(2))
        names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert names[-2:] == ["fn", "inner"]
        files = {frame.filename for frame in traceback.extract_tb(raised.value.__traceback__)[2:]}
        assert files == {__file__}
        lines = [frame.line for frame in traceback.extract_tb(raised.value.__traceback__)]
        assert lines[-1] == "raise ValueError(tuple(y.shape))"
    assert fast.recordings == 1


def test_a_warning_names_the_users_line() -> None:
    def fn(x):
        warnings.warn("careful", stacklevel=1)
        return x + 1

    fast = capture(fn)
    for _ in range(2):
        with pytest.warns(UserWarning, match="careful") as warned:
            fast(torch.ones(1))
        assert (warned[0].filename, warned[0].lineno) == (__file__, fn.__code__.co_firstlineno + 1)


# ---- sizes and lists --------------------------------------------------------------------------------------


def test_numel_folds_constants_and_multiplies_only_what_is_needed() -> None:
    """Covers: F1"""
    backend = Counting()

    def fn(x, scale):
        unused = x.shape.numel() * 7
        del unused
        return x * 2 if x.shape.numel() >= 0 else x

    capture(fn, backend, dynamic=True)(torch.ones(3, 4), torch.ones(1))
    assert targets(backend.graphs[-1]) == ["input_0", "mul"]
    capture(lambda x: x + x.shape.numel(), backend, dynamic=True)(torch.ones(1, 4))
    assert targets(backend.graphs[-1]) == ["input_0", "size", "add"]  # no multiplication by 1
    capture(lambda x: x + x.shape.numel(), backend, dynamic=True)(torch.ones(0, 4))
    assert targets(backend.graphs[-1]) == ["input_0", "add"]  # a factor of 0 needs no other
    capture(lambda x: x + x.shape.numel(), backend)(torch.ones(3, 4))
    assert targets(backend.graphs[-1]) == ["input_0", "add"]


class Odd:
    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Odd) and self.number == other.number

    __hash__ = None


def test_lists_are_indexed_searched_and_compared_in_one_graph() -> None:
    """Covers: F2"""
    items = [Odd(1), Odd(2), Odd(3)]

    def fn(x, items):
        size = x.shape
        return (
            x + items.index(Odd(3)),
            2 in size,
            Odd(2) in items,
            items[-1].number,
            (4, 5)[1],
            size[0],
            items[1:][0].number,
        )

    fast, x = capture(fn), torch.ones(2, 3)
    for _ in range(2):
        assert str(fast(x, items)) == str(fn(x, items))
    assert (fast.breaks, len(fast.graphs)) == ([], 1)


def test_a_list_indexed_by_a_constant_tensor_is_in_one_graph() -> None:
    """Covers: F2"""

    def fn(x, items):
        at = torch.tensor(1)
        return x + items[at] + x.shape[at + 1], (7, 8, 9)[torch.arange(3)[2]]

    fast, x = capture(fn), torch.ones(2, 3, 4)
    for _ in range(2):
        assert str(fast(x, [1, 5])) == str(fn(x, [1, 5]))
    assert (fast.breaks, len(fast.graphs), fast.hits) == ([], 1, 1)


def test_builtins_and_operators_on_tensors_are_nodes() -> None:
    """Covers: F3"""
    import functools
    import operator

    def fn(x):
        y = abs(x) + pow(x, 2) + operator.mul(x, 3)
        return functools.reduce(operator.add, [y, x, operator.neg(x)]), operator.itemgetter(0)(y)

    fast, x = capture(fn), torch.tensor([-1.4, 2.6])
    for _ in range(2):
        assert str(fast(x)) == str(fn(x))
    assert (fast.breaks, len(fast.graphs), fast.hits) == ([], 1, 1)


def test_a_constant_that_was_written_to_is_none() -> None:
    """Covers: F2"""

    def fn(x, items):
        at = torch.zeros((), dtype=torch.long)
        at += x.long()
        return items[at]

    fast = capture(fn)
    for at in (0, 2, 1, 2):
        assert fast(torch.tensor(at), [10, 11, 12]) == 10 + at


def test_a_list_indexed_by_a_tensor_is_a_break_with_its_reason() -> None:
    """Covers: F2"""
    fast = capture(lambda x, items, at: x + items[at])
    for at in (0, 1, 0):
        assert torch.equal(fast(torch.ones(1), [10.0, 20.0], torch.tensor(at)), torch.tensor([11.0 + 10 * at]))
    assert "value of a tensor" in fast.breaks[0].reason


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_four_sequence_lengths_from_one_recording(backend: str) -> None:
    """Covers: F10"""

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            batch, length, width = x.shape
            q, k, v = self.qkv(x).view(batch, length, 3, width).unbind(2)
            mask = torch.ones(length, length).tril() == 0
            scores = (q @ k.transpose(1, 2) / width**0.5).masked_fill(mask, float("-inf"))
            return self.out(scores.softmax(-1) @ v), torch.arange(length)

    model = Attention()
    fast = capture(model, backend, dynamic=True)
    for length in (5, 7, 12, 9):
        x = torch.randn(2, length, 8)
        for ours, eager in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(ours, eager, rtol=0, atol=1e-6)
    assert (fast.recordings, fast.hits) == (1, 3)


def test_a_size_that_was_compared_is_guarded() -> None:
    """Covers: F7, F10"""

    def fn(x):
        return x + 1 if x.shape[0] > 3 else x - 1

    fast = capture(fn, dynamic=True)
    for size in (5, 6, 2, 3, 9):
        assert torch.equal(fast(torch.ones(size)), fn(torch.ones(size)))
    assert fast.recordings == 2


# ---- guards and caches ------------------------------------------------------------------------------------


def test_a_missed_guard_says_what_was_there_and_what_is_there_now() -> None:
    """Covers: F7"""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = 2

        def forward(self, x):
            return x * self.scale

    model = Scaled()
    fast = capture(model)
    fast(torch.ones(2))
    model.scale = 3
    assert torch.equal(fast(torch.ones(2)), torch.full((2,), 3.0))
    (missed,) = fast.misses
    assert "scale is 2" in missed.guard
    assert "3" in missed.found


def test_a_missed_guard_on_a_tensor_names_it() -> None:
    """Covers: F7"""
    fast = capture(lambda x: x + 1)
    fast(torch.ones(2))
    fast(torch.ones(3))
    (missed,) = fast.misses
    assert "args[0]" in missed.found
    assert "size mismatch" in missed.found


def test_each_graph_has_a_name_of_its_own() -> None:
    """Covers: F7"""

    def fn(x):
        x = x + 1
        print(end="")
        return x * 2

    fast = capture(fn)
    quietly(fast, torch.ones(2))
    quietly(fast, torch.ones(3))
    names = [segment.graph_name for segment in fast.segments]
    assert len(set(names)) == len(names) == 4


def test_behind_the_limit_a_call_is_right_and_records_nothing_more() -> None:
    """Covers: F7"""

    def fn(x, n):
        return x * n

    fast = capture(fn, limit=3)
    for n in range(10):
        assert torch.equal(fast(torch.ones(2), n), fn(torch.ones(2), n))
    assert (fast.recordings, fast.natives) == (3, 7)


def test_a_value_that_is_only_handed_on_is_no_reason_to_record_again() -> None:
    """Covers: F7"""

    def fn(x, n):
        print(x.sum().item(), n, end="")
        return x + 1, n

    fast = capture(fn)
    for n in range(6):
        (result, same), said = quietly(fast, torch.full((2,), float(n)), n)
        assert torch.equal(result, torch.full((2,), n + 1.0))
        assert (same, said) == (n, f"{2.0 * n} {n}")
    assert fast.hits == 5


def test_two_arguments_that_become_one_are_noticed() -> None:
    """Covers: F6, F7"""

    def fn(x, a, b):
        a.append(1)
        return x + len(b)

    fast = capture(fn)
    assert fast(torch.zeros(1), [], []) == 0
    both: list[int] = []
    assert fast(torch.zeros(1), both, both) == 1


def test_an_iterator_stands_where_it_stood_in_a_list_that_has_grown() -> None:
    """Covers: F4, F6"""

    def fn(x, items):
        print("begins")
        items.append(x)
        for each in items:
            print("one", each)

    fast = capture(fn)
    for _ in range(4):
        assert quietly(fast, 3, [])[1] == quietly(fn, 3, [])[1]
        assert quietly(fast, 3, [1, 2])[1] == quietly(fn, 3, [1, 2])[1]


def test_what_is_written_is_written_even_if_it_was_the_same_when_it_was_recorded() -> None:
    """Covers: F6"""
    table = {"k": 1}

    def fn(x):
        table["k"] = 1
        return x

    fast = capture(fn)
    fast(torch.ones(1))
    table["k"] = 2
    fast(torch.ones(1))
    assert table == {"k": 1}


def test_forgetting_drops_all_recordings() -> None:
    fast = capture(lambda x: x + 1)
    fast(torch.ones(1))
    fast.forget()
    assert fast.segments == []
    fast(torch.ones(1))
    assert fast.recordings == 2


# ---- state ------------------------------------------------------------------------------------------------


def test_random_numbers_are_drawn_as_in_eager() -> None:
    """Covers: F6"""

    def fn(x):
        a = torch.nn.functional.dropout(x, 0.5)
        b = random.random()
        return a + torch.rand(4), b

    fast = capture(fn)
    for seed in range(4):
        outcomes = []
        for each in (fn, fast):
            torch.manual_seed(seed)
            random.seed(seed)
            result, number = each(torch.ones(4))
            outcomes.append((result.tolist(), number, torch.rand(1).item(), random.random()))
        assert outcomes[0] == outcomes[1]


def test_training_gives_the_gradients_and_buffers_of_eager() -> None:
    """Covers: F6, F9"""
    torch.manual_seed(0)
    models = []
    for _ in range(2):
        torch.manual_seed(1)
        models.append(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1)))
    data = [torch.randn(6, 4) for _ in range(4)]
    for model, call in ((models[0], models[0]), (models[1], capture(models[1]))):
        torch.manual_seed(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x in data:
            optimizer.zero_grad()
            call(x).square().mean().backward()
            optimizer.step()
    for (name, one), (_, other) in zip(models[0].state_dict().items(), models[1].state_dict().items(), strict=True):
        assert torch.equal(one, other), name


def test_what_the_garbage_collector_runs_is_no_part_of_the_program() -> None:
    """Finalizers, and callbacks of its own: they may come at any time, here at nearly every allocation.

    Covers: F2, F7
    """
    ran = []

    class Dying:
        def __del__(self) -> None:
            ran.append(int(torch.ones(2).sum()))

    def when_collecting(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            torch.ones(3).add_(1)
            dying = Dying()
            dying.circle = dying

    def fn(x):
        parts = [x.narrow(0, i, 2).sin() for i in range(5)]
        return torch.stack(parts), {"sum": x.sum(), "names": [str(i) for i in range(3)]}

    fast = capture(fn)
    before = gc.get_threshold()
    gc.callbacks.append(when_collecting)
    gc.set_threshold(1, 1, 1)
    try:
        fast(torch.randn(8))
        assert len(ran) > 10
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(when_collecting)
    x = torch.randn(8)
    assert torch.equal(fast(x)[0], fn(x)[0])
    assert (fast.hits, fast.uncacheable, fast.breaks) == (1, [], [])


def test_under_somebody_elses_mode_a_call_runs_natively() -> None:
    """Covers: F6"""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counter(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            Counter.count += 1
            return func(*args, **(kwargs or {}))

    fast = capture(lambda x: x + 1)
    with Counter():
        fast(torch.ones(2))
    assert Counter.count == 1 + 1  # the addition, and making the ones
    assert (fast.recordings, fast.natives) == (0, 1)


def test_a_python_profiler_goes_on_and_is_put_back() -> None:
    seen = []

    def profiler(frame, event, arg):
        seen.append(event)

    before = sys.getprofile()
    sys.setprofile(profiler)
    try:
        capture(lambda x: x + max(1, 2))(torch.ones(1))
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(before)
    assert seen


# ---- backends ---------------------------------------------------------------------------------------------


def test_any_backend_is_taken_by_name_or_as_a_function() -> None:
    """Covers: F9"""
    backend = Counting()
    fast = capture(lambda x: x.relu() + 1, backend)
    fast(torch.ones(2))
    assert backend.runs == 0  # the recording was a real run
    fast(torch.ones(2))
    assert (len(backend.graphs), backend.runs) == (1, 1)
    assert torch.equal(capture(lambda x: x.relu() + 1, "aot_eager")(torch.ones(2)), torch.full((2,), 2.0))


@pytest.mark.parametrize("backend", ["egaer", 7])
def test_a_backend_that_there_is_not_is_refused_at_once(backend) -> None:
    with pytest.raises(SleuthError) as raised:
        capture(lambda x: x, backend)
    assert "eager" in str(raised.value) or "function" in str(raised.value)


def test_a_backend_that_raises_reaches_the_user_with_its_graph_and_frees_tensors() -> None:
    """Covers: F5"""

    class Refused(Exception):
        pass

    def backend(gm, example_inputs):
        raise Refused("no sine")

    fast = capture(lambda x: x.sin() + 1, backend)
    x = torch.ones(3)
    alive = weakref.ref(x)
    with pytest.raises(Refused, match="no sine") as raised:
        fast(x)
    assert any("sin" in note and "def forward" in note for note in raised.value.__notes__)
    del x, raised
    gc.collect()
    assert alive() is None


def test_a_watched_backend_that_raises_leaves_a_case(tmp_path) -> None:
    """Covers: F5, F9"""
    from torchsleuth import watch

    def backend(gm, example_inputs):
        raise RuntimeError("cannot lower sine")

    store = str(tmp_path / "cases")
    fast = capture(lambda x: x.sin() + 1, watch(backend, after="dynamo", store=store))
    with pytest.raises(RuntimeError, match="cannot lower sine"):
        fast(torch.ones(3))
    assert len(list((tmp_path / "cases" / "cases").iterdir())) == 1


# ---- living together --------------------------------------------------------------------------------------


def test_torch_compile_on_the_same_function_is_as_it_was_before_and_after() -> None:
    """Covers: F11"""

    def fn(x):
        return x.sin() + x.cos()

    before, after = Counting(), Counting()
    compiled = torch.compile(fn, backend=before)
    compiled(torch.ones(2))
    fast = capture(fn)
    code = fn.__code__
    fast(torch.ones(2))
    fast(torch.ones(2))
    compiled(torch.ones(2))
    assert fn.__code__ is code
    assert (len(before.graphs), before.runs) == (1, 2)
    torch.compile(fn, backend=after, fullgraph=True)(torch.ones(2))
    assert targets(after.graphs[0])[1:] == targets(before.graphs[0])[1:]
    fast(torch.ones(2))
    assert (fast.recordings, fast.misses) == (1, [])
    torch.compiler.reset()


def test_threads_record_and_run_at_once() -> None:
    """Covers: F7"""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    fast = capture(model)
    wrong: list[object] = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for size in (1, 2, 3) * 5:
            x = torch.randn(size, 4, generator=generator)
            try:
                if not torch.equal(fast(x), model(x)):
                    wrong.append((seed, size))
            except Exception as error:  # noqa: BLE001 - told below
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert wrong == []
    assert fast.recordings == 3


def test_a_captured_function_may_call_another_one_and_itself() -> None:
    inner = capture(lambda x: x * 2)

    @capture
    def power(x, n):
        return inner(power(x, n - 1)) if n else x

    assert torch.equal(power(torch.ones(1), 4), torch.tensor([16.0]))
    assert torch.equal(power(torch.ones(1), 4), torch.tensor([16.0]))
    assert (len(power.graphs), power.hits) == (1, 1)


def test_it_decorates_functions_and_methods_and_wraps_modules() -> None:
    @capture(backend="aot_eager")
    def fn(x):
        """Doc."""
        return x + 1

    class Thing:
        factor = 3

        @capture
        def scaled(self, x):
            return x * self.factor

    assert isinstance(fn, Captured)
    assert (fn.__name__, fn.__doc__) == ("fn", "Doc.")
    assert torch.equal(fn(torch.ones(1)), torch.tensor([2.0]))
    assert torch.equal(Thing().scaled(torch.ones(1)), torch.tensor([3.0]))
    wrapped = capture(nn.Linear(2, 2))
    assert len(list(wrapped.parameters())) == 2


def test_what_is_captured_can_be_copied_and_pickled() -> None:
    """The copy begins anew, with the same options."""
    fast = capture(nn.Linear(2, 2), "aot_eager", dynamic=True, limit=3)
    x = torch.ones(1, 2)
    for again in (copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):  # noqa: S301 - our own
        assert again.fn is not fast.fn
        assert (again.backend, again.dynamic, again.limit, again.recordings) == (fast.backend, True, 3, 0)
        assert torch.equal(again(x), fast(x))


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"limit": "a"}, {"limit": True}, {"dynamic": "yes"}, {"verify": 1}, {"records": 5}]
)
def test_an_option_that_makes_no_sense_is_refused_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(SleuthError, match=next(iter(options))):
        capture(torch.relu, **options)


@pytest.mark.parametrize("overlap_first", [True, False])
@pytest.mark.parametrize("dynamic", [True, False])
def test_a_compiled_graph_is_not_used_where_memory_is_shared_in_another_way(dynamic: bool, overlap_first: bool) -> None:
    """A compiler relies on it as soon as something is written to.

    Covers: F6, F9
    """

    def fn(x, y):
        x.add_(1)
        return x * 2 + y

    fast = capture(fn, "aot_eager", dynamic=dynamic)
    for size, overlaps in ((6, overlap_first), (6, not overlap_first), (6, overlap_first), (8, True), (8, False)):
        results = []
        for call in (fn, fast):
            base = torch.arange(30.0)
            start = 3 if overlaps else size
            results.append((call(base[:size], base[start : start + size]), base))
        assert all(map(torch.equal, *results))
    assert any("share memory" in each.found for each in fast.misses)


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        (lambda gm, inputs: None, "returned a NoneType"),
        (lambda gm, inputs: "compiled", "returned a str"),
        (lambda gm, inputs: lambda *args: None, "returned a NoneType"),
        (lambda gm, inputs: lambda *args: (), "returned 0 results"),
    ],
)
def test_a_backend_that_returns_what_no_backend_does_is_named(backend, words: str) -> None:
    """Covers: F5"""
    fast = capture(lambda x: x * 2, backend)
    with contextlib.suppress(BackendMisbehaved):  # some are noticed at once
        fast(torch.ones(2))
    with pytest.raises(BackendMisbehaved, match=words):
        fast(torch.ones(2))


def test_results_that_a_backend_adds_are_left_alone() -> None:
    fast = capture(lambda x: x * 2, lambda gm, inputs: lambda *args: (*gm(*args), None))
    assert [fast(torch.ones(1)).item() for _ in range(2)] == [2, 2]


def test_an_error_of_the_backend_s_at_run_time_is_the_user_s_to_see() -> None:
    """The program itself would not fail on that data.

    Covers: F5
    """

    def backend(gm, inputs):
        def broken(*args):
            raise RuntimeError("out of luck")

        return broken

    def fn(x):
        try:
            return x * 2
        except RuntimeError:
            return x

    fast = capture(fn, backend)
    fast(torch.ones(1))
    with pytest.raises(RuntimeError, match="out of luck") as raised:
        fast(torch.ones(1))
    assert "raised by what the backend has made of the graph fn_1:" in raised.value.__notes__[0]
    assert "mul = input_0 * 2" in raised.value.__notes__[0]


def test_a_fault_of_ours_behind_the_recording_is_no_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """Covers: F8"""

    def broken(*_: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(segments, "_written", broken)
    fast = capture(lambda x: x * 2, records=str(tmp_path))
    assert fast(torch.ones(1)).item() == 2
    assert [type(each.error) for each in fast.crashes] == [KeyError]
    assert fast.segments == []


def test_a_fault_of_ours_before_the_recording_is_no_error_of_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """Covers: F8"""

    def broken(*_: Any) -> Any:
        raise KeyError("a bug")

    monkeypatch.setattr(Outside, "arrive", broken)
    fast = capture(lambda x: x * 2, records=str(tmp_path))
    assert fast(torch.ones(1)).item() == 2
    assert [type(each.error) for each in fast.crashes] == [KeyError]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_dynamo_leaves_alone_what_is_captured_and_does_its_own_work_around_it(backend: str) -> None:
    """Our own files are nothing that anybody wants to have compiled.

    Covers: F11
    """
    graphs = []

    def noting(gm, inputs):
        graphs.append(gm)
        return gm.forward

    inside = capture(lambda x: torch.relu(x) + 1, backend)
    outside = torch.compile(lambda x: inside(x * 2) - 1, backend=noting)
    x = torch.tensor([-1.0, 2.0])
    for _ in range(3):
        assert torch.equal(outside(x), torch.relu(x * 2))
    assert [len(gm.graph.find_nodes(op="call_function", target=torch.relu)) for gm in graphs] == [0, 0]
    assert (len(inside.graphs), inside.hits, inside.breaks) == (1, 2, [])


def test_what_torch_compile_has_made_is_a_break_with_its_name() -> None:
    """Covers: F4, F11"""
    graphs = []

    def noting(gm, inputs):
        graphs.append(gm)
        return gm.forward

    def loss(x):
        return x.sin().sum()

    compiled, layer = torch.compile(loss, backend=noting), torch.compile(nn.Linear(3, 3), backend=noting)

    def step(x):
        return compiled(layer(x) * 2) + 1

    fast, x = capture(step), torch.ones(2, 3)
    for _ in range(3):
        assert torch.equal(fast(x), step(x))
    assert fast.breaks[0].reason == "a Linear is compiled by torch.compile"
    assert fast.breaks[1].reason.endswith(".loss is compiled by torch.compile")
    assert len(graphs) == 2
    assert fast.hits == 2


@pytest.mark.parametrize("skip", ["f", print, [3], ["f"]])
def test_what_is_skipped_are_functions(skip: Any) -> None:
    with pytest.raises(SleuthError, match="skip"):
        capture(torch.relu, skip=skip)


def test_what_is_not_callable_is_refused() -> None:
    with pytest.raises(SleuthError, match="captured"):
        capture(torch.ones(1))


def test_another_version_of_python_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchsleuth.frontend import bytecode

    monkeypatch.setattr(bytecode, "KNOWN_PYTHON", (3, 99))
    with pytest.raises(UnsupportedPython, match="does not know the bytecode") as raised:
        capture(lambda x: x)
    assert "3.99" in str(raised.value)


def test_recording_imports_nothing_of_dynamo() -> None:
    """Covers: F11"""
    import subprocess

    code = (
        "import sys, torch; from torchsleuth.frontend import capture\n"
        "fast = capture(torch.nn.Linear(2, 2)); fast(torch.ones(1, 2)); fast(torch.ones(1, 2))\n"
        "print(fast.hits, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "False"]


def test_what_the_front_end_needs_of_torch_is_in_the_table() -> None:
    assert torch_compat.modes_active() is False
