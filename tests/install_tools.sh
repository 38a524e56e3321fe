#!/bin/sh
# Real parts for the tests: Prometheus with promtool, Alertmanager with amtool, node_exporter, a C compiler, Chromium,
# VictoriaMetrics, curl, systemd. Debian and Ubuntu only; elsewhere they must be on PATH already. The packages' services are kept from starting:
# the tests run their own.
set -eu

has() { command -v "$1" >/dev/null; }
distribution() { sed -n 's/^ID=//p' /etc/os-release 2>/dev/null; }
missing() {
  has prometheus || echo prometheus
  # A package of its own from Debian 14 on; before, a part of prometheus.
  has promtool || echo promtool
  { has prometheus-alertmanager || has alertmanager; } && has amtool || echo prometheus-alertmanager
  has prometheus-node-exporter || has node_exporter || echo prometheus-node-exporter
  has cc || echo gcc libc6-dev
  has openssl || echo openssl
  has curl || echo curl
  # Its tools alone are run, on the units of deploy/systemd; other distributions have them, or skip those tests.
  has systemd-analyze || ! has apt-get || echo systemd
  # Ubuntu has it as a snap, which a container can't have: without one, the tests in a browser skip there.
  has chromium || has google-chrome || [ "$(distribution)" = ubuntu ] || echo chromium fonts-dejavu-core
  # 23 MB; without it the tests of vmalert skip, as they do on Ubuntu.
  has vmalert || [ "$(distribution)" != debian ] || echo victoria-metrics
}

wanted=$(missing)
[ -n "$wanted" ] || exit 0
wanted=$(echo "$wanted" | tr '\n' ' ')

if ! has apt-get; then
  echo "the tests need $wanted on PATH, and this is no Debian or Ubuntu: see https://prometheus.io/download" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  has sudo || { echo "the tests need $wanted: have an administrator run apt-get install $wanted" >&2; exit 1; }
  as_root=sudo
fi
echo "installing for the tests: $wanted"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
  $as_root chmod 755 "$policy"
  trap '$as_root rm -f "$policy"' EXIT
fi
# A mirror may fail once, and a machine that has just started may still be installing its own updates.
apt() { $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300 "$@"; }
apt update || { sleep 20; apt update; }
for package in $wanted; do
  if [ "$package" = promtool ] && ! apt-cache show promtool >/dev/null 2>&1; then
    package=prometheus
  fi
  apt install -y --no-install-recommends "$package" >/dev/null || [ "$package" = victoria-metrics ]
done

still=$(missing | grep -vx victoria-metrics || true)
[ -z "$still" ] || { echo "after installing, still missing: $still" >&2; exit 1; }
