# A machine that systemd boots: start.sh DIRECTORY CGROUP TARGET OLD NEW
# It has cgroups and namespaces of its own, and sees this machine's files in an overlay.
set -e
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  roots=/sys/fs/cgroup
else
  roots=$(ls -d /sys/fs/cgroup/*/)
fi
for root in $roots; do
  group=$root/$2
  mkdir -p "$group"
  # A new cpuset is empty and accepts no process until it is filled.
  for file in cpuset.cpus cpuset.mems; do
    if [ -e "$root/$file" ] && [ -e "$group/$file" ] && [ -z "$(cat "$group/$file")" ]; then
      cat "$root/$file" >"$group/$file"
    fi
  done
  echo $$ >"$group/cgroup.procs"
done
exec unshare --pid --mount --uts --ipc --cgroup --fork --kill-child sh "${0%/*}/boot.sh" "$1" "$3" "$4" "$5"
