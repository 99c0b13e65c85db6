"""The settings: which values fit, where they come from, and how long a patch holds, and for whom."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import FrozenInstanceError, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import torchsleuth
from torchsleuth import config
from torchsleuth.config import After, Explained, Level, Settings, configure, current, explain, load, patch
from torchsleuth.errors import BadConfigFile, BadValue, ConfigError, UnknownSetting

NAMES = (
    "after",
    "level",
    "store",
    "tolerance",
    "fp64",
    "ignore_non_fp",
    "forward_only",
    "check_every",
    "check_first",
    "max_checks",
    "max_cases",
    "max_dump",
)


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, an environment and a process in which nothing is set."""
    monkeypatch.chdir(tmp_path)
    for variable in [each for each in os.environ if each.startswith("SLEUTH_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr(config.live, "_PROCESS", {})


def write(folder: Path, text: str | bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pyproject.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


class Unprintable:
    """Nothing that an error message could be made of."""

    __hash__ = None

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")


class OtherEnum(IntEnum):
    ONE = 1


HUGE = pytest.param(10**5000, id="an integer that Python itself will not print")


# ---- values ----------------------------------------------------------------------------------------------


def test_the_defaults() -> None:
    assert load(environ={}) == Settings(
        after=None,
        level=Level.MINIFY,
        store=".sleuth",
        tolerance=1e-3,
        fp64=True,
        ignore_non_fp=False,
        forward_only=False,
    )


def test_the_table_tells_everything_about_each_setting() -> None:
    assert tuple(config.SETTINGS) == NAMES
    for setting in config.SETTINGS.values():
        assert setting.valid
        assert setting.help.endswith(".")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("none", None),
        ("off", None),
        ("", None),
        ("aot", After.AOT),
        ("dynamo", After.DYNAMO),
        ("both", After.BOTH),
        (After.AOT, After.AOT),
    ],
)
def test_after_accepts(given: object, expected: After | None) -> None:
    """Covers: S15"""
    assert Settings(after=given).after is expected


@pytest.mark.parametrize(
    "given",
    ["inductor", "AOT", "aot ", "None", True, False, 0, 1, ["aot"], {}, b"aot", object, Unprintable()],
)
def test_after_rejects_any_other_value(given: object) -> None:
    """Covers: S15"""
    with pytest.raises(BadValue, match="after") as caught:
        load(after=given)
    assert '"dynamo", "aot", "both", or None' in caught.value.remedy


@pytest.mark.parametrize("level", list(Level))
def test_level_accepts_its_number_and_its_name(level: Level) -> None:
    """Covers: S15"""
    name = level.name
    for form in (level, level.value, str(level.value), name, name.title(), str(level), f"{level}"):
        assert Settings(level=form).level is level


@pytest.mark.parametrize(
    "given",
    [
        *(True, False, 0, 5, -1, 2.0, 1j, float("nan"), None, [2], {"level": 2}, {1}, b"2"),
        *("2.0", "5", "0", "two", "", " 2", "٢"),
        *(Level, OtherEnum.ONE, Unprintable(), HUGE),
    ],
)
def test_level_rejects_any_other_value(given: object) -> None:
    """Covers: S15"""
    with pytest.raises(BadValue, match="level"):
        load(level=given)


@pytest.mark.parametrize(("given", "expected"), [(1, 1.0), (1e-3, 1e-3), ("1e-5", 1e-5), ("2", 2.0), (5e-324, 5e-324)])
def test_tolerance_accepts_positive_numbers(given: object, expected: float) -> None:
    tolerance = Settings(tolerance=given).tolerance
    assert tolerance == expected
    assert type(tolerance) is float


@pytest.mark.parametrize(
    "given",
    [
        *(0, 0.0, -0.0, -1e-3, float("inf"), float("nan"), 1j, None, True, [1e-3], b"1", Unprintable(), HUGE),
        *("nan", "inf", "-1", "1e-400", "small", ""),
    ],
)
def test_tolerance_rejects_any_other_value(given: object) -> None:
    """Covers: S15"""
    with pytest.raises(BadValue, match="tolerance"):
        load(tolerance=given)


@pytest.mark.parametrize("name", ["fp64", "ignore_non_fp", "forward_only"])
def test_a_switch_accepts_bools_and_words_and_nothing_else(name: str) -> None:
    """Covers: S15"""
    for true in (True, "1", "true", "True", "YES", "on"):
        assert getattr(load(**{name: true}), name) is True
    for false in (False, "0", "false", "no", "Off"):
        assert getattr(load(**{name: false}), name) is False
    for bad in (0, 1, 1.0, None, "", "maybe", "2", [], [True], Unprintable()):
        with pytest.raises(BadValue, match=name):
            load(**{name: bad})


garbage = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=3,
)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("check_every", "100", 100),
        ("check_every", 1, 1),
        ("check_first", 0, 0),
        ("max_checks", "none", None),
        ("max_checks", None, None),
        ("max_checks", 5, 5),
        ("max_dump", "4096", 4096),
        ("max_dump", "500 MB", 500 * 2**20),
        ("max_dump", "1.5GiB", 3 * 2**29),
        ("max_dump", 0, 0),
    ],
)
def test_counts_and_sizes(name: str, given: object, expected: int | None) -> None:
    assert getattr(Settings(**{name: given}), name) == expected


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("check_every", 0),
        ("check_every", "0"),
        ("check_every", True),
        ("check_every", 1.5),
        ("check_first", -1),
        ("max_checks", 0),
        ("max_cases", 0),
        ("max_dump", "-1"),
        ("max_dump", "lots"),
        ("max_dump", "1 XB"),
        ("max_dump", "9" * 30),
    ],
)
def test_counts_and_sizes_that_make_no_sense(name: str, given: object) -> None:
    with pytest.raises(BadValue, match=name):
        Settings(**{name: given})


