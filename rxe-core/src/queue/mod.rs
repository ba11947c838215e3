//! Send and receive work requests, the rings that hold them, and completions. IBTA 10.7, 11.4.

mod bounded;
mod channel;
mod completion;
mod doorbells;
mod request;
mod ring;
mod srq;
mod xrc;

pub use crate::mem::{Sge, SgeList};
pub use crate::types::{CompletionOp, Status};
pub use channel::{Arming, ChannelEvents, Signal};
pub use completion::{Arm, Completion, CompletionQueue, Immediate, Notify};
pub use doorbells::Doorbells;
pub use request::{
    AddressHandle, Datagram, Payload, Placement, RecvRequest, Remote, SendFlags, SendOp,
    SendRequest,
};
pub use ring::{PostError, WorkRing};
pub use srq::SharedReceiveQueue;
pub use xrc::XrcDomain;
