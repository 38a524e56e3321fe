#!/bin/sh
# Install the exporter and its unit, or a newer version over them: sudo sh deploy/systemd/install.sh
#
# It writes /opt/stallscope, four files for systemd, and, where there is none yet, /etc/stallscope/exporter.yml.
# DESTDIR puts all of it below a folder and starts nothing; PYTHON is the interpreter to build with (3.10 or newer).
set -eu
umask 022
here=$(cd "$(dirname "$0")" && pwd)
checkout=$(dirname "$(dirname "$here")")
to=${DESTDIR:-}
python=${PYTHON:-python3}
case $("$python" -c 'import os, sys; print(os.path.realpath(sys.executable))') in
  /home/* | /root/*)
    echo "the service may not enter homes, where $python lies: name another with PYTHON=/usr/bin/python3" >&2
    [ -n "$to" ] || exit 1
    ;;
esac
pip="-m pip --disable-pip-version-check --quiet"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/tools" || { echo "no virtual environment: install python3-venv" >&2; exit 1; }
# shellcheck disable=SC2086 # several words on purpose
{
  "$work/tools/bin/python" $pip install --require-hashes --requirement "$checkout/deploy/requirements-build.lock"
  "$work/tools/bin/python" -m build --wheel --no-isolation --outdir "$work" "$checkout" >/dev/null
  "$python" -m venv "$to/opt/stallscope"
  "$to/opt/stallscope/bin/python" $pip install --require-hashes --requirement "$checkout/deploy/requirements-exporter.lock"
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
# A workstation that was given the whole stack keeps it: the two exclude each other.
if systemctl is-enabled --quiet stallscope-up.service; then unit=stallscope-up; fi
systemctl enable --quiet "$unit.service"
systemctl restart "$unit.service"
echo "running: systemctl status $unit; its page: http://127.0.0.1:19400/"
