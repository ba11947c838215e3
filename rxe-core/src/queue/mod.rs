//! What programs hand to queue pairs and get back: send and receive work requests, the rings they
//! wait in, and completions. IBTA 10.7, 11.4.

mod bounded;
mod completion;
mod request;
mod ring;
mod srq;
mod xrc;

pub use completion::{Arm, Completion, CompletionOp, CompletionQueue, Immediate, Notify, Status};
pub use request::{
    AddressHandle, Datagram, Payload, Placement, RecvRequest, Remote, SendFlags, SendOp,
    SendRequest, Sge, SgeList,
};
pub use ring::{PostError, WorkRing};
pub use srq::SharedReceiveQueue;
pub use xrc::XrcDomain;
