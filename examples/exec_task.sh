#!/bin/sh
# One task, any language: run it with
#   muster worker --group GROUP --bootstrap-server HOST:PORT --exec './exec_task.sh {task}'
# It is started when the task comes, started again when it dies, and told SIGTERM before it goes.
trap 'echo "$1: stopping"; exit 0' TERM
while :; do
    echo "$1: a step, token $MUSTER_GENERATION.$MUSTER_MEMBER_EPOCH, member $MUSTER_MEMBER_ID"
    sleep 1 &
    wait $!
done