def test_settings_by_argument_are_patched_like_the_process_s() -> None:
    """Covers: S2"""
    base = Settings(after="aot", level=4)
    assert config.current(base) is base
    with patch(after=None):
        assert config.current(base).after is None
        assert config.current(base).level is Level.ACCURACY
        with patch(level=1):
            assert config.current(base).level is Level.DUMP
    assert config.current(base) is base


def test_watching_less_is_a_patch_that_ends_where_it_is_told_to() -> None:
    """Covers: S3"""
    with patch(after="both", level=3):
        token = config.watch_less(After.AOT)
        assert (config.current().after, config.current().level) == (After.AOT, Level.ALWAYS)
        inner = config.watch_less(None)
        assert config.current().after is None
        config.watch_again(inner)
        assert config.current().after is After.AOT
        config.watch_again(token)
        assert config.current().after is After.BOTH
    configure(after="aot", environ={})
    token = config.watch_less(None)
    assert config.current().after is None
    config.watch_again(token)
    assert config.current().after is After.AOT
    configure(after="dynamo", level=1, environ={})
    token = config.watch_less(None)
    assert (config.current().after, config.current().level) == (None, Level.DUMP)
    config.watch_again(token)


@given(name=st.sampled_from(NAMES), value=garbage)
def test_garbage_is_a_bad_value_or_becomes_a_value_of_the_right_type(name: str, value: object) -> None:
    """Covers: S15"""
    try:
        settings = Settings(**{name: value})
    except BadValue as error:
        complete = name in error.what and config.SETTINGS[name].valid in error.remedy
    else:
        types: dict[str, Any] = {"after": (After, type(None)), "level": Level, "store": str, "tolerance": float}
        types |= dict.fromkeys(("check_every", "check_first", "max_cases", "max_dump"), int)
        types["max_checks"] = (int, type(None))
        complete = isinstance(getattr(settings, name), types.get(name, bool))
    assert complete


@given(name=st.text().filter(lambda text: text not in NAMES), value=garbage)
def test_garbage_names_are_unknown_settings(name: str, value: object) -> None:
    with pytest.raises(UnknownSetting):
        patch(**{name: value})


