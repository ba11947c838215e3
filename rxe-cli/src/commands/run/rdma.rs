//! The command `rdma` for programs that run under `rxe run`.

use std::path::Path;

/// Returns the script `rdma`. It runs the host's `rdma`, which asks the preload library over
/// `NETLINK_RDMA`. On a host without one, the script lists links by `rxe link`. Options may also
/// come before `link`.
pub(super) fn wrapper(rxe: &Path) -> String {
    let rxe = rxe.to_string_lossy().replace('\'', r"'\''");
    format!(
        r#"#!/bin/sh
PATH=${{PATH#"${{0%/*}}":}}
if command -v rdma > /dev/null; then
    exec rdma "$@"
fi
object=
for word do
    case $word in
        -*) ;;
        *) object=$word; break ;;
    esac
done
case $object in
    l | li | lin | link) ;;
    *)
        echo "rxe: the system has no rdma (iproute2); rxe itself has \`rdma link\`" >&2
        exit 127
        ;;
esac
left=$#
while [ "$left" -gt 0 ]; do
    if [ "$1" = "$object" ]; then
        object=
    else
        set -- "$@" "$1"
    fi
    shift
    left=$((left - 1))
done
exec '{rxe}' link --offered --only "$RXE_DEVICE" "$@"
"#
    )
}
