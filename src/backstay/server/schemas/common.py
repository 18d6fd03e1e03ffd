"""Field types that bodies and queries share, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

#: A name or an id, without NUL characters: not every engine can store them.
Name = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[^\u0000]+$")]
#: An optional name; "": not given.
MaybeName = Annotated[str, Meta(max_length=512, pattern=r"^[^\u0000]*$")]
#: A fence, written as text. It is a 64-bit number, which JSON parsers that read numbers as doubles would round.
Fence = Annotated[str, Meta(pattern="^[0-9]{1,19}$")]
#: A message for people, such as the reason of a failure.
MessageText = Annotated[str, Meta(max_length=10_000)]
#: Seconds: above zero, at most ten years.
Seconds = Annotated[float, Meta(gt=0, le=315_360_000)]
MaybeSeconds = Annotated[float, Meta(ge=0, le=315_360_000)]
#: How long one request may wait (long poll), in seconds.
PollSeconds = Annotated[float, Meta(ge=0, le=50)]
#: The largest number of items that a list returns.
PageSize = Annotated[int, Meta(ge=1, le=1000)]
Offset = Annotated[int, Meta(ge=0, le=1_000_000)]
#: The sequence number of the last item that a client has received.
Sequence = Annotated[int, Meta(ge=0, le=2**53)]
Count = Annotated[int, Meta(ge=1, le=1_000_000_000)]
Labels = Annotated[list[Name], Meta(max_length=100)]
#: Milliseconds since the epoch.
Millis = int
#: Responses give durations as whole numbers: `…_secs` are rounded (a time to live down, a delay or a timeout up), and
#: the field of the same name in `…_ms` is exact. Clients in typed languages decode both as unsigned integers.
WholeSeconds = int
Milliseconds = int
