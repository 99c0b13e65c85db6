"""What a run depends on besides graph and inputs: seen where the caller stands, restored, and put back."""

from __future__ import annotations

import importlib.machinery
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import pytest
import torch

from torchsleuth import torch_compat
from torchsleuth.case.schema import Autocast, Config, Entry, List, Noticed, Rng, State
from torchsleuth.case.surroundings import environment, flags
from torchsleuth.case.surroundings.state import observe, restored
from torchsleuth.errors import BadCase

DYNAMO, INDUCTOR = "torch._dynamo.config", "torch._inductor.config"


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Whatever a test does, the state after it is the one before it (the random one aside)."""
    torch_compat.config_values(DYNAMO)  # both are loaded, so that they are looked at
    torch_compat.config_values(INDUCTOR)
    before = msgspec.structs.replace(observe(), rng=())
    yield
    assert msgspec.structs.replace(observe(), rng=()) == before


@pytest.fixture(scope="module")
def fresh() -> dict[str, str]:
    """What is seen in a process that has just started, with options in its environment."""
    program = (
        "import torch, torch._inductor.config, torch._dynamo.config\n"
        "from torchsleuth.case.surroundings import flags\n"
        "from torchsleuth.case.surroundings.state import observe, restored\n"
        "from torchsleuth.case.schema import State\n"
        "print('switches:', flags.observe_flags('highest'), 'of', len(flags.flags()))\n"
        "print('options:', [(o.name, o.value) for o in observe().config])\n"
        "print('stable options:', observe(stable=True).config)\n"
        "with restored(State()): print('options of a plain state:', observe().config)"
    )
    environ = {**os.environ, "TORCHINDUCTOR_MAX_AUTOTUNE": "1", "TORCHDYNAMO_VERBOSE": "1", "CXX": "/opt/other/c++"}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    return dict(line.split(": ", 1) for line in done.stdout.splitlines())


def config_patch(module: str, **options: Any) -> AbstractContextManager[None]:
    return torch_compat.config_patch(module, options)


class Flags:
    """`torch.backends.<path> = value` for a while."""

    def __init__(self, **values: object) -> None:
        self.entries = [Entry(name.replace("__", "."), value) for name, value in values.items()]  # type: ignore[arg-type]

    def __enter__(self) -> None:
        self.context = flags.flags_restored(self.entries, "highest")
        self.context.__enter__()

    def __exit__(self, *_: object) -> None:
        self.context.__exit__(None, None, None)


class Setting:
    """A setting of the process, set for a while by torch's own functions."""

    def __init__(self, set: Callable[[Any], object], value: object, before: object) -> None:
        self.set, self.value, self.before = set, value, before

    def __enter__(self) -> None:
        self.set(self.value)

    def __exit__(self, *_: object) -> None:
        self.set(self.before)


SURROUNDINGS: dict[str, tuple[Callable[[], Any], dict[str, object]]] = {
    "nothing": (nullcontext, {}),
    "no_grad": (torch.no_grad, {"grad": False}),
    "inference": (torch.inference_mode, {"grad": False, "inference": True}),
    "grad inside of inference": (
        lambda: _both(torch.inference_mode(), torch.enable_grad()),
        {"inference": True},
    ),
    "autocast": (lambda: torch.autocast("cpu"), {"autocast": (Autocast("cpu", True, "bfloat16"),)}),
    "autocast to half, without cache": (
        lambda: torch.autocast("cpu", dtype=torch.float16, cache_enabled=False),
        {"autocast": (Autocast("cpu", True, "float16"),), "autocast_cache": False},
    ),
    "deterministic": (
        lambda: Setting(torch.use_deterministic_algorithms, True, False),
        {"deterministic": "error", "config": (Config(INDUCTOR, "deterministic", True),)},
    ),
    "deterministic, warn only": (
        lambda: Setting(torch.set_deterministic_debug_mode, "warn", "default"),
        {"deterministic": "warn"},
    ),
    "uninitialised memory as it is": (
        lambda: Setting(lambda on: setattr(torch.utils.deterministic, "fill_uninitialized_memory", on), False, True),
        {"fill_uninitialised": False},
    ),
    "double by default": (
        lambda: Setting(torch.set_default_dtype, torch.float64, torch.float32),
        {"default_dtype": "float64"},
    ),
    "meta by default": (lambda: torch.device("meta"), {"default_device": "meta"}),
    "fast matrix products": (
        lambda: _both(flags.flags_restored([], "medium"), nullcontext()),
        {"matmul_precision": "medium"},
    ),
    "switches": (
        lambda: Flags(cudnn__benchmark=True, cuda__enable_flash_sdp=False, mkldnn__conv__fp32_precision="bf16"),
        {
            "flags": (
                Entry("mkldnn.conv.fp32_precision", "bf16"),
                Entry("cudnn.benchmark", True),
                Entry("cuda.enable_flash_sdp", False),
            )
        },
    ),
    "options": (
        lambda: _both(
            config_patch(DYNAMO, verbose=True), config_patch(INDUCTOR, max_autotune=True, **{"cpp.simdlen": 1})
        ),
        {
            "config": (
                Config(DYNAMO, "verbose", True),
                Config(INDUCTOR, "cpp.simdlen", 1),
                Config(INDUCTOR, "max_autotune", True),
            )
        },
    ),
}


