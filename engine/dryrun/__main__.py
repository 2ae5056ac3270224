"""The child: a spec as JSON on stdin, one JSON object a line on stdout (progress, then the result or an error)."""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

from engine.dryrun import depth
from engine.dryrun.spec import Spec


def say(event: str, **fields: Any) -> None:
    """One line to the parent."""
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Measure and answer; an error that was foreseen ends with 0 and its event."""
    request = json.load(sys.stdin)
    spec = Spec.from_json(request["spec"])
    say("progress", stage="import", layers=0)
    warnings.simplefilter("ignore")
    import transformers

    from engine.dryrun import build, step

    transformers.logging.set_verbosity_error()
    if request.get("canary"):
        from engine.dryrun import canary

        say("progress", stage="canary", layers=0)
        for method, error in canary.errors():
            if error > canary.MOST:
                say("error", kind="versions", text=f"{method}: {100 * error:.1f} %")
                return 0
    started = time.monotonic()
    try:
        answer = measure(spec, step.measure)
        say("result", **answer, attention=build.attention(spec), seconds=round(time.monotonic() - started, 2))
    except build.Unsupported as error:
        say("error", kind="unsupported", text=str(error))
    return 0


def measure(spec: Spec, run: Any) -> dict[str, Any]:
    """The whole model's peaks: through two depths, or with all layers where that is needed."""
    chosen = depth.depths(spec.layers, spec.config)
    measured = [_one(spec, layers, run) for layers in chosen]
    peaks = measured[0]
    if len(chosen) == 2:
        peaks = depth.extrapolate(measured[0], measured[1], (chosen[0], chosen[1]), spec.layers)
        largest = max(sum(parts.values()) for parts in peaks.values())
        if depth.close(largest, spec.limit) or not depth.straight(peaks):
            chosen, peaks = (spec.layers,), _one(spec, spec.layers, run)
    return {"phases": depth.named(peaks), "depths": list(chosen)}


def _one(spec: Spec, layers: int, run: Any) -> depth.Peaks:
    peaks: depth.Peaks = run(spec.at_depth(layers), lambda stage: say("progress", stage=stage, layers=layers))
    return peaks


if __name__ == "__main__":
    sys.exit(main())
