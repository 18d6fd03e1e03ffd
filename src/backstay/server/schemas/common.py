"""Small types that bodies are made of, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

#: Names and ids: as everywhere, 1 to 512 bytes. Not every engine can keep a NUL in each of them, so none comes in.
Name = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[^\u0000]+$")]
#: The same where nothing need be said.
MaybeName = Annotated[str, Meta(max_length=512, pattern=r"^[^\u0000]*$")]
#: A number as text: not every reader has 64-bit numbers.
Fence = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]
#: Words for people.
Words = Annotated[str, Meta(max_length=10_000)]
#: Seconds: above nothing, below ten years.
Seconds = Annotated[float, Meta(gt=0, le=315_360_000)]
MaybeSeconds = Annotated[float, Meta(ge=0, le=315_360_000)]
#: How long one request may wait for something.
PollSeconds = Annotated[float, Meta(ge=0, le=50)]
#: What a list answers at most.
PageSize = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=0, le=1_000_000)]
#: The number of something that was told: what a client has seen.
Sequence = Annotated[int, Meta(ge=0, le=2**53)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Labels = Annotated[list[Name], Meta(max_length=100)]
#: Milliseconds since the epoch.
Millis = int
