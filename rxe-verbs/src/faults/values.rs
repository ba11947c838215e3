//! The names of statuses, events and errors in the fault language.

use rxe_core::queue::Status;

use crate::event::AsyncKind;

/// Completion statuses, named as in verbs, without `IBV_WC_` and `_ERR`.
pub(super) const STATUSES: [(&str, Status); 11] = [
    ("LOC_LEN", Status::LocalLength),
    ("LOC_QP_OP", Status::LocalQpOperation),
    ("LOC_PROT", Status::LocalProtection),
    ("WR_FLUSH", Status::WorkRequestFlushed),
    ("MW_BIND", Status::MemoryWindowBind),
    ("BAD_RESP", Status::BadResponse),
    ("REM_INV_REQ", Status::RemoteInvalidRequest),
    ("REM_ACCESS", Status::RemoteAccess),
    ("REM_OP", Status::RemoteOperation),
    ("RETRY_EXC", Status::RetryExceeded),
    ("RNR_RETRY_EXC", Status::RnrRetryExceeded),
];

/// Asynchronous events of a device, named as in verbs, without `IBV_EVENT_`.
pub(super) const EVENTS: [(&str, AsyncKind); 4] = [
    ("PORT_ERR", AsyncKind::PortErr),
    ("PORT_ACTIVE", AsyncKind::PortActive),
    ("GID_CHANGE", AsyncKind::GidChange),
    ("DEVICE_FATAL", AsyncKind::DeviceFatal),
];

/// Error numbers by name.
pub(super) const ERRNOS: [(&str, i32); 20] = [
    ("EPERM", libc::EPERM),
    ("ENOENT", libc::ENOENT),
    ("EINTR", libc::EINTR),
    ("EIO", libc::EIO),
    ("ENXIO", libc::ENXIO),
    ("EBADF", libc::EBADF),
    ("EAGAIN", libc::EAGAIN),
    ("ENOMEM", libc::ENOMEM),
    ("EACCES", libc::EACCES),
    ("EFAULT", libc::EFAULT),
    ("EBUSY", libc::EBUSY),
    ("ENODEV", libc::ENODEV),
    ("EINVAL", libc::EINVAL),
    ("ENFILE", libc::ENFILE),
    ("EMFILE", libc::EMFILE),
    ("ENOSPC", libc::ENOSPC),
    ("ENOSYS", libc::ENOSYS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("ENETDOWN", libc::ENETDOWN),
    ("ETIMEDOUT", libc::ETIMEDOUT),
];
