#!/bin/busybox sh
# The first process of a VM: load the modules, see the host's root, start the agent in it.
b=/bin/busybox
fail() { echo "rxe-init: $*"; $b sleep 1; $b poweroff -f; }
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
# Until here the kernel had one processor, and drivers count them: see the kernel's command line.
for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do
	[ -e "$cpu" ] && { echo 1 >"$cpu" || echo "rxe-init: cannot start a processor: $cpu"; }
done
while read -r m; do
	$b insmod "/modules/$m" || echo "rxe-init: cannot load $m"
done </modules/order
$b mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 host /host ||
	fail "cannot mount the host's root"
$b mount -t proc proc /host/proc
$b mount -t sysfs sys /host/sys
$b mount -t devtmpfs dev /host/dev
$b mkdir -p /host/dev/pts /host/dev/shm
$b mount -t devpts devpts /host/dev/pts
$b mount -t tmpfs -o mode=1777 shm /host/dev/shm
$b mount -t tmpfs -o mode=755 run /host/run
# Nothing else hides a directory of the host: a checkout, and what it builds, may be in any other one.
$b mkdir -m 1777 /host/run/tmp
$b cp /agent /host/run/agent
$b ulimit -l unlimited 2>/dev/null
for p in /sys/class/virtio-ports/*; do
	[ "$($b cat "$p/name" 2>/dev/null)" = rxe.ctl ] && port=/dev/${p##*/}
done
[ -n "$port" ] || fail "no control port"
# No `exec`: when the agent ends, so does the VM.
$b chroot /host /run/agent "$port" || fail "the agent ended"
$b poweroff -f