@given(
    after=st.none() | st.sampled_from(After),
    level=st.sampled_from(Level),
    tolerance=st.floats(min_value=0, exclude_min=True, allow_infinity=False),
    switches=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_the_environment_can_say_any_settings(
    after: After | None, level: Level, tolerance: float, switches: tuple[bool, bool, bool]
) -> None:
    fp64, ignore_non_fp, forward_only = switches
    environ = {
        "SLEUTH_AFTER": str(after or "none"),
        "SLEUTH_LEVEL": str(level),
        "SLEUTH_TOLERANCE": f" {tolerance} ",
        "SLEUTH_FP64": str(fp64),
        "SLEUTH_IGNORE_NON_FP": str(int(ignore_non_fp)),
        "SLEUTH_FORWARD_ONLY": "yes" if forward_only else "no",
        "PATH": "/bin",
    }
    assert load(environ=environ) == Settings(
        after=after,
        level=level,
        tolerance=tolerance,
        fp64=fp64,
        ignore_non_fp=ignore_non_fp,
        forward_only=forward_only,
    )


def test_settings_are_values() -> None:
    settings = Settings(level="always")
    assert settings == Settings(level=Level.ALWAYS)
    assert hash(settings) == hash(Settings(level=Level.ALWAYS))
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301
    with pytest.raises(FrozenInstanceError):
        settings.level = Level.DUMP
    with pytest.raises(BadValue):
        replace(settings, level=True)


# ---- sources ---------------------------------------------------------------------------------------------


def test_a_later_source_wins(tmp_path: Path) -> None:
    path = write(tmp_path, "[tool.torchsleuth]\nlevel = 1\nafter = 'dynamo'\ntolerance = 1\n")
    environ = {"SLEUTH_LEVEL": "3", "SLEUTH_AFTER": "aot"}
    assert explain(environ=environ, level=4) == (
        Explained("after", After.AOT, "SLEUTH_AFTER"),
        Explained("level", Level.ACCURACY, "argument"),
        Explained("store", ".sleuth", "default"),
        Explained("tolerance", 1.0, str(path)),
        Explained("fp64", True, "default"),
        Explained("ignore_non_fp", False, "default"),
        Explained("forward_only", False, "default"),
        Explained("check_every", 1, "default"),
        Explained("check_first", 1, "default"),
        Explained("max_checks", None, "default"),
        Explained("max_cases", 3, "default"),
        Explained("max_dump", 16 * 2**30, "default"),
    )
    assert load(environ=environ, level=4) == Settings(after=After.AOT, level=Level.ACCURACY, tolerance=1.0)


def test_the_real_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_LEVEL", "Accuracy")
    assert load().level is Level.ACCURACY


def test_an_empty_variable_is_not_set(tmp_path: Path) -> None:
    write(tmp_path, "[tool.torchsleuth]\nafter = 'aot'\n")
    environ = {"SLEUTH_AFTER": "", "SLEUTH_LEVEL": "  ", "SLEUTH_NO_SUCH_THING": ""}
    assert load(environ=environ) == Settings(after=After.AOT)


def test_a_file_can_switch_watching_off(tmp_path: Path) -> None:
    for word in ("none", "off", ""):
        write(tmp_path, f"[tool.torchsleuth]\nafter = '{word}'\n")
        assert explain(environ={})[0] == Explained("after", None, str(tmp_path / "pyproject.toml"))


def test_an_argument_that_is_none_counts(tmp_path: Path) -> None:
    write(tmp_path, "[tool.torchsleuth]\nafter = 'aot'\n")
    assert load(environ={}, after=None).after is None


def test_the_nearest_file_with_the_table_is_taken(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b" / "c"
    write(tmp_path, "[tool.torchsleuth]\nlevel = 1\n")
    middle = write(tmp_path / "a", "[tool.torchsleuth]\nlevel = 3\n")
    write(inner, "[project]\nname = 'x'\n[tool.other]\nlevel = 4\n")
    assert explain(start=inner, environ={})[1] == Explained("level", Level.ALWAYS, str(middle))
    assert load(start=tmp_path, environ={}).level is Level.DUMP


def test_an_empty_table_hides_the_files_above(tmp_path: Path) -> None:
    write(tmp_path, "[tool.torchsleuth]\nlevel = 1\n")
    write(tmp_path / "a", "[tool.torchsleuth]\n")
    assert load(start=tmp_path / "a", environ={}) == Settings()


@pytest.mark.parametrize("start", ["missing/folder", "file.txt", "pyproject.toml"])
def test_the_search_may_start_at_what_is_no_folder(tmp_path: Path, start: str) -> None:
    write(tmp_path, "[tool.torchsleuth]\nlevel = 1\n")
    (tmp_path / "file.txt").touch()
    assert load(start=Path(start), environ={}).level is Level.DUMP


def test_a_working_folder_that_is_gone_has_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert load(environ={}) == Settings()


def test_a_folder_that_may_not_be_searched_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert load(environ={}) == Settings()


# ---- bad sources -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("a = 1\n[tool.torchsleuth\n", "line 2"),
        ("a = 1\na = 2\n", "line 2"),
        (b"# one\n[tool.torchsleuth]\n# caf\xe9\n", "line 3 is not UTF-8"),
        ("[tool]\ntorchsleuth = 3\n", "tool.torchsleuth is 3, not a table"),
        ("[[tool.torchsleuth]]\nlevel = 1\n", "not a table"),
        ("tool = 3\n", "tool is 3, not a table"),
        ("a = " + "1" * 5000 + "\n", "not valid TOML"),
        ("a = " + "[" * 5000 + "\n", "not valid TOML"),
    ],
)
def test_a_bad_file_is_named_with_the_reason(tmp_path: Path, text: str | bytes, cause: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(BadConfigFile) as caught:
        load(environ={})
    assert str(path) in caught.value.what
    assert cause in caught.value.cause


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").mkdir()
    with pytest.raises(BadConfigFile, match=r"pyproject\.toml") as caught:
        load(environ={})
    assert "cannot be read" in caught.value.cause


def test_a_bad_value_names_setting_value_source_and_valid_values(tmp_path: Path) -> None:
    """Covers: S15"""
    valid = "1 or dump, 2 or minify, 3 or always, 4 or accuracy"
    path = write(tmp_path, "[tool.torchsleuth]\nlevel = 7\n")
    for source, call in {
        str(path): lambda: load(environ={}, level=1),
        "SLEUTH_LEVEL": lambda: load(start=Path("/"), environ={"SLEUTH_LEVEL": "7"}, level=1),
        "an argument": lambda: load(start=Path("/"), environ={}, level=7),
    }.items():
        with pytest.raises(BadValue, match=r"the setting level cannot be '?7'?\n") as caught:
            call()
        assert source in caught.value.cause
        assert valid in caught.value.remedy


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(BadValue) as caught:
        Settings(after="x" * 10_000)
    assert len(caught.value.what) < 200


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("levl", "level"), ("LEVEL", "level"), ("tolerence", "tolerance"), ("ignore-non-fp", "ignore_non_fp")],
)
def test_an_unknown_name_gets_the_nearest_one_and_all(tmp_path: Path, wrong: str, nearest: str) -> None:
    for call in (load, explain, configure, patch):
        with pytest.raises(UnknownSetting) as caught:
            call(**{wrong: 1})
        assert repr(wrong) in caught.value.what
        assert "an argument" in caught.value.cause
        assert caught.value.remedy == f"did you mean {nearest}? the names are: {', '.join(NAMES)}"
    path = write(tmp_path, f"[tool.torchsleuth]\n{wrong} = 1\n")
    with pytest.raises(UnknownSetting, match=f"did you mean {nearest}") as caught:
        load(environ={})
    assert str(path) in caught.value.cause


