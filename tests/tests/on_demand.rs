//! On-demand paging and other extensions in unmodified programs. The others are device memory, DMA
//! buffers, extended completion queues and the import of objects (`odp.c`, `dm.c`, `dmabuf.c`,
//! `cqex.c` and `import.c` in `tests/c`).

use rxe_harness::c::Compiled;
use rxe_harness::or_skip;
use rxe_harness::vm::{Cmd, Kernel, Net, Output, Spec, Vm};

mod common;
use common::{alone, rxe};

const PROGRAM: &str = "tests/c/odp.c";

fn compiled() -> Option<(Compiled, String)> {
    let c = or_skip(Compiled::linked(&[PROGRAM], &["-libverbs"]))?;
    let path = c.path(PROGRAM).display().to_string();
    Some((c, path))
}

const TESTS: [&str; 9] =
    ["caps", "pages", "moves", "protection", "forks", "prefetch", "errors", "implicit", "changes"];

#[test]
fn memory_comes_and_goes_while_it_is_registered() {
    let Some((_c, program)) = compiled() else { return };
    // Shared memory between the two ends, and packets.
    for way in ["", "--no-shm"] {
        let script = TESTS
            .map(|test| format!("timeout 120 $RXE run {way} -- {program} rxe_veth0 {test} 2>&1\n"));
        let Some(said) = alone("on-demand paging", "cc", &script.concat()) else { return };
        for test in TESTS {
            assert!(said.contains(&format!("{test}: done")), "{way}: {test}: {said}");
        }
        let why = "on-demand paging needs it while a request uses it";
        assert!(said.contains(why), "{way}: {said}");
    }
}

#[test]
fn a_device_and_its_objects_are_imported_in_their_own_process_only() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/import.c"], &["-libverbs"])) else { return };
    let program = c.path("tests/c/import.c").display().to_string();
    let script = format!("timeout 120 $RXE run --explain all -- {program} rxe_veth0 2>&1");
    let Some(said) = alone("imports", "cc", &script) else { return };
    assert!(said.contains("imports: done"), "{said}");
    assert!(said.contains("cannot be shared with another: open it"), "{said}");
}

#[test]
fn device_memory_is_allocated_copied_and_used_by_requests() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/dm.c"], &["-libverbs"])) else { return };
    let program = c.path("tests/c/dm.c").display().to_string();
    for way in ["", "--no-shm"] {
        let script = format!("timeout 120 $RXE run {way} -- {program} rxe_veth0 2>&1");
        let Some(said) = alone("device memory", "cc", &script) else { return };
        assert!(said.contains("device memory: done"), "{way}: {said}");
    }
}

#[test]
fn extended_completion_queues_have_each_field_and_flag_that_there_is() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/cqex.c"], &["-libverbs"])) else { return };
    let program = c.path("tests/c/cqex.c").display().to_string();
    for way in ["", "--no-shm"] {
        let script = format!("timeout 60 $RXE run {way} -- {program} rxe_veth0 2>&1");
        let Some(said) = alone("extended completion queues", "cc", &script) else { return };
        assert!(said.contains("extended completion queues: done"), "{way}: {said}");
        assert!(said.contains("wc_flags 0xfff: tag matching is not supported"), "{way}: {said}");
    }
}

/// A VM has DMA buffers; this machine may have none, and is then tested only for refusals.
#[test]
fn a_dma_buffer_is_registered_by_mapping_it_and_nothing_else_is() {
    let Some(c) = or_skip(Compiled::linked(&["tests/c/dmabuf.c"], &["-libverbs"])) else { return };
    let program = c.path("tests/c/dmabuf.c").display().to_string();
    let script = format!("timeout 120 $RXE run -- {program} rxe_veth0 2>&1");
    let Some(said) = alone("DMA buffers", "cc", &script) else { return };
    assert!(said.contains("what is no DMA buffer: done"), "{said}");
    assert!(said.contains("not of a DMA buffer: one comes from"), "{said}");

    let vm = Net::tap(1500).and_then(|net| {
        let vm = Vm::boot(&net, &Kernel::find("7.2")?, &Spec { rxe: false, ..Spec::default() })?;
        Ok((net, vm))
    });
    let Some((_net, vm)) = or_skip(vm) else { return };
    for way in ["", "--no-shm"] {
        let run = format!("timeout 60 {} run {way} -- {program} rxe_eth0 2>&1", rxe().display());
        let said = vm.run(Cmd::sh(run)).and_then(Output::ok).unwrap();
        assert!(said.contains("udmabuf: done") && said.contains("heap: done"), "{way}: {said}");
    }
}

/// Compares with kernel `rdma_rxe` in what it supports too: its capabilities, and a read-only page.
#[test]
fn a_kernel_that_has_it_does_the_same() {
    let Some((_c, program)) = compiled() else { return };
    let vm = Net::tap(1500).and_then(|net| {
        let vm = Vm::boot(&net, &Kernel::find("7.2")?, &Spec::default())?;
        Ok((net, vm))
    });
    let Some((_net, vm)) = or_skip(vm) else { return };
    for test in ["caps", "protection"] {
        let script = format!("timeout 60 {program} rxe0 {test}");
        let said = vm.run(Cmd::sh(script)).and_then(Output::ok).unwrap();
        assert!(said.contains(&format!("{test}: done")), "{said}");
    }
}
