use std::io::Write;

use proptest::prelude::*;

use super::*;

/// Returns a pcap file in one of its four forms, with a frame of each length.
fn pcap(magic: u32, big: bool, lens: &[u32]) -> Vec<u8> {
    let word = |n: u32| if big { n.to_be_bytes() } else { n.to_le_bytes() };
    let mut file = word(magic).to_vec();
    for n in [0x0004_0002, 0, 0, 262_144, 0xf000_0001] {
        file.extend(word(n));
    }
    for (nth, len) in (0..).zip(lens) {
        for n in [10 + nth, 123_456, *len, 2 * len] {
            file.extend(word(n));
        }
        file.extend((0..*len).map(|i| i.to_le_bytes()[0]));
    }
    file
}

/// Returns a pcapng block.
fn block(kind: u32, big: bool, body: &[u8]) -> Vec<u8> {
    let word = |n: usize| {
        let n = u32::try_from(n).unwrap();
        if big { n.to_be_bytes() } else { n.to_le_bytes() }
    };
    let len = word(body.len() + 12);
    [&word(kind as usize)[..], &len, body, &len].concat()
}

/// Returns 32-bit words for the body of a block.
fn words(big: bool, list: &[u32]) -> Vec<u8> {
    list.iter().flat_map(|n| if big { n.to_be_bytes() } else { n.to_le_bytes() }).collect()
}

/// Returns a section with three interfaces and packets of each.
/// The second interface counts nanoseconds from 100 s on, the third 1/1024 s.
fn pcapng(big: bool) -> Vec<u8> {
    // Two 16-bit numbers as one word, the first one first in memory.
    let pair = |a: u16, b: u16| {
        let (high, low) = if big { (a, b) } else { (b, a) };
        u32::from(high) << 16 | u32::from(low)
    };
    let byte = |n: u8| if big { u32::from(n) << 24 } else { u32::from(n) };
    let offset = if big { [0, 100] } else { [100, 0] };
    let w = |list: &[u32]| words(big, list);
    let mut file = block(0x0a0d_0d0a, big, &w(&[0x1a2b_3c4d, pair(1, 0), u32::MAX, u32::MAX]));
    file.extend(block(1, big, &w(&[pair(1, 0), 6])));
    let options = [pair(9, 1), byte(9), pair(14, 8), offset[0], offset[1], pair(0, 0)];
    file.extend(block(1, big, &[w(&[pair(101, 0), 0]), w(&options)].concat()));
    file.extend(block(1, big, &w(&[pair(113, 0), 0, pair(9, 1), byte(0x8a)])));
    // A block of an unknown type.
    file.extend(block(0x0bad, big, &[7; 20]));
    let comment = [w(&[pair(1, 3)]), b"a\x1b\n\0".to_vec(), w(&[pair(2, 4), 2, 0])].concat();
    let packet = |interface, ticks: u64, options: &[u8]| {
        let half = |ticks: u64| u32::try_from(ticks & 0xffff_ffff).unwrap();
        let (high, low) = (half(ticks >> 32), half(ticks));
        let head = w(&[interface, high, low, 5, 9]);
        block(6, big, &[&head[..], b"frame\0\0\0", options].concat())
    };
    file.extend(packet(0, 3_000_001, &comment));
    file.extend(packet(1, 5_000_000_007, &[]));
    file.extend(packet(2, 1536, &[]));
    file.extend(block(3, big, &[&w(&[9])[..], b"snaplen\0"].concat()));
    file
}

/// The time and bytes of a frame.
type Frame = (Option<Duration>, Vec<u8>);

/// Reads all frames, and the error after them.
fn read(file: &[u8]) -> (Vec<Frame>, Option<String>) {
    let mut frames = Vec::new();
    let mut reader = match Reader::new(file) {
        Ok(reader) => reader,
        Err(e) => return (frames, Some(e.to_string())),
    };
    loop {
        match reader.next() {
            Ok(Some(record)) => frames.push((record.at, record.bytes.to_vec())),
            Ok(None) => return (frames, None),
            Err(e) => {
                let said = e.to_string();
                assert_eq!(reader.next().map(|r| r.is_some()).ok(), Some(false), "after an error");
                return (frames, Some(said));
            }
        }
    }
}

#[test]
fn pcap_is_read_in_both_byte_orders_and_resolutions() {
    for (magic, nanos) in [(0xa1b2_c3d4, 123_456_000), (0xa1b2_3c4d, 123_456)] {
        for big in [false, true] {
            let file = pcap(magic, big, &[0, 5]);
            let mut reader = Reader::new(&file[..]).unwrap();
            reader.next().unwrap().unwrap();
            let record = reader.next().unwrap().unwrap();
            let expected = Record {
                number: 2,
                at: Some(Duration::new(11, nanos)),
                interface: 0,
                link: LinkType(1),
                bytes: &[0, 1, 2, 3, 4],
                original_len: 10,
                direction: None,
                comments: vec![],
            };
            assert_eq!(record, expected);
            assert!(reader.next().unwrap().is_none());
        }
    }
}

