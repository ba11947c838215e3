//! The filters of `rxe decode`.

use std::net::IpAddr;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use rxe_lab::packets::{Filter, Only, number, opcode, psns};

/// Filters. A packet is shown if each of them takes it.
#[derive(clap::Args, Default)]
pub(in crate::commands) struct Select {
    /// Only packets to or from this queue pair; several: --qp 0x11 --qp 0x12. Only datagrams name the
    /// one they are from
    #[arg(long, value_name = "QPN", value_parser = number, value_delimiter = ',')]
    qp: Vec<u32>,
    /// Only these opcodes: a number, or a part of the name, as in send or rc_acknowledge
    #[arg(long, value_name = "OPCODE", value_parser = opcode, value_delimiter = ',')]
    opcode: Vec<String>,
    /// Only packets to or from this address
    #[arg(long, value_name = "IP", value_delimiter = ',')]
    addr: Vec<IpAddr>,
    /// Only these PSNs, as in 0x5f3a01 or 100-200; a range may wrap
    #[arg(long, value_name = "A-B", value_parser = psns)]
    psn: Option<(u32, u32)>,
    /// Only packets inside a tunnel of this virtual network: the VNI of VXLAN or GENEVE, the VSID of NVGRE
    #[arg(long, value_name = "N", value_parser = number, value_delimiter = ',')]
    vni: Vec<u32>,
    /// Only packets inside a tunnel of this session: the session ID of ERSPAN or PPPoE
    #[arg(long, value_name = "N", value_parser = number, value_delimiter = ',')]
    session: Vec<u32>,
    /// Only packets of which this is said. What comes after malformed are findings of `rxe check`: they
    /// take the frames that show one, and the file is read twice
    #[arg(long, value_name = "WHAT", value_delimiter = ',', value_parser = only())]
    only: Vec<Only>,
}

/// Returns the parser of `--only`.
fn only() -> impl TypedValueParser<Value = Only> {
    let all = Only::all();
    let values = all.iter().map(|(name, what, _)| PossibleValue::new(*name).help(*what));
    PossibleValuesParser::new(values.collect::<Vec<_>>())
        .map(move |name| all.iter().find(|(other, ..)| *other == name).expect("it is one").2)
}

impl From<Select> for Filter {
    fn from(select: Select) -> Self {
        let Select { qp, opcode, addr, psn, vni, session, only } = select;
        Self {
            qps: qp,
            opcodes: opcode,
            addresses: addr,
            psns: psn,
            networks: vni,
            sessions: session,
            only,
            ..Self::default()
        }
    }
}
