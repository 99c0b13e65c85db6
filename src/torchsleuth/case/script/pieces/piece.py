"""What a piece of a script is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Piece:
    """Some lines of a script, what they import, and which other pieces they call."""

    text: str
    imports: tuple[str, ...] = ()
    needs: tuple[Piece, ...] = ()