#[test]
fn times_count_from_the_first_frame() {
    let mut start = Start::default();
    let mut since = |at: Option<u64>| {
        let at = at.map(Duration::from_micros);
        let (bytes, link) = (&[][..], LinkType::ETHERNET);
        let (direction, comments) = (None, Vec::new());
        let record = Record {
            number: 1,
            at,
            interface: 0,
            link,
            bytes,
            original_len: 0,
            direction,
            comments,
        };
        start.since(&record).as_micros()
    };
    assert_eq!([Some(70), Some(95), Some(60), None, Some(71)].map(&mut since), [0, 25, 0, 0, 1]);
}

#[test]
fn pcapng_is_read_with_the_clock_and_link_type_of_each_interface() {
    for big in [false, true] {
        let mut file = pcapng(big);
        // A second section, in the other byte order, numbers its interfaces from 0 again.
        file.extend(pcapng(!big));
        let mut reader = Reader::new(&file[..]).unwrap();
        for number in [1, 5] {
            let first = reader.next().unwrap().unwrap();
            assert_eq!((first.number, first.link, first.interface), (number, LinkType(1), 0));
            assert_eq!((first.at, first.original_len), (Some(Duration::new(3, 1000)), 9));
            assert_eq!((first.bytes, first.direction), (&b"frame"[..], Some(Direction::Outbound)));
            assert_eq!(first.comments, ["a\u{fffd}\n"], "no control characters");
            let second = reader.next().unwrap().unwrap();
            assert_eq!((second.link, second.at), (LinkType(101), Some(Duration::new(105, 7))));
            let third = reader.next().unwrap().unwrap();
            let half = Duration::from_millis(1500);
            assert_eq!((third.link, third.at), (LinkType(113), Some(half)));
            let simple = reader.next().unwrap().unwrap();
            assert_eq!((simple.at, simple.bytes, simple.original_len), (None, &b"snaple"[..], 9));
        }
        assert!(reader.next().unwrap().is_none());
    }
}

#[test]
fn compressed_files_read_the_same() {
    let file = pcap(0xa1b2_c3d4, false, &[100, 1000, 60]);
    let plain = read(&file);
    assert_eq!((plain.0.len(), &plain.1), (3, &None));
    let gzip = |bytes: &[u8]| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(bytes).unwrap();
        out.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| {
        ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest)
    };
    let (head, tail) = file.split_at(70);
    assert_eq!(read(&gzip(&file)), plain);
    assert_eq!(read(&[gzip(head), gzip(tail)].concat()), plain, "two members");
    assert_eq!(read(&zstd(&file)), plain);
    let skippable = [0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    assert_eq!(read(&[zstd(head), skippable.into(), zstd(tail)].concat()), plain, "two frames");
    assert_eq!(read(&[&skippable[..], &zstd(&file)].concat()), plain, "skippable first");
    for whole in [gzip(&file), zstd(&file)] {
        let said = read(&whole[..whole.len() - 20]).1.unwrap();
        assert!(said.contains("the compressed file ends here"), "{said}");
    }
    // Frames decoded before the damaged place are returned, also those that a decoder holds for
    // later blocks.
    let long = pcap(0xa1b2_c3d4, false, &[1000; 400]);
    for whole in [gzip(&long), zstd(&long)] {
        let (frames, said) = read(&whole[..whole.len() - 20]);
        let said = said.unwrap();
        assert!(frames.len() > 380, "{} frames: {said}", frames.len());
        let place = format!("frame {}, at byte ", frames.len() + 1);
        assert!(said.contains(&place) && said.contains("the compressed file ends here"), "{said}");
    }
    let mut broken = zstd(&long);
    let end = broken.len() - 10;
    broken[end..].fill(0xff);
    let (frames, said) = read(&broken);
    assert!(frames.len() > 100 && said.is_some(), "{} frames: {said:?}", frames.len());
    let mut damaged = gzip(&file);
    let middle = damaged.len() / 2;
    damaged[middle] ^= 0x55;
    assert!(read(&damaged).1.is_some(), "a checksum is wrong");
    let said = read(&[&zstd(&file)[..], b"garbage!"].concat()).1.unwrap();
    assert!(said.contains("frame 4, at byte ") && said.contains("zstd frame"), "{said}");
}

#[test]
fn a_file_that_is_cut_says_where_and_gives_what_is_before() {
    for file in [pcap(0xa1b2_c3d4, false, &[100, 100]), pcapng(true)] {
        let whole = read(&file).0;
        for len in 0..file.len() {
            let (frames, error) = read(&file[..len]);
            assert_eq!(frames, whole[..frames.len()]);
            if let Some(said) = &error
                && said.contains("frame")
            {
                assert!(said.starts_with(&format!("frame {}, at byte ", frames.len() + 1)));
                assert!(said.contains("the file ends here: "), "{said}");
            }
            assert!(error.is_some() || len >= 24);
        }
    }
}

