# shellcheck shell=bash
# Shared by outside-crate and python-examples: a `bellwether dev` and a worker in a folder of
# their own, and waiting for what the command line says. Needs tools.sh; ends what it starts.

pids=()

# A folder outside this checkout, so that cargo and `bellwether` find nothing of ours in it.
make_work() {
    unset BELLWETHER_DATABASE_URL BELLWETHER_DATABASE_SCHEMA BELLWETHER_NATS_URL \
        BELLWETHER_NAMESPACE BELLWETHER_CONFIG BELLWETHER_LOG
    work=$(mktemp -d)
    trap clean_up EXIT
}

clean_up() {
    local status=$? index
    # The worker before dev, as it was started after it.
    for ((index = ${#pids[@]} - 1; index >= 0; index--)); do
        kill "${pids[index]}" 2>/dev/null || true
        wait "${pids[index]}" 2>/dev/null || true
    done
    if ((status != 0)); then
        tail -n 40 "$work"/*.log "$work"/.bellwether/logs/*.log >&2 2>/dev/null || true
        say "FAILED"
    fi
    rm -rf "$work"
}

# Starts dev in $work, waits for it, and puts its addresses into the environment.
start_dev() {
    (cd "$work" && exec bellwether dev </dev/null >dev.log 2>&1) &
    pids+=($!)
    until_true 60 "bellwether dev" test -s "$work/.bellwether/bellwether.toml"
    BELLWETHER_DATABASE_URL=$(setting database_url)
    BELLWETHER_NATS_URL=$(setting nats_url)
    export BELLWETHER_DATABASE_URL BELLWETHER_NATS_URL
}

setting() {
    sed -n "s/^$1 = \"\(.*\)\"$/\1/p" "$work/.bellwether/bellwether.toml"
}

# start_worker PROGRAM
start_worker() {
    (cd "$work" && exec "$1" </dev/null >worker.log 2>&1) &
    pids+=($!)
}

# until_true SECONDS WHAT COMMAND…: repeats the command until it succeeds.
until_true() {
    local end=$((SECONDS + $1)) what=$2 pid
    shift 2
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < end)) || die "$what did not come true in time"
        for pid in "${pids[@]}"; do
            kill -0 "$pid" 2>/dev/null || die "process $pid ended early, while waiting for $what"
        done
        sleep 0.2
    done
}

# succeeded JOB COUNT: are there at least so many executions that succeeded?
succeeded() {
    (($(count --job "$1" --state succeeded) >= $2))
}

# count FILTER…: how many executions are listed.
count() {
    bellwether -o json executions list "$@" |
        python3 -c 'import json, sys; print(len(json.load(sys.stdin)))'
}
