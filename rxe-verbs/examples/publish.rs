//! A writer puts records into a reader's memory and publishes each with an ATOMIC WRITE of their number.
//! A reader that polls only this word never reads an incomplete record. A FLUSH at the end tells
//! the writer that all records have arrived.
//!
//! Run it: `cargo run -p rxe-verbs --example publish`

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rxe_verbs::{Access, ConnectOptions, Device, Error, Placement, Result, Status};

const TIMEOUT: Duration = Duration::from_secs(10);
const RECORDS: u64 = 3;
const SIZE: usize = 64;
/// The offset of the number of records, a multiple of 8 as an ATOMIC WRITE requires.
const COUNT: usize = 0;

fn main() -> Result<()> {
    run(Ipv4Addr::new(127, 0, 0, 1).into(), Ipv4Addr::new(127, 0, 0, 2).into())
}

/// Runs the whole example between these two addresses.
pub(crate) fn run(writer: IpAddr, reader: IpAddr) -> Result<()> {
    let writer = Device::options("lo").address(writer).open()?;
    let reader = Device::options("lo").address(reader).open()?;
    let (writer_cq, reader_cq) = (writer.create_cq(16)?, reader.create_cq(16)?);
    let reader_pd = reader.create_pd()?;
    let writes = writer.create_pd()?.qp(&writer_cq).build()?;
    let serves = reader_pd.qp(&reader_cq).build()?;

    // The reader's queue pair and memory must permit WRITE and FLUSH.
    let access = Access::REMOTE_WRITE | Access::FLUSH_GLOBAL;
    let log = reader_pd.register(SIZE * 8, Access::LOCAL_WRITE | access)?;
    let options = ConnectOptions { access, ..ConnectOptions::default() };
    writes.connect(&serves.endpoint(), &options)?;
    serves.connect(&writes.endpoint(), &options)?;

    let mut place = SIZE;
    for number in 1..=RECORDS {
        let text = format!("record {number}");
        writes.write_bytes(number, text.as_bytes(), log.remote(place)).unsignaled().post()?;
        writes.atomic_write(number, number, log.remote(COUNT)).unsignaled().post()?;
        place += SIZE;
    }
    let length = u32::try_from(log.len()).unwrap_or(u32::MAX);
    writes.flush(99, log.remote(0), length, Placement::GLOBAL).post()?;

    // The reader takes no part in the transfer: it polls its own memory.
    let start = Instant::now();
    while log.load_u64(COUNT)? < RECORDS {
        if start.elapsed() > TIMEOUT {
            return Err(Error::TimedOut { what: "record", after: TIMEOUT });
        }
        std::thread::yield_now();
    }
    for (_, start) in (0..RECORDS).zip((SIZE..).step_by(SIZE)) {
        let record = log.to_vec(start..start + 8)?;
        println!("{}", String::from_utf8_lossy(&record));
        assert!(record.starts_with(b"record "));
    }

    let done = writer_cq.wait_one(TIMEOUT)?;
    assert_eq!((done.id, done.status), (99, Status::Success));
    println!("all of it is there");
    Ok(())
}
