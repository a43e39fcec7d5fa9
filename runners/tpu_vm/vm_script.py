"""Start-up script of a TPU VM. Pure.

The service runs it as root at every start of the VM. It makes a systemd unit, so that a preempted VM (a spot
VM has 30 seconds) sends SIGTERM to the worker's supervisor and waits. The unit installs what is missing,
fetches the secrets by name with the VM's own rights, and becomes `on_vm`. The exit status of `on_vm` is
published as a guest attribute, which the pool's supervisor reads; a VM that nobody has deleted a quarter of
an hour later deletes itself.
"""

from __future__ import annotations

import shlex
from dataclasses import replace

from runners.pools.pool import Pool
from runners.pools.script import worker_script
from runners.tpu_versions import REQUIREMENTS, WHEELS
from runners.tpu_vm.options import TpuOptions

ROOT = "/opt/stagesweep"
PYTHON = f"{ROOT}/venv/bin/python"
LOG = f"{ROOT}/worker.log"
ENDED = "stagesweep/ended"
"""Guest attribute: an exit status, or the step that failed: install, secret."""
NAME_KEY, ZONE_KEY, QUEUED_KEY = "stagesweep-name", "stagesweep-zone", "stagesweep-queued"
"""Keys of the VM's metadata, with which it deletes itself."""
LONGEST_GRACE_S = 25.0
_LINGER_S = 900

_SKELETON = """\
#!/bin/bash
set -uo pipefail
export PATH="$PATH:/snap/bin"
root="${STAGESWEEP_ROOT:-%(root)s}"
metadata=http://metadata.google.internal/computeMetadata/v1/instance

known() { curl -fsS --retry 5 -H 'Metadata-Flavor: Google' "$metadata/attributes/$1"; }

ended() {
  curl -fsS --retry 5 -X PUT --data "$1" -H 'Metadata-Flavor: Google' "$metadata/guest-attributes/%(ended)s"
  if [ "$(known %(queued_key)s)" = yes ]; then
    what=(compute tpus queued-resources delete "$(known %(name_key)s)" --force)
  else
    what=(compute tpus tpu-vm delete "$(known %(name_key)s)")
  fi
  systemd-run --on-active=%(linger)d gcloud "${what[@]}" --zone "$(known %(zone_key)s)" --quiet --async
}

install_it() {
  command -v python3.11 > /dev/null || {
    apt-get -o DPkg::Lock::Timeout=600 update -q &&
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -q python3.11 python3.11-venv
  } || return
  [ -x "$root/venv/bin/python" ] || python3.11 -m venv "$root/venv" || return
  package=%(package)s
  case "$package" in gs://*)
    gcloud storage cp -- "$package" "$root/" || return
    package="$root/${package##*/}" ;;
  esac
  "$root/venv/bin/python" -m pip install --quiet --retries 10 %(wheels)s -- %(requirements)s "$package"
}

fail() {
  echo "$1" > "$root/failed"
  exit 1
}

work() {
  [ -e "$root/installed" ] || { install_it && touch "$root/installed"; } || fail install
%(secrets)s  exec bash -c %(worker)s
}

start() {
  install -d -m 700 "$root" && install -m 700 "$0" "$root/start.sh"
  cat > "${STAGESWEEP_UNITS:-/etc/systemd/system}/stagesweep.service" <<UNIT
[Unit]
Description=A stagesweep worker
Wants=network-online.target
After=network-online.target
[Service]
ExecStart=/bin/bash $root/start.sh work
ExecStopPost=/bin/bash $root/start.sh stopped
Environment=PJRT_DEVICE=TPU HOME=/root
StandardOutput=append:$root/worker.log
StandardError=append:$root/worker.log
KillMode=mixed
TimeoutStopSec=%(stop_s)d
SuccessExitStatus=75
UNIT
  systemctl daemon-reload && systemctl restart --no-block stagesweep
}

case "${1:-start}" in
  start) start ;;
  work) rm -f "$root/failed"; work ;;
  stopped)
    case "$(systemctl is-system-running):${EXIT_STATUS:-}" in
      stopping:* | *:75) ;;
      *) ended "$(cat "$root/failed" 2> /dev/null || echo "${EXIT_STATUS:-unknown}")" ;;
    esac ;;
esac
"""

_FETCH = """\
  %(name)s="$(gcloud secrets versions access latest --secret=%(name)s)" || fail secret
  export %(name)s
"""


def vm_script(pool: Pool, options: TpuOptions) -> str:
    """Return the bash script of every VM of the pool; it holds no secret's value."""
    grace_s = min(pool.grace_s, LONGEST_GRACE_S)
    supervisor = (
        *(PYTHON, "-P", "-m", "runners.on_vm", "--log", LOG),
        *("--restarts", str(pool.restarts), "--grace", f"{grace_s:g}", "--", *pool.command),
    )
    return _SKELETON % {
        "root": ROOT,
        "ended": ENDED,
        "queued_key": QUEUED_KEY,
        "name_key": NAME_KEY,
        "zone_key": ZONE_KEY,
        "linger": _LINGER_S,
        "package": shlex.quote(options.package),
        "wheels": " ".join(f"--find-links {shlex.quote(url)}" for url in WHEELS),
        "requirements": shlex.join(REQUIREMENTS),
        "secrets": "".join(_FETCH % {"name": name} for name in pool.secrets),
        "worker": shlex.quote(worker_script(replace(pool, grace_s=grace_s), supervisor)),
        "stop_s": int(grace_s) + 5,
    }
