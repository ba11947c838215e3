//! Memory windows, which give peers access to part of a region. Work requests bind and invalidate
//! them. IBTA 10.6.7.

use super::{Access, AccessError, PdId};
use crate::sync::Mutex;
use crate::types::{Key, Qpn};

/// The kind of a memory window. The numbers are those of `ibv_mw_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum WindowType {
    /// Type 1: belongs to a protection domain. Binding the window again replaces its range and key.
    Type1 = 1,
    /// Type 2B: belongs to the queue pair that bound the window. Either end can invalidate it.
    Type2 = 2,
}

/// The range and the access rights of a window (`ibv_mw_bind_info`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The local key of the region.
    pub region: Key,
    /// The address of the window's first byte in the region.
    pub addr: u64,
    /// The length in bytes; 0 unbinds a type 1 window.
    pub length: u64,
    /// The rights of peers: only remote rights, and [`Access::ZERO_BASED`] for type 2.
    pub access: Access,
}

/// The reason why a window was not bound or invalidated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowError {
    /// No window has this key.
    UnknownKey,
    /// The type 2 window is already bound and must be invalidated first. o10-37.2.30.
    Bound,
    /// The type 2 window is not bound.
    NotBound,
    /// The window belongs to another protection domain. C10-72.
    OtherPd,
    /// The window is bound to another queue pair.
    OtherQp,
    /// The operation does not fit the type of the window. A type 1 window cannot be zero-based and
    /// cannot be invalidated; a type 2 window cannot be bound with length 0.
    WrongType,
    /// The region does not permit the binding: the region does not exist, has no MW_BIND right,
    /// lacks a right that the window requests, is zero-based, or is too short. C10-73 to C10-75.
    Region,
}

/// A window in the table of keys. Each binding changes the low 8 bits of its key.
#[derive(Debug)]
pub(super) struct MemoryWindow {
    pub(super) pd: PdId,
    pub(super) kind: WindowType,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct State {
    key: Key,
    bound: Option<(Binding, Qpn)>,
}

impl MemoryWindow {
    pub(super) fn new(pd: PdId, kind: WindowType, key: Key) -> Self {
        Self { pd, kind, state: Mutex::new(State { key, bound: None }) }
    }

    /// Returns the region and the address in it for an access through the window. The window must
    /// permit `need` for the whole range.
    pub(super) fn resolve(
        &self,
        pd: PdId,
        qpn: Qpn,
        key: Key,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(Key, u64), AccessError> {
        let state = *self.state.lock();
        let bound = state.bound.filter(|_| state.key == key);
        let (binding, holder) = bound.ok_or(AccessError::UnknownKey)?;
        if self.pd != pd || (self.kind == WindowType::Type2 && holder != qpn) {
            return Err(AccessError::OtherPd);
        }
        if !binding.access.contains(need) {
            return Err(AccessError::NotPermitted);
        }
        let base = if binding.access.contains(Access::ZERO_BASED) { 0 } else { binding.addr };
        let offset = addr.checked_sub(base).ok_or(AccessError::OutOfBounds)?;
        let end = offset.checked_add(len).ok_or(AccessError::OutOfBounds)?;
        if end > binding.length {
            return Err(AccessError::OutOfBounds);
        }
        let at = binding.addr.checked_add(offset).ok_or(AccessError::OutOfBounds)?;
        debug_assert!(at >= binding.addr && at - binding.addr + len <= binding.length);
        Ok((binding.region, at))
    }

    /// Binds the window and sets the low 8 bits of its key to `new_key`. The caller must have
    /// checked the region, if the binding has one. Returns the region of the previous binding.
    pub(super) fn bind(
        &self,
        pd: PdId,
        qpn: Qpn,
        new_key: u8,
        binding: Binding,
    ) -> Result<Option<Key>, WindowError> {
        let mut state = self.state.lock();
        if self.pd != pd {
            return Err(WindowError::OtherPd);
        }
        match self.kind {
            WindowType::Type1 if binding.access.contains(Access::ZERO_BASED) => {
                return Err(WindowError::WrongType);
            }
            WindowType::Type2 if binding.length == 0 => return Err(WindowError::WrongType),
            WindowType::Type2 if state.bound.is_some() => return Err(WindowError::Bound),
            _ => {}
        }
        debug_assert!(self.kind == WindowType::Type1 || binding.length > 0);
        state.key = Key::new(state.key.value() & !0xff | u32::from(new_key));
        let bound = (binding.length > 0).then_some((binding, qpn));
        let before = std::mem::replace(&mut state.bound, bound);
        Ok(before.map(|(binding, _)| binding.region))
    }

    /// Invalidates a type 2 window. Returns the region of its binding.
    pub(super) fn invalidate(&self, qpn: Qpn, key: Key) -> Result<Key, WindowError> {
        let mut state = self.state.lock();
        if state.key != key {
            return Err(WindowError::UnknownKey);
        }
        if self.kind == WindowType::Type1 {
            return Err(WindowError::WrongType);
        }
        let (binding, holder) = state.bound.ok_or(WindowError::NotBound)?;
        if holder != qpn {
            return Err(WindowError::OtherQp);
        }
        state.bound = None;
        Ok(binding.region)
    }

    /// Unbinds the window. Returns the region of its binding.
    pub(super) fn unbind(&self) -> Option<Key> {
        self.state.lock().bound.take().map(|(binding, _)| binding.region)
    }

    /// Returns the region that the window is bound to, and the QP that bound it.
    pub(super) fn bound(&self) -> Option<(Key, Qpn)> {
        self.state.lock().bound.map(|(binding, qpn)| (binding.region, qpn))
    }

    pub(super) fn key(&self) -> Key {
        self.state.lock().key
    }
}
