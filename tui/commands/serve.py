"""`ftui serve`: a run's result, an adapter or a model behind an OpenAI-compatible API, checked once it answers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from engine.errors import UsageError
from engine.text import _, gigabytes, number
from engine.workspace import Workspace, locate
from tui.output import Output

if TYPE_CHECKING:
    from engine.serve.check import Check
    from engine.serve.engines import Engine
    from engine.serve.launch import Prepared, Served
    from engine.serve.target import Target

ENGINES = ("vllm", "transformers")
FILES = ("systemd", "compose")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("target", nargs="?", metavar="RUN_OR_DIR", help=_("a run, an adapter, or a model's folder"))
    parser.add_argument("--engine", choices=ENGINES, help=_("what serves it (default: vLLM where it is installed)"))
    parser.add_argument("--base", metavar="DIR", help=_("the base of the adapter (default: what it names)"))
    parser.add_argument("--step", type=int, metavar="N", help=_("a run's checkpoint (default: its result)"))
    parser.add_argument(
        "--adapter",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help=_("another adapter on the same base (vLLM); may be given again"),
    )
    parser.add_argument("--merged", action="store_true", help=_("merge the adapter first and serve one whole model"))
    parser.add_argument("--host", default="127.0.0.1", help=_("the address to listen on (default: 127.0.0.1)"))
    parser.add_argument("--port", type=int, help=_("the port (default: the first free one from 8000)"))
    parser.add_argument("--max-length", type=int, metavar="N", help=_("tokens of a conversation (default: what fits)"))
    parser.add_argument("--gpus", type=int, metavar="N", help=_("how many free GPUs to use (0: the CPU)"))
    parser.add_argument("--no-check", action="store_true", help=_("return without asking the server anything"))
    parser.add_argument("--print", action="store_true", dest="show", help=_("print the command, start nothing"))
    parser.add_argument("--file", choices=FILES, help=_("print a systemd unit or a compose file for it"))
    parser.add_argument("--list", action="store_true", help=_("list the servers of this workspace"))
    parser.add_argument("--stop", action="store_true", help=_("end the server"))
    parser.add_argument(
        "--engine-args",
        nargs=argparse.REMAINDER,
        default=[],
        metavar="…",
        help=_("passed on to the engine as they are (last)"),
    )


def run(args: argparse.Namespace, out: Output) -> int:
    """Serve, list or stop."""
    workspace = locate(args.home).prepare()
    if args.list:
        return _list(workspace, out)
    if args.target is None:
        raise UsageError(_("what shall be served?"), fix=_("name a run, an adapter's folder or a model's folder"))
    if args.stop:
        return _stop(workspace, args.target, out)
    from engine.serve import engines, launch, target

    engine = engines.choose(args.engine)
    found = target.find(workspace, args.target, base=args.base, step=args.step)
    _say_gate(found, out)
    wanted = _with_adapters(found, args, engine)
    wanted = _merged(wanted, args, engine, workspace, out)
    prepared = launch.prepare(
        workspace,
        wanted,
        engine,
        host=args.host,
        port=args.port,
        max_length=args.max_length,
        gpus=args.gpus,
        extra=list(args.engine_args),
    )
    if args.show:
        prepared.placement.release()
        return _print(prepared, out)
    served = launch.start(workspace, prepared)
    try:
        return _started(served, args, out)
    except KeyboardInterrupt:
        out.note(_("{name} goes on without this terminal; `ftui serve {name} --stop` ends it").format(name=served.name))
        return 130


def _say_gate(found: Target, out: Output) -> None:
    """What an evaluation's gates said of it: serving goes on, the word does not get lost."""
    from engine.serve import offer

    if warning := offer.gate_warning(found):
        out.note(warning, "warning")


def _with_adapters(found: Target, args: argparse.Namespace, engine: Engine) -> Target:
    """The target with the further adapters of the command line."""
    from dataclasses import replace

    from engine.files import user_path
    from engine.serve import target

    more = list(found.adapters)
    for text in args.adapter:
        name, equals, folder = text.partition("=")
        path = user_path(folder).absolute()
        if not equals or not target.slug(name) == name or not (path / target.ADAPTER).is_file():
            raise UsageError(
                _("--adapter {text} is not NAME=DIR of an adapter").format(text=text),
                where="--adapter",
                fix=_("for example --adapter polite=runs/polite-1/final"),
            )
        if name in (found.served, *(adapter.name for adapter in more)):
            raise UsageError(
                _("the name {name} is taken").format(name=name), where="--adapter", fix=_("choose another")
            )
        more.append(target.Adapter(name, path, target.rank(path)))
    if len(more) > 1 and (engine.name != "vllm" or args.merged):
        raise UsageError(
            _("several adapters on one base need vLLM, without --merged"),
            where="--adapter",
            fix=_("install vLLM and set `vllm_python`, or serve one at a time"),
        )
    return replace(found, adapters=tuple(more))


def _merged(found: Target, args: argparse.Namespace, engine: Engine, workspace: Workspace, out: Output) -> Target:
    """The target as one whole model, where the engine or the user wants that."""
    if not found.adapters or (engine.name == "vllm" and not args.merged):
        return found
    from engine.serve import whole

    folder = whole.ready(workspace, found)
    if folder is not None:
        return whole.as_one(found, folder)
    if args.show:
        return found
    out.note(_("merging {name} into its base first (this engine serves whole models)").format(name=found.name))
    return whole.make(workspace, found, base=args.base, step=args.step, say=out.progress)


