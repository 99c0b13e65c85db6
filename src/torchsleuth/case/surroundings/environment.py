"""The environment variables that belong to a case: those that change what torch computes or how it compiles.

Kept are variables of torch and of the libraries under it, by a closed list of prefixes and names. Never kept are
secrets, and what belongs to one machine or one run: folders, logs, devices and ranks. The compiler (`CXX`, `CC`) is
kept for people to read, but a case cannot choose a program to run: that one is never set from a case.

Most variables are read once, while torch or OpenMP is loaded. `applied` sets them for what is read later, and for
processes that are started inside; `for_child` gives them to a process that starts afresh.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from torchsleuth.errors import GET_IT_AGAIN, BadCase

_PREFIXES: Final = (
    "TORCH",
    "PYTORCH_",
    "INDUCTOR_",
    "AOTINDUCTOR_",
    "AOT_INDUCTOR_",
    "TRITON_",
    "ONEDNN_",
    "DNNL_",
    "CUBLAS_",
    "CUBLASLT_",
    "CUDNN_",
    "NVIDIA_TF32_",
)
_NAMES: Final = frozenset(
    "AOT_PARTITIONER_DEBUG CUDA_LAUNCH_BLOCKING CUDA_MODULE_LOADING CUTEDSL_ENABLE_AUTOTUNING "
    "CUTLASS_EPILOGUE_FUSION ENABLE_PERSISTENT_TMA_MATMUL ENABLE_TEMPLATE_TMA_STORE "
    "ENABLE_TMA_LOAD_FOR_TEMPLATE_EPILOGUE ATEN_CPU_CAPABILITY FAKE_ALLOW_META NCCL_ALGO NCCL_PROTO "
    "OMP_DYNAMIC OMP_MAX_ACTIVE_LEVELS OMP_NESTED OMP_NUM_THREADS OMP_PROC_BIND OMP_SCHEDULE OMP_STACKSIZE "
    "OMP_THREAD_LIMIT OMP_WAIT_POLICY KMP_AFFINITY KMP_BLOCKTIME KMP_DETERMINISTIC_REDUCTION KMP_STACKSIZE "
    "MKL_CBWR MKL_DEBUG_CPU_TYPE MKL_DYNAMIC MKL_ENABLE_INSTRUCTIONS MKL_NUM_THREADS MKL_THREADING_LAYER".split()
)
_PROGRAMS: Final = frozenset({"CC", "CXX"})

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|PRIVATE|(^|_)KEYS?($|_)|APIKEY")
_LOCAL = re.compile(
    r".*_(DIR|DIRS|PATH|HOME|ROOT|FILE|LIBRARY|LIBRARIES|URL|HOST|ADDR|PORT|JOB_ID|RUN_ID|CXX|CC)$"
    r"|TORCH_LOGS.*|TORCH_TRACE|TORCH_SHOW_CPP_STACKTRACES|TORCH_CPP_LOG_LEVEL|TORCH_COMPILE_DEBUG.*|TORCHELASTIC_.*"
    r"|TORCHDYNAMO_REPRO_.*|AOTINDUCTOR_REPRO_LEVEL|TORCHINDUCTOR_COMPILE_THREADS|TORCHINDUCTOR_WORKER_START"
)
_A_PLACE = re.compile(r"[/\\]|(^|\s)-")
_WITH_A_PASSWORD = re.compile(r"://[^/@\s]*@")


def is_secret(name: str) -> bool:
    """Whether a variable may be a secret, going by its name."""
    return _SECRET.search(name) is not None


def is_kept(name: str) -> bool:
    """Whether a variable belongs into a case, going by its name."""
    if is_secret(name) or _LOCAL.fullmatch(name) or not name.isascii():
        return False
    return name in _PROGRAMS or name in _NAMES or name.startswith(_PREFIXES)


def observe_environment(environ: Mapping[str, str] | None = None) -> tuple[tuple[str, str], ...]:
    """The variables that belong into a case, sorted by name. One whose bytes are no UTF-8 is left out."""
    environ = os.environ if environ is None else environ
    return tuple(
        (name, value)
        for name, value in sorted(environ.items())
        if is_kept(name) and _is_text(value) and not _WITH_A_PASSWORD.search(value)
    )


def for_child(variables: Iterable[tuple[str, str]], environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a process in which the case is to be run: this one, with the case's variables.

    Variables that belong to cases but are not in this one are left out: there, they would change what torch does.
    """
    environ = os.environ if environ is None else environ
    kept = {name: value for name, value in environ.items() if name in _PROGRAMS or not is_kept(name)}
    return kept | _settable(variables)


@contextmanager
def applied(variables: Iterable[tuple[str, str]]) -> Iterator[None]:
    """The case's variables are set for a while; afterwards each is as before. Others are left alone."""
    wanted = _settable(variables)
    before = {name: os.environ.get(name) for name in wanted}
    try:
        os.environ.update(wanted)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _settable(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What may be set: names that belong into a case, values that name neither a place nor a compiler's flag."""
    wanted = {}
    refused = []
    for place, (name, value) in enumerate(variables):
        if not name or "=" in name or "\0" in name + value or not _is_text(name + value):
            raise BadCase(
                f"{name!r} is no environment variable with a text",
                cause="no environment can hold it",
                remedy=GET_IT_AGAIN,
                field=f"state.environment[{place}]",
            )
        if name in _PROGRAMS:
            continue
        if not is_kept(name) or _A_PLACE.search(value):
            refused.append(name)
        else:
            wanted[name] = value
    if refused:
        warnings.warn(
            "these environment variables of the case are not set, because they are not torch's or name a place: "
            f"{', '.join(refused)}",
            stacklevel=5,
        )
    return wanted


def _is_text(value: str) -> bool:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
