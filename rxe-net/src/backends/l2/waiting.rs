//! A queue of frames that a socket had no room for.

use std::collections::VecDeque;
use std::io;

use crate::backends::loss::Loss;

/// The queued frames in sending order. Their total size is bounded.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    frames: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// The maximum number of waiting bytes.
const MAX_WAITING: usize = 1 << 20;

impl Waiting {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Sends a frame, in parts. Queues it if others wait or if there is no room.
    ///
    /// # Errors
    /// The reason why the frame is lost.
    pub(super) fn send_or_keep(
        &mut self,
        parts: &[&[u8]],
        send: impl FnMut(&[&[u8]]) -> io::Result<()>,
    ) -> Result<(), Loss> {
        if self.is_empty() {
            match again(parts, send) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                sent => return sent.map_err(|e| Loss::of(&e).unwrap_or(Loss::Down)),
            }
        }
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.bytes + length > MAX_WAITING {
            return Err(Loss::NoBuffer);
        }
        self.bytes += length;
        self.frames.push_back(parts.concat());
        Ok(())
    }

    /// Sends queued frames until there is no room. A frame that cannot be sent is lost.
    pub(super) fn flush(&mut self, mut send: impl FnMut(&[&[u8]]) -> io::Result<()>) {
        while let Some(frame) = self.frames.front() {
            let sent = again(&[frame], &mut send);
            if sent.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock) {
                return;
            }
            self.bytes -= frame.len();
            self.frames.pop_front();
        }
    }
}

/// Calls `send` again if a signal has interrupted it.
fn again(parts: &[&[u8]], mut send: impl FnMut(&[&[u8]]) -> io::Result<()>) -> io::Result<()> {
    loop {
        match send(parts) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            sent => return sent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A socket with room for `room` frames.
    struct Socket {
        room: usize,
        sent: Vec<Vec<u8>>,
    }

    impl Socket {
        fn send(&mut self, parts: &[&[u8]]) -> io::Result<()> {
            self.room = self.room.checked_sub(1).ok_or(io::ErrorKind::WouldBlock)?;
            self.sent.push(parts.concat());
            Ok(())
        }
    }

    #[test]
    fn frames_keep_their_order_when_there_is_no_room() {
        let (mut waiting, mut socket) = (Waiting::default(), Socket { room: 2, sent: vec![] });
        for n in 0..4 {
            waiting.send_or_keep(&[&[n], &[n]], |parts| socket.send(parts)).unwrap();
        }
        assert_eq!(socket.sent.len(), 2);
        socket.room = 1;
        waiting.flush(|parts| socket.send(parts));
        socket.room = 2;
        // The frame does not overtake the waiting one.
        waiting.send_or_keep(&[&[4, 4]], |parts| socket.send(parts)).unwrap();
        assert!(!waiting.is_empty());
        waiting.flush(|parts| socket.send(parts));
        assert!(waiting.is_empty());
        assert_eq!(socket.sent, [0u8, 1, 2, 3, 4].map(|n| vec![n, n]));
    }

    #[test]
    fn what_waits_is_bounded_and_what_cannot_be_sent_does_not_wait() {
        let mut waiting = Waiting::default();
        let full = |_: &[&[u8]]| Err(io::ErrorKind::WouldBlock.into());
        let half = vec![0; MAX_WAITING / 2];
        assert_eq!(
            [0; 3].map(|_| waiting.send_or_keep(&[&half], full)),
            [Ok(()), Ok(()), Err(Loss::NoBuffer)]
        );
        let down = |_: &[&[u8]]| Err(io::Error::from_raw_os_error(libc::ENETDOWN));
        waiting.flush(down);
        assert!(waiting.is_empty() && waiting.bytes == 0);
        assert_eq!(waiting.send_or_keep(&[&[1]], down), Err(Loss::Down));
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_signal_loses_no_frame() {
        let (mut waiting, mut calls) = (Waiting::default(), 0);
        let interrupted_once = |_: &[&[u8]]| {
            calls += 1;
            if calls == 1 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(()) }
        };
        waiting.send_or_keep(&[&[1]], interrupted_once).unwrap();
        assert!(waiting.is_empty() && calls == 2);
    }
}
