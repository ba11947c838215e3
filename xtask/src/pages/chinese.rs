//! The words of tables that commands write, in Chinese. What a program prints, and names, stay as they are.

/// Whole cells.
const CELLS: &[(&str, &str)] = &[
    // cargo xtask programs, suite
    ("program", "程序"),
    ("options", "选项"),
    ("rxe–rxe", "两端都是 rxe"),
    ("rxe–kernel", "rxe 作服务端，内核作客户端"),
    ("kernel–rxe", "内核作服务端，rxe 作客户端"),
    ("module", "模块"),
    ("tests", "测试"),
    ("pass with rxe", "通过：rxe"),
    ("all", "合计"),
    ("with rxe", "rxe 的结果"),
    ("fails", "失败"),
    ("fails; with the kernel it fails too", "失败，内核也失败"),
    ("fails; with the kernel it passes", "失败，内核通过"),
    ("fails; with the kernel it is not run", "失败，内核没有运行"),
    // cargo xtask interop, conform
    ("kernel", "内核"),
    ("cells", "项目"),
    ("not good", "不符合"),
    ("peer", "对端"),
    ("over", "协议"),
    ("version", "版本"),
    ("conforms", "符合"),
    ("deviates", "不符合"),
    ("not testable", "无法测试"),
    ("**deviates**", "**不符合**"),
    ("conforms (IPv6: **deviates**)", "符合（IPv6：**不符合**）"),
    ("conforms (IPv6: not testable)", "符合（IPv6：无法测试）"),
    ("**deviates** (IPv6: conforms)", "**不符合**（IPv6：符合）"),
    ("**deviates** (IPv6: not testable)", "**不符合**（IPv6：无法测试）"),
    ("not testable (IPv6: conforms)", "无法测试（IPv6：符合）"),
    ("not testable (IPv6: **deviates**)", "无法测试（IPv6：**不符合**）"),
    ("case", "用例"),
    ("rule", "规范条款"),
    // cargo xtask bench --fabric
    ("senders", "发送端"),
    ("hosts", "主机"),
    ("goodput", "有效吞吐"),
    ("all have completed after", "全部完成的时间"),
    ("sent again", "重传"),
    ("queue: mean, longest", "队列：平均、最长"),
    ("fairness", "公平性"),
    ("message: median, 99 %", "一条消息：中位数、99 %"),
    ("timeouts", "超时"),
    ("failed", "失败"),
    ("off", "关闭"),
    ("on", "开启"),
    // cargo xtask bench
    ("times as good", "倍数"),
    ("CPU s/GB", "CPU 秒/GB"),
    ("99.9th percentile", "99.9 百分位"),
    ("sent again, %", "重传（%）"),
    // cargo xtask bench --write, goals
    ("work", "工作"),
    ("reached", "达到"),
    (
        "64 KiB WRITE, link MTU 1500 / 4200, beside raw UDP with GSO",
        "64 KiB WRITE，链路 MTU 1500 / 4200，与裸 UDP（GSO）相比",
    ),
    (
        "64 KiB SEND, link MTU 1500 / 4200, beside UCX tcp",
        "64 KiB SEND，链路 MTU 1500 / 4200，与 UCX tcp 相比",
    ),
    (
        "64 KiB READ, link MTU 1500 / 4200, beside WRITE",
        "64 KiB READ，链路 MTU 1500 / 4200，与 WRITE 相比",
    ),
    (
        "64 KiB WRITE, link, 1 / 16 / 64 queue pairs, not bound to CPUs, beside bound",
        "64 KiB WRITE，链路，1 / 16 / 64 个队列对，不绑定 CPU，与绑定相比",
    ),
    ("the same, range of all runs", "同上，各次运行之间的差距"),
    ("the same, from the 10th to the 90th percentile", "同上，第 10 到第 90 百分位之间的差距"),
    (
        "64 KiB WRITE, link, 64 queue pairs beside one: `udp` / `packet` / `xdp` / perftest",
        "64 KiB WRITE，链路，64 个队列对与一个相比：`udp` / `packet` / `xdp` / perftest",
    ),
    (
        "64 KiB WRITE, link, 64 queue pairs beside one, receive buffer 208 KiB: `udp` / `packet`",
        "64 KiB WRITE，链路，接收缓冲区 208 KiB，64 个队列对与一个相比：`udp` / `packet`",
    ),
    (
        "the same, beside one with the receive buffer that a device asks for",
        "同上，与使用设备所申请的接收缓冲区的一个相比",
    ),
    (
        "64 KiB WRITE, link, 64 queue pairs, packets sent again: `udp` / `packet` / `xdp`",
        "64 KiB WRITE，链路，64 个队列对，重传的报文：`udp` / `packet` / `xdp`",
    ),
    (
        "the same, receive buffer 208 KiB: `udp` / `packet`",
        "同上，接收缓冲区 208 KiB：`udp` / `packet`",
    ),
    (
        "8 B SEND one way, link, beside raw UDP: `udp` / `packet` / `xdp`",
        "8 B SEND 单程，链路，与裸 UDP 相比：`udp` / `packet` / `xdp`",
    ),
    (
        "8 B SEND one way, link, beside UCX tcp: `udp` / `packet` / `xdp`",
        "8 B SEND 单程，链路，与 UCX tcp 相比：`udp` / `packet` / `xdp`",
    ),
    ("8 B WRITE / SEND rate, link, perftest", "8 B WRITE / SEND 速率，链路，perftest"),
    ("the same, beside `rxe perf`", "同上，与 `rxe perf` 相比"),
    (
        "1 KiB packets without segmentation, `xdp` beside `packet`",
        "1 KiB 报文，不分段，`xdp` 与 `packet` 相比",
    ),
    (
        "64 KiB WRITE / READ / SEND, one host, one copy by the system",
        "64 KiB WRITE / READ / SEND，同一主机，由系统复制一次",
    ),
    ("64 KiB WRITE / READ / SEND, one host", "64 KiB WRITE / READ / SEND，同一主机"),
    ("the same, beside two copies", "同上，与两次复制相比"),
    ("the same, perftest beside `rxe perf`", "同上，perftest 与 `rxe perf` 相比"),
    (
        "8 B SEND one way, one host: `rxe perf` / perftest",
        "8 B SEND 单程，同一主机：`rxe perf` / perftest",
    ),
    ("8 B WRITE / SEND rate, one host", "8 B WRITE / SEND 速率，同一主机"),
    ("8 B WRITE / SEND rate, one host, perftest", "8 B WRITE / SEND 速率，同一主机，perftest"),
    (
        "8 B WRITE / SEND rate, one host, perftest beside `rxe perf`",
        "8 B WRITE / SEND 速率，同一主机，perftest 与 `rxe perf` 相比",
    ),
    (
        "8 B SEND one way, one host, perftest beside `rxe perf`",
        "8 B SEND 单程，同一主机，perftest 与 `rxe perf` 相比",
    ),
    (
        "`ib_write_lat -s 8`, average beside typical: link / one host",
        "`ib_write_lat -s 8`，平均值与典型值相比：链路 / 同一主机",
    ),
    (
        "`ib_write_lat -s 8`, 99 % beside typical: link / one host",
        "`ib_write_lat -s 8`，99 % 与典型值相比：链路 / 同一主机",
    ),
    (
        "`ib_write_lat -s 8`, one host, not bound to CPUs: average / 99 % beside typical",
        "`ib_write_lat -s 8`，同一主机，不绑定 CPU：平均值 / 99 % 与典型值相比",
    ),
    (
        "64 KiB WRITE / SEND / READ in a VM, beside kernel rxe",
        "64 KiB WRITE / SEND / READ，虚拟机，与内核 rxe 相比",
    ),
    (
        "8 B WRITE / SEND one way in a VM, beside kernel rxe",
        "8 B WRITE / SEND 单程，虚拟机，与内核 rxe 相比",
    ),
    ("8 B WRITE rate in a VM, beside kernel rxe", "8 B WRITE 速率，虚拟机，与内核 rxe 相比"),
    ("0.1 % / 1 % of packets lost, beside kernel rxe", "丢包 0.1 % / 1 %，与内核 rxe 相比"),
    ("5 % of packets lost, beside none lost", "丢包 5 %，与不丢包相比"),
    // cargo xtask bench --captures
    ("capture", "抓包文件"),
    ("command", "命令"),
    ("goal", "目标"),
    ("peak memory, goal 256 MiB", "内存峰值，目标 256 MiB"),
    ("packets of 4 KiB", "4 KiB 的报文"),
    ("packets of 64 B", "64 B 的报文"),
    ("packets of 64 B, 1,000 queue pairs", "64 B 的报文，1,000 个队列对"),
    ("decode, only the summary", "decode，只有汇总"),
    ("decode, a line for each packet", "decode，每个报文一行"),
    // cargo xtask bench --live
    ("captured by", "抓包方式"),
    ("no capture", "不抓包"),
    ("beside no capture, goal ≥ 0.5", "与不抓包相比，目标 ≥ 0.5"),
    ("packets in the capture", "抓到的报文"),
    ("one host", "同一主机"),
    ("link MTU 4200", "链路 MTU 4200"),
    // cargo xtask bench --looks
    ("place", "位置"),
    ("threads that look", "查看内存的线程"),
    ("CPUs", "CPU"),
    ("typical", "典型"),
    ("average", "平均"),
    ("link", "链路"),
    // cargo xtask bench --profile
    ("part of the time, in percent", "占用的时间（%）"),
    ("system: rdma_rxe, and what it calls", "系统：rdma_rxe 及其调用的函数"),
    ("kernel rxe", "内核 rxe"),
    ("client", "客户端"),
    ("server", "服务端"),
    ("system: sending, with the way into the other socket", "系统：发送，直到送进对方的套接字"),
    ("system: receiving and polling the socket", "系统：接收和轮询套接字"),
    ("system: copies of payload", "系统：复制载荷"),
    ("system: all else", "系统：其余"),
    ("copies of payload", "复制载荷"),
    ("memory regions: keys, bounds, gather and scatter", "内存区域：密钥、边界、分散与聚集"),
    ("work requests and completions", "工作请求和完成"),
    ("engine: headers, states, timers", "引擎：报头、状态、定时器"),
    ("rings in shared memory", "共享内存中的环"),
    ("backend", "后端"),
    ("verbs and driver", "verbs 和驱动线程"),
    ("reading the clock", "读时钟"),
    ("C library: allocation, locks, all else", "C 库：内存分配、锁、其余"),
    ("the program itself", "程序自身"),
];

