//! `rdma_set_option`, the options of an identifier.

use std::ffi::{c_int, c_void};

use rxe_verbs::AckTimeout;

use super::abi::rdma_cm_id;
use super::id::Id;
use crate::ffi::{Failure, Outcome, minus_one_of};

const LEVEL_ID: c_int = 0;
const LEVEL_IB: c_int = 1;
const ID_TOS: c_int = 0;
const ID_REUSEADDR: c_int = 1;
const ID_AFONLY: c_int = 2;
const ID_ACK_TIMEOUT: c_int = 3;
const IB_PATH: c_int = 1;

#[unsafe(no_mangle)]
unsafe extern "C" fn rdma_set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    option: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    let _uncancelled = crate::ffi::Uncancelled::new();
    let set = || -> Outcome {
        // SAFETY: an identifier.
        let this = unsafe { Id::known(id) }?;
        let byte = || {
            // SAFETY: the caller has `len` bytes there.
            if len == 1 { Ok(unsafe { *value.cast::<u8>() }) } else { Err(invalid()) }
        };
        let int = || {
            if len != size_of::<c_int>() {
                return Err(invalid());
            }
            // SAFETY: as above.
            Ok(unsafe { value.cast::<c_int>().read_unaligned() })
        };
        match (level, option) {
            (LEVEL_ID, ID_TOS) => this.cm.set_tos(byte()?),
            (LEVEL_ID, ID_REUSEADDR) => this.cm.set_reuseaddr(int()? != 0)?,
            (LEVEL_ID, ID_AFONLY) => this.cm.set_afonly(int()? != 0)?,
            (LEVEL_ID, ID_ACK_TIMEOUT) => {
                let timeout = AckTimeout::new(byte()?).ok_or_else(invalid)?;
                this.cm.set_ack_timeout(timeout);
            }
            // The path record from a subnet manager is ignored: the peer's address is enough on
            // RoCE.
            (LEVEL_IB, IB_PATH) => {
                this.cm.resolve_route()?;
                this.fill_route();
                this.complete()?;
            }
            _ => return Err(Failure::plain(libc::ENOSYS)),
        }
        Ok(())
    };
    minus_one_of("rdma_set_option", set())
}

fn invalid() -> Failure {
    Failure::plain(libc::EINVAL)
}
