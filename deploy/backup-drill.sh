#!/bin/sh
# Prove that a backup can be restored: copy the database while work continues, restore the copy elsewhere, check it.
#
#   deploy/backup-drill.sh STATE                       # SQLite
#   deploy/backup-drill.sh STATE DATABASE SCRATCH      # PostgreSQL; SCRATCH is the address of an empty database
#
# Changes nothing of the original. The copy is deleted afterwards; a scratch database is yours to drop.
set -eu
state=${1:?the state directory}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
restored=$place/restored

if [ $# -lt 3 ]; then
    clutch backup "$place/drill.db" --state "$state"
    clutch restore "$place/drill.db" --state "$restored"
else
    pg_dump --format=custom --file="$place/drill.dump" --dbname="$2"
    pg_restore --exit-on-error --single-transaction --no-owner --dbname="$3" "$place/drill.dump"
    mkdir -m 0700 "$restored"
    (umask 077 && printf '{"database": "%s"}\n' "$3" >"$restored/clutch.json")
fi

# Only the stored data is judged here: the exit code of doctor is also about this machine.
clutch doctor --json --state "$restored" >"$place/report.json" || true
python3 - "$place/report.json" <<'CHECK'
import json, sys

found = json.load(open(sys.argv[1]))["invariants"]
print(f"restored: {found['held']} of {found['total']} invariants hold")
sys.exit(0 if found["total"] and found["held"] == found["total"] else 1)
CHECK
