//! Reading another process's memory: process_vm_readv(2).

use std::io;

use rxe_core::mem::WritableSpan;
use smallvec::SmallVec;

/// A range of another process's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

/// Ranges in a call at most, at either end. The system's limit is 1024.
pub(crate) const MAX_RANGES: usize = 64;

/// Copies ranges of the memory of process `pid`, in their order, to `to`, first `shared` and then `private`. All of it
/// is of one process image: that which the process has when the call begins.
///
/// # Errors
/// There is no such process, this one may not read it, a range is not mapped at either end, or the ranges
/// have not as many bytes as there is room for. Some bytes may have been written.
pub(crate) fn read(
    pid: u32,
    from: &[Range],
    shared: &[WritableSpan<'_>],
    private: &mut [u8],
) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let pid = libc::pid_t::try_from(pid).map_err(|_| invalid())?;
    if from.len() > MAX_RANGES || shared.len() >= MAX_RANGES {
        return Err(invalid());
    }
    let mut local: SmallVec<[libc::iovec; 4]> = shared
        .iter()
        .map(|span| libc::iovec { iov_base: span.as_ptr().as_ptr().cast(), iov_len: span.len() })
        .collect();
    local.push(libc::iovec { iov_base: private.as_mut_ptr().cast(), iov_len: private.len() });
    let mut remote = SmallVec::<[libc::iovec; 8]>::new();
    let mut asked = 0u64;
    for range in from {
        let addr = usize::try_from(range.addr).map_err(|_| invalid())?;
        let iov_len = usize::try_from(range.len).map_err(|_| invalid())?;
        asked = asked.checked_add(range.len).ok_or_else(invalid)?;
        remote.push(libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len });
    }
    let room = local.iter().map(|part| part.iov_len as u64).sum::<u64>();
    if asked != room {
        return Err(invalid());
    }
    // SAFETY: both lists are as long as is said. The spans may be written while they live, which is as long as
    // this call at least, and the system writes to them as other processes may at any time. `private` is
    // exclusive. What is remote is not touched here.
    let got = unsafe {
        libc::process_vm_readv(
            pid,
            local.as_ptr(),
            local.len() as libc::c_ulong,
            remote.as_ptr(),
            remote.len() as libc::c_ulong,
            0,
        )
    };
    match u64::try_from(got) {
        Ok(got) if got == asked => Ok(()),
        // It ends before what is not mapped.
        Ok(_) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use rxe_core::mem::Buffer;

    use super::*;

    #[test]
    fn ranges_of_a_process_are_copied_in_their_order() {
        let text = *b"abcdefgh";
        let at = |from: usize, len| Range { addr: text[from..].as_ptr() as u64, len };
        let to = Buffer::zeroed(4);
        let spans = [to.span(0, 1).unwrap(), to.span(1, 3).unwrap()];
        let mut rest = [0; 2];
        let own = std::process::id();
        read(own, &[at(4, 3), at(0, 2), at(7, 1)], &spans, &mut rest).unwrap();
        let mut first = [0; 4];
        to.span(0, 4).unwrap().read(&mut first).unwrap();
        assert_eq!((&first, &rest), (b"efga", b"bh"));
        for wrong in [[at(0, 5), at(0, 2)], [at(0, u64::MAX), at(0, 2)]] {
            assert!(read(own, &wrong, &spans, &mut rest).is_err());
        }
        let nowhere = Range { addr: 1, len: 6 };
        let error = read(own, &[nowhere], &spans, &mut rest).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
    }
}
