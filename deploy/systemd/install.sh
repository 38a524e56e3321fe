#!/bin/sh
# Install or upgrade the exporter and its unit: sudo sh deploy/systemd/install.sh
#
# It writes /opt/stallscope, four files for systemd, and /etc/stallscope/exporter.yml if that does not exist.
# With DESTDIR it installs below that folder and starts nothing. PYTHON is the interpreter to build with (3.10 or newer).
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(dirname "$(dirname "$here")")
to=${DESTDIR:-}
python=${PYTHON:-python3}
case $("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))') in
  /home/* | /root/*)
    echo "install.sh: $python: in a home folder, which the service cannot read; set PYTHON=/usr/bin/python3" >&2
    [ -n "$to" ] || exit 1
    ;;
esac
pip="-m pip --disable-pip-version-check --quiet"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools" || { echo "install.sh: cannot create a virtual environment; install python3-venv" >&2; exit 1; }
# shellcheck disable=SC2086 # $pip is several words on purpose
{
  "$work/tools/bin/python" $pip install --no-deps --require-hashes --requirement "$checkout/deploy/requirements-build.lock"
  "$work/tools/bin/python" -m build --wheel --no-isolation --outdir "$work" "$checkout" >/dev/null
  "$python" -m venv "$to/opt/stallscope"
  "$to/opt/stallscope/bin/python" $pip install --no-deps --require-hashes --requirement "$checkout/deploy/requirements-exporter.lock"
  "$to/opt/stallscope/bin/python" $pip install --no-deps --no-index --force-reinstall "$work"/*.whl
}

install -D -m 644 "$here/stallscope-exporter.service" "$to/usr/lib/systemd/system/stallscope-exporter.service"
install -D -m 644 "$here/stallscope-up.service" "$to/usr/lib/systemd/system/stallscope-up.service"
install -D -m 644 "$here/sysusers.conf" "$to/usr/lib/sysusers.d/stallscope.conf"
install -D -m 644 "$here/tmpfiles.conf" "$to/usr/lib/tmpfiles.d/stallscope.conf"
[ -e "$to/etc/stallscope/exporter.yml" ] || install -D -m 644 "$here/exporter.yml" "$to/etc/stallscope/exporter.yml"

[ -z "$to" ] || exit 0
systemd-sysusers stallscope.conf
systemd-tmpfiles --create stallscope.conf
systemctl daemon-reload
unit=stallscope-exporter
# A workstation with the whole stack keeps it: the two units conflict.
if systemctl is-enabled --quiet stallscope-up.service; then unit=stallscope-up; fi
systemctl enable --quiet "$unit.service"
systemctl restart "$unit.service"
echo "$unit is running (systemctl status $unit); status page: http://127.0.0.1:19400/"
