//! The transport services, and the differences between them.

use rxe_core::types::Mtu;
use rxe_verbs::QpType;

use crate::common::Error;

/// The transport service.
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
    /// Extended reliable connection, as ibv_xsrq_pingpong
    Xrc,
}

impl Transport {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Srq => "srq",
            Self::Xrc => "xrc",
        }
    }

    /// Returns the type of the queue pairs; for XRC, of the initiators.
    pub(super) const fn service(self) -> QpType {
        match self {
            Self::Rc | Self::Srq => QpType::Rc,
            Self::Uc => QpType::Uc,
            Self::Ud => QpType::Ud,
            Self::Xrc => QpType::XrcSend,
        }
    }

    /// Returns the number of addresses that each side sends. ibv_srq_pingpong always sends 256.
    pub(super) const fn messages(self) -> usize {
        match self {
            Self::Srq => 256,
            _ => 1,
        }
    }

    /// Returns the number of bytes in front of a received message: the GRH.
    pub(super) const fn front(self) -> usize {
        match self {
            Self::Ud => 40,
            _ => 0,
        }
    }

    /// Returns the default number of exchanges.
    pub(super) const fn iters(self) -> u32 {
        match self {
            Self::Xrc => 5,
            _ => 1000,
        }
    }

    /// Returns the spelling of the LID 0 that names this service in the exchange. XRC has an
    /// exchange of its own. C's `%x` reads every spelling as 0.
    pub(super) const fn zero(self) -> &'static str {
        match self {
            Self::Rc => "0x00",
            Self::Uc => "0X00",
            Self::Ud => " 0x0",
            Self::Srq => " 0X0",
            Self::Xrc => "0000",
        }
    }

    /// Returns the service with this spelling.
    pub(super) fn of_zero(spelled: &str) -> Option<Self> {
        [Self::Rc, Self::Uc, Self::Ud, Self::Srq].into_iter().find(|t| t.zero() == spelled)
    }

    /// Returns the length of a message in bytes. A datagram holds at most one path MTU.
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