/// How cells begin that go on with what a program prints.
const BEGINNINGS: &[(&str, &str)] =
    &[("skipped: ", "跳过："), ("pass with kernel ", "通过：内核 ")];

/// Parts of lines outside of tables. Longer ones stand before their parts.
const PARTS: &[(&str, &str)] = &[
    (
        "\"Times as good\" is what the first row of a test is beside the others, within a round: \
         bandwidth and rate first/other, latency other/first.",
        "“倍数”是第一行与其他行在同一轮之内的比值：带宽和速率为第一行除以其他行，时延为其他行除以\
         第一行。",
    ),
    ("Machine: ", "机器："),
    (" Runs during which the two CPUs did not share a cache: ", "两个 CPU 不共享缓存的运行："),
    (" made again, ", " 次已重测，"),
    (" kept, of ", " 次保留，共 "),
    (" in all.", " 次。"),
    ("Versions of Debian's packages: ", "Debian 软件包的版本："),
    (". Median of ", "。"),
    ("The median of ", ""),
    (" rounds, in brackets the least and the greatest. ", " 轮的中位数，括号内是最小值和最大值。"),
    (" rounds, in brackets the least and the greatest:", " 轮的中位数，括号内是最小值和最大值："),
    ("The first column's functions: ", "第一列的函数："),
    ("Incast", "incast"),
    ("Burst", "突发（burst）"),
    ("All-to-all", "all-to-all"),
    ("bound to CPUs or not", "绑定或不绑定 CPU"),
    (" CPUs", " 个 CPU"),
    ("a virtual machine", "虚拟机"),
    (" bandwidth", " 带宽"),
    (" latency", " 时延"),
    (" message rate", " 消息速率"),
    ("one way", "单程"),
    ("one host", "同一主机"),
    ("in a VM", "虚拟机中"),
    ("link MTU", "链路 MTU"),
    (" queue pairs", " 个队列对"),
    ("receive buffer", "接收缓冲区"),
    (" rounds**", " 轮**"),
    (" % of packets lost", " % 的报文丢失"),
    ("### messages", "### messages：各种操作的消息"),
    ("### psn", "### psn：PSN 的回绕和缺口"),
    ("### duplicates", "### duplicates：重复的请求"),
    ("### order", "### order：操作码的顺序和长度"),
    ("### memory", "### memory：密钥、权限、边界"),
    ("### windows", "### windows：内存窗口"),
    ("### receives", "### receives：接收请求、RNR"),
    ("### shared", "### shared：共享接收队列"),
    ("### atomic_writes", "### atomic_writes：ATOMIC WRITE"),
    ("### flushes", "### flushes：FLUSH"),
    ("### structure", "### structure：报文格式"),
    ("### unreliable", "### unreliable：UC 和 UD"),
    ("### xrc_target", "### xrc_target：XRC 的目标端"),
    ("### xrc_initiator", "### xrc_initiator：XRC 的发起端"),
    ("### requester", "### requester：发给请求方的响应"),
    ("### retries", "### retries：重试"),
    ("### cm_asked", "### cm_asked：通信管理器，对端收到请求"),
    ("### cm_asks", "### cm_asks：通信管理器，对端发出请求"),
    ("### cm_ended", "### cm_ended：通信管理器，断开连接"),
    ("### cm_queries", "### cm_queries：通信管理器，UD 的服务查询（SIDR）"),
    ("### cm_malformed", "### cm_malformed：通信管理器，格式错误的消息"),
    (": ", "："),
    (", ", "，"),
];

