//! iSER in the table of [`programs`](crate::programs): a disk over RDMA. Our side uses tgtd and
//! QEMU's tools over libiscsi; on the kernel's side target and initiator are the modules `ib_isert`
//! and `ib_iser`.

use super::world::{Row, Running, Sides, TIMEOUT, World, failed};
use crate::debs::Unpacked;
use crate::skip::unless_missing;
use crate::skipped;
use crate::vm::{Cmd, Kernel, Output, Result};
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;

/// The row in the table.
pub(super) const PROGRAM: (&str, &str) = ("iSER", "iser://ADDRESS:3260/TARGET/1");

/// Debian's packages with the programs of iSER, and the libraries that they need. The programs are
/// tgtd, libiscsi and its tests, QEMU's disk tools, and the program that logs a kernel in.
const PACKAGES: [&str; 9] = [
    "tgt",
    "libiscsi-bin",
    "libiscsi7",
    "libcunit1",
    "qemu-utils",
    "qemu-block-extra",
    "open-iscsi",
    "libopeniscsiusr",
    "libisns0",
];

/// The size of a disk in bytes.
const SIZE: u64 = 16 << 20;

/// The shell functions of [`iser_functions`]. tgtd requires an initiator to be allowed by its
/// address and by its name, which is the name of QEMU's tools. libiscsi sends at most 512 KiB per
/// command. libiscsi 1.19 allocates the memory of a connection with malloc and does not initialize
/// it: it crashes unless the memory contains zeros. With this setting, glibc fills memory with
/// zeros.
const FUNCTIONS: &str = r#"
disk=iqn.2026-11.example:disk me=iqn.2008-11.org.linux-kvm
libiscsi="env MALLOC_PERTURB_=255"
admin() { tgtadm --lld iser "$@"; }
new_target() { admin --op new --mode target --tid 1 -T $disk 2> /dev/null; }
serve() {
    admin --op new --mode logicalunit --tid 1 --lun 1 -b $1 &&
    admin --op bind --mode target --tid 1 -I ALL &&
    admin --op bind --mode target --tid 1 -Q $me
}
read_back() {
    $libiscsi qemu-img dd -f raw -O raw bs=256k count=8 if=iser://$1:3260/$disk/1 of=copy &&
    cmp -n $(stat -c %s $2) $2 copy
}
copy() {
    address=$1 file=$2 at=0
    split -b 256k $file piece.
    set --
    for piece in piece.*; do
        size=$(stat -c %s $piece)
        set -- "$@" -c "write -s $piece $at $size"
        at=$((at + size))
    done
    $libiscsi qemu-io -f raw "$@" iser://$address:3260/$disk/1 && read_back $address $file
}
"#;

/// Returns shell functions for the programs of iSER, which are downloaded if they are not
/// installed. `new_target` and `serve DISK` make tgtd offer a disk. `copy ADDRESS FILE` writes a
/// file of less than 2 MiB to a disk, reads it back and compares it, with files in the current
/// directory; `read_back ADDRESS FILE` only reads. `$disk` and `$me` are the names of the target
/// and of the allowed initiator. `$libiscsi` starts a program that uses libiscsi.
///
/// # Errors
/// [`Error::Missing`](crate::vm::Error::Missing) if the programs cannot be downloaded.
pub fn iser_functions() -> Result<String> {
    let unpacked = Unpacked::fetch("iser", &PACKAGES)?;
    let modules = unpacked.path("usr/lib/x86_64-linux-gnu/qemu");
    let modules = format!("export QEMU_MODULE_DIR={}", modules.display());
    Ok(format!("{}\n{modules}\n{FUNCTIONS}", unpacked.variables()))
}

/// Makes the kernel's target offer a disk over iSER that begins with a file. Any initiator is
/// allowed.
const KERNEL_TARGET: &str = r#"set -e
grep -q configfs /proc/mounts || mount -t configfs none /sys/kernel/config
cd /sys/kernel/config/target
cp $file /run/tmp/disk
truncate -s 16M /run/tmp/disk
mkdir -p core/fileio_0/disk iscsi
echo fd_dev_name=/run/tmp/disk,fd_dev_size=16777216 > core/fileio_0/disk/control
echo 1 > core/fileio_0/disk/enable
group=iscsi/$disk/tpgt_1
mkdir -p $group/lun/lun_1
ln -s /sys/kernel/config/target/core/fileio_0/disk $group/lun/lun_1/disk
for setting in generate_node_acls=1 demo_mode_write_protect=0 authentication=0; do
    echo ${setting#*=} > $group/attrib/${setting%=*}
done
mkdir $group/np/$address:3260
echo 1 > $group/np/$address:3260/iser
echo 1 > $group/enable
"#;

/// Logs the kernel in, writes a file to the disk and reads it back.
const KERNEL_INITIATOR: &str = r#"set -e
iscsistart -i $me -t $disk -g 1 -a $address -p 3260 -P iface.transport_name=iser
until [ -b /dev/sda ]; do sleep 0.1; done
dd if=$file of=/dev/sda bs=64k conv=notrunc,fsync
echo 3 > /proc/sys/vm/drop_caches
cmp -n $(stat -c %s $file) $file /dev/sda
"#;

pub(super) fn run(world: &World<'_>, kernel: &Kernel, rows: &mut Vec<Row>) -> Result<()> {
    // libiscsi's tests sometimes abort in a lock of the C library.
    if world.leaves_out(PROGRAM.0) {
        return Ok(());
    }
    let Some(functions) = unless_missing(PROGRAM.0, iser_functions())? else { return Ok(()) };
    let dir = tempfile::Builder::new().prefix("rxe-iser-").tempdir();
    let dir = dir.map_err(|e| failed(format!("a directory for a disk: {e}")))?;
    let iser = Iser { world, kernel, functions, dir };
    if kernel.iser.is_empty() {
        skipped(&format!("{} with kernel {}", PROGRAM.0, world.kernel), "it has no iSER");
    }
    for sides in Sides::ALL {
        if sides != Sides::OursOurs && kernel.iser.is_empty() {
            continue;
        }
        let what = format!("{} {}", PROGRAM.0, PROGRAM.1);
        world.row(what, sides, || iser.play(sides), rows);
    }
    Ok(())
}

struct Iser<'a> {
    world: &'a World<'a>,
    kernel: &'a Kernel,
    functions: String,
    dir: TempDir,
}

