#!/bin/sh
# One task in any language. Run it with
#   muster worker --group GROUP --bootstrap-server HOST:PORT --exec './exec_task.sh {task}'
# muster starts it when the task is assigned, starts it again when it dies, and sends it SIGTERM
# when the task is revoked.
trap 'echo "$1: stopping"; exit 0' TERM
while :; do
    echo "$1: a step, token $MUSTER_GENERATION.$MUSTER_MEMBER_EPOCH, member $MUSTER_MEMBER_ID"
    sleep 1 &
    wait $!
done