def test_an_unknown_name_like_no_other_gets_no_guess() -> None:
    with pytest.raises(UnknownSetting) as caught:
        load(qqqqqq=1)
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize("variable", ["SLEUTH_LEVL", "SLEUTH_level"])
def test_an_unknown_variable_is_not_ignored(variable: str) -> None:
    with pytest.raises(UnknownSetting, match=variable) as caught:
        load(environ={variable: "3"})
    assert "did you mean SLEUTH_LEVEL?" in caught.value.remedy
    assert all(f"SLEUTH_{name.upper()}" in caught.value.remedy for name in NAMES)


# ---- the settings that hold now --------------------------------------------------------------------------


def test_the_process_loads_its_settings_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_LEVEL", "1")
    assert current().level is Level.DUMP
    monkeypatch.setenv("SLEUTH_LEVEL", "4")
    assert current().level is Level.DUMP


def test_a_bad_source_raises_at_each_use_until_it_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_LEVEL", "9")
    for _ in range(2):
        with pytest.raises(BadValue):
            current()
    monkeypatch.setenv("SLEUTH_LEVEL", "3")
    assert current().level is Level.ALWAYS


def in_a_thread(ask: Callable[[], Any]) -> Any:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask()))
    thread.start()
    thread.join(timeout=10)
    return answers[0]