class _both:
    def __init__(self, one: Any, other: Any) -> None:
        self.one, self.other = one, other

    def __enter__(self) -> None:
        self.one.__enter__()
        self.other.__enter__()

    def __exit__(self, *_: object) -> None:
        self.other.__exit__(None, None, None)
        self.one.__exit__(None, None, None)


def differences(state: State, plain: State) -> dict[str, object]:
    names = [name for name in State.__struct_fields__ if name != "rng"]
    return {name: getattr(state, name) for name in names if getattr(state, name) != getattr(plain, name)}


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_what_surrounds_the_caller_is_seen_and_can_be_restored(name: str) -> None:
    """Covers: U15, U17"""
    make, expected = SURROUNDINGS[name]
    plain = observe()
    with make():
        state = observe()
    assert differences(state, plain) == expected
    with restored(state):
        assert observe() == state
    assert observe() == plain


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_everything_is_put_back_after_an_exception(name: str) -> None:
    """Covers: U15"""
    with SURROUNDINGS[name][0]():
        state = observe()
    before = observe()
    with pytest.raises(ZeroDivisionError), restored(state):
        raise ZeroDivisionError
    assert observe() == before


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_state_of_a_plain_program_is_restored_anywhere(name: str) -> None:
    """Covers: U15, U17"""
    plain = observe()
    with SURROUNDINGS[name][0]():
        here = observe()
        with restored(plain):
            assert observe() == plain
        assert observe() == here


def test_a_state_survives_the_file_format() -> None:
    """Covers: U15, U17"""
    with torch.autocast("cpu"), config_patch(INDUCTOR, max_autotune=True):
        state = observe()
    data = msgspec.json.encode(state)
    assert msgspec.json.decode(data, type=State) == state


# ---- what compilers see ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["nothing", "no_grad", "autocast", "deterministic", "double by default", "options"])
def test_a_backend_sees_the_state_of_the_program_that_is_compiled(name: str) -> None:
    """Covers: U15. Under inference mode it does not: Dynamo leaves that mode while it compiles."""
    make, expected = SURROUNDINGS[name]
    seen: list[State] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(observe())
        return gm.forward

    plain = observe()
    torch.compiler.reset()
    with make():
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert differences(seen[0], plain) == expected


def test_what_a_backend_returns_sees_the_state_at_each_call() -> None:
    """Covers: U15. This is where inference mode shows."""
    seen: list[State] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        def run(*args: Any) -> Any:
            seen.append(observe())
            return gm(*args)

        return run

    torch.compiler.reset()
    with torch.inference_mode(), torch.autocast("cpu", dtype=torch.float16):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert seen[0].inference
    assert not seen[0].grad
    assert seen[0].autocast == (Autocast("cpu", True, "float16"),)


def test_a_graph_runs_as_it_did_where_its_state_is_restored() -> None:
    """Covers: U15"""
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    with torch.autocast("cpu"), torch.no_grad():
        state = observe()
        expected = torch.mm(x, w)
    with restored(state):
        result = torch.mm(x, w)
    assert result.dtype == torch.bfloat16
    assert not result.requires_grad
    assert torch.equal(result, expected)