impl Iser<'_> {
    fn play(&self, sides: Sides) -> Result<()> {
        if sides == Sides::KernelOurs {
            self.in_kernel(KERNEL_TARGET, self.world.vm.v4())?.ok()?;
            // libiscsi 1.19 announces data in a WRITE but does not send it with the WRITE, which
            // the kernel refuses.
            return self.by_qemu("read_back", self.world.vm.v4());
        }
        let server = self.tgtd()?;
        let client = match sides {
            Sides::OursKernel => self.write_by_kernel(),
            _ => self.by_qemu("copy", self.world.address(true)),
        };
        let (_, said) = server.end(Duration::ZERO)?;
        client.map_err(|e| failed(format!("{e}; tgtd: {}", said.replace('\n', " | "))))
    }

    /// Starts tgtd with a disk.
    fn tgtd(&self) -> Result<Running> {
        let disk = self.disk();
        let made = fs::File::create(&disk).and_then(|file| file.set_len(SIZE));
        made.map_err(|e| failed(format!("{}: {e}", disk.display())))?;
        let mut server = self.world.spawn("sh", &self.script("exec tgtd -f"), true)?;
        let [_, new] = self.script("new_target");
        self.world.until(&new, &mut server, "tgtd takes no commands")?;
        let mut serve = self.world.net.command("sh");
        serve.args(self.script(&format!("serve {}", disk.display())));
        let out = serve.output().map_err(|e| failed(format!("sh: {e}")))?;
        if out.status.success() {
            return Ok(server);
        }
        Err(failed(format!("tgtadm: {}", String::from_utf8_lossy(&out.stderr))))
    }

    /// Runs a shell function that uses QEMU's tools.
    fn by_qemu(&self, function: &str, address: Ipv4Addr) -> Result<()> {
        let (dir, file) = (self.dir.path().display(), self.world.file.path().display());
        let script = self.script(&format!("cd {dir}; {function} {address} {file}"));
        let (good, said) = self.world.spawn("sh", &script, true)?.end(TIMEOUT)?;
        if good { Ok(()) } else { Err(failed(said.replace('\n', " | "))) }
    }

    /// Makes the kernel write to tgtd's disk and read from it.
    fn write_by_kernel(&self) -> Result<()> {
        self.in_kernel(KERNEL_INITIATOR, self.world.address(true))?.ok()?;
        let sent = fs::read(self.world.file.path()).map_err(|e| failed(e.to_string()))?;
        let there = fs::read(self.disk()).map_err(|e| failed(e.to_string()))?;
        if there.starts_with(&sent) { Ok(()) } else { Err(failed("tgtd's disk has other bytes")) }
    }

    /// Runs a script in the VM, with the modules of iSER. `address` is the address of the target.
    fn in_kernel(&self, script: &str, address: Ipv4Addr) -> Result<Output> {
        let vm = self.world.vm;
        if vm.run(["test", "-e", "/sys/module/ib_isert"])?.code != 0 {
            vm.insert(&self.kernel.iser)?;
        }
        let file = self.world.file.path().display();
        let script = format!("{}\naddress={address} file={file}\n{script}", self.functions);
        vm.run(Cmd::new("timeout").args(["240", "sh", "-c", &script]))
    }

    /// Returns the arguments of a shell that runs a script with the functions.
    fn script(&self, script: &str) -> [String; 2] {
        let socket = self.dir.path().join("socket");
        let setting = format!("export TGT_IPC_SOCKET={}", socket.display());
        ["-c".to_owned(), format!("{}\n{setting}\n{script}", self.functions)]
    }

    /// Returns the path of the file that contains tgtd's disk.
    fn disk(&self) -> PathBuf {
        self.dir.path().join("disk")
    }
}
