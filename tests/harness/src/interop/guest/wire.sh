# The cards eth1 and eth2 of a VM, joined to each other, the second in the namespace `far`, and the
# interfaces of VLAN 5 on both. `$rxe` is our command, `programs` prints what to run it with, `$modes` are
# those of the backend xdp that the cards have.
set -eu -o pipefail
exec 2>&1
export HOME=/run/tmp TMPDIR=/run/tmp
far() { nsenter --net=/run/netns/far "$@"; }

tidy() {
    ip netns delete far
    ip link delete eth1.5 2>/dev/null || true
    ip address flush dev eth1
}

set_up() {
    ip netns add far
    trap tidy EXIT
    # It comes back a little after its namespace is gone.
    until ip link set eth2 netns far 2>/dev/null; do sleep 0.1; done
    far ip link set lo up
    for end in "near eth1 1" "far eth2 2"; do
        set -- $end
        in=
        if [ "$1" = far ]; then in=far; fi
        $in ip link set "$2" mtu 1504 up
        $in ip address add "10.47.94.$3/24" dev "$2"
        $in ip link add link "$2" name "$2.5" mtu 1500 type vlan id 5
        $in ip link set "$2.5" up
        $in ip address add "10.47.95.$3/24" dev "$2.5"
    done
}

# Waits until process $2 listens on TCP port $1.
listens() {
    until ss -tln | grep -q ":$1 "; do
        kill -0 "$2"
        sleep 0.1
    done
}

# Runs our command with $1 and $2 here, and with $1 and $3 in the other namespace, to the address $4.
pair() {
    timeout 120 $rxe $1 $2 < /dev/null & server=$!
    listens 18515 $server
    far timeout 120 $rxe $1 $3 "$4" < /dev/null
    wait $server
}

vlan() {
    set_up
    programs | while read -r program; do
        pair "$program" "-d eth1.5 --backend xdp" "-d eth2.5 --backend xdp" 10.47.95.1
    done
    # It is the generic mode, and no other.
    timeout 120 $rxe pingpong -d eth1.5 --backend xdp:driver && exit 1
    [ $? != 124 ]
}

beside() {
    set_up
    for mode in $modes; do
        echo "$mode:"
        # It outlasts all that follows.
        timeout 900 $rxe pingpong -c -n 100 -d eth1 --backend "xdp:$mode" & base=$!
        listens 18515 $base
        ip -d link show eth1 | grep -q xdp
        # RoCEv2 of the VLAN, by another process.
        udp="-c -n 100 -s 16384 -p 18516 --backend udp"
        timeout 120 $rxe pingpong $udp -d eth1.5 & server=$!
        listens 18516 $server
        far timeout 120 $rxe pingpong $udp -d eth2.5 10.47.95.1
        wait $server
        for address in 10.47.94.1 10.47.95.1; do
            far busybox ping -c 3 -w 20 $address
            # TCP to a server there, half a megabyte back.
            head -c 500000 "$rxe" > $TMPDIR/sent
            busybox nc -l -p 7000 -e cat $TMPDIR/sent & server=$!
            listens 7000 $server
            far busybox nc -w 30 $address 7000 < /dev/null > $TMPDIR/got
            wait $server
            cmp $TMPDIR/sent $TMPDIR/got
        done
        far timeout 120 $rxe pingpong -c -n 100 -d eth2 --backend udp 10.47.94.1
        wait $base
    done
}