def test_configure_sets_the_base_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEUTH_FP64", "no")
    assert configure(level=3) == Settings(level=Level.ALWAYS, fp64=False)
    assert current() == in_a_thread(current) == Settings(level=Level.ALWAYS, fp64=False)
    configure(after="aot")
    assert current() == Settings(after=After.AOT, fp64=False)


def test_a_bad_configure_changes_nothing() -> None:
    configure(level=3)
    with pytest.raises(BadValue):
        configure(level=9)
    assert current().level is Level.ALWAYS


def test_a_patch_holds_inside_and_is_gone_outside() -> None:
    """Covers: S2, S3"""
    with patch(after="aot") as inside:
        assert inside is current()
        assert inside == Settings(after=After.AOT)
    assert current() == Settings()


def test_a_patch_is_restored_after_an_exception() -> None:
    """Covers: S3"""
    error = RuntimeError("the user's own")
    seen: list[After | None] = []

    def debug_call() -> None:
        with patch(after=None):
            seen.append(current().after)
            raise error

    with patch(after="aot"):
        with pytest.raises(RuntimeError) as caught:
            debug_call()
        assert caught.value is error
        assert seen == [None]
        assert current().after is After.AOT
    assert current().after is None


def test_nested_patches_compose() -> None:
    """Covers: S38 (in part: what is nested in a debug call sees that watching is off)"""
    with patch(after="aot", level=3):
        with patch(after=None):
            assert current() == Settings(level=Level.ALWAYS)
            with patch(level=4, fp64=False):
                assert current() == Settings(level=Level.ACCURACY, fp64=False)
            assert current() == Settings(level=Level.ALWAYS)
        assert current() == Settings(after=After.AOT, level=Level.ALWAYS)


def test_a_patch_is_checked_where_it_is_written() -> None:
    """Covers: S15"""
    with pytest.raises(BadValue):
        patch(after="bogus")
    with pytest.raises(UnknownSetting):
        patch(start=Path())


def test_a_patch_is_reentrant_and_reusable() -> None:
    one = patch(after="aot")
    for _ in range(2):
        with one, one:
            with patch(after=None), one:
                assert current().after is After.AOT
            assert current().after is After.AOT
        assert current().after is None


def test_an_open_patch_outlives_a_configure() -> None:
    with patch(after="aot"):
        configure(level=3)
        assert current() == Settings(after=After.AOT)
        assert in_a_thread(current) == Settings(level=Level.ALWAYS)
    assert current() == Settings(level=Level.ALWAYS)