def test_looking_works_under_fake_tensors_and_changes_nothing() -> None:
    fake = torch_compat.resolve("FakeTensorMode")
    with fake(), torch.device("meta"):
        state = observe()
        with restored(state):
            pass
    assert len(state.rng[0].state) == torch.get_rng_state().numel()
    overrides = {name: entry.user_override.get() for name, entry in torch_compat.resolve("dynamo_config").items()}
    observe()
    assert overrides == {
        name: entry.user_override.get() for name, entry in torch_compat.resolve("dynamo_config").items()
    }


# ---- random numbers --------------------------------------------------------------------------------------


def test_random_numbers_are_the_same_where_the_state_is_restored() -> None:
    """Covers: U10, U15. The spare value of the normal distribution is part of the state."""
    torch.randn(3)  # an odd number of normal values leaves one over
    state = observe()
    expected = torch.randn(5), torch.rand(2), torch.randperm(7)
    after = torch.get_rng_state()
    with restored(state):
        result = torch.randn(5), torch.rand(2), torch.randperm(7)
    assert all(map(torch.equal, result, expected))
    assert torch.equal(torch.get_rng_state(), after)


def test_a_random_state_that_is_none_is_a_bad_case() -> None:
    before = torch.get_rng_state()
    for state in (b"", b"short", bytes(5056)):
        with pytest.raises(BadCase, match=r"state\.rng\[0\]"), restored(State(rng=(Rng("cpu", state),))):
            pass
    assert torch.equal(torch.get_rng_state(), before)


def test_a_random_state_that_cannot_be_set_leaves_the_one_before() -> None:
    """The first is set, the second is none, and whoever called has the numbers that he would have had."""
    before = torch.get_rng_state()
    other = bytes(torch.Generator().manual_seed(7).get_state().tolist())
    with pytest.raises(BadCase, match=r"state\.rng\[1\]"), restored(State(rng=(Rng("cpu", other), Rng("cpu", b"no")))):
        pass
    assert torch.equal(torch.get_rng_state(), before)


def test_the_random_state_of_a_device_that_is_not_here_is_a_warning() -> None:
    """Covers: U30"""
    with pytest.warns(UserWarning, match="cuda:7"), restored(State(rng=(Rng("cuda:7", b"1"),))):
        pass


# ---- configuration ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", ["it's", '"', "a\nb", "\x00\x07", "日本", "\ud800", "a b;c", "-O2 -fplugin=x", "-fplugin", "O1=x", "a/b"]
)
def test_odd_text_in_an_option_comes_back_for_those_who_trust_the_case(value: str) -> None:
    """Covers: U17"""
    with config_patch(INDUCTOR, disabled_passes=value):
        state = observe()
    state = msgspec.json.decode(msgspec.json.encode(state), type=State)
    with restored(state, trust=True):
        assert torch_compat.config_values(INDUCTOR)["disabled_passes"] == value
    with pytest.warns(UserWarning, match="disabled_passes.*trusted"), restored(state):
        assert torch_compat.config_values(INDUCTOR)["disabled_passes"] == ""


@pytest.mark.parametrize("value", ["ATEN,TRITON", "default", "-O3", "native", "1.5", ["a", ("b", 1)], {"a": 1.5}])
def test_ordinary_text_in_an_option_needs_no_trust(value: object) -> None:
    with config_patch(INDUCTOR, disabled_passes=value):
        state = observe()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with restored(state):
            assert torch_compat.config_values(INDUCTOR)["disabled_passes"] == value


def test_an_option_set_to_its_default_is_not_a_difference() -> None:
    with torch_compat.inductor_config_patch(max_autotune=False):
        assert observe().config == ()


def test_an_option_that_the_environment_forces_is_named_in_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = torch_compat.resolve("inductor_config")["max_autotune"]
    with monkeypatch.context() as patch:
        patch.setattr(entry, "env_value_force", False)
        with pytest.warns(UserWarning, match="max_autotune.*forces"):  # noqa: SIM117
            with restored(State(config=(Config(INDUCTOR, "max_autotune", True),))):
                pass