#[test]
fn damage_is_named() {
    let of = |file: &[u8]| read(file).1.unwrap();
    assert_eq!(of(b""), "the file is empty");
    assert!(of(b"no").contains("this is no capture") && of(&[7; 100]).contains("is no capture"));
    let long = pcap(0xa1b2_c3d4, false, &[4]);
    let mut damaged = long.clone();
    damaged[32..36].fill(0xff);
    assert_eq!(
        of(&damaged),
        "frame 1, at byte 24: the file is damaged here: a frame of 4294967295 bytes, more than \
         16777216"
    );
    let section = block(0x0a0d_0d0a, false, &words(false, &[0x1a2b_3c4d, 1, 0, 0]));
    let with = |block: Vec<u8>| of(&[section.clone(), block].concat());
    assert!(with(words(false, &[6, 13, 0])).contains("a block cannot have 13 bytes"));
    assert!(with(words(false, &[6, 12, 16])).contains("12 bytes at its start and 16 at its end"));
    assert!(with(words(false, &[6, 1 << 30])).contains("a frame of 1073741824 bytes"));
    let packet = block(6, false, &words(false, &[3, 0, 0, 0, 0]));
    assert!(with(packet).contains("interface 3, which is not described"));
    let interface = block(1, false, &words(false, &[1, 0]));
    let packet = block(6, false, &words(false, &[0, 0, 0, 5, 5, 1]));
    assert!(with([interface, packet].concat()).contains("shorter than the packet in it"));
    let magic = block(0x0a0d_0d0a, false, &words(false, &[7, 1, 0, 0]));
    assert!(of(&magic).contains("a section begins without its byte order"));
    let huge = [section.clone(), words(false, &[9, 0xffff_fff0])].concat();
    assert!(of(&huge).contains("the file ends here"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(mut bytes: Vec<u8>, which in 0usize..4) {
        let heads = [pcap(0xa1b2_c3d4, false, &[]), pcapng(false), vec![0x1f, 0x8b, 8], vec![]];
        let head = &heads[which];
        bytes.splice(0..0, head.iter().copied());
        let (frames, _) = read(&bytes);
        if which < 2 {
            let all: usize = frames.iter().map(|(_, frame)| frame.len()).sum();
            prop_assert!(all <= bytes.len());
        }
    }
}

/// Returns an Enhanced Packet Block in this machine's byte order.
fn packet_block(interface: u32, ticks: u32, frame: &[u8]) -> Vec<u8> {
    let big = cfg!(target_endian = "big");
    let len = u32::try_from(frame.len()).unwrap();
    let mut body = words(big, &[interface, 0, ticks, len, len]);
    body.extend_from_slice(frame);
    body.resize(body.len().next_multiple_of(4), 0);
    block(6, big, &body)
}

#[test]
fn blocks_without_a_section_are_read_until_one_is_wrong() {
    let statistics = block(5, cfg!(target_endian = "big"), &[0; 12]);
    let good = [packet_block(0, 7, b"first"), statistics, packet_block(0, 8, b"second")].concat();
    let mut blocks = Blocks::new(&good);
    let first = blocks.next(1).unwrap().unwrap();
    assert_eq!((first.bytes, first.number, first.link), (&b"first"[..], 1, LinkType(1)));
    assert_eq!(first.at, Some(Duration::from_nanos(7)));
    assert_eq!(blocks.next(2).unwrap().unwrap().bytes, b"second");
    assert!(blocks.next(3).unwrap().is_none());
    // Invalid input: another interface, a truncated block, and a block of length 0.
    for bad in [packet_block(1, 0, b"x"), good[..good.len() - 1].to_vec(), vec![0; 12]] {
        let mut blocks = Blocks::new(&bad);
        let read = |_| blocks.next(1).map(|found| found.is_some());
        let all: Vec<_> = (0..4).map(read).collect();
        assert_eq!(all.iter().filter(|read| read.is_err()).count(), 1, "{all:?}");
        assert!(matches!(all[3], Ok(false)), "nothing comes after an error");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_blocks_or_refused(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0u32..8,
        len in 0u32..220,
    ) {
        let bytes = [&kind.to_ne_bytes()[..], &len.to_ne_bytes(), &bytes, &len.to_ne_bytes()].concat();
        let mut blocks = Blocks::new(&bytes);
        while let Ok(Some(record)) = blocks.next(1) {
            prop_assert!(record.bytes.len() <= bytes.len());
        }
        prop_assert!(matches!(blocks.next(1), Ok(None)));
    }
}