def test_threads_do_not_see_each_others_patches() -> None:
    """One shared patch object, entered and left crosswise: A in, B in, A out, B out."""
    shared = patch(after="aot")
    steps = [threading.Event() for _ in range(3)]
    seen: dict[str, After | None] = {}

    def a() -> None:
        with shared:
            steps[0].set()
            assert steps[1].wait(10)
        seen["a out"] = current().after
        steps[2].set()

    def b() -> None:
        assert steps[0].wait(10)
        seen["b before"] = current().after
        with shared:
            steps[1].set()
            assert steps[2].wait(10)
            seen["b in"] = current().after
        seen["b out"] = current().after

    threads = [threading.Thread(target=each) for each in (a, b)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(timeout=10)
    assert seen == {"a out": None, "b before": None, "b in": After.AOT, "b out": None}
    assert current().after is None


def test_tasks_do_not_see_each_others_patches() -> None:
    async def task(value: str | None, seen: list[After | None]) -> None:
        with patch(after=value):
            for _ in range(3):
                await asyncio.sleep(0)
                seen.append(current().after)

    async def main() -> tuple[list[After | None], list[After | None]]:
        one: list[After | None] = []
        two: list[After | None] = []
        await asyncio.gather(task("aot", one), task("dynamo", two))
        assert current().after is None
        return one, two

    assert asyncio.run(main()) == ([After.AOT] * 3, [After.DYNAMO] * 3)


def test_patches_that_are_left_in_the_order_of_entering_leave_nothing_behind() -> None:
    def step(change: dict[str, object]) -> Iterator[Settings]:
        with patch(**change):
            yield current()

    one, two = step({"after": "aot"}), step({"level": 3})
    next(one)
    assert next(two) == Settings(after=After.AOT, level=Level.ALWAYS)
    assert next(one, None) is None
    assert current() == Settings(level=Level.ALWAYS)
    assert next(two, None) is None
    assert current() == Settings()


def test_leaving_a_patch_in_another_context_says_so_and_changes_nothing() -> None:
    elsewhere = contextvars.copy_context()
    stray = patch(after="aot")
    elsewhere.run(stray.__enter__)
    with patch(level=3):
        with pytest.raises(ConfigError, match="never entered it") as caught:
            stray.__exit__(None, None, None)
        assert "patch(after=" in caught.value.what
        assert current() == Settings(level=Level.ALWAYS)
    assert current() == Settings()
    assert elsewhere.run(current).after is After.AOT
    elsewhere.run(stray.__exit__, None, None, None)
    assert elsewhere.run(current) == Settings()


def test_leaving_a_patch_in_another_context_never_hides_an_exception() -> None:
    def generator() -> Iterator[None]:
        with patch(after="aot"):
            yield

    elsewhere = contextvars.copy_context()
    running = generator()
    elsewhere.run(next, running)
    error = RuntimeError("the user's own")
    with pytest.raises(RuntimeError) as caught:
        running.throw(error)
    assert caught.value is error
    assert current() == Settings()


def test_leaving_a_patch_twice_says_so() -> None:
    once = patch(after="aot")
    with once:
        pass
    with pytest.raises(ConfigError):
        once.__exit__(None, None, None)
    assert current() == Settings()


# ---- as a decorator --------------------------------------------------------------------------------------


def test_a_decorated_function_runs_patched_and_keeps_its_name() -> None:
    """Covers: S3"""

    @patch(after="aot")
    def ask(fail: bool = False) -> After | None:
        """Says what holds."""
        assert current().after is After.AOT
        if fail:
            raise KeyError("the user's own")
        return current().after

    assert ask() is After.AOT
    assert current().after is None
    with pytest.raises(KeyError):
        ask(fail=True)
    assert current().after is None
    assert (ask.__name__, ask.__doc__) == ("ask", "Says what holds.")


def test_a_decorated_function_may_recurse() -> None:
    @patch(level=3)
    def down(n: int) -> list[Level]:
        return [current().level, *(down(n - 1) if n else [])]

    assert down(2) == [Level.ALWAYS] * 3
    assert current().level is Level.MINIFY


def test_a_decorated_coroutine_function_runs_patched_to_its_end() -> None:
    @patch(after="aot")
    async def ask() -> After | None:
        await asyncio.sleep(0)
        return current().after

    class Asker:
        async def __call__(self) -> After | None:
            await asyncio.sleep(0)
            return current().after

    async def main() -> list[After | None]:
        return [await ask(), await patch(after="dynamo")(Asker())(), current().after]

    assert asyncio.run(main()) == [After.AOT, After.DYNAMO, None]


def a_generator() -> Iterator[int]:
    yield 1


async def an_async_generator() -> AsyncIterator[int]:
    yield 1


class CallableGenerator:
    def __call__(self) -> Iterator[int]:
        yield 1


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (a_generator, "it is a generator"),
        (an_async_generator, "it is a generator"),
        (functools.partial(a_generator), "it is a generator"),
        (CallableGenerator(), "it is a generator"),
        (staticmethod(len), "it is a staticmethod"),
        (classmethod(len), "it is a classmethod"),
        (int, "it is a class"),
        (3, "it is not a function"),
    ],
)
def test_what_cannot_be_decorated_is_rejected_at_once(function: Any, cause: str) -> None:
    with pytest.raises(ConfigError, match="cannot decorate") as caught:
        patch(after="aot")(function)
    assert cause in caught.value.cause


# ---- cost ------------------------------------------------------------------------------------------------


def test_the_settings_are_cheap_to_import() -> None:
    code = "import sys, torchsleuth.config, torchsleuth.torch_compat; print('torch' in sys.modules)"
    source = str(Path(torchsleuth.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": source},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"