def test_an_option_that_holds_a_function_is_noticed_and_named_when_it_is_missed() -> None:
    """Covers: U17"""
    with config_patch(INDUCTOR, post_grad_custom_post_pass=print):
        state = observe()
    (option,) = state.config
    assert isinstance(option.value, Noticed)
    with pytest.warns(UserWarning, match="post_grad_custom_post_pass"), restored(state):
        pass


def test_options_of_another_torch_are_named_in_a_warning() -> None:
    """Covers: S26, U30"""
    state = State(config=(Config(DYNAMO, "no_such_option", 1), Config(INDUCTOR, "max_autotune", True)))
    with pytest.warns(UserWarning, match="no_such_option"), restored(state):
        assert torch_compat.config_values(INDUCTOR)["max_autotune"] is True


@pytest.mark.parametrize("module", ["os", "torchsleuth.config", "torch", "torch._dynamo", "antigravity", ""])
def test_a_case_cannot_name_a_module(module: str) -> None:
    with (
        pytest.raises(BadCase, match="no configuration of torch"),
        restored(State(config=(Config(module, "name", 1),))),
    ):
        pass
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    "name",
    ["cpp.cxx", "cuda.cuda_cxx", "aot_inductor.output_path", "trace.debug_dir", "rocm.ck_dir", "cuda.cutlass_dir"],
)
def test_a_case_chooses_no_program_and_no_place(name: str) -> None:
    """Not even if it is trusted: these belong to the machine."""
    before = torch_compat.config_values(INDUCTOR)[name]
    state = State(config=(Config(INDUCTOR, name, "evil"),))
    with pytest.warns(UserWarning, match="belongs to the machine"), restored(state, trust=True):
        assert torch_compat.config_values(INDUCTOR)[name] == before


def test_programs_and_places_are_not_kept() -> None:
    with config_patch(INDUCTOR, **{"cpp.cxx": (None, "/opt/g++"), "trace.debug_dir": "/home/me", "compile_threads": 3}):
        assert observe().config == ()
    with config_patch(DYNAMO, repro_after="aot", debug_dir_root="/home/me"):
        assert observe().config == ()


def test_every_option_with_a_place_in_its_default_belongs_to_the_machine() -> None:
    """A new torch may bring another one; its default would differ from machine to machine."""
    for module in torch_compat.CONFIG_MODULES:
        places = {name: value for name, value in torch_compat.config_defaults(module).items() if "/" in str(value)}
        with torch_compat.config_patch(module, dict.fromkeys(places, "elsewhere")):
            assert observe().config == ()


def test_an_option_that_came_from_the_environment_is_kept_as_an_option(fresh: dict[str, str]) -> None:
    """Covers: U17. A process that has imported torch already does not look at the environment again."""
    assert fresh["options"] == "[('verbose', True), ('max_autotune', True)]"
    assert fresh["options of a plain state"] == "()"


def test_stable_is_the_same_whatever_the_environment_torch_was_imported_in(fresh: dict[str, str]) -> None:
    """Covers: S22"""
    assert fresh["stable options"] == "()"


def test_stable_keeps_what_the_program_has_set() -> None:
    """Covers: S22"""
    with config_patch(INDUCTOR, max_autotune=True, **{"rocm.arch": ["gfx90a"]}):
        kept = [(option.name, option.value) for option in observe(stable=True).config]
    assert kept == [("max_autotune", True), ("rocm.arch", List(("gfx90a",)))]


# ---- environment -----------------------------------------------------------------------------------------


def test_only_variables_that_torch_reads_are_kept() -> None:
    environ = {
        "TORCHINDUCTOR_FREEZING": "1",
        "OMP_NUM_THREADS": "4",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "CXX": "/usr/bin/g++-12",
        "HOME": "/home/me",
        "PATH": "/bin",
        "LD_PRELOAD": "x.so",
        "TORCH_HOME": "/home/me",
        "TORCHINDUCTOR_CACHE_DIR": "/tmp/me",
        "TORCH_LOGS": "+dynamo",
        "TORCHELASTIC_RUN_ID": "17",
        "OMP_TOOL_LIBRARIES": "x.so",
        "NCCL_NET_PLUGIN": "x",
        "CUDA_VISIBLE_DEVICES": "3",
    }
    kept = [name for name, _ in environment.observe_environment(environ)]
    assert kept == ["CUBLAS_WORKSPACE_CONFIG", "CXX", "OMP_NUM_THREADS", "TORCHINDUCTOR_FREEZING"]


