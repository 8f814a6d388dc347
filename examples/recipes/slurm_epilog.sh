#!/bin/bash
# Slurm tells Kintsugi which node or task of a job ended. Needs bash and curl alone.
#
#   slurm.conf:   Epilog=/etc/slurm/kintsugi_epilog.sh          the node as a host: host_failed
#   job script:   srun --task-epilog=kintsugi_epilog.sh ...      a task as a worker: worker_failed, worker wNN for task NN
#
# KINTSUGI_URL      the service, such as https://kintsugi.example.com (Epilog: put it into /etc/slurm/kintsugi.env)
# KINTSUGI_TOKEN    a token that may report events, where the service asks for one
# KINTSUGI_JOB      the job at the service; slurm-$SLURM_JOB_ID unless given
#
# Slurm tells a task's epilog nothing of how the task ended, and older versions tell a node's nothing either: whoever ended
# without word of it counts as lost for as long as the job goes on at the service. A trainer that is complete says so there
# first (Client.end, as plain_loop.py does); of a job that has ended nothing is reported.
#
# It always exits with 0: a node whose epilog fails is drained. What went wrong is on standard error, in slurmd's log.
set -uo pipefail
PATH=/usr/bin:/bin # Slurm gives epilogs none

settings=${KINTSUGI_SETTINGS:-/etc/slurm/kintsugi.env}
# shellcheck source=/dev/null
[ -r "$settings" ] && . "$settings"

main() {
    [ "${SLURM_JOB_EXIT_CODE:-1}" = 0 ] && return 0 # where Slurm tells it: a job that ended well lost nothing
    [ -n "${KINTSUGI_URL:-}" ] || { echo "KINTSUGI_URL is not set" >&2; return 1; }
    job=${KINTSUGI_URL%/}/v1/jobs/${KINTSUGI_JOB:-slurm-$SLURM_JOB_ID}
    attempt=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
    if [ -n "${SLURM_PROCID:-}" ]; then
        subject="\"kind\": \"worker_failed\", \"worker\": \"$(printf 'w%02d' "$SLURM_PROCID")\", \"id\": \"slurm-$attempt-task-$SLURM_PROCID\""
    else
        subject="\"kind\": \"host_failed\", \"host\": \"$SLURMD_NODENAME\", \"id\": \"slurm-$attempt-$SLURMD_NODENAME\""
    fi
    answer=$(ask "$job/plan?detail=brief") || { refused "$answer"; return 1; }
    generation=$(field generation "$answer") || { refused "$answer"; return 1; }
    for _ in 1 2 3 4 5; do
        event="{$subject, \"generation\": $generation, \"detail\": \"Slurm job $SLURM_JOB_ID ended here\"}"
        answer=$(ask "$job/events?detail=brief" --data "$event") && return 0
        grep -q '"code":"conflict","field":"job"' <<<"$answer" && return 0 # it has ended: nobody is missed any more
        if grep -Eq '"code":"(infeasible|state_lost|planning_failed)"' <<<"$answer"; then
            echo "taken, without a plan: $answer" >&2
            return 0
        fi
        generation=$(field current_generation "$answer") || { refused "$answer"; return 1; }
    done
    echo "the plan kept changing; the event was not taken" >&2
    return 1
}

# ask URL [CURL-OPTION...]: the answer; fails on a refusal, too, whose document is then the answer. The token is no argument,
# which everybody on the node could read.
ask() {
    printf 'header = "Authorization: Bearer %s"\n' "${KINTSUGI_TOKEN:-none}" |
        curl --silent --show-error --fail-with-body --max-time 10 --retry 5 --retry-connrefused --config - \
            --header 'Content-Type: application/json' "$@"
}

# refused ANSWER: tell why; where there is no answer curl has told.
refused() {
    [ -z "$1" ] || echo "refused: $1" >&2
}

# field NAME DOCUMENT: the number that stands there first.
field() {
    local found
    found=$(grep -o "\"$1\":[0-9]*" <<<"$2" | head -n 1)
    [ -n "$found" ] && echo "${found##*:}"
}

main || echo "kintsugi epilog: nothing was reported of job ${SLURM_JOB_ID:-?}" >&2
exit 0
