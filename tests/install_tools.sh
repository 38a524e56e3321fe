#!/bin/sh
# Real parts for the tests: Prometheus with promtool, Alertmanager with amtool, a C compiler. Debian and Ubuntu only;
# elsewhere they must be on PATH already. The packages' services are kept from starting: the tests run their own.
set -eu

missing=""
command -v prometheus >/dev/null && command -v promtool >/dev/null || missing="$missing prometheus"
{ command -v prometheus-alertmanager || command -v alertmanager; } >/dev/null && command -v amtool >/dev/null ||
  missing="$missing prometheus-alertmanager"
command -v cc >/dev/null || missing="$missing gcc libc6-dev"
command -v openssl >/dev/null || missing="$missing openssl"
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "the tests need$missing on PATH, and this is no Debian or Ubuntu: install them from https://prometheus.io/download" >&2
  exit 1
fi
as_root=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "the tests need$missing: apt-get install$missing (as root)" >&2; exit 1; }
  as_root=sudo
fi
echo "installing for the tests:$missing"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $as_root tee "$policy" >/dev/null
  $as_root chmod 755 "$policy"
  trap '$as_root rm -f "$policy"' EXIT
fi
$as_root apt-get update -qq
# shellcheck disable=SC2086 - the list is meant to split
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
