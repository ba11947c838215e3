//! Verbs calls for which the specification and the providers of rdma-core differ, or the
//! specification is silent.
//! `tests/c/abi.c` tests what rxe does.

/// One such call.
pub(crate) struct Call {
    /// The call and its special circumstances.
    pub(crate) call: &'static str,
    /// What the specification says, with its section.
    pub(crate) specification: &'static str,
    /// What rdma-core and its providers do.
    pub(crate) providers: &'static str,
    /// What rxe does.
    pub(crate) here: &'static str,
}

/// All such calls.
pub(crate) const CALLS: &[Call] = &[
    Call {
        call: "`ibv_reg_mr` of 0 bytes",
        specification: "says nothing (11.2.8.2)",
        providers: "ConnectX registers it; kernel rxe registers it too, but refuses an address on a page boundary (EINVAL)",
        here: "registered: its keys fit requests of length 0",
    },
    Call {
        call: "`ibv_rereg_mr` with new memory of 0 bytes or at NULL, with unknown flags, or with access rights but without `IBV_REREG_MR_CHANGE_ACCESS`",
        specification: "an invalid parameter (11.2.8.5)",
        providers: "libibverbs refuses it: `IBV_REREG_MR_ERR_INPUT`",
        here: "as libibverbs",
    },
    Call {
        call: "`ibv_rereg_mr` with rights that do not go together",
        specification: "invalid access rights (11.2.8.5)",
        providers: "the device refuses it: `IBV_REREG_MR_ERR_CMD`, and the region is as it was",
        here: "as providers",
    },
    Call {
        call: "an atomic whose local list is longer than 8 bytes",
        specification: "8 bytes are returned (9.4.5); the list must have room for them",
        providers: "ConnectX and kernel rxe take it and fill the first 8 bytes",
        here: "as providers; shorter lists are refused (EINVAL)",
    },
    Call {
        call: "a destination QP number with bits above the low 24 (`dest_qp_num`, `wr.ud.remote_qpn`)",
        specification: "a QP number has 24 bits (9.2.4)",
        providers: "put the low 24 bits into packets",
        here: "masked; `ibv_query_qp` shows the 24 bits",
    },
    Call {
        call: "an object whose `handle` or `context` was overwritten, in calls that make, change, query or destroy",
        specification: "an invalid handle is an error (11.2)",
        providers: "the kernel looks the handle up in the context's table: ENOENT, or EINVAL where another object is made of it",
        here: "ENOENT. Posting and polling do not look at the fields, as providers with queues in user space do not",
    },
    Call {
        call: "`ibv_query_gid_table` with less room than the table has entries",
        specification: "not in the specification",
        providers: "the kernel refuses it: -EINVAL",
        here: "as the kernel",
    },
    Call {
        call: "`cmd_fd` of a context, and `ibv_import_device`",
        specification: "not in the specification",
        providers: "the descriptor for commands to the kernel; rxe's provider cannot import one (EOPNOTSUPP)",
        here: "an open descriptor, to be duplicated or given flags but without commands; importing it works in the process that has opened the device, and is EOPNOTSUPP in others",
    },
];
