"""What a user copies: the tunnel, a first request, a client, a systemd unit, a compose file. Never the key itself."""

from __future__ import annotations

import getpass
import json
import os
import shlex
import socket
from pathlib import Path
from typing import Any

from engine.serve.launch import Served

KEY = "FTUI_KEY"


def tunnel(spec: dict[str, Any]) -> str:
    """The line to type on one's own machine."""
    return f"ssh -N -L {spec['port']}:127.0.0.1:{spec['port']} {_here()}"


def key(served: Served) -> str:
    """The line that brings the key to one's own machine, into the environment of a shell."""
    return f"export {KEY}=$(ssh {_here()} cat {shlex.quote(str(served.key_file))})"


def _here() -> str:
    """How this server is reached: by the address that the SSH session came to, else by its name."""
    address = os.environ.get("SSH_CONNECTION", "").split()
    host = address[2] if len(address) == 4 else socket.gethostname()
    return f"{getpass.getuser()}@{host}"


def curl(served: Served, spec: dict[str, Any], prompt: str = "Hello!") -> str:
    """A first request from this server; the key is read from its file by the shell."""
    body = {"model": spec["tuned"], "messages": [{"role": "user", "content": prompt}]}
    return " ".join(
        [
            "curl -s",
            f"{served.url}/v1/chat/completions",
            f'-H "Authorization: Bearer $(cat {shlex.quote(str(served.key_file))})"',
            "-H 'Content-Type: application/json'",
            "-d",
            shlex.quote(json.dumps(body, ensure_ascii=False)),
        ]
    )


def client(served: Served, spec: dict[str, Any]) -> str:
    """A few lines of Python with the OpenAI client; the key comes from the environment."""
    return f"""\
import os
from openai import OpenAI
client = OpenAI(base_url="{served.url}/v1", api_key=os.environ["{KEY}"])
answer = client.chat.completions.create(model={spec["tuned"]!r}, messages=[{{"role": "user", "content": "Hello!"}}])
print(answer.choices[0].message.content)
"""


def systemd(served: Served, spec: dict[str, Any]) -> str:
    """A unit that serves the same without this program; the key comes from a file that only root reads."""
    variable = spec["key_variable"]
    environment = "\n".join(f'Environment="{key}={_unit(value)}"' for key, value in sorted(_env(spec).items()))
    command = " ".join(_unit(shlex.quote(word)) for word in spec["argv"])
    secret = f"/etc/ftui-{served.name}.env"
    return f"""\
# /etc/systemd/system/ftui-{served.name}.service
# the key: umask 077; printf '{variable}=%s\\n' "$(cat {shlex.quote(str(served.key_file))})" > {secret}
[Unit]
Description={served.name} ({spec["engine"]})
After=network-online.target

[Service]
{environment}
EnvironmentFile={secret}
ExecStart={command}
Restart=on-failure
KillSignal=SIGTERM
TimeoutStopSec=60

[Install]
WantedBy=multi-user.target
"""


def _unit(text: str) -> str:
    """Text inside a unit file: percent and dollar signs mean themselves."""
    return text.replace("%", "%%").replace("$", "$$")


def _env(spec: dict[str, Any]) -> dict[str, str]:
    return {key: value for key, value in spec["env"].items() if key not in ("PATH", "PYTHONPATH")}


def compose(served: Served, spec: dict[str, Any]) -> str:
    """A compose file with vLLM's image; models and adapters are mounted where they lie."""
    import yaml

    argv = spec["argv"]
    words = argv[argv.index("--model") :] if "--model" in argv else ["--model", spec["model"]]
    words = [word if word != spec["host"] else "0.0.0.0" for word in words]  # noqa: S104 inside the container; published on loopback
    folders = [spec["model"], *(adapter["path"] for adapter in spec["adapters"])]
    mounts = [f"{path}:{path}:ro" for path in dict.fromkeys(_mount(folder) for folder in folders)]
    service: dict[str, Any] = {
        "image": "vllm/vllm-openai:latest",
        "command": words,
        "environment": [f"{spec['key_variable']}=${{FTUI_KEY:?the key}}", "HF_HUB_OFFLINE=1"],
        "ports": [f"127.0.0.1:{spec['port']}:{spec['port']}"],
        "volumes": mounts,
        "shm_size": "8gb",
    }
    if spec["gpus"]:
        device = {"driver": "nvidia", "count": spec["fit"]["tensor_parallel"], "capabilities": ["gpu"]}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    head = f"# FTUI_KEY=$(cat {shlex.quote(str(served.key_file))}) docker compose up\n"
    return head + str(yaml.safe_dump({"services": {served.name.lower(): service}}, sort_keys=False))


def _mount(path: str) -> str:
    """The folder to mount: of a snapshot in the hub's cache the whole repository, whose files it links to."""
    folder = Path(path)
    return str(folder.parents[1]) if folder.parent.name == "snapshots" else path
