# Makes a directory the root of new namespaces and runs the story in it: enter.sh ROOT PACKAGE BINARY
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t proc proc "$1/proc"
mount --rbind /sys "$1/sys"
mount --rbind /dev "$1/dev"
mount -t tmpfs tmpfs "$1/run"
mount -t tmpfs tmpfs "$1/tmp"
cp "$2" "$1/tmp/mainstay.deb"
cp "${0%/*}/story.sh" "$1/tmp/story.sh"
mkdir "$1/tmp/old"
touch "$1/tmp/binary"
mount --bind "$3" "$1/tmp/binary"
cd "$1"
pivot_root . tmp/old
umount -l /tmp/old
exec sh -e /tmp/story.sh
