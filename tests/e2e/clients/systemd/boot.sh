# Runs inside the namespaces of start.sh and becomes systemd: boot.sh DIRECTORY TARGET OLD NEW
set -e
root=$1/root
mount --make-rprivate /
mkdir -p "$1/upper" "$1/work" "$1/data" "$root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
else
  mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"
  grep -E ' - cgroup2? ' /proc/self/mountinfo | while read -r _ _ _ _ place _ rest; do
    name=${place##*/} kind=${rest#*- } options=${rest##*rw,}
    mkdir -p "$root/sys/fs/cgroup/$name"
    case $kind in
    cgroup2\ *) mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup/$name" ;;
    *name=*) mount -t cgroup -o "none,$options" cgroup "$root/sys/fs/cgroup/$name" ;;
    *) mount -t cgroup -o "$options" cgroup "$root/sys/fs/cgroup/$name" ;;
    esac
  done
fi
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null:1:3 zero:1:5 full:1:7 random:1:8 urandom:1:9 tty:5:0; do
  numbers=${device#*:}
  mknod -m 666 "$root/dev/${device%%:*}" c "${numbers%:*}" "${numbers#*:}"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
# Layers of images cannot be stored in an overlay.
mkdir -p "$root/var/lib/mainstay"
mount --bind "$1/data" "$root/var/lib/mainstay"
mkdir "$root/tmp/old"
touch "$root/tmp/mainstay-old" "$root/tmp/mainstay-new"
mount --bind "$3" "$root/tmp/mainstay-old"
mount --bind "$4" "$root/tmp/mainstay-new"

# No service of this machine runs, and none that changes its kernel's settings.
units=$root/etc/systemd/system
if [ ! -e "$1/booted" ]; then
  rm -rf "$units"/*.wants/* "$root/root/.kube"
  touch "$1/booted"
fi
for unit in systemd-sysctl.service systemd-modules-load.service systemd-binfmt.service systemd-udevd.service \
  systemd-udev-trigger.service systemd-timesyncd.service systemd-random-seed.service systemd-remount-fs.service \
  systemd-journald-audit.socket proc-sys-fs-binfmt_misc.automount; do
  ln -sf /dev/null "$units/$unit"
done
: >"$root/etc/fstab"
echo story >"$root/etc/hostname"
cd "$root"
pivot_root . tmp/old
umount -l /tmp/old
exec env -i container=lxc PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system "--unit=$2" --show-status=false </dev/null >/dev/null 2>&1
