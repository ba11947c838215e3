//! A device whose backend breaks: nobody who waits hangs, and everybody is told.

mod common;

use std::thread;
use std::time::Duration;

use common::*;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rxe_core::wire::{Frame, TxBatch, TxLimits};
use rxe_net::{Capabilities, Counters, SendStatus, SharedFd, SrcPort};
use rxe_verbs::*;

/// A wire that breaks once its fuse is lit.
struct Bomb {
    fuse: SharedFd,
    panics: bool,
    capabilities: Capabilities,
}

impl Backend for Bomb {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn receive(&mut self, _: usize, _: &mut dyn FnMut(&Frame<'_>)) -> Result<usize, NetError> {
        match rustix::io::read(&self.fuse, &mut [0; 8]) {
            Err(_) => Ok(0),
            Ok(_) if self.panics => panic!("the test's bomb"),
            Ok(_) => {
                let source = std::io::Error::from_raw_os_error(5);
                Err(NetError::Os { what: "receive", source })
            }
        }
    }

    fn send(&mut self, batch: &mut TxBatch) -> Result<SendStatus, NetError> {
        batch.clear();
        Ok(SendStatus::Done)
    }

    fn for_each_fd(&self, f: &mut dyn FnMut(&SharedFd)) {
        f(&self.fuse);
    }

    fn counters(&self) -> Counters {
        Counters::default()
    }
}

fn bomb(panics: bool) -> (Device, SharedFd) {
    let fuse = SharedFd::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
    let capabilities = Capabilities {
        name: "bomb",
        privileges: "",
        link_mtu: 1500,
        tx: TxLimits::default(),
        src_port: SrcPort::Any,
        sees_ip_id: true,
        recv_buffer: 0,
        qpn_block: None,
    };
    let backend = Bomb { fuse: fuse.clone(), panics, capabilities };
    let options = Device::options("lo").address(address()).custom_backend(Box::new(backend));
    (options.open().unwrap(), fuse)
}

fn light(fuse: &SharedFd) {
    rustix::io::write(fuse, &1u64.to_ne_bytes()).unwrap();
}

#[test]
fn a_panicking_driver_hangs_nobody() {
    let (device, fuse) = bomb(true);
    let side = Side::new(device.clone());
    let channel = device.create_channel().unwrap();
    let on_channel = device.create_cq_on(1, &channel).unwrap();
    // Nobody waits where this crate sees it, so it is the driver that the fuse wakes.
    light(&fuse);
    let timeout = Timespec::try_from(TIMEOUT).unwrap();
    poll(&mut [PollFd::new(&channel, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(channel.get_event(Some(Duration::ZERO)).unwrap().unwrap().id(), on_channel.id());
    let error = side.cq.wait_one(TIMEOUT).unwrap_err();
    assert!(matches!(error, Error::DeviceFailed { .. }), "{error}");
    assert!(matches!(side.cq.spin_one(TIMEOUT), Err(Error::DeviceFailed { .. })));
    assert!(matches!(side.pd.qp(&side.cq).build(), Err(Error::DeviceFailed { .. })));
    assert!(side.qp.send_bytes(1, b"x").post().is_err());
    assert_eq!(device.poll_async_event().unwrap().kind, AsyncKind::DeviceFatal);
    // And all of it can be dropped.
}

#[test]
fn a_broken_backend_wakes_all_who_wait() {
    let (device, fuse) = bomb(false);
    let sides: Vec<_> = (0..4).map(|_| Side::new(device.clone())).collect();
    thread::scope(|scope| {
        for side in &sides {
            scope.spawn(|| {
                let error = side.cq.wait_one(TIMEOUT).unwrap_err();
                let text = error.to_string();
                assert!(matches!(error, Error::DeviceFailed { .. }), "{text}");
                assert!(text.contains("cannot receive"), "{text}");
            });
        }
        thread::sleep(Duration::from_millis(20));
        light(&fuse);
    });
}