@pytest.mark.parametrize(
    "name", ["TORCH_TOKEN", "PYTORCH_API_KEY", "TORCH_SECRET_THING", "TRITON_PASSWORD", "TORCHX_AUTH", "TORCH_KEY"]
)
def test_secrets_are_never_kept(name: str) -> None:
    assert environment.observe_environment({name: "sesame"}) == ()


def test_a_password_in_a_value_is_not_kept_either() -> None:
    assert environment.observe_environment({"TORCH_REMOTE": "redis://me:sesame@host/0"}) == ()


@pytest.mark.parametrize("value", ["it's", '"', "a\nb", "\x07", "日本", "", " "])
def test_odd_values_of_variables_come_back(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: U17"""
    with monkeypatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_ODD", value)
        state = observe()
    state = msgspec.json.decode(msgspec.json.encode(state), type=State)
    with restored(state):
        assert os.environ["TORCHINDUCTOR_ODD"] == value
        assert dict(environment.for_child(state.environment))["TORCHINDUCTOR_ODD"] == value
    assert "TORCHINDUCTOR_ODD" not in os.environ


def test_a_variable_that_is_no_text_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environb, b"TORCHINDUCTOR_ODD", b"\xff")
    msgspec.json.encode(observe())
    assert "TORCHINDUCTOR_ODD" not in dict(observe().environment)
    monkeypatch.undo()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LD_PRELOAD", "evil"),
        ("PATH", "evil"),
        ("PYTHONSTARTUP", "evil"),
        ("TORCHINDUCTOR_X", "/evil"),
        ("TORCH_X", "-fplugin=evil"),
        ("TORCH_X", "native -fplugin=evil"),
        ("TORCHINDUCTOR_X", "C:\\evil"),
        ("TORCHINDUCTOR_CACHE_DIR", "evil"),
        ("OMP_TOOL_LIBRARIES", "evil"),
    ],
)
def test_a_case_sets_no_variable_that_could_load_or_run_something(name: str, value: str) -> None:
    before = os.environ.get(name)
    with pytest.warns(UserWarning, match=name), restored(State(environment=((name, value),))):
        assert os.environ.get(name) == before


def test_a_case_does_not_choose_the_compiler() -> None:
    with restored(State(environment=(("CXX", "evil"), ("CC", "evil")))):
        assert os.environ.get("CXX") != "evil"
    assert environment.for_child((("CXX", "evil"),), {"CXX": "g++"}) == {"CXX": "g++"}


def test_a_child_gets_the_variables_of_the_case_and_not_those_of_this_process() -> None:
    here = {"PATH": "/bin", "TORCHINDUCTOR_FREEZING": "1", "TORCHINDUCTOR_CACHE_DIR": "/c"}
    child = environment.for_child((("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),), here)
    assert child == {"PATH": "/bin", "TORCHINDUCTOR_CACHE_DIR": "/c", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}


@pytest.mark.parametrize(
    ("name", "value"), [("", "1"), ("A=B", "1"), ("TORCH\0", "1"), ("TORCH_X", "\0"), ("T", "\udc80")]
)
def test_what_no_environment_can_hold_is_a_bad_case(name: str, value: str) -> None:
    with pytest.raises(BadCase, match=r"state\.environment\[0\]"), restored(State(environment=((name, value),))):
        pass


# ---- the rest --------------------------------------------------------------------------------------------


def test_stable_is_the_same_whatever_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers: S22"""
    expected = msgspec.json.encode(observe(stable=True))
    threads = torch.get_num_threads()
    with monkeypatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_FREEZING", "1")
        patch.setenv("CXX", "/opt/g++")
        torch.set_num_threads(1)
        try:
            assert msgspec.json.encode(observe(stable=True)) == expected
            assert msgspec.json.encode(observe()) != expected
        finally:
            torch.set_num_threads(threads)


def test_stable_holds_no_address_of_what_it_noticed() -> None:
    """Covers: S22"""
    with config_patch(INDUCTOR, external_matmul=[lambda: None]):
        assert " at 0x" in str(observe().config)
        assert " at 0x" not in str(observe(stable=True).config)


@pytest.mark.parametrize(
    ("state", "field"),
    [
        (State(default_dtype="float33"), "default_dtype"),
        (State(default_dtype="int64"), "default_dtype"),
        (State(default_dtype="load"), "default_dtype"),
        (State(default_device="nonsense"), "default_device"),
        (State(matmul_precision="utmost"), "matmul_precision"),
        (State(threads=0), "threads"),
        (State(threads=10**9), "threads"),
        (State(threads=4097), "threads"),
        (State(autocast=(Autocast("nonsense", True, "float16"),)), "autocast"),
        (State(autocast=(Autocast("cpu", True, "channels_last"),)), "autocast"),
    ],
)
def test_a_state_that_cannot_be_is_a_bad_case_that_names_the_field(state: State, field: str) -> None:
    before = observe()
    with pytest.raises(BadCase) as caught, restored(state):
        pass
    assert caught.value.field.startswith(f"state.{field}")
    assert observe() == before


def test_switches_that_this_torch_does_not_have_or_take_are_named_in_a_warning() -> None:
    state = State(flags=(Entry("no.such", 1), Entry("mkldnn.matmul.fp32_precision", "nonsense")))
    with pytest.warns(UserWarning, match=r"no\.such.*mkldnn"), restored(state):
        pass


def test_precision_by_library_is_kept_where_torch_refuses_to_sum_it_up() -> None:
    """Under the newer settings `torch.get_float32_matmul_precision` raises."""
    with Flags(cuda__matmul__fp32_precision="tf32"):
        with pytest.raises(RuntimeError):
            torch.get_float32_matmul_precision()
        state = observe()
    assert state.flags == (Entry("cuda.matmul.fp32_precision", "tf32"),)
    with restored(state):
        assert observe() == state
    assert torch.get_float32_matmul_precision() == "highest"


def test_the_table_of_switches_knows_the_defaults_of_this_torch(fresh: dict[str, str]) -> None:
    assert fresh["switches"] == "() of 23"


@pytest.mark.parametrize("module", [INDUCTOR, DYNAMO])
def test_what_other_threads_write_to_the_environment_meanwhile_is_not_lost(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defaults are found by running torch's own text without some variables. Only that text may miss them."""
    expected = torch_compat.config_defaults(module)
    for name in ("TORCHINDUCTOR_MAX_AUTOTUNE", "TORCHDYNAMO_VERBOSE", "TORCH_COMPILE_DEBUG"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TORCHINDUCTOR_LOOP_ORDERING_AFTER_FUSION", "0")
    execute = importlib.machinery.SourceFileLoader.exec_module

    def meanwhile(self: Any, text: Any) -> None:
        os.environ["SLEUTH_TEST_MEANWHILE"] = text.__name__
        assert os.environ["TORCH_COMPILE_DEBUG"] == "1"
        execute(self, text)

    monkeypatch.setattr(importlib.machinery.SourceFileLoader, "exec_module", meanwhile)
    try:
        found = torch_compat.config_defaults.__wrapped__(module)
        assert {name for name in expected if type(expected[name]) is bool and found[name] != expected[name]} == set()
        assert found.keys() == expected.keys()
        assert module in os.environ["SLEUTH_TEST_MEANWHILE"]
    finally:
        os.environ.pop("SLEUTH_TEST_MEANWHILE", None)


def test_modes_and_configuration_belong_to_the_thread() -> None:
    plain = observe()
    seen: list[State] = []
    with restored(State(grad=False, config=(Config(INDUCTOR, "max_autotune", True),))):
        thread = threading.Thread(target=lambda: seen.append(observe()))
        thread.start()
        thread.join()
    assert seen[0].grad
    assert seen[0].config == plain.config
