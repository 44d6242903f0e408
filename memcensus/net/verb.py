"""The verb ``memcensus net``, as cyclopts reads it."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from memcensus.model import Report  # noqa: TC001  (cyclopts reads the annotations)
from memcensus.net.options import NetOptions
from memcensus.net.subject import Net
from memcensus.subject import Request, Target  # noqa: TC001  (as above)

_DEFAULTS = NetOptions()


def net(
    target: str,
    /,
    *,
    options: Annotated[NetOptions, Parameter(name="*")] = _DEFAULTS,
    request: Annotated[Request, Parameter(parse=False)],
) -> Report:
    """Say what one training step of TARGET holds.

    TARGET is package.module:callable or vgg16; or a file: a checkpoint (.pt, .pth), which is never
    unpickled, or a memory trace of torch.profiler.
    """
    return Net().inspect(Target.parse(target), request, options)
