//! The services that messages can be exchanged over, and what differs between them.

use rxe_core::types::Mtu;
use rxe_verbs::QpType;

use crate::common::Error;

/// How messages go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Transport {
    /// Reliable connection, as ibv_rc_pingpong
    #[default]
    Rc,
    /// Unreliable connection, as ibv_uc_pingpong
    Uc,
    /// Unreliable datagram, as ibv_ud_pingpong
    Ud,
    /// Reliable connections that share their receives, as ibv_srq_pingpong
    Srq,
}

impl Transport {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq => "srq",
        }
    }

    pub(super) const fn service(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
        }
    }

    /// Addresses that each side tells: ibv_srq_pingpong tells 256, whether it has so many or not.
    pub(super) const fn messages(self) -> usize {
        match self {
            Self::Srq => 256,
            _ => 1,
        }
    }

    /// Bytes that stand in front of what has been received: the GRH.
    pub(super) const fn front(self) -> usize {
        match self {
            Self::Ud => 40,
            _ => 0,
        }
    }

    /// Bytes in a message.
    pub(super) fn size(self, asked: Option<u32>, link: Mtu) -> Result<u32, Error> {
        if self != Self::Ud {
            return Ok(asked.unwrap_or(4096));
        }
        let most = u32::try_from(link.bytes()).unwrap_or(u32::MAX);
        match asked {
            None => Ok(most.min(2048)),
            Some(size) if size <= most => Ok(size),
            Some(size) => {
                let what = format!("{size} bytes do not fit a datagram, which holds one path MTU");
                Err(Error::new(what, format!("use -s {most} or less here")))
            }
        }
    }
}
