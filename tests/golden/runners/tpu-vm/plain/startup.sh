#!/bin/bash
set -uo pipefail
export PATH="$PATH:/snap/bin"
root="${STAGESWEEP_ROOT:-/opt/stagesweep}"
metadata=http://metadata.google.internal/computeMetadata/v1/instance

known() { curl -fsS --retry 5 -H 'Metadata-Flavor: Google' "$metadata/attributes/$1"; }

ended() {
  curl -fsS --retry 5 -X PUT --data "$1" -H 'Metadata-Flavor: Google' "$metadata/guest-attributes/stagesweep/ended"
  if [ "$(known stagesweep-queued)" = yes ]; then
    what=(compute tpus queued-resources delete "$(known stagesweep-name)" --force)
  else
    what=(compute tpus tpu-vm delete "$(known stagesweep-name)")
  fi
  systemd-run --on-active=900 gcloud "${what[@]}" --zone "$(known stagesweep-zone)" --quiet --async
}

install_it() {
  command -v python3.11 > /dev/null || {
    apt-get -o DPkg::Lock::Timeout=600 update -q &&
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -q python3.11 python3.11-venv
  } || return
  [ -x "$root/venv/bin/python" ] || python3.11 -m venv "$root/venv" || return
  package=gs://bucket/stagesweep-1.0.0-py3-none-any.whl
  case "$package" in gs://*)
    gcloud storage cp -- "$package" "$root/" || return
    package="$root/${package##*/}" ;;
  esac
  "$root/venv/bin/python" -m pip install --quiet --retries 10 --find-links https://storage.googleapis.com/libtpu-releases/index.html --find-links https://storage.googleapis.com/libtpu-wheels/index.html -- torch==2.9.1 'torch_xla[tpu]==2.9.0' 'libtpu>=0.0.21,<=0.0.23.1' "$package"
}

fail() {
  echo "$1" > "$root/failed"
  exit 1
}

work() {
  [ -e "$root/installed" ] || { install_it && touch "$root/installed"; } || fail install
  exec bash -c '#!/bin/bash
set -u
exec -- /opt/stagesweep/venv/bin/python -P -m runners.on_vm --log /opt/stagesweep/worker.log --restarts 5 --grace 25 -- python3 -P -m sweeps worker --storage gs://bucket/sweeps/toy --max-trials 4
'
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
TimeoutStopSec=30
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