def _print(prepared: Prepared, out: Output) -> int:
    import shlex

    from engine.serve import engines
    from engine.serve.launch import changed

    variable = engines.key_variable(prepared.engine)
    env = changed(prepared.env)
    if out.as_json:
        out.json({"engine": prepared.engine.name, "argv": prepared.argv, "env": env, "key_variable": variable,
                  "fit": prepared.fit.to_json()})  # fmt: skip
        return 0
    words = [f"{key}={shlex.quote(value)}" for key, value in sorted(env.items())]
    out.line(" ".join([*words, f"{variable}=…", shlex.join(prepared.argv)]))
    return 0


def _started(served: Served, args: argparse.Namespace, out: Output) -> int:
    """Wait until it answers, ask it, and say how to use it."""
    from engine.serve import check
    from engine.workspace import RunFolder

    checked: Check | None = None
    run = served.spec.get("run")
    if not args.no_check:
        check.wait_ready(served, out.progress)
        prompts = check.held_out(RunFolder(locate(args.home).runs_dir / run).data) if run else []
        checked = check.check(served, prompts, out.progress)
    if args.file:
        return _file(served, args.file, out)
    if out.as_json:
        out.json(document(served, checked))
    else:
        show(served, checked, out)
    return 4 if checked is not None and not checked.passed else 0


def document(served: Served, checked: Check | None) -> dict[str, Any]:
    """The document of `ftui serve --json`."""
    from engine.serve import handoff

    spec = served.spec
    return {
        "name": served.name,
        "run": spec["run"],
        "engine": spec["engine"],
        "state": served.state()["state"],
        "url": served.url,
        "models": [spec["served"], *(adapter["name"] for adapter in spec["adapters"])],
        "tuned": spec["tuned"],
        "key_file": str(served.key_file),
        "log": str(served.log),
        "fit": spec["fit"],
        "tunnel": handoff.tunnel(spec),
        "curl": handoff.curl(served, spec),
        "key": handoff.key(served),
        "check": checked.to_json() if checked is not None else None,
    }


def show(served: Served, checked: Check | None, out: Output) -> None:
    """The hand-off for people."""
    from engine.serve import handoff

    spec = served.spec
    state = served.state()["state"]
    out.line(_("{name} is served at {url} ({engine}, {state})").format(
        name=spec["tuned"], url=served.url, engine=spec["engine"], state=state), "ok")  # fmt: skip
    if checked is not None:
        _show_check(checked, out)
    if spec["host"] not in ("127.0.0.1", "localhost", "::1"):
        out.line(
            _("it listens on {host}: whoever reaches this server and has the key can use it").format(host=spec["host"]),
            "warning",
        )
    out.field(_("models"), ", ".join([spec["served"], *(adapter["name"] for adapter in spec["adapters"])]))
    out.field(_("memory"), _("weights {weights}, conversations of up to {tokens} tokens").format(
        weights=gigabytes(spec["fit"]["weights"]), tokens=number(spec["fit"]["max_length"])))  # fmt: skip
    out.field(_("key"), str(served.key_file))
    out.field(_("log"), str(served.log))
    out.line()
    out.line(_("on this server:"), "dim")
    out.line(handoff.curl(served, spec))
    out.line(_("from your own machine: the tunnel, and in another shell the key and a client"), "dim")
    out.line(handoff.tunnel(spec))
    out.line(handoff.key(served))
    out.line(handoff.client(served, spec).rstrip())
    out.note(_("  `ftui serve {name} --stop` ends it").format(name=served.name))


def _show_check(checked: Check, out: Output) -> None:
    words = {
        True: (_("as in training"), "ok"),
        False: (_("NOT as in training: the answers will be worse than they could be"), "error"),
        None: (_("not compared"), "dim"),
    }
    out.field(_("template"), *words[checked.template])
    if checked.adapter is not None:
        text = _("active: its answers differ from the base's") if checked.adapter else _(
            "NOT active: it answers as the base does")  # fmt: skip
        out.field(_("adapter"), text, "ok" if checked.adapter else "error")
    if checked.first_token_s is not None:
        rate = _(", then {rate} tokens/s").format(rate=number(checked.tokens_per_s, 1)) if checked.tokens_per_s else ""
        out.field(_("speed"), _("first token after {s} s").format(s=number(checked.first_token_s, 2)) + rate)
    for note in checked.notes:
        out.note(f"  {note}")


def _file(served: Served, kind: str, out: Output) -> int:
    from engine.serve import handoff

    text = {"systemd": handoff.systemd, "compose": handoff.compose}[kind](served, served.spec)
    if out.as_json:
        out.json({"kind": kind, "text": text})
    else:
        out.line(text.rstrip())
    return 0


def _list(workspace: Workspace, out: Output) -> int:
    from engine.serve import launch

    servers = launch.listing(workspace)
    if out.as_json:
        out.json([{**document(served, None), "state": served.state()["state"]} for served in servers])
        return 0
    if not servers:
        out.line(_("nothing is served"))
        return 0
    rows = [
        (served.name, served.state()["state"], served.spec["engine"], served.url, served.spec["tuned"])
        for served in servers
    ]
    out.table([_("name"), _("state"), _("engine"), _("address"), _("model")], rows)
    return 0


def _stop(workspace: Workspace, name: str, out: Output) -> int:
    from engine.serve import launch

    served = launch.find(workspace, name)
    ended = launch.stop(served)
    if out.as_json:
        out.json({"name": served.name, "stopped": ended})
    elif ended:
        out.line(_("{name} is not served any more").format(name=served.name), "ok")
    else:
        out.line(_("{name} did not end yet: {log}").format(name=served.name, log=served.log), "warning")
    return 0 if ended else 1
