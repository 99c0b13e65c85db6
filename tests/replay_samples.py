"""Cases and outcomes for the tests of replaying: made of data, and put into a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch

from case_samples import small_case
from torchsleuth.case import schema
from torchsleuth.case.stores.examining import Found
from torchsleuth.case.stores.store import Store
from torchsleuth.outcome import Mismatched, Passed, Raised, Stage

LOWERING = "torch._inductor.exc.LoweringException"
SAME = Raised(Stage.LOWERING, 1.5, type_chain=(LOWERING,), message="no lowering\nfor aten.mul")
OTHER = Raised(Stage.CODEGEN, type_chain=("builtins.KeyError",), message="'buf0'")
PASSED = Passed(Stage.RUN)
WRONG = Mismatched(Stage.COMPARE, path="output[0]", explanation="BUG: all of it\nsee above")
SCRIPT_SAME = "expected: raises\nseen: raises\nverdict: fails as recorded\n"
SCRIPT_PASSES = "expected: raises\nseen: no failure\nverdict: does not fail here\n"


def kept(store: Store, **changes: Any) -> Found:
    """The small case, in a store, with its tensor."""
    digest = store.blobs.put(torch.zeros(2, 3).untyped_storage())
    case = small_case(storages=(schema.Storage(24, schema.Stored(digest)),), **changes)
    return store.find(store.save(case).id)


def with_failure(kind: Any, stage: Stage = Stage.RUN, message: str = "", **more: Any) -> schema.Failure:
    return schema.Failure(schema.Signature(kind, stage, **more), message=message)


def with_origin(**changes: Any) -> schema.Origin:
    return msgspec.structs.replace(small_case().origin, **changes)


def opened(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")