/// The same in Chinese, with the figures and names as they are.
pub fn in_chinese(markdown: &str) -> String {
    markdown.split_inclusive('\n').map(line).collect()
}

fn line(line: &str) -> String {
    match line.strip_prefix('|') {
        Some(rest) => rest.split('|').fold(String::new(), |row, cell| row + "|" + &in_cell(cell)),
        None => PARTS.iter().fold(line.to_owned(), |line, (en, zh)| line.replace(en, zh)),
    }
}

fn in_cell(cell: &str) -> String {
    let text = cell.trim();
    if let Some((_, zh)) = CELLS.iter().find(|(en, _)| *en == text) {
        return cell.replace(text, zh);
    }
    let begins = BEGINNINGS.iter().find(|(en, _)| text.starts_with(en));
    match begins {
        Some((en, zh)) => cell.replacen(en, zh, 1),
        None => ranges(cell),
    }
}

/// `1.5 to 2` is `1.5 到 2`.
fn ranges(cell: &str) -> String {
    let mut parts = cell.split(" to ");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = out.ends_with(|c: char| c.is_ascii_digit())
            && part.starts_with(|c: char| c.is_ascii_digit());
        out += if digits { " 到 " } else { " to " };
        out += part;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_and_ranges_are_in_chinese_and_names_are_kept() {
        let english = "**64 KiB WRITE bandwidth, link MTU 1500**\n\n| | GB/s | times as good |\n\
                       | rxe udp | 1.77 (1.14 to 2.40) |  |\n| all |\n";
        let chinese = "**64 KiB WRITE 带宽，链路 MTU 1500**\n\n| | GB/s | 倍数 |\n\
                       | rxe udp | 1.77 (1.14 到 2.40) |  |\n| 合计 |\n";
        assert_eq!(in_chinese(english), chinese);
        let english =
            "**64 queue pairs, receive buffer 208 KiB**\n| times as good | sent again, % |\n";
        let chinese = "**64 个队列对，接收缓冲区 208 KiB**\n| 倍数 | 重传（%） |\n";
        assert_eq!(in_chinese(english), chinese);
        let english = "**64 KiB WRITE bandwidth, link MTU 4200, bound to CPUs or not, 9 rounds**\n";
        let chinese = "**64 KiB WRITE 带宽，链路 MTU 4200，绑定或不绑定 CPU，9 轮**\n";
        assert_eq!(in_chinese(english), chinese);
    }

    #[test]
    fn what_a_program_prints_is_kept() {
        let english =
            "| nc | `ADDRESS 1 \\| cmp - FILE` |\n| skipped: has to be all on, it says | `a` |\n";
        let chinese =
            "| nc | `ADDRESS 1 \\| cmp - FILE` |\n| 跳过：has to be all on, it says | `a` |\n";
        assert_eq!(in_chinese(english), chinese);
    }
}
