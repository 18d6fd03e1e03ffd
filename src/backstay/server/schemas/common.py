"""Field types that bodies and queries share, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

#: Names and ids: 1 to 512 bytes, as everywhere. No NUL: not every engine can store it.
Name = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[^\u0000]+$")]
#: An optional name; "": not given.
MaybeName = Annotated[str, Meta(max_length=512, pattern=r"^[^\u0000]*$")]
#: A number as text: JSON readers with doubles lose the precision of 64-bit numbers.
Fence = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]
#: Text for people.
MessageText = Annotated[str, Meta(max_length=10_000)]
#: Seconds: above zero, at most ten years.
Seconds = Annotated[float, Meta(gt=0, le=315_360_000)]
MaybeSeconds = Annotated[float, Meta(ge=0, le=315_360_000)]
#: How long one request may wait (long poll), in seconds.
PollSeconds = Annotated[float, Meta(ge=0, le=50)]
#: The most items that a list returns.
PageSize = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=0, le=1_000_000)]
#: A sequence number: the last one that a client has seen.
Sequence = Annotated[int, Meta(ge=0, le=2**53)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Labels = Annotated[list[Name], Meta(max_length=100)]
#: Milliseconds since the epoch.
Millis = int
