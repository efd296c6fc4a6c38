#!/bin/bash
# The coordinator's image: its words are muster's, but for `executor`. With that one Spark starts
# its executors on Kubernetes, and tells them all else by their environment.
set -euo pipefail
[ "${1-}" = executor ] || exec muster "$@"

spark=(/opt/coordinator/lib/python3*/site-packages/pyspark)
mapfile -t options < <(env | grep '^SPARK_JAVA_OPT_' | sort -t_ -k4 -n | cut -d= -f2-)
# What the driver hands out (its jars) is put where the executor runs: `/` may be read-only.
cd "$(mktemp -d)"
exec java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}${spark[0]}/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" --podName "$SPARK_EXECUTOR_POD_NAME" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
